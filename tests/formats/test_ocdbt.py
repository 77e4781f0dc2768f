"""OCDBT databases: what TensorStore wrote is found; what nobody writes is refused."""

import contextlib
import struct
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorstore as ts
from crc32c import crc32c

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from ckpt._store import open_store
from ckpt.formats._ocdbt import read_database, read_span
from ckpt.formats._ocdbt_node import Span
from tests.formats._memory import HOSTILE_BYTES, measure_growth, refused

MANIFEST, NODE = 0x0CDB3A2A, 0x0CDB20DE


def write(path: Path, values: dict[bytes, bytes], **config: Any) -> None:
    base = {"driver": "file", "path": f"{path}/"}
    spec = {"driver": "ocdbt", "base": base, "config": config}
    kv = ts.KvStore.open(spec).result()
    for key, value in values.items():
        kv.write(key, value).result()


def read(path: Path) -> dict[bytes, bytes]:
    store = open_store(path)
    names = store.list("")
    return {
        key: read_span(store, value) if isinstance(value, Span) else value
        for key, value in read_database(store, "", names).items()
    }


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    values=st.dictionaries(
        st.one_of(st.binary(min_size=1, max_size=12), st.from_regex(b"w/[0-9]{1,3}")),
        st.binary(max_size=40),
        max_size=60,
    ),
    compressed=st.booleans(),
    inline=st.sampled_from([0, 10, 1024]),
    size=st.sampled_from([1, 200, 1 << 20]),
)
def test_all_that_tensorstore_wrote_is_found(
    values: dict[bytes, bytes],
    compressed: bool,
    inline: int,
    size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("database")
    config: dict[str, Any] = {
        "compression": {"id": "zstd"} if compressed else None,
        "max_inline_value_bytes": inline,
        "max_decoded_node_bytes": size,
    }
    write(path, {b"a": b"first"} | values, **config)
    assert read(path) == {b"a": b"first"} | values


def test_a_tree_of_many_levels_is_walked(tmp_path: Path) -> None:
    values = {b"layer/%d/kernel/0.%d" % (n % 7, n): b"%d" % n for n in range(60)}
    write(tmp_path, values, max_decoded_node_bytes=100)
    assert read(tmp_path) == values


def test_numbered_manifests_are_found(tmp_path: Path) -> None:
    write(tmp_path, {b"a": b"1", b"b": b"2"}, manifest_kind="numbered")
    assert len(list(tmp_path.glob("manifest.*"))) > 1
    assert read(tmp_path) == {b"a": b"1", b"b": b"2"}


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def bomb(start: bytes, zeros: int) -> bytes:
    """A frame of zstd that holds some bytes, and then a great many zeros."""
    block = 128 << 10
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + (len(start) << 3).to_bytes(3, "little")
    frame += start
    for last in [0] * (zeros // block) + [1]:
        frame += (block << 3 | 2 | last).to_bytes(3, "little") + b"\0"
    return frame


def frame(magic: int, body: bytes, *, compression: int = 0) -> bytes:
    size = 14 + len(body) + 4
    head = struct.pack(">I", magic) + struct.pack("<Q", size) + bytes([0, compression])
    return head + body + struct.pack("<I", crc32c(head + body))


CONFIG = bytes(16) + b"\0" + number(1024) + number(100_000_000) + b"\4\0"


def manifest(path: bytes, *, length: int, offset: int = 0, height: int = 0) -> bytes:
    """A manifest of one root in a data file by this path."""
    files = number(1) + number(len(path)) + number(0) + path
    root = number(1) + number(1) + bytes([height]) + number(0) + number(offset)
    root += number(length) + number(1) * 3 + bytes(8) + number(0)
    return frame(MANIFEST, CONFIG + files + root)


def leaf(path: bytes, *, offset: int, length: int) -> bytes:
    """A leaf of the key `a`, whose value is in a data file by this path."""
    files = number(1) + number(len(path)) + number(0) + path
    entry = number(1) + number(1) + b"a" + number(length) + number(1)
    return frame(NODE, b"\0" + files + entry + number(0) + number(offset))


def test_a_database_made_by_hand_is_read(tmp_path: Path) -> None:
    node = leaf(b"data", offset=2, length=3)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(b"node", length=len(node)))
    (tmp_path / "node").write_bytes(node)
    (tmp_path / "data").write_bytes(b"..abc")
    assert read(tmp_path) == {b"a": b"abc"}


@pytest.mark.parametrize("path", [b"../outside", b"/etc/hostname", b"a\0b", b"a/../b"])
def test_paths_out_of_the_checkpoint_are_refused(tmp_path: Path, path: bytes) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_bytes(b"secret")
    (inside / "manifest.ocdbt").write_bytes(manifest(path, length=6))
    with pytest.raises(Untrusted, match="Expected a relative object name"):
        read(inside)
    node = leaf(path, offset=0, length=6)
    (inside / "manifest.ocdbt").write_bytes(manifest(b"node", length=len(node)))
    (inside / "node").write_bytes(node)
    with pytest.raises(Untrusted, match="Expected a relative object name"):
        read(inside)


def test_more_entries_than_a_node_has_bytes_for_are_refused(tmp_path: Path) -> None:
    # Each is an empty key and value: five zeros, of which zstd makes next to nothing.
    entries = bomb(b"\0\0" + number(500_000), 3_000_000)
    node = frame(NODE, entries, compression=1)
    assert len(node) < 400
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(b"node", length=len(node)))
    (tmp_path / "node").write_bytes(node)
    with pytest.raises(Damaged, match="entries, found 500,000"):
        read(tmp_path)


def test_many_small_nodes_of_many_entries_are_refused(tmp_path: Path) -> None:
    count = 200
    entries = bomb(b"\0\0" + number(70_000), 400_000)
    node = frame(NODE, entries, compression=1)
    (tmp_path / "node").write_bytes(count * node)
    files = number(1) + number(4) + number(0) + b"node"
    keys = number(count) + bytes(3 * count - 1)
    places = bytes(count) + b"".join(number(n * len(node)) for n in range(count))
    places += number(len(node)) * count + bytes(3 * count)
    root = frame(NODE, b"\1" + files + keys + places)
    (tmp_path / "root").write_bytes(root)
    (tmp_path / "manifest.ocdbt").write_bytes(
        manifest(b"root", length=len(root), height=1)
    )
    with pytest.raises(LimitExceeded, match="keys, or 14"):
        read(tmp_path)


def test_many_equal_values_are_found(tmp_path: Path) -> None:
    # All 10,000 of them are some hundred bytes.
    values = {b"w/c/%d" % n: b"\0" * 8 for n in range(10_000)}
    with ts.Transaction() as transaction:
        base = {"driver": "file", "path": f"{tmp_path}/"}
        kv = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
        for key, value in values.items():
            kv.with_transaction(transaction).write(key, value).result()
    assert read(tmp_path) == values


def test_a_node_that_is_its_own_child_is_refused(tmp_path: Path) -> None:
    files = number(1) + number(4) + number(0) + b"node"
    rest = number(1) + number(0) * 2 + number(0) * 2
    size = len(frame(NODE, b"\1" + files + rest + number(100) + b"\1\1\1"))
    node = frame(NODE, b"\1" + files + rest + number(size) + b"\1\1\1")
    (tmp_path / "manifest.ocdbt").write_bytes(
        manifest(b"node", length=len(node), height=1)
    )
    (tmp_path / "node").write_bytes(node)
    with pytest.raises(Unsupported, match="found a node in two places"):
        read(tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        CONFIG,
        CONFIG + number(1 << 60),
        CONFIG + number(0) + number(1 << 60),
        CONFIG + number(1) + number(1 << 62),
        CONFIG + b"\xff" * 12,
        CONFIG + number(2) + b"\x09\1\1\0\0ab",
        CONFIG + number(1) + b"\1\5a",
    ],
)
def test_a_manifest_of_nonsense_is_damage(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "manifest.ocdbt").write_bytes(frame(MANIFEST, body))
    with pytest.raises(Damaged, match=r"found .* - at .*manifest\.ocdbt"):
        read(tmp_path)


@hypothesis.given(data=st.data())
def test_changed_bytes_with_a_right_checksum_are_a_clean_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("database")
    node = leaf(b"data", offset=2, length=3)
    made = manifest(b"node", length=len(node))
    bodies = [bytearray(made[14:-4]), bytearray(node[14:-4])]
    body = data.draw(st.sampled_from(bodies))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    (path / "manifest.ocdbt").write_bytes(frame(MANIFEST, bytes(bodies[0])))
    (path / "node").write_bytes(frame(NODE, bytes(bodies[1])))
    (path / "data").write_bytes(b"..abc")
    with contextlib.suppress(CkptError):
        read_database(open_store(path), "", [])


@pytest.mark.parametrize("where", ["manifest", "node"])
def test_bombs_are_refused_in_little_memory(tmp_path: Path, where: str) -> None:
    if where == "manifest":
        start = CONFIG + number(1 << 28)
        made = frame(MANIFEST, bomb(start, 2 << 30), compression=1)
    else:
        node = frame(NODE, bomb(b"\0" + number(0), 2 << 30), compression=1)
        (tmp_path / "node").write_bytes(node)
        made = manifest(b"node", length=len(node))
    (tmp_path / "manifest.ocdbt").write_bytes(made)
    with pytest.raises(LimitExceeded, match="expected a zstd stream of"):
        read(tmp_path)
    if where == "node":
        imports = (
            "import ckpt\nfrom ckpt._store import open_store\n"
            "from ckpt.formats._ocdbt import read_database"
        )
        call = "read_database(open_store(sys.argv[1]), '', [])"
        work = refused("LimitExceeded", call)
        assert measure_growth(imports, work, str(tmp_path)) < HOSTILE_BYTES
