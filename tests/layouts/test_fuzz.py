"""Random changes of valid documents: read, or refused with a LayoutError."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

import layouts
from layouts import Manifest
from tests.layouts._documents import (
    change,
    example,
    example_record,
    manifests,
    places,
    seal,
    unseal,
)

HOSTILE = [
    ...,
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1 << 31,
    1 << 47,
    1 << 48,
    1 << 63,
    -(1 << 63),
    1 << 200,
    0.0,
    1.5,
    -0.0,
    1e300,
    "",
    "0",
    "..",
    "a/../b",
    "\x00",
    "\x1b[2J",
    "\ud800",
    "x" * 5000,
    [],
    [[]],
    [0],
    [1, 1],
    [1 << 47, 1 << 47],
    ["x"],
    {},
    {"kind": "list", "children": []},
    {"label": "os.system"},
]
NUMBERS = st.integers() | st.integers(-3, 20)


@st.composite
def changes(draw: st.DrawFn, body: Any) -> Any:
    """Draw a copy of a body with one to four values put elsewhere, or others there."""
    for _ in range(draw(st.integers(1, 4))):
        found = list(places(body))
        at = draw(st.sampled_from(found))
        how = draw(st.sampled_from(["hostile", "number", "move", "add"]))
        if how == "hostile":
            new = draw(st.sampled_from(HOSTILE))
        elif how == "number":
            new = draw(NUMBERS)
        else:
            new = copy.deepcopy(value_at(body, draw(st.sampled_from(found))))
        if how == "add":
            holder = value_at(body, at)
            if isinstance(holder, dict):
                at = (*at, draw(st.sampled_from([*holder, "more"])))
            elif isinstance(holder, list):
                at = (*at, len(holder))
        body = None if new is ... and not at else change(body, at, new)
    return body


def value_at(body: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        body = body[key]
    return body


def read_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest that may be wrong, and use all of it if it is not."""
    try:
        manifest = layouts.parse_manifest(data)
    except layouts.LayoutError as error:
        refusal = str(error)
    else:
        _use(manifest)
        return manifest
    assert len(refusal) < 1000
    assert refusal.isprintable()
    return None


def _use(manifest: Manifest) -> None:
    again = layouts.parse_manifest(manifest.encode())
    assert repr(again.leaves) == repr(manifest.leaves)
    for process in range(manifest.processes):
        layouts.plan_write(manifest.leaves, process)
    mesh = layouts.mesh_layout({"x": 2, "y": 3})
    for number, leaf in enumerate(manifest.leaves):
        if leaf.store is None:
            continue
        placement = leaf.placement
        if placement and placement.spec is not None:
            layouts.relay_spec(placement.spec, leaf.shape, mesh)
            assert placement.mesh
            layouts.draw_layout(leaf.shape, placement.spec, placement.mesh)
        layouts.plan_leaf_read(number, leaf, [layouts.whole(leaf.shape)])


@pytest.mark.parametrize("codec", [None, "gzip"])
@given(st.data())
def test_a_changed_manifest_is_read_or_refused(
    codec: str | None, data: st.DataObject
) -> None:
    body = unseal(example(codec)[0].encode())
    read_manifest(seal("ckpt-manifest", data.draw(changes(body))))


@given(st.data())
def test_any_changed_manifest_is_read_or_refused(data: st.DataObject) -> None:
    manifest, _ = data.draw(manifests())
    body = unseal(manifest.encode())
    read_manifest(seal("ckpt-manifest", data.draw(changes(body))))


@pytest.mark.parametrize("codec", [None, "gzip"])
@given(st.data())
def test_a_changed_part_is_read_or_refused(
    codec: str | None, data: st.DataObject
) -> None:
    manifest, parts = example(codec)
    process = data.draw(st.integers(0, 1))
    body = data.draw(changes(unseal(parts[process].encode())))
    try:
        part = layouts.parse_part(manifest, process, seal("ckpt-part", body))
    except layouts.LayoutError:
        return
    assert layouts.parse_part(manifest, process, part.encode()).rows == part.rows


@given(st.data())
def test_parts_of_a_changed_manifest_are_read_or_refused(data: st.DataObject) -> None:
    first, parts = example()
    changed = data.draw(changes(unseal(first.encode())))
    manifest = read_manifest(seal("ckpt-manifest", changed))
    if manifest is None:
        return
    with suppress(layouts.LayoutError):
        layouts.parse_part(manifest, 0, parts[0].encode())


@given(st.data())
def test_a_changed_record_is_read_or_refused(data: st.DataObject) -> None:
    record = example_record()
    body = data.draw(changes(unseal(record.encode())))
    try:
        found = layouts.parse_record(seal("ckpt-commit", body), 7)
    except layouts.LayoutError:
        return
    assert found.directory == record.directory


@given(st.binary(max_size=200), st.data())
def test_random_bytes_are_refused(noise: bytes, data: st.DataObject) -> None:
    valid = example()[0].encode()
    at = data.draw(st.integers(0, len(valid)))
    manifest, _ = example()
    for document in (noise, valid[:at] + noise + valid[at:], noise + b"\n" + noise):
        assume(document != valid)
        with pytest.raises(layouts.CorruptLayout):
            layouts.parse_manifest(document)
        with pytest.raises(layouts.LayoutError):
            layouts.parse_part(manifest, 0, document)
        with pytest.raises(layouts.LayoutError):
            layouts.parse_record(document, 7)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_random_json_text_is_read_or_refused(text: bytes) -> None:
    for parse in (
        lambda: layouts.parse_json(text),
        lambda: layouts.parse_manifest(seal("ckpt-manifest", text)),
        lambda: layouts.parse_record(seal("ckpt-commit", text), 7),
    ):
        try:
            parse()
        except layouts.LayoutError:
            continue
