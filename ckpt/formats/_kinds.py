"""What a file is that is no checkpoint: its first bytes tell."""

from __future__ import annotations

from dataclasses import dataclass

from .._errors import CkptError
from .._store import Store

_START = 512
_CONVERT = "convert it first, to safetensors say"
_PART = "give the folder, if it is a part of one"
_UNPACK = "unpack it first"
_FETCH = "download it again"
_AGAIN = f"{_FETCH}, with a token where its page asks for one"
_NONE = "a {} that is none of torch.save's"
_NUMPY = "read it with numpy.load and give the arrays to ckpt.save"
_PICKLE = (
    "load it where you trust it, and save its arrays with torch.save or as safetensors"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is, and what to do.

    `instead`: it stands in the place of another. `ours`: a checkpoint may start so.
    """

    found: str
    advice: str
    instead: bool = False
    ours: bool = False


POINTER = Kind("a pointer of Git LFS", "run `git lfs pull` in its folder", True)
_PAGE = Kind("a page of HTML", _AGAIN, True)

_KINDS = {
    b"version https://git-lfs.github.com/": POINTER,
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
    b"<?xml": Kind("a page of XML", _AGAIN, True),
    b"\x93numpy": Kind("an array of numpy (.npy)", _NUMPY),
    b"pk\x03\x04": Kind(_NONE.format("zip archive"), _UNPACK, ours=True),
    b"gguf": Kind("a file of GGUF", _CONVERT),
    b"\x89hdf\r\n\x1a\n": Kind("a file of HDF5", _CONVERT),
    b"\x1f\x8b": Kind("what gzip packed", _UNPACK),
    b"\x28\xb5\x2f\xfd": Kind("what zstd packed", _UNPACK),
    b"bzh": Kind("what bzip2 packed", _UNPACK),
    b"\xfd7zxz\x00": Kind("what xz packed", _UNPACK),
    b"7z\xbc\xaf": Kind("what 7-Zip packed", _UNPACK),
}
"""By the start, in small letters."""

_PICKLES = (
    *(bytes((0x80, protocol)) for protocol in range(2, 6)),
    *(b"(dp0\n", b"(lp0\n", b"ccopy_reg\n", b"ccollections\n", b"cnumpy"),
)


def look_into(store: Store, name: str) -> Kind | None:
    """Return what a file is by its first bytes; None where it cannot be read."""
    try:
        with store.open(name) as reader:
            start = bytearray(min(reader.size, _START))
            reader.read_into(0, start)
    except CkptError:
        return None
    return name_kind(bytes(start))


def name_kind(start: bytes) -> Kind:
    """Return what a file is that starts so.

    >>> name_kind(b"Entry not found").found
    "the text 'Entry not found'"
    >>> name_kind(bytes(100)).found
    "one that starts with b'\\\\x00\\\\x00\\\\x00\\\\x00\\\\x00\\\\x00\\\\x00\\\\x00'"
    """
    if not start:
        return Kind("an empty file", _AGAIN, True)
    small = start.lstrip().lower()
    for known, kind in _KINDS.items():
        if small.startswith(known):
            return kind
    if start.startswith(_PICKLES):
        return Kind(_NONE.format("pickle"), _PICKLE, ours=True)
    if start[257:262] == b"ustar":
        return Kind("a tar archive", _UNPACK)
    try:
        text = start.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(c.isprintable() or c.isspace() for c in text):
        more = "..." if len(text) > 60 else ""
        return Kind(f"the text {text[:60]!r}{more}", f"{_PART}, or {_FETCH}")
    return Kind(
        f"one that starts with {start[:8]!r}", f"{_PART}, or {_CONVERT}", ours=True
    )
