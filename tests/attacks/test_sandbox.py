"""The sandbox itself: it lets honest checkpoints pass, and sees what it must see."""

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests._harness.forkserver import Job
from tests.attacks._forge import Forgery
from tests.attacks._sandbox import Sandbox, listening, watched


def test_a_forgery_without_a_change_is_read(forgery: Forgery, sandbox: Sandbox) -> None:
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert {name: end["error"] for name, end in ends.items()} == dict.fromkeys(ends)


def test_a_compressed_forgery_without_a_change_is_read(
    coded: Forgery, sandbox: Sandbox
) -> None:
    coded.write()
    ends = sandbox.expose(coded)["ends"]
    assert {name: end["error"] for name, end in ends.items()} == dict.fromkeys(ends)


def test_reading_a_file_outside_is_seen(tmp_path: Path, sandbox: Sandbox) -> None:
    (tmp_path / "secret").write_text("secret")
    with watched(tmp_path) as touched:
        assert not touched()
        sandbox.server.run(
            Job("tests.attacks._child:touch", [str(tmp_path / "secret")])
        )
        assert touched()


def test_a_call_to_the_loopback_is_seen() -> None:
    with listening() as (address, called):
        assert not called()
        with pytest.raises(TimeoutError):
            urlopen(f"http://{address}", timeout=0.05)
        assert called()
