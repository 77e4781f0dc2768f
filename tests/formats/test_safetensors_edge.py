"""Each odd file is accepted or refused as safetensors does, or more strictly."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from safetensors import SafetensorError, safe_open

import ckpt
from ckpt.formats._safetensors import find_safetensors
from ckpt.formats._safetensors_header import DTYPES
from tests.formats._files import with_header
from tests.formats._read_files import PEERS, expected_of, folder_of

EDGE = PEERS / "safetensors_edge"
FILES = sorted(path.stem for path in EDGE.glob("*.safetensors"))

STRICTER = {
    "dup_names_same": ckpt.Untrusted,
    "metadata_dup_key": ckpt.Untrusted,
    "ok_leading_space": ckpt.Untrusted,
    # No array dtype has six bits, and nothing says how four of them share three bytes.
    "ok_f6": ckpt.Unsupported,
}
"""What safetensors accepts and this library does not."""


def ask_safetensors(path: Path) -> dict[str, Any] | None:
    """Return shapes and dtypes as safetensors finds them; None where it refuses."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {n: (s.get_shape(), s.get_dtype()) for n, s in slices.items()}
    except SafetensorError:
        return None


@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_is_judged_as_by_safetensors_or_more_strictly(name: str) -> None:
    theirs = ask_safetensors(EDGE / f"{name}.safetensors")
    told = expected_of("safetensors_edge")["files"].get(name)
    if told is not None:
        said = told["safetensors_0.8.0"]
        assert (theirs is None) == isinstance(said, str)
    folder = folder_of(EDGE, f"{name}.safetensors")
    if theirs is None or name in STRICTER:
        expected = STRICTER.get(name, (ckpt.Damaged, ckpt.Untrusted))
        with pytest.raises(expected):
            find_safetensors(folder)
        return
    found = find_safetensors(folder)
    assert found is not None
    ours = {n: (list(x.shape), x.dtype) for n, x in found.tree.items()}
    assert ours == {n: (shape, DTYPES[dtype]) for n, (shape, dtype) in theirs.items()}


def test_a_shape_that_no_array_has_is_refused_when_it_is_read() -> None:
    path = EDGE / "shape_overflow_zero.safetensors"
    assert ckpt.open(path)["a"].shape == (0, 1 << 32, 1 << 32, 2)
    with pytest.raises(ckpt.LimitExceeded, match="expected memory for 0 bytes"):
        ckpt.restore(path)


def test_nothing_is_stricter_without_a_file_that_shows_it() -> None:
    assert set(STRICTER) <= set(FILES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPES, "F6_E2M3", "f32"]) | JSON,
        "shape": st.lists(st.integers(-1, 4) | st.just(1 << 32), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), max_size=3) | JSON,
        "more": JSON,
    },
)
HEADER = st.dictionaries(st.sampled_from(["a", "b", "", "__metadata__"]), ENTRY | JSON)


def judge(folder: Path, data: bytes) -> None:
    path = folder / "x.safetensors"
    path.write_bytes(data)
    theirs = ask_safetensors(path)
    try:
        found = find_safetensors(folder_of(folder))
    except ckpt.CkptError:
        return
    assert found is not None
    assert theirs is not None
    assert {n: list(x.shape) for n, x in found.tree.items()} == {
        n: shape for n, (shape, _) in theirs.items()
    }


@given(st.sampled_from(FILES), st.data())
def test_bytes_changed_at_random_never_do_more_than_be_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    raw = bytearray((EDGE / f"{name}.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    judge(tmp_path_factory.mktemp("fuzz"), bytes(raw))


@given(HEADER, st.integers(0, 40))
def test_what_is_accepted_safetensors_accepts_too(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], size: int
) -> None:
    data = with_header(json.dumps(header).encode(), bytes(size))
    judge(tmp_path_factory.mktemp("fuzz"), data)
