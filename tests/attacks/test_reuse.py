"""Objects in other directories: names that climb out, numbers that mean nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.attacks._forge import Forgery, dump, forge
from tests.attacks._sandbox import Sandbox

OTHER = "7-0123456789abcdef"


@pytest.fixture(scope="session")
def reusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that was saved to be reused."""
    run = tmp_path_factory.mktemp("reusing") / "run"
    values = np.random.default_rng(1).standard_normal((512, 1024), np.float32)
    state = {"w": values, "v": values + 1, "small": np.arange(3)}
    ckpt.save(state, None, run, step=1, reuse=True)
    return run


@pytest.fixture
def reused(reusing: Path, tmp_path: Path) -> Forgery:
    """The same, whose second leaf is said to lie in another directory; it does."""
    forgery = forge(reusing, tmp_path)
    forgery.features = ["reuse"]
    forgery.part["sources"] = [OTHER]
    forgery.objects["source"][1] = 1
    forgery.manifest["reused"] = {
        "directories": [OTHER],
        "leaves": [forgery.objects["leaf"][1]],
        "objects": [1],
    }
    (forgery.run / OTHER / "v").mkdir(parents=True)
    (forgery.folder / "v" / "c").rename(forgery.run / OTHER / "v" / "c")
    return forgery


def test_an_honest_reference_is_followed(reused: Forgery, sandbox: Sandbox) -> None:
    reused.write()
    ends = sandbox.expose(reused)["ends"]
    assert not any(end["error"] for end in ends.values())
    (reused.run / OTHER / "v" / "c").rename(reused.folder / "v" / "c")
    (reused.run / OTHER / "v").rmdir()
    # So it lies in a copy.
    ends = sandbox.expose(reused)["ends"]
    assert not any(end["error"] for end in ends.values())
    (reused.folder / "v" / "c").rename(reused.run / "c")
    sandbox.refuse(reused, "Damaged")


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc",
        "..",
        "",
        "steps",
        "7-0123456789abcdef/..",
        "07-0123456789abcdef",
        "7-0123456789abcdef\n",
        f"{1 << 63}-0123456789abcdef",
        "s3://bucket/7-0123456789abcdef",
        None,
        7,
        [OTHER],
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_a_directory_is_one_of_the_run(
    reused: Forgery, sandbox: Sandbox, name: object
) -> None:
    reused.part["sources"] = reused.manifest["reused"]["directories"] = [name]
    reused.write()
    sandbox.refuse(reused, "Untrusted")


def own_directory(forgery: Forgery) -> None:
    own = [forgery.folder.name]
    forgery.part["sources"] = forgery.manifest["reused"]["directories"] = own


def unknown_to_the_manifest(forgery: Forgery) -> None:
    forgery.part["sources"] = ["8-0123456789abcdef"]


def twice(forgery: Forgery) -> None:
    both = [OTHER, OTHER]
    forgery.part["sources"] = forgery.manifest["reused"]["directories"] = both


def unused(forgery: Forgery) -> None:
    forgery.objects["source"][1] = 0


def number_past_the_end(forgery: Forgery) -> None:
    forgery.objects["source"][1] = 2


def negative_number(forgery: Forgery) -> None:
    forgery.objects["source"][1] = -1


def number_that_is_true(forgery: Forgery) -> None:
    forgery.objects["source"][1] = True


def too_few_sources(forgery: Forgery) -> None:
    forgery.objects["source"].pop()


def too_few_hashes(forgery: Forgery) -> None:
    forgery.objects["hash"] = forgery.objects["hash"][:-2]


def hashes_that_are_no_digits(forgery: Forgery) -> None:
    forgery.objects["hash"] = "g" * len(forgery.objects["hash"])


def no_sources(forgery: Forgery) -> None:
    del forgery.part["sources"]


def no_hashes(forgery: Forgery) -> None:
    del forgery.objects["hash"]


def leaf_that_is_none(forgery: Forgery) -> None:
    forgery.manifest["reused"]["leaves"] = [99]


def leaf_that_is_packed(forgery: Forgery) -> None:
    forgery.manifest["reused"]["leaves"] = [forgery.number("small")]


def more_objects_than_there_are(forgery: Forgery) -> None:
    forgery.manifest["reused"]["objects"] = [9]


def counts_of_two_processes(forgery: Forgery) -> None:
    forgery.manifest["reused"]["objects"] = [1, 0]


def nothing_said(forgery: Forgery) -> None:
    del forgery.manifest["reused"]


@pytest.mark.parametrize(
    "change",
    [
        own_directory,
        unknown_to_the_manifest,
        twice,
        unused,
        number_past_the_end,
        negative_number,
        number_that_is_true,
        too_few_sources,
        too_few_hashes,
        hashes_that_are_no_digits,
        no_sources,
        no_hashes,
        leaf_that_is_none,
        leaf_that_is_packed,
        more_objects_than_there_are,
        counts_of_two_processes,
        nothing_said,
    ],
)
def test_what_is_said_of_other_directories_must_fit(
    reused: Forgery, sandbox: Sandbox, change: Callable[[Forgery], None]
) -> None:
    change(reused)
    reused.write()
    sandbox.refuse(reused, "Untrusted")


def test_a_feature_stands_in_manifest_and_part(
    reused: Forgery, sandbox: Sandbox
) -> None:
    part = reused.seal_part()
    reused.write_manifest(dump(reused.manifest | part), requires=[])
    sandbox.refuse(reused, "Untrusted")
    plain = {k: v for k, v in reused.manifest.items() if k != "reused"}
    reused.write_manifest(dump(plain | part), requires=[])
    sandbox.refuse(reused, "Unsupported", "'reuse'")
    reused.write_manifest(dump(plain | part))
    sandbox.refuse(reused, "Untrusted")
    reused.features = []
    part = reused.seal_part()
    reused.write_manifest(dump(reused.manifest | part), requires=["reuse"])
    sandbox.refuse(reused, "Untrusted")


def test_other_values_elsewhere_are_damage(reused: Forgery, sandbox: Sandbox) -> None:
    twin = (reused.folder / "w" / "c" / "0" / "0").read_bytes()
    (reused.run / OTHER / "v" / "c" / "0" / "0").write_bytes(twin)
    reused.write()
    sandbox.refuse(reused, "Damaged")


def test_a_link_in_the_place_of_a_directory_is_not_followed(
    reused: Forgery, sandbox: Sandbox
) -> None:
    beside = reused.run / OTHER
    target = reused.outside / "there"
    beside.rename(target)
    beside.symlink_to(target)
    reused.write()
    sandbox.refuse(reused, "Untrusted")
