"""The package exports what it says, and does what its examples show."""

import doctest
import importlib
import pkgutil
import sys

import pytest

import pytree

MODULES = sorted(module.name for module in pkgutil.iter_modules(pytree.__path__))


def test_the_public_names_are_these() -> None:
    assert pytree.__all__ == sorted(pytree.__all__)
    assert pytree.__all__ == [
        "ABSENT",
        "Absent",
        "Difference",
        "InvalidStructure",
        "Key",
        "Record",
        "Structure",
        "UnsupportedTree",
        "compare",
        "compare_containers",
        "compile_globs",
        "find_nodes",
        "flatten",
        "format_path",
        "graft",
        "match",
        "parse_path",
        "register",
        "rename_path",
        "rename_paths",
        "take_children",
        "unflatten",
    ]
    public = [name for name in vars(pytree) if not name.startswith("_")]
    assert sorted(public) == pytree.__all__


def test_every_module_is_private() -> None:
    assert all(name.startswith("_") for name in MODULES)


@pytest.mark.parametrize("name", ["pytree", *(f"pytree.{name}" for name in MODULES)])
def test_the_examples_are_true(name: str) -> None:
    module = importlib.import_module(name)
    assert module is sys.modules[name]
    assert doctest.testmod(module).failed == 0
