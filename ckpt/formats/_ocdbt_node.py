"""Manifests and nodes of OCDBT, the B+tree databases of TensorStore, from their bytes.

Source: "Storage format" in TensorStore's documentation of the `ocdbt` driver. Whatever
is refused here is a ValueError that says what was expected and found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .._crc import checksum
from ._zstd import decode_zstd

MANIFEST = 0x0CDB3A2A
NODE = 0x0CDB20DE

_LEAST_DECODED = 4 << 20
_MOST_DECODED = 128 << 20
_RATIO = 64
"""Keys and metadata are compressed tenfold or so; a bomb is by ten thousand."""

_ENTRIES = 1 << 20
_FEW_ENTRIES = 1 << 17
_ENTRIES_A_BYTE = 8
"""Of what is stored: most entries take a byte or more, compressed."""

_FILES = 1 << 16
_KEY_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a data file; `base` is what its own references begin with."""

    path: str
    base: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Child:
    """A node below: where it is, how high, and the prefix of all keys in it."""

    span: Span
    height: int
    prefix: bytes


Value = bytes | Span


@dataclass(slots=True)
class _Cursor:
    data: bytes
    at: int = 0

    def take(self, length: int) -> bytes:
        stop = self.at + length
        if stop > len(self.data):
            raise ValueError(f"{length:,} more bytes, found the end")
        part = self.data[self.at : stop]
        self.at = stop
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number of 64 bits, found a longer one")
        return value

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def count(self, limit: int, name: str) -> int:
        found = self.number()
        # Each takes a byte at least: more cannot be there.
        if found > limit or found > len(self.data) - self.at:
            raise ValueError(f"at most {limit:,} {name}, found {found:,}")
        return found


def parse_manifest(data: bytes) -> tuple[bool, Child | None]:
    """Return whether the manifest is a numbered one elsewhere, and the newest root.

    The root is None for a database without keys.
    """
    cursor = _Cursor(_open(data, MANIFEST))
    cursor.take(16)
    numbered = cursor.number() == 1
    cursor.numbers(2)
    cursor.byte()
    if cursor.number():
        cursor.take(4)
    if numbered and cursor.at == len(cursor.data):
        return True, None
    files = _parse_files(cursor, base="")
    versions = cursor.count(1 << 16, "versions")
    if not versions:
        return numbered, None
    cursor.numbers(versions)
    heights = cursor.take(versions)
    spans = list(_parse_spans(cursor, files, versions))
    keys = cursor.numbers(versions)
    root = Child(spans[-1], heights[-1], b"") if keys[-1] else None
    return numbered, root


def most_entries(stored: int) -> int:
    """Return how many entries nodes of so many bytes may have in all.

    A few bytes may stand for many entries, each of which takes time to read.
    """
    return _FEW_ENTRIES + _ENTRIES_A_BYTE * stored


def parse_node(data: bytes, child: Child) -> list[Child] | list[tuple[bytes, Value]]:
    """Return the nodes below a node, or the keys and values of a leaf."""
    cursor = _Cursor(_open(data, NODE))
    if (height := cursor.byte()) != child.height:
        raise ValueError(f"a node of height {child.height}, found {height}")
    files = _parse_files(cursor, base=child.span.base)
    count = cursor.count(min(_ENTRIES, most_entries(len(data))), "entries")
    prefixes = [0, *cursor.numbers(count - 1)] if count else []
    suffixes = cursor.numbers(count)
    common = cursor.numbers(count) if height else []
    keys = _parse_keys(cursor, prefixes, suffixes)
    if height:
        spans = _parse_spans(cursor, files, count)
        return [
            Child(span, height - 1, child.prefix + key[:shared])
            for span, key, shared in zip(spans, keys, common, strict=True)
        ]
    values = _parse_values(cursor, files, count)
    full = [child.prefix + key for key in keys]
    return list(zip(full, values, strict=True))


def _open(data: bytes, magic: int) -> bytes:
    """Return the body of a manifest or node, whose checksum and length are right."""
    if len(data) < 18 or int.from_bytes(data[:4], "big") != magic:
        raise ValueError(f"bytes that begin with {magic:#010x}, found others")
    if int.from_bytes(data[4:12], "little") != len(data):
        raise ValueError(f"as many bytes as it says, found {len(data):,}")
    if checksum(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("bytes with their CRC-32C, found others")
    version, compression = data[12], data[13]
    if version or compression > 1:
        raise ValueError(f"version 0 of OCDBT, found {version}.{compression}")
    body = data[14:-4]
    if not compression:
        return body
    limit = min(max(_LEAST_DECODED, _RATIO * len(body)), _MOST_DECODED)
    return decode_zstd(body, limit=limit, guess=8 * len(body))


def _parse_files(cursor: _Cursor, *, base: str) -> list[tuple[str, str]]:
    """Return the path and the transitive base of each data file of a table."""
    count = cursor.count(_FILES, "data files")
    prefixes = [0, *cursor.numbers(count - 1)] if count else []
    suffixes = cursor.numbers(count)
    bases = cursor.numbers(count)
    files: list[tuple[str, str]] = []
    for path, length in zip(
        _parse_keys(cursor, prefixes, suffixes), bases, strict=True
    ):
        if length > len(path):
            raise ValueError("the base of a path, found more than the path")
        text = path.decode("ascii")
        files.append((base + text, base + text[:length]))
    return files


def _parse_keys(
    cursor: _Cursor, prefixes: list[int], suffixes: list[int]
) -> list[bytes]:
    keys: list[bytes] = []
    previous, held = b"", 0
    for prefix, suffix in zip(prefixes, suffixes, strict=True):
        if prefix > len(previous):
            raise ValueError("the beginning of the key before, found more than it")
        held += prefix + suffix
        if held > _KEY_BYTES:
            raise ValueError(f"at most {_KEY_BYTES:,} bytes of keys, found more")
        previous = previous[:prefix] + cursor.take(suffix)
        keys.append(previous)
    return keys


def _parse_spans(
    cursor: _Cursor, files: list[tuple[str, str]], count: int
) -> Iterator[Span]:
    numbers, offsets = cursor.numbers(count), cursor.numbers(count)
    lengths = cursor.numbers(count)
    for number, offset, length in zip(numbers, offsets, lengths, strict=True):
        yield _span(files, number, offset, length)


def _span(files: list[tuple[str, str]], number: int, offset: int, length: int) -> Span:
    if number >= len(files):
        raise ValueError(f"one of {len(files)} data files, found number {number}")
    return Span(*files[number], offset, length)


def _parse_values(
    cursor: _Cursor, files: list[tuple[str, str]], count: int
) -> list[Value]:
    lengths, kinds = cursor.numbers(count), cursor.numbers(count)
    if not {*kinds} <= {0, 1}:
        raise ValueError("values of kind 0 or 1, found another")
    elsewhere = sum(kinds)
    numbers, offsets = cursor.numbers(elsewhere), cursor.numbers(elsewhere)
    places = zip(numbers, offsets, strict=True)
    return [
        _span(files, *next(places), length) if kind else cursor.take(length)
        for length, kind in zip(lengths, kinds, strict=True)
    ]
