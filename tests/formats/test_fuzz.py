"""The fuzz campaign in its CI size, and that it finds what it looks for."""

import random
import sys
from pathlib import Path

import pytest

from tests.formats import fuzz


@pytest.mark.campaign
def test_changed_files_of_all_peers_give_values_or_a_clean_error(
    tmp_path: Path,
) -> None:
    ends, wrong = fuzz.run(5, seed=0, kept=tmp_path / "kept")
    assert wrong == []
    assert ends.keys() >= {"values", "Damaged", "Untrusted"}


def test_what_is_no_clean_error_is_found_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: Path) -> str:
        raise KeyError(folder.name)

    monkeypatch.setattr(fuzz, "list_sets", lambda: ["st_flax"])
    whole = fuzz.read_all
    calls = iter([whole])
    monkeypatch.setattr(fuzz, "read_all", lambda folder: next(calls, read)(folder))
    _, wrong = fuzz.run(0.2, seed=0, kept=tmp_path / "kept")
    assert wrong
    assert "KeyError" in wrong[0]
    assert list((tmp_path / "kept").iterdir())


def test_a_module_that_is_imported_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: Path) -> str:
        if count.pop():
            sys.modules["imported_by_a_file"] = sys
        return "values"

    count = [True] * 1000 + [False]
    monkeypatch.setattr(fuzz, "list_sets", lambda: ["st_flax"])
    monkeypatch.setattr(fuzz, "read_all", read)
    try:
        _, wrong = fuzz.run(0.1, seed=0, kept=tmp_path / "kept")
    finally:
        sys.modules.pop("imported_by_a_file", None)
    assert any("imported imported_by_a_file" in line for line in wrong)


def test_changes_are_many_and_can_be_made_again() -> None:
    data = bytes(range(64))
    made = [fuzz.change(data, random.Random(n)) for n in range(100)]
    assert made == [fuzz.change(data, random.Random(n)) for n in range(100)]
    assert len(set(made)) > 80
