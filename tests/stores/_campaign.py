"""The campaign of object stores: every fault on every request, and long races."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests._harness.forkserver import ForkServer
from tests._harness.servers import environment, serve_clouds
from tests.stores._races import MODULES, WRITERS, race_for_a_step
from tests.stores._strikes import strike_restores, strike_saves
from tests.stores._tables import (
    all_restore_strikes,
    all_save_strikes,
    conflict_strikes,
    wrong_strikes,
)

ROUNDS = 20


def stores() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield what was done, its figures, and complaints."""
    with serve_clouds() as clouds:
        os.environ.update(environment(clouds))
        for kind, cloud in clouds.items():
            strikes = [*all_save_strikes(), *(conflict_strikes() * (kind == "s3"))]
            found = strike_saves(cloud, strikes)
            yield f"{kind}, faults of saves", str(found), found.complaints
            caught = [strike for strike in strikes if strike.unsafe]
            found = strike_saves(cloud, caught, "unsafe")
            yield f"{kind}, of unsafe saves", str(found), found.unnoticed
            found = strike_restores(cloud, [*all_restore_strikes(), *wrong_strikes()])
            yield f"{kind}, faults of restores", str(found), found.complaints
        with (
            ForkServer(*MODULES) as server,
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        ):
            for kind, cloud in clouds.items():
                found = race_for_a_step(server, cloud, Path(folder), rounds=ROUNDS)
                name = f"{kind}, {WRITERS} writers x {ROUNDS} rounds"
                yield name, str(found), found.complaints
