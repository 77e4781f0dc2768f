"""The files of a DeepSpeed checkpoint: which folder it is, and what each file is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .._errors import Damaged, NotFound, Unsupported, Untrusted
from .._store import Store, check_name
from ._entry import Folder

_OPTIM = re.compile(
    r"(?:bf16_)?zero_pp_rank_(\d{1,7})_mp_rank_(\d{1,7})_optim_states\.pt"
)
_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,7})_)?mp_rank_(\d{1,7})_model_states\.pt")
_EXPERT = re.compile(
    r"layer_-?\d+_expert_\d+_mp_rank_\d+_model_states\.pt|expp_rank_.*"
)
_LAYER = re.compile(r"layer_\d+-model_.*model_states\.pt")
_ATOM = re.compile(r"zero/(?:([^/]+)/)?([^/]+)\.pt")
_STEP = re.compile(r"(\d{1,15})(?!.*\d)")
_MAX_TAG = 1024


@dataclass(frozen=True, slots=True)
class Tag:
    """The files of one checkpoint, by what they are; `top` ends with a slash, or is "".

    `optim` and `model` go by data-parallel rank; the model file of stages 0 to 2 is at
    -1. `atoms` are the files of the universal format, by parameter and kind.
    """

    top: str
    name: str
    step: int
    optim: dict[int, str]
    model: dict[int, str]
    atoms: dict[tuple[str, str], str]
    split_model: bool


def find_tag(folder: Folder) -> Tag | None:
    """Return the checkpoint that is wanted; None where there is none of DeepSpeed.

    Damaged where `latest` names one that is not there, NotFound for an absent step.
    """
    tops = _find_tops(folder.names)
    if not tops:
        return None
    top = "" if "" in tops else _choose(folder, sorted(tops))
    return _classify(folder.names, top, store=folder.store)


def _find_tops(names: tuple[str, ...]) -> set[str]:
    """Return the folders, this one or those directly below, that hold checkpoints."""
    tops: set[str] = set()
    for name in names:
        head, _, last = name.rpartition("/")
        if "/" not in head and (_OPTIM.fullmatch(last) or _MODEL.fullmatch(last)):
            tops.add(f"{head}/" if head else "")
        elif last == "fp32.pt":
            before, found, _ = name.partition("zero/")
            if found and before.count("/") <= 1 and before[-1:] in ("", "/"):
                tops.add(before)
    return tops


def _choose(folder: Folder, tops: list[str]) -> str:
    """Return the folder of the wanted step, that of `latest`, or the newest."""
    if folder.step is not None:
        for top in tops:
            if _step_of(top) == folder.step:
                return top
        raise NotFound(
            f"expected step {folder.step}, found the tags "
            f"{', '.join(top[:-1] for top in tops[:20])} - in {folder.store.url}"
        )
    for pointer in ("latest", "latest_universal"):
        if not folder.has(pointer):
            continue
        text = folder.store.read(pointer, limit=_MAX_TAG)
        tag = check_name(str(text, "utf-8", "replace").strip())
        if f"{tag}/" not in tops:
            raise Damaged(
                f"expected the files of {tag}, found none - named in "
                f"{folder.store.url}/{pointer}: the save did not finish, or the folder "
                "was removed; ask for another step"
            )
        return f"{tag}/"
    return max(tops, key=lambda top: (_step_of(top), top))


def _step_of(top: str) -> int:
    found = _STEP.search(top)
    return int(found[1]) if found else 0


def _classify(names: tuple[str, ...], top: str, *, store: Store) -> Tag:
    """Say what each file of a checkpoint is; Unsupported for kinds not read here."""
    optim: dict[tuple[int, int], str] = {}
    model: dict[tuple[int, int], str] = {}
    atoms: dict[tuple[str, str], str] = {}
    other: set[str] = set()
    for name in names:
        if not name.startswith(top):
            continue
        rest = name[len(top) :]
        if found := _OPTIM.fullmatch(rest):
            _add(optim, (int(found[2]), int(found[1])), name)
        elif found := _MODEL.fullmatch(rest):
            _add(model, (int(found[2]), int(found[1] or -1)), name)
        elif found := _ATOM.fullmatch(rest):
            atoms[found[1] or "", found[2]] = name
        elif _EXPERT.fullmatch(rest):
            other.add("experts (MoE)")
        elif _LAYER.fullmatch(rest):
            other.add("pipeline stages")
        elif rest.startswith("offloaded_tensors/"):
            other.add("tensors offloaded to NVMe")
    if not atoms and any(mp for mp, _ in (*optim, *model)):
        other.add("tensor parallelism")
    if other and not atoms:
        raise Unsupported(
            f"expected a DeepSpeed checkpoint of data parallelism, found "
            f"{', '.join(sorted(other))} - in {store.url}/{top}: convert it with "
            "deepspeed.checkpoint.ds_to_universal"
        )
    return Tag(
        top,
        top[:-1],
        _step_of(top or store.url),
        {dp: name for (mp, dp), name in optim.items() if mp == 0},
        {dp: name for (mp, dp), name in model.items() if mp == 0},
        atoms,
        split_model=bool(other) or any(mp for mp, _ in model),
    )


def _add(found: dict[tuple[int, int], str], rank: tuple[int, int], name: str) -> None:
    if rank in found:
        raise Untrusted(f"expected one file of a rank, found {found[rank]} and {name}")
    found[rank] = name
