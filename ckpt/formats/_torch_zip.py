"""What `torch.save` writes today: a zip archive of a pickle and of storages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .._errors import Damaged, LimitExceeded, Unsupported, Untrusted
from ._entry import Blob
from ._torch_tensor import Storage, StorageType, check_size, find_storage
from ._zip import (
    Fetch,
    Member,
    check_apart,
    check_member,
    find_start,
    read_directory,
    read_member,
)

MAX_PICKLE = 1 << 28


@dataclass(slots=True)
class Archive:
    """One archive: its members, and where those that were looked at begin."""

    fetch: Fetch
    length: int
    blob: Blob
    members: dict[str, Member]
    top: str
    starts: dict[str, int] = field(default_factory=dict[str, int])
    storages: dict[str, Storage] = field(default_factory=dict[str, Storage])

    def start(self, name: str) -> int:
        """Return where the bytes of a member begin; Damaged where there is none."""
        if name not in self.members:
            raise Damaged(f"expected a member {name!a}, found none")
        if name not in self.starts:
            member = self.members[name]
            self.starts[name] = find_start(self.fetch, member, self.length)
        return self.starts[name]

    def locate(self, workers: int) -> None:
        """Find where all storages begin, by several requests at once."""
        names = [name for name in self.members if name.startswith(f"{self.top}/data/")]
        if len(names) > 1:
            with ThreadPoolExecutor(min(workers, len(names))) as pool:
                list(pool.map(self.start, names))

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        return read_member(self.fetch, self.members[name], start=self.start(name))

    def find(self, pid: Any) -> Storage:
        """Return the storage that a pickle refers to."""
        kind, key, size = find_storage(pid)
        known = self.storages.get(key)
        if known is None:
            known = self._place(kind, key, size)
        elif known.type != kind or known.size != size:
            raise Untrusted(f"expected storage {key[:80]!a} to be of one type and size")
        self.storages[key] = known
        return known

    def _place(self, kind: StorageType, key: str, size: int) -> Storage:
        name = f"{self.top}/data/{key}"
        if size == 0 and name not in self.members:
            return Storage(kind, self.blob, 0, 0)
        start = self.start(name)
        check_size(self.members[name].size, size, key=key)
        return Storage(kind, self.blob, start, size)

    def check(self) -> None:
        """Compare each member with its checksum; Damaged where one differs."""
        for name, member in self.members.items():
            if member.crc:
                check_member(self.fetch, member, start=self.start(name))

    def close(self) -> None:
        """Refuse members that have bytes in common, of those that were looked at."""
        check_apart(self.starts, self.members)


def open_archive(fetch: Fetch, blob: Blob, *, length: int) -> tuple[Archive, bytes]:
    """Return an archive and its pickle; Unsupported for other archives of PyTorch.

    `length` is that of what `fetch` reads, which a codec makes another than the blob's.
    """
    members = read_directory(fetch, length)
    pickles = [n for n in members if n.endswith("/data.pkl") and n.count("/") == 1]
    if len(pickles) != 1:
        raise Untrusted(
            f"expected one data.pkl in an archive of PyTorch, found {len(pickles)}"
        )
    top = pickles[0].partition("/")[0]
    if f"{top}/constants.pkl" in members:
        raise Unsupported(
            "expected a file of torch.save, found a TorchScript archive: save its "
            "state_dict() instead"
        )
    if members[pickles[0]].size > MAX_PICKLE:
        raise LimitExceeded(f"expected a pickle of at most {MAX_PICKLE} bytes")
    archive = Archive(fetch, length, blob, members, top)
    order = f"{top}/byteorder"
    if order in members:
        if members[order].size > 16:
            raise Untrusted("expected a byte order, found a long text")
        if (found := archive.read(order)) != b"little":
            raise Unsupported(
                f"expected little-endian storages, found {found!a}: save the file "
                "again on a little-endian machine"
            )
    return archive, archive.read(pickles[0])
