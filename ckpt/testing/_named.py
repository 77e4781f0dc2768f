"""Functions as what a fresh process finds them by: their module and name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from typing import Any


def name_function(function: Any, role: str) -> dict[str, str]:
    """Return where a function is found; ValueError for one that no module names."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    found: Any = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if not name or not module or found is not function:
        raise ValueError(
            f"expected {role} to be a function that a module names, found "
            f"{function!r:.80}: a fresh process must find it, so define it at the top "
            "of a module (no lambda, no closure)"
        )
    file = inspect.getsourcefile(inspect.unwrap(function)) or ""
    return {"module": module, "name": name, "file": file}


def find_function(where: dict[str, str]) -> Any:
    """Return the function that `name_function` has named."""
    found: Any = _import(where["module"], where["file"])
    for part in where["name"].split("."):
        found = getattr(found, part)
    return found


def _import(module: str, file: str) -> Any:
    if module != "__main__":
        try:
            return importlib.import_module(module)
        except ImportError:
            pass
    # A script, or a test that is in no package.
    name = f"_resumed_{module}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected the module {module}, found no file {file!r}")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
