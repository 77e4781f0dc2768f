"""Zip archives of stored members, as PyTorch writes them: where each member lies.

An archive may be a part of a larger object, so offsets are relative to its own start.
A checksum of 0 means that the writer computed none.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .._errors import Damaged, LimitExceeded, Unsupported, Untrusted

Fetch: TypeAlias = Callable[[int, int], bytes]
"""Returns the bytes of an archive from a start to a stop, which lie within."""

TAIL = 1 << 16
"""How many bytes from the end are read first: small archives whole."""

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")

_MAX_DIRECTORY = 1 << 25
"""The longest directory in bytes: some 300 000 members."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its name, where its header is, its length, and its checksum."""

    name: str
    header: int
    size: int
    crc: int


def read_directory(fetch: Fetch, length: int) -> dict[str, Member]:
    """Return the members of an archive of `length` bytes, by name.

    Damaged where it is cut short, Untrusted where it contradicts itself, Unsupported
    for compressed or encrypted members.
    """
    tail = fetch(max(0, length - TAIL), length)
    count, size, start = _find_directory(fetch, tail, length)
    if size > _MAX_DIRECTORY:
        raise LimitExceeded(
            f"expected a zip directory of at most {_MAX_DIRECTORY} bytes, found {size}"
        )
    if start + size > length or count * _CENTRAL.size > size:
        raise Untrusted(
            f"expected a zip directory within {length} bytes, found {count} members in "
            f"{size} bytes at {start}"
        )
    missing = start - (length - len(tail))
    data = (
        tail[missing : missing + size] if missing >= 0 else fetch(start, start + size)
    )
    members: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        member, at = _read_entry(data, at)
        if member.name in members:
            raise Untrusted(f"expected each member once, found {member.name!a} twice")
        if member.header + _LOCAL.size + member.size > start:
            raise Untrusted(
                f"expected {member.name!a} before the zip directory at {start}, found "
                f"{member.size} bytes at {member.header}"
            )
        members[member.name] = member
    if at != len(data):
        raise Untrusted(f"expected {size} bytes of a zip directory, found {at}")
    return members


def find_start(fetch: Fetch, member: Member, length: int) -> int:
    """Return where the bytes of a member begin, as its own header says."""
    stop = min(member.header + _LOCAL.size, length)
    header = fetch(member.header, stop)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise Damaged(f"expected the header of {member.name!a} at {member.header}")
    fields = _LOCAL.unpack(header)
    start = stop + fields[9] + fields[10]
    if start + member.size > length:
        raise Untrusted(
            f"expected {member.name!a} within {length} bytes, found {member.size} bytes"
            f" at {start}"
        )
    return start


def read_member(fetch: Fetch, member: Member, *, start: int) -> bytes:
    """Return the bytes of a member, Damaged where its checksum is of others."""
    data = fetch(start, start + member.size)
    if member.crc and zlib.crc32(data) != member.crc:
        raise _differ(member)
    return data


def check_member(fetch: Fetch, member: Member, *, start: int) -> None:
    """Compare a member with its checksum, a part at a time."""
    crc, at, stop = 0, start, start + member.size
    while at < stop:
        part = fetch(at, min(at + (1 << 22), stop))
        crc, at = zlib.crc32(part, crc), at + len(part)
    if member.crc and crc != member.crc:
        raise _differ(member)


def check_apart(starts: Mapping[str, int], members: Mapping[str, Member]) -> None:
    """Refuse members that have bytes in common: no writer makes them."""
    last, before = 0, ""
    for name in sorted(starts, key=lambda name: members[name].header):
        member = members[name]
        if member.header < last:
            raise Untrusted(f"expected members apart, found {before!a} within {name!a}")
        last, before = starts[name] + member.size, name


def _differ(member: Member) -> Damaged:
    return Damaged(
        f"expected {member.name!a} to have the checksum {member.crc:08x}, found another"
    )


def _find_directory(fetch: Fetch, tail: bytes, length: int) -> tuple[int, int, int]:
    """Return the count of members, and the length and start of the directory."""
    first = length - len(tail)
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        if at + _END.size > len(tail):
            continue
        end = _END.unpack_from(tail, at)
        if at + _END.size + end[7] == len(tail):
            break
    else:
        raise Damaged("expected the end record of a zip archive, found none")
    disks, near, count, size, start = end[1:3], *end[3:7]
    place = first + at - _LOCATOR.size
    found = fetch(place, place + _LOCATOR.size) if place >= 0 else b""
    if found[:4] == b"PK\6\7":
        _, _, where, _ = _LOCATOR.unpack(found)
        if where + _END64.size > place:
            raise Untrusted(f"expected a zip64 end record before {place}, not {where}")
        record = _END64.unpack(fetch(where, where + _END64.size))
        if record[0] != b"PK\6\6":
            raise Damaged(f"expected a zip64 end record at {where}")
        disks, near, count, size, start = record[4:6], *record[6:10]
    elif 0xFFFF in (count, *disks) or 0xFFFFFFFF in (size, start):
        raise Damaged("expected a zip64 end record, found none")
    if any(disks) or near != count:
        raise Unsupported("expected a zip archive in one part")
    return count, size, start


def _read_entry(data: bytes, at: int) -> tuple[Member, int]:
    """Return the member that an entry of the directory is of, and where it ends."""
    if at + _CENTRAL.size > len(data):
        raise Damaged("expected more entries of a zip directory, found its end")
    entry = _CENTRAL.unpack_from(data, at)
    if entry[0] != b"PK\1\2":
        raise Damaged("expected an entry of a zip directory")
    flags, method, crc, packed, size = entry[3], entry[4], *entry[7:10]
    at += _CENTRAL.size
    stop = at + entry[10] + entry[11] + entry[12]
    if stop > len(data):
        raise Damaged("expected more of a zip directory, found its end")
    name = str(data[at : at + entry[10]], "utf-8", "backslashreplace")
    extra = data[at + entry[10] : at + entry[10] + entry[11]]
    header = entry[16]
    size, packed, header = _widen(extra, (size, packed, header))
    if flags & 0x2041 or method:
        raise Unsupported(
            f"expected members as they are, found {name!a} compressed or encrypted"
        )
    if packed != size:
        raise Untrusted(
            f"expected one length of {name!a}, found {size} and {packed} bytes"
        )
    return Member(name, header, size, crc), stop


def _widen(extra: bytes, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return numbers that do not fit into 32 bits from where zip64 keeps them."""
    if 0xFFFFFFFF not in numbers:
        return numbers
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == 1 and at + size <= len(extra):
            wide = iter(struct.unpack_from(f"<{size // 8}Q", extra, at))
            first, second, third = (
                next(wide, n) if n == 0xFFFFFFFF else n for n in numbers
            )
            return first, second, third
        at += size
    return numbers
