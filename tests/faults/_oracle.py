"""What a run must be after a fault, told by the files alone where that is possible."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ckpt
from tests.faults._trees import WrongTree, make_tree, restore_seed

State = Mapping[int, int]
"""The seed of the tree of each committed step."""

NEXT_SEED = 999


def committed_folders(run: Path) -> dict[int, str]:
    """Read from each commit record which folder it names, without the library."""
    found: dict[int, str] = {}
    for path in (run / "steps").glob("*.json"):
        body = json.loads(path.read_text().splitlines()[1])
        found[body["step"]] = body["directory"]
    return found


def left_over(run: Path) -> set[str]:
    """Return the attempts that lie in a run, or are noted, and that no record names."""
    folders = {path.name for path in run.iterdir() if path.name != "steps"}
    notes = {path.name.split(".")[0] for path in (run / "steps").glob("*.attempt*")}
    return (folders | notes) - set(committed_folders(run).values())


def strays(run: Path) -> set[str]:
    """Return all files and folders of a run that no committed step needs."""
    committed = committed_folders(run)
    expected = {f"steps/{step}.json" for step in committed} | set(committed.values())
    folders = {path.name for path in run.iterdir() if path.name != "steps"}
    names = {f"steps/{path.name}" for path in (run / "steps").iterdir()}
    return (folders | names) ^ expected


def read_state(run: Path) -> dict[int, int]:
    """Restore every committed step; the newest one also as the default."""
    state = {step: restore_seed(run, step) for step in ckpt.steps(run)}
    if state and restore_seed(run) != state[max(state)]:
        raise WrongTree("the newest step is not the one that restore chooses")
    return state


def find_complaint(run: Path, legal: Sequence[State], *, thorough: bool = True) -> str:
    """Say what is wrong with a run, "" if nothing is.

    Its state must be one of the legal ones. If `thorough`, the next save must work,
    `verify` must name what is left over and `prune` remove it, and nothing else.
    """
    try:
        state = read_state(run)
        if state not in legal:
            return f"found {state}, expected one of {list(legal)}"
        return _find_leftover(run, state) if thorough else ""
    except (ckpt.CkptError, WrongTree) as error:
        return f"{type(error).__name__}: {error}"


def _find_leftover(run: Path, state: dict[int, int]) -> str:
    done = ckpt.save(make_tree(NEXT_SEED), None, run)
    state |= {done.step: NEXT_SEED}
    expected = left_over(run)
    report = ckpt.verify(run)
    if not report.ok or set(report.orphans) != expected:
        return f"verify says {report}, expected the orphans {expected}"
    removed = ckpt.prune(run, orphan_age=0)
    if len(removed) != len(expected) or not all(one.orphan for one in removed):
        return f"prune removed {removed}, expected the orphans {expected}"
    if found := strays(run):
        return f"prune left {found}"
    if (found := read_state(run)) != state:
        return f"found {found} after prune, expected {state}"
    return ""
