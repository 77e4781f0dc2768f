"""Jobs of two and four processes save to S3 and restore from it, bit by bit."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckpt
from tests._harness.jobs import Answer, Job, JobServer, Setup
from tests._harness.servers import Cloud, Kind, Rule
from tests.faults._trees import flat, make_tree, same_bits
from tests.jobs._export import check_set
from tests.jobs._matrix import WORK, find_failed
from tests.jobs._trees import KINDS, make_values
from tests.stores._places import CloudPlace, cloud_place
from tests.stores._runs import committed_folders
from tests.stores._strikes import Strike
from tests.stores._tables import DENIED, once

pytestmark = pytest.mark.campaign

SEED = 7
FOREIGN = "tests.jobs._foreign"
EXPORT = "tests.jobs._export"


@pytest.fixture(scope="module", params=[(2, 2), (4, 1)], ids=["2x2", "4x1"])
def job(request: pytest.FixtureRequest, job_server: JobServer) -> Iterator[Job]:
    """A job of so many processes, with so many devices each."""
    with job_server.start(Setup(*request.param)) as started:
        yield started


@pytest.fixture
def place(clouds: dict[Kind, Cloud]) -> CloudPlace:
    """A run that does not exist yet."""
    return cloud_place(clouds["s3"])


def check_returned(name: str, answers: Sequence[Answer]) -> None:
    assert find_failed(name, answers) == []


def find_wrong_on_host(url: str, seed: int) -> list[str]:
    """Restore the tree of a seed here, and say what differs from numpy's."""
    expected = flat(make_tree(seed, "wide"))
    found = flat(ckpt.restore(url))
    return [path for path in expected if not same_bits(found[path], expected[path])]


def other_job(job_server: JobServer, job: Job) -> Job:
    processes = 4 if len(job.alive) == 2 else 2
    return job_server.start(Setup(processes))


def test_what_a_job_saved_another_restores(
    job: Job, job_server: JobServer, place: CloudPlace
) -> None:
    check_returned("save", job.run(f"{WORK}:save_kind", place.url, "tiny", SEED))
    parts = {name for name in place.names() if "/parts/" in name}
    assert len(parts) == len(job.alive)
    found = ckpt.restore(place.url, select=["kernel", "table", "bias", "norm"])
    for path in ("kernel", "table", "bias", "norm"):
        assert same_bits(found[path], make_values(KINDS["tiny"][path], path, SEED))
    with other_job(job_server, job) as other:
        for how in ("relay", "replicate"):
            answers = other.run(f"{WORK}:restore_kind", place.url, "tiny", SEED, how)
            check_returned(how, answers)
            assert [answer.value["wrong"] for answer in answers] == [[]] * len(answers)
    assert ckpt.verify(place.url).ok


def test_a_background_save_of_a_job_comes_back(job: Job, place: CloudPlace) -> None:
    for step, save in enumerate(("save_seed", "save_seed_async"), 1):
        check_returned(save, job.run(f"{WORK}:{save}", place.url, step, step))
    for step in (1, 2):
        answers = job.run(f"{WORK}:restore_seed", place.url, step, step)
        assert [answer.value for answer in answers] == [[]] * len(answers)
    assert find_wrong_on_host(place.url, 2) == []
    assert committed_folders(place).keys() == {1, 2}
    assert not any(name.endswith(".attempt") for name in place.names())


def strike(place: CloudPlace, on: str, rule: Rule) -> None:
    place.cloud.break_with(Strike(on, rule).rule_for(place))
    place.cloud.take_log()


@pytest.mark.parametrize("on", ["part", "record"])
def test_an_answer_lost_to_a_job_is_no_lost_save(
    job: Job, place: CloudPlace, on: str
) -> None:
    strike(place, on, once("lost"))
    check_returned("save", job.run(f"{WORK}:save_seed", place.url, 1, SEED))
    assert [r.fault for r in place.cloud.take_log()].count("lost") == 1
    assert find_wrong_on_host(place.url, SEED) == []
    (folder,) = committed_folders(place).values()
    names = {name.partition("/")[0] for name in place.names()}
    assert names == {folder, "steps"}


def refusals(answers: Sequence[Answer], place: CloudPlace) -> list[str]:
    """Say what is wrong with a save that the store refused."""
    wrong = [str(answer) for answer in answers if answer.status != "raised"]
    if committed_folders(place):
        wrong.append("the step was committed")
    return wrong


def test_a_job_whose_data_is_refused_commits_nothing(
    job: Job, place: CloudPlace
) -> None:
    strike(place, "data", DENIED)
    answers = job.run(f"{WORK}:save_seed", place.url, 1, SEED)
    assert refusals(answers, place) == []
    unsafe = job.run(f"{WORK}:save_seed_and_ignore_errors", place.url, 2, SEED, 30.0)
    assert refusals(unsafe, place) != []


def test_values_of_another_seed_are_noticed(job: Job, place: CloudPlace) -> None:
    check_returned("save", job.run(f"{WORK}:save_seed", place.url, 1, SEED))
    answers = job.run(f"{WORK}:restore_seed", place.url, 1, SEED + 1)
    assert all(answer.value for answer in answers)
    assert find_wrong_on_host(place.url, SEED + 1)
    assert np.array_equal(ckpt.restore(place.url)["seed"], [SEED] * 3)


def test_what_a_job_exports_safetensors_reads(
    job: Job, place: CloudPlace, tmp_path: Path
) -> None:
    options = {"max_shard_bytes": 500_000}
    check_returned("export", job.run(f"{EXPORT}:export", place.url, options))
    for name in place.names():
        (tmp_path / name).write_bytes(place.get(name))
    check_set(tmp_path)


@pytest.mark.parametrize("way", ["rows", "columns", "replicated"])
def test_a_job_reads_little_more_of_a_file_than_there_is(
    job: Job, place: CloudPlace, tmp_path: Path, way: str
) -> None:
    rng = np.random.default_rng(0)
    tree = {f"w{n}": rng.standard_normal((1024, 512), np.float32) for n in range(2)}
    save_file(tree, tmp_path / "set")
    place.put("model.safetensors", (tmp_path / "set").read_bytes())
    place.cloud.break_with()
    answers = job.run(f"{FOREIGN}:restore_set", place.url, way)
    check_returned("restore", answers)
    for answer in answers:
        for name, digest in answer.value["digests"].items():
            spans = [slice(a, b) for a, b in answer.value["indices"][name]]
            part = np.ascontiguousarray(tree[name.partition("(")[0]][tuple(spans)])
            assert hashlib.sha256(part.tobytes()).hexdigest() == digest
    # It is restored twice.
    log = place.cloud.take_log()
    read = sum(r.answered for r in log if r.method == "GET") / 2
    assert read <= 1.1 * sum(x.nbytes for x in tree.values())
