"""Names that climb out, collide, call the network, or are code."""

import json

import pytest

from tests.attacks._forge import Forgery, dump
from tests.attacks._sandbox import Sandbox, listening

UNSAFE = [
    "../outside/w",
    "/etc/passwd",
    "w/../../outside",
    "w/./c",
    "w//c",
    "/",
    "",
    ".",
    "..",
    "~/.ssh",
    "w\\..\\c",
    "C:/w",
    "w\0",
    "w\n",
    "wé",
    "w ",
    "$HOME",
    "x" * 2000,
    None,
    1,
    ["w"],
    {"driver": "file", "path": "/etc"},
    "parts",
    "Parts/0.json",
    "manifest.json",
    "manifest.json/x",
    "~packs/0-0",
    "~PACKS",
    "zarr.json",
    "w/Zarr.json",
]


@pytest.mark.parametrize("name", UNSAFE, ids=lambda name: ascii(name)[:20])
def test_the_name_of_an_array_stays_inside(
    forgery: Forgery, sandbox: Sandbox, name: object
) -> None:
    forgery.leaf("w")["array"] = name
    forgery.write()
    if name == "~/.ssh":
        # A folder called "~" below the checkpoint, as nothing expands it.
        return sandbox.refuse(forgery, "Damaged")
    return sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("name", ["v", "V", "v/c", "v/c/0/0", "B/x"])
def test_arrays_that_lie_in_one_another_are_refused(
    forgery: Forgery, sandbox: Sandbox, name: str
) -> None:
    forgery.leaf("w")["array"] = name
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "distinct array names")


@pytest.mark.parametrize(
    "name",
    ["../zarr.json", "/zarr.json", "a/../zarr.json", "w/c/0/0", "manifest.json", 3],
)
def test_the_name_of_a_file_stays_inside(
    forgery: Forgery, sandbox: Sandbox, name: object
) -> None:
    forgery.part["files"][0][0] = name
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


def test_a_file_that_is_named_twice_is_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    forgery.part["files"].append(["W/zarr.json", 1, 1])
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "distinct files")


@pytest.mark.parametrize("field", ["kvstore", "url", "base", "driver", "transform"])
@pytest.mark.parametrize("where", ["leaf", "part", "objects"])
def test_no_entry_can_name_another_store(
    forgery: Forgery, sandbox: Sandbox, field: str, where: str
) -> None:
    entries = {
        "leaf": forgery.leaf("w"),
        "part": forgery.part,
        "objects": forgery.objects,
    }
    with listening() as (address, called):
        entries[where][field] = f"http://{address}/"
        forgery.write()
        sandbox.refuse(forgery, "Untrusted")
        assert not called()


@pytest.mark.parametrize("scheme", ["http", "s3", "gs", "file", "kvstack", "memory"])
def test_a_name_that_is_a_url_reaches_no_network(
    forgery: Forgery, sandbox: Sandbox, scheme: str
) -> None:
    with listening() as (address, called):
        forgery.leaf("w")["array"] = f"{scheme}://{address}/w"
        forgery.write()
        for end in sandbox.expose(forgery, network=True)["ends"].values():
            assert end["error"] in ("Untrusted", None)
        assert not called()


def test_stored_zarr_metadata_is_never_opened(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    forgery.write()
    with listening() as (address, called):
        spec = {"driver": "zarr3", "kvstore": {"driver": "http"}, "zarr_format": 3}
        spec["kvstore"] = {"driver": "http", "base_url": f"http://{address}"}
        for name in ("zarr.json", "w/zarr.json"):
            (forgery.folder / name).write_text(json.dumps(spec))
        ends = sandbox.expose(forgery, network=True)["ends"]
        assert ends["restore"]["error"] is None
        assert ends["restore on a mesh"]["error"] is None
        assert ends["verify"]["error"] == "Damaged"
        assert not called()


@pytest.mark.parametrize("name", ["os.system", "antigravity.fly", "os:system", "."])
@pytest.mark.parametrize("kind", ["namedtuple", "node"])
def test_a_type_is_a_label_and_never_imported(
    forgery: Forgery, sandbox: Sandbox, name: str, kind: str
) -> None:
    point = forgery.manifest["structure"]["children"][-1]
    point["type"], point["kind"] = name, kind
    if kind == "node":
        point["static"] = {"call": {"label": "os.system"}}
    forgery.write()
    found = sandbox.expose(forgery)
    assert found["ends"]["restore"]["error"] is None
    assert f"Record[{name}]" in found["ends"]["restore"]["text"]
    assert "antigravity" not in found["modules"]


@pytest.mark.parametrize(
    "node",
    [
        {"kind": "pickle", "data": "gASVHgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU"},
        {"kind": "node", "type": "", "keys": [], "children": []},
        {"kind": "dict", "keys": [], "children": [], "import": "os"},
        {"kind": "list", "children": [], "__reduce__": []},
        {"py/object": "os.system"},
        "!!python/object/apply:os.system",
        [0, 1],
        True,
        0.5,
    ],
    ids=str,
)
def test_a_node_that_is_unknown_is_refused(
    forgery: Forgery, sandbox: Sandbox, node: object
) -> None:
    forgery.manifest["structure"]["children"][-1] = node
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("field", ["kind", "dtype"])
@pytest.mark.parametrize(
    "value", ["pickle", "object", "O", "|O8", "eval", "", None, ["f4"], "\x1b[2J"]
)
def test_a_kind_or_dtype_that_is_unknown_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str, value: object
) -> None:
    forgery.leaf("small")[field] = value
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("path", ["W", "v", "", "w/0", "../w", "w\0", "\x1b[2J"])
def test_a_path_that_the_structure_does_not_give_is_refused(
    forgery: Forgery, sandbox: Sandbox, path: str
) -> None:
    forgery.leaf("w")["path"] = path
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


ESCAPE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m"
PATH = "%1B%5D0%3Bowned%07%1B%5B2J%0D%C2%9B31m"


@pytest.mark.parametrize(
    "place", ["key", "field", "type", "static", "label", "axis", "metric", "text"]
)
def test_no_name_reaches_a_terminal_unescaped(
    forgery: Forgery, sandbox: Sandbox, place: str
) -> None:
    structure = forgery.manifest["structure"]
    match place:
        case "key":
            structure["keys"][0] = ESCAPE
            forgery.leaf("w")["path"] = PATH
        case "type":
            structure["children"][-1]["type"] = ESCAPE
        case "static" | "label":
            value = {"label": ESCAPE} if place == "label" else {"json": ESCAPE}
            structure["children"][-1] |= {"kind": "node", "static": {ESCAPE: value}}
        case "axis":
            text = dump(forgery.manifest["placements"]).replace(b'"data"', dump(ESCAPE))
            forgery.manifest["placements"] = json.loads(text)
        case "metric":
            forgery.manifest["metrics"] = {ESCAPE: ESCAPE}
        case "field":
            structure["children"][-1]["keys"][0] = ESCAPE
            forgery.leaf("point/x")["path"] = "point/" + PATH
        case _:
            forgery.leaf("point/y/4")["value"] = ESCAPE
    forgery.write()
    sandbox.expose(forgery)
