"""Some files of `torch.save` at once, and folders that hold little else."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

from .._errors import Damaged, Unsupported, Untrusted
from .._store import Store, check_name
from ._entry import Blob, Catalogue, Check, Folder
from ._json import JSON_BYTES, parse_object
from ._pickle import Globals
from ._torch import is_torch, read_torch
from ._torch_globals import INERT, TORCH
from ._torch_legacy import HEAD

_INDEX = re.compile(r"\.bin\.index(?:\.\w+)?\.json$")
_OF = re.compile(r"(.+)-(\d{5,9})-of-(\d{5,9})\.bin")
_MAIN = ("pytorch_model.bin", "diffusion_pytorch_model.bin", "adapter_model.bin")
"""Of several files, the first of these is the one to read."""

_BESIDE = re.compile(
    r"(?:training_args|optimizer|scheduler|scaler|sampler|rng_state|random_states)"
    r"(?:_\d+)*\.(?:bin|pt|pth)"
)
"""What trainers write beside a model."""

_ENDS = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class Files:
    """The trees of files, by name, with what there is to check and to tell."""

    trees: dict[str, Any]
    checks: list[Check] = field(default_factory=list[Check])
    notes: list[str] = field(default_factory=list[str])


def read_files(
    store: Store,
    names: Collection[str],
    *,
    globals: Globals = TORCH,
    inert: Collection[str] = INERT,
) -> Files:
    """Return the trees of files of `torch.save`; a remote store is asked in parallel.

    Objects of classes below `inert` are passed over, with a note.
    """
    files = Files({})

    def read(name: str) -> Any:
        def note(path: str, what: str) -> None:
            if not path:
                raise Unsupported(
                    f"expected tensors by name, found {what} - in {store.url}/{name}: "
                    "save its state_dict() instead"
                )
            files.notes.append(f"{what} at `{path}` in {name} was passed over")

        with store.open(name) as reader:
            return read_torch(
                store,
                Blob(name, 0, reader.size),
                reader=reader,
                globals=globals,
                inert=inert,
                unknown=note,
                checks=files.checks,
            )

    ordered = sorted(names)
    if store.is_remote and len(ordered) > 1:
        with ThreadPoolExecutor(min(store.parallel, len(ordered))) as pool:
            trees = list(pool.map(read, ordered))
    else:
        trees = list(map(read, ordered))
    files.trees.update(zip(ordered, trees, strict=True))
    return files


def find_torch(folder: Folder) -> Catalogue | None:
    """Return what a file of `torch.save` holds, or the only one of a folder.

    An index comes before other files, and shards without one that say of how many they
    are, unless the whole is there; then a pytorch_model.bin. What trainers write beside
    it does not count.
    """
    if folder.file:
        return _open_index(folder, folder.file) or _open_file(folder, folder.file)
    near = [name for name in folder.names if "/" not in name]
    if index := _find_index(near):
        return _open_index(folder, index)
    found = [name for name in near if name.endswith(_ENDS)]
    if shards := _find_shards(folder, found):
        return _open_shards(folder, shards)
    kept = [name for name in found if not _BESIDE.fullmatch(name)]
    chosen = next((name for name in _MAIN if name in kept), "")
    if not chosen and len(kept) != 1 and len(found) != 1:
        return None
    chosen = chosen or (kept or found)[0]
    opened = _open_file(folder, chosen)
    if opened is None or len(found) == 1:
        return opened
    others = ", ".join(name for name in found[:10] if name != chosen)
    return Catalogue(
        opened.format,
        opened.tree,
        opened.objects,
        notes=(*opened.notes, f"other files were passed over: {others}"),
        checks=opened.checks,
    )


def _find_index(names: Sequence[str]) -> str:
    """Return the index of a folder, the one of no variant before others."""
    found = [name for name in names if _INDEX.search(name)]
    plain = (f"{main}.index.json" for main in _MAIN)
    return next((name for name in plain if name in found), found[0] if found else "")


def _find_shards(folder: Folder, names: Sequence[str]) -> list[str]:
    """Return files that say of how many they are, where they have no index.

    Damaged where one of them is missing; none where the whole is there as well, or
    where there are several sets.
    """
    found = [match for name in names if (match := _OF.fullmatch(name))]
    sets = {(match[1], match[3]) for match in found}
    if len(sets) != 1 or f"{found[0][1]}.bin" in names:
        return []
    count = int(found[0][3])
    numbers = {int(match[2]) for match in found}
    if len(found) != count or numbers != set(range(1, len(found) + 1)):
        raise Damaged(
            f"expected {count} files {found[0][1]}-*.bin, found {len(found)} - in "
            f"{folder.store.url}: bring all shards together"
        )
    return [match[0] for match in found]


def _open_shards(folder: Folder, names: Sequence[str]) -> Catalogue:
    """Return what shards hold that no index names."""
    files = read_files(folder.store, names)
    tree: dict[Any, Any] = {}
    for name, held in files.trees.items():
        if not isinstance(held, dict) or not tree.keys().isdisjoint(
            cast(dict[Any, Any], held)
        ):
            raise Unsupported(
                f"expected shards with different names, found others in {name} - in "
                f"{folder.store.url}: give the path of one file"
            )
        tree.update(cast(dict[Any, Any], held))
    return Catalogue(
        "torch",
        tree,
        tuple(sorted(names)),
        notes=tuple(files.notes),
        checks=tuple(files.checks),
    )


def _open_file(folder: Folder, name: str) -> Catalogue | None:
    with folder.store.open(name) as reader:
        head = bytearray(min(reader.size, HEAD))
        reader.read_into(0, head)
    if not is_torch(bytes(head)) or name.endswith(".npz"):
        return None
    files = read_files(folder.store, [name])
    return Catalogue(
        "torch",
        files.trees[name],
        (name,),
        notes=tuple(files.notes),
        checks=tuple(files.checks),
    )


def _open_index(folder: Folder, name: str) -> Catalogue | None:
    if not _INDEX.search(name):
        return None
    where = f"{folder.store.url}/{name}"
    shards = _read_index(folder.store.read(name, limit=JSON_BYTES), where=where)
    top = name.rpartition("/")[0]
    paths = {
        shard: check_name(f"{top}/{shard}" if top else shard)
        for shard in set(shards.values())
    }
    for path in sorted(paths.values()):
        if not folder.has(path):
            raise Damaged(
                f"expected the shard {path}, found none - named in {where}: bring all "
                "shards together"
            )
    files = read_files(folder.store, list(paths.values()))
    tree: dict[str, Any] = {}
    for leaf, shard in shards.items():
        held = files.trees[paths[shard]]
        if not isinstance(held, dict) or leaf not in held:
            raise Damaged(
                f"expected {leaf[:200]!a} in {paths[shard]}, found none - named in "
                f"{where}: the index and the shards are of different checkpoints"
            )
        tree[leaf] = held[leaf]
    extra = sum(len(cast(dict[Any, Any], held)) for held in files.trees.values())
    if extra > len(tree):
        files.notes.append(f"{extra - len(tree)} values that {name} does not name")
    return Catalogue(
        "torch",
        tree,
        (name, *sorted(paths.values())),
        notes=tuple(files.notes),
        checks=tuple(files.checks),
    )


def _read_index(data: bytes, *, where: str) -> dict[str, str]:
    """Return the file name of each leaf; names of files are plain."""
    try:
        index = parse_object(data.lstrip(), where, what="an index")
        shards = cast(dict[str, Any], index["weight_map"])
        plain = all(
            type(shard) is str and "/" not in check_name(shard)
            for shard in shards.values()
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Untrusted(
            f"expected JSON with a weight_map of file names, found other data - in "
            f"{where}"
        ) from None
    if not plain:
        raise Untrusted(f"expected names of files beside {where}, found others")
    return shards
