"""Files of flax.serialization and flax.training.checkpoints: msgpack with arrays."""

from __future__ import annotations

import math
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import layouts
from layouts import Box

from .._errors import Damaged, LimitExceeded, NotFound, Unsupported
from ._entry import Blob, Block, Catalogue, Folder, Shape, Tensor, cut_run
from ._msgpack import Binary, decode_msgpack
from ._skim import Skim

_STEP = re.compile(r"checkpoint_(\d{1,18})(?:\.\d+)?")
_NUMBERED = re.compile(r"([^/]*?[^/\d])(\d{1,18}(?:\.\d+)?)")
_PREFIX = "checkpoint_"
_CHUNKED = "__msgpack_chunked_array__"
_ELSEWHERE = "//GDAPlaceholder:"
_RANK = 64
_HEAD = 128
"""How much of an array is looked at first: more than its shape and dtype take."""

_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
"""Of unsigned numbers; bytes have a length as wide, and a code that is 8 less."""

_NAMES = {name.encode(): name for name in layouts.DTYPES}
_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3


def find_flax(folder: Folder) -> Catalogue | None:
    """Return what a flax file holds, or None where there is none.

    A file by any name that the caller asked for, the newest `checkpoint_<step>` or
    the one of the step that is wanted, the one `*.msgpack` in the folder, or the newest
    of files that have a name in common, and steps behind it.
    """
    name, step = _choose(folder)
    if not name:
        return None
    named = name.endswith(".msgpack") or _STEP.fullmatch(name.rpartition("/")[2])
    where = f"{folder.store.url}/{name}"
    with folder.store.open(name) as reader:
        skim = Skim(reader, where=where)
        if not named and not _looks_right(skim):
            return None
        tree = read_flax(skim, name=name)
    return Catalogue("flax", tree, (name,), step=step)


def read_flax(skim: Skim, *, name: str, start: int = 0) -> Any:
    """Return the tree of the flax document in an object, with Tensors for arrays.

    Their bytes are neither read nor looked at. `start` is where the document begins;
    it ends with the object.
    """

    def extension(code: int, at: int, stop: int) -> Any:
        if code in (_NDARRAY, _SCALAR):
            return _read_array(skim, name, at, stop)
        if code == _COMPLEX:
            return _read_complex(skim, at, stop)
        raise Unsupported(
            f"expected the extension types 1 to 3 of flax, found {code} - at byte "
            f"{at:,} in {skim.where}: another program's msgpack is not read"
        )

    def closed(value: dict[str, Any]) -> Any:
        return _join(value, skim.where) if _CHUNKED in value else value

    value, end = decode_msgpack(skim, at=start, extension=extension, closed=closed)
    if end != skim.size:
        raise Damaged(
            f"expected the end of a msgpack document at byte {end:,}, found "
            f"{skim.size - end:,} more bytes in {skim.where}"
        )
    _refuse_elsewhere(value, skim.where)
    return value


def _choose(folder: Folder) -> tuple[str, int]:
    """Return the name of the file to read, "" for none, and its step."""
    if folder.file:
        found = _STEP.fullmatch(folder.file.rpartition("/")[2])
        return folder.file, int(found[1]) if found else 0
    run = _find_run(folder.names)
    if run is None:
        plain = [n for n in folder.names if _is_plain(n)]
        if len(plain) > 1:
            return ("flax_model.msgpack" if "flax_model.msgpack" in plain else ""), 0
        return (plain[0] if plain else ""), 0
    prefix, steps = run
    if prefix != _PREFIX and folder.step is not None and folder.step not in steps:
        return "", 0
    return _choose_step(folder, prefix, steps)


def list_flax_steps(folder: Folder) -> list[int]:
    """Return the steps of a folder of flax's checkpoints, ascending."""
    run = _find_run(folder.names)
    if run is None:
        return []
    prefix, steps = run
    newest = steps[max(steps)]
    with folder.store.open(newest) as reader:
        skim = Skim(reader, where=f"{folder.store.url}/{newest}")
        if prefix != _PREFIX and not _looks_right(skim):
            return []
    return sorted(int(step) for step in steps if step % 1 == 0)


def _is_plain(name: str) -> bool:
    return name.endswith(".msgpack") and "/" not in name


def _find_run(names: Sequence[str]) -> tuple[str, dict[float, str]] | None:
    """Return what the names of a run's files begin with, and those by their step."""
    numbered = _numbered(names)
    if _PREFIX in numbered:
        return _PREFIX, numbered[_PREFIX]
    if len(numbered) != 1 or any(map(_is_plain, names)):
        return None
    return next(iter(numbered.items()))


def _numbered(names: Iterable[str]) -> dict[str, dict[float, str]]:
    """Return files by the steps behind the same beginning, by that."""
    found: dict[str, dict[float, str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            found.setdefault(match[1], {})[float(match[2])] = name
    return found


def _choose_step(
    folder: Folder, prefix: str, steps: Mapping[float, str]
) -> tuple[str, int]:
    wanted = max(steps) if folder.step is None else folder.step
    folders = {name.partition("/")[0] for name in folder.names if "/" in name}
    newer = _numbered(folders).get(prefix, {})
    if folder.step is None and any(step >= wanted for step in newer):
        # Orbax wrote those.
        return "", 0
    if wanted not in steps:
        raise NotFound(
            f"expected {prefix}{wanted} in {folder.store.url}, found steps "
            f"{', '.join(f'{step:g}' for step in sorted(steps)[-10:])}"
        )
    return steps[wanted], int(wanted)


def _looks_right(skim: Skim) -> bool:
    """Tell whether an object begins as a map with a name in it, or an array."""
    head = skim.take(0, min(skim.size, 16))
    if not head:
        return False
    if head[0] in (0xDE, 0xDF):
        head = head[2 << head[0] - 0xDE :]
    elif not 0x80 < head[0] < 0x90:
        return head[0] in range(0xC7, 0xCA) and head[(1 << head[0] - 0xC7) + 1] == 1
    if len(head) < 3 or not (0xA1 <= head[1] < 0xC0 or head[1] == 0xD9):
        return False
    text = head[3 if head[1] == 0xD9 else 2 :][: head[1] & 31]
    try:
        shown = getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return bool(text) and (not shown or shown.isprintable())


def _read_array(skim: Skim, name: str, at: int, stop: int) -> Tensor:
    """Return the array whose shape, dtype and bytes lie one after another."""
    head = skim.take(at, min(_HEAD, stop - at))
    try:
        found = _read_usual(head, stop - at)
    except IndexError:
        found = None
    if found is not None:
        shape, dtype, length = found
        blob = Blob(name, stop - length, length)
        return Tensor(dtype, shape, (Block(layouts.whole(shape), blob),))
    return _read_any(skim, name, at, stop)


def _read_usual(head: bytes, whole: int) -> tuple[Shape, str, int] | None:
    """Return shape, dtype and length of most arrays; None for those to look at again.

    There are so many of them that a reader of all that msgpack has takes too long.
    """
    rank, at = head[1] - 0x90, 2
    if head[0] != 0x93 or not 0 <= rank < 16:
        return None
    sizes: list[int] = []
    for _ in range(rank):
        size = head[at]
        at += 1
        if size >= 0x80:
            wide = _WIDTHS.get(size)
            if wide is None:
                return None
            size = int.from_bytes(head[at : at + wide], "big")
            at += wide
        sizes.append(size)
    begin = at + 1
    at = begin + head[at] - 0xA0
    # A code that is no short text gives no name of a dtype, but bytes of none or many.
    dtype = _NAMES.get(head[begin:at])
    wide = _WIDTHS.get(head[at] + 8)
    if dtype is None or wide is None:
        return None
    length = int.from_bytes(head[at + 1 : at + 1 + wide], "big")
    if not length or at + 1 + wide + length != whole:
        return None
    if length != math.prod(sizes) * layouts.stored_dtype(dtype).itemsize:
        return None
    return tuple(sizes), dtype, length


def _read_any(skim: Skim, name: str, at: int, stop: int) -> Tensor:
    value, end = decode_msgpack(skim, at=at, stop=stop, keep=False, items=_RANK + 16)
    where = f"at byte {at:,} in {skim.where}"
    if end != stop or not isinstance(value, list) or len(cast(list[Any], value)) != 3:
        raise Damaged(f"expected the shape, dtype and bytes of an array, {where}")
    shape, dtype, data = cast(list[Any], value)
    if isinstance(dtype, Binary) and dtype.stop - dtype.start < 100:
        text = skim.take(dtype.start, dtype.stop - dtype.start)
        dtype = text.decode("ascii", "backslashreplace")
    if not isinstance(dtype, str) or not isinstance(data, Binary):
        raise Damaged(f"expected the name of a dtype and bytes, {where}")
    if dtype not in layouts.DTYPES:
        raise Unsupported(
            f"expected a dtype that JAX has, found {dtype[:80]!a} - {where}: save the "
            "tree again without it"
        )
    sizes = _shape(shape, where)
    length = data.stop - data.start
    expected = math.prod(sizes) * layouts.stored_dtype(dtype).itemsize
    if length != expected:
        raise Damaged(
            f"expected {expected:,} bytes for {dtype}{list(sizes)}, found {length:,} - "
            f"{where}: the file is damaged"
        )
    blob = Blob(name, data.start, length)
    return Tensor(dtype, sizes, (Block(layouts.whole(sizes), blob),))


def _read_complex(skim: Skim, at: int, stop: int) -> complex:
    value, end = decode_msgpack(skim, at=at, stop=stop, items=8)
    parts = cast(list[Any], value if isinstance(value, list) else [])
    if end != stop or len(parts) != 2 or not all(type(x) is float for x in parts):
        raise Damaged(
            f"expected the two parts of a complex number, at byte {at:,} in "
            f"{skim.where}"
        )
    return complex(*parts)


def _join(value: dict[str, Any], where: str) -> Tensor:
    """Return the one array that flat chunks make; flax cuts those over 1 GiB."""
    where = f"in {where}"
    shape = _shape(_listed(value.get("shape"), where), where)
    chunks = _listed(value.get("chunks"), where)
    first = chunks[0] if chunks else None
    if not isinstance(first, Tensor):
        raise Damaged(f"expected an array cut into chunks, found no chunk, {where}")
    blocks: list[Block] = []
    itemsize = layouts.stored_dtype(first.dtype).itemsize
    if math.prod(shape) != sum(
        math.prod(c.shape) for c in chunks if isinstance(c, Tensor)
    ):
        raise Damaged(f"expected chunks of an array of shape {shape}, {where}")
    at = 0
    for chunk in chunks:
        if (
            not isinstance(chunk, Tensor)
            or not isinstance(chunk.data, tuple)
            or (len(chunk.shape), len(chunk.data), chunk.dtype) != (1, 1, first.dtype)
        ):
            raise Damaged(f"expected flat chunks of {first.dtype}, {where}")
        (block,) = chunk.data
        for box, begin in cut_run(shape, at, at + chunk.shape[0]):
            blocks.append(Block(box, block.blob, block.offset + begin * itemsize))
        at += chunk.shape[0]
    return Tensor(first.dtype, shape, tuple(blocks) or _none(shape, first))


def _none(shape: Shape, like: Tensor) -> tuple[Block, ...]:
    (block,) = cast(tuple[Block, ...], like.data)
    return (Block(Box((0,) * len(shape), shape), block.blob),)


def _listed(value: Any, where: str) -> list[Any]:
    """Return the values of a dict with the keys "0", "1" and so on."""
    known = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    keys = [str(n) for n in range(len(known))]
    if not isinstance(value, dict) or any(key not in known for key in keys):
        raise Damaged(f"expected chunks numbered from 0, {where}")
    return [known[key] for key in keys]


def _shape(value: Any, where: str) -> Shape:
    sizes = tuple(cast(list[Any], value)) if isinstance(value, list) else None
    if sizes is None or any(type(n) is not int or n < 0 for n in sizes):
        raise Damaged(f"expected a shape, found {value!a:.80}, {where}")
    if len(sizes) > _RANK or math.prod(max(n, 1) for n in sizes) >= 2**58:
        raise LimitExceeded(
            f"expected at most {_RANK} dimensions and 2**58 items, found {sizes[:80]}, "
            f"{where}"
        )
    return sizes


def _refuse_elsewhere(tree: Any, where: str) -> None:
    """Refuse what flax left in folders of its own: arrays of several processes."""
    pending: list[tuple[str, Any]] = [("", tree)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            known = cast(dict[str, Any], value)
            pending += [(f"{path}/{key}", child) for key, child in known.items()]
        elif isinstance(value, list):
            pending += [
                (f"{path}/{n}", x) for n, x in enumerate(cast(list[Any], value))
            ]
        elif isinstance(value, str) and value.startswith(_ELSEWHERE):
            raise Unsupported(
                f"expected an array, found a reference to {value[:80]!a} - at "
                f"`{path[1:]}`, in {where}: read it with flax and save it again"
            )
