"""What the packages say of themselves is there, and holds."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

PACKAGES = ("ckpt", "layouts", "pytree")


def find_modules() -> list[str]:
    """Name every module of the packages but those that run when imported."""
    found: list[str] = [*PACKAGES]
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                found.append(module.name)
    return found


@pytest.mark.parametrize("name", find_modules())
def test_examples_hold(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_listed_once_and_documented(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__doc__
    assert len(package.__all__) == len(set(package.__all__)) > 0
    for public in package.__all__:
        value = getattr(package, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            # A dataclass without a docstring is given its signature as one.
            doc = value.__doc__ or ""
            assert doc, f"{name}.{public} has no docstring"
            assert not doc.startswith(f"{public}("), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", PACKAGES)
def test_types_are_shipped(name: str) -> None:
    folder = importlib.import_module(name).__path__[0]
    assert (Path(folder) / "py.typed").is_file()
