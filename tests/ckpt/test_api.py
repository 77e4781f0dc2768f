"""The public names, and how they may be called."""

import inspect
import types
from typing import Any

import pytest

import ckpt

DESIGNED = {
    *("ABSENT", "Keep", "PerProcess", "Run", "copy", "diff", "drain", "every"),
    *("follow", "latest", "open", "plan", "prune", "remesh", "restore", "save"),
    *("save_async", "save_safetensors", "steps", "verify"),
}
ERRORS = {
    *("BarrierTimeout", "CkptError", "CommitUnknown", "Damaged", "LimitExceeded"),
    *("NotFound", "StepExists", "StoreError", "StructureMismatch", "Unsupported"),
    *("DataMismatch", "Untrusted"),
}
RETURNED = {"Change", "Checkpoint", "Diff", "Problem", "Removed", "Report"} | {
    "RestorePlan"
}
FUNCTIONS = [f for f in vars(ckpt).values() if inspect.isfunction(f)]
POSITIONAL = {
    *("save", "save_async", "restore", "plan", "open", "steps", "latest", "verify"),
    *("copy", "diff", "drain", "every", "follow", "prune", "remesh"),
    "save_safetensors",
}


def test_the_public_names_are_those_delivered() -> None:
    assert ckpt.__all__ == sorted(DESIGNED | ERRORS | RETURNED)
    public = {
        name
        for name, value in vars(ckpt).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(ckpt.__all__)


def test_every_error_is_a_ckpt_error_that_says_where_it_is_from() -> None:
    for name in ERRORS:
        error = getattr(ckpt, name)
        assert issubclass(error, ckpt.CkptError)
        assert (error.__module__, error.__qualname__) == ("ckpt", name)
    assert name_tree(ckpt.CkptError) == ERRORS | {"CutShort", "PastEnd"}


def name_tree(error: type) -> set[str]:
    below = (name_tree(e) for e in error.__subclasses__())
    return {error.__name__}.union(*below)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_at_most_three_arguments_are_positional(function: Any) -> None:
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    free = [k for k in kinds if k is not inspect.Parameter.KEYWORD_ONLY]
    most = 3 if function.__name__.startswith("save") else 2
    assert len(free) <= most
    assert function.__name__ in POSITIONAL


@pytest.mark.parametrize("name", ckpt.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(ckpt, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        methods = [m for n, m in vars(value).items() if not n.startswith("_")]
        checked = [m for m in methods if callable(m) or isinstance(m, property)]
        assert all(inspect.getdoc(m) for m in checked)


def test_values_that_are_returned_are_frozen() -> None:
    done = ckpt.save({"x": 1}, None, "memory://api-frozen")
    values: list[Any] = [done, ckpt.plan(done.url), ckpt.verify(done.url)]
    for value in values:
        # Python 3.11 says TypeError for what is a property of a class with slots.
        with pytest.raises((AttributeError, TypeError)):
            value.step = 3
