"""What racing processes do: save a step, safely and not."""

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import ckpt
from tests._harness.servers import BUCKET, Cloud
from tests.faults._trees import make_tree
from tests.stores._places import CloudPlace, read_objects


def save(url: str, step: int, seed: int) -> None:
    """Save the tree of a seed."""
    ckpt.save(make_tree(seed), None, url, step=step)


def save_if_absent(url: str, step: int, seed: int) -> None:
    """Unsafe: another writer may come between the look and the record."""
    if step in ckpt.steps(url):
        raise ckpt.StepExists(f"{step}")
    s3 = url.startswith("s3:")
    server = os.environ["AWS_ENDPOINT_URL" if s3 else "TENSORSTORE_GCS_HTTP_URL"]
    port = urlsplit(server).port or 0
    place = CloudPlace(
        Cloud("s3" if s3 else "gs", port, port, None), url.partition(f"{BUCKET}/")[2]
    )
    for name, data in read_objects(lambda beside: save(beside, step, seed)).items():
        place.put(name, data)


def save_when_all_are_ready(
    saver: str, url: str, step: int, seed: int, meeting: str, count: int
) -> None:
    """Wait until `count` processes are here, then save."""
    Path(meeting, str(seed)).touch()
    while len(os.listdir(meeting)) < count:
        time.sleep(0.0005)
    globals()[saver](url, step, seed)
