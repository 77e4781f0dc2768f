"""Documents that are bombs, that lie about themselves, or that say too much."""

import hashlib
import json

import pytest

from tests.attacks._forge import Forgery, dump, seal
from tests.attacks._sandbox import Sandbox

NESTED = 100_000


def _with(forgery: Forgery, field: str, text: bytes) -> bytes:
    """Return the manifest's body with the JSON text of one field replaced."""
    body = dump(forgery.manifest | {field: "@"})
    return body.replace(b'"@"', text, 1)


@pytest.mark.parametrize("field", ["metrics", "meta", "structure", "leaves", "step"])
def test_deeply_nested_json_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str
) -> None:
    text = b'{"a":' * NESTED + b"1" + b"}" * NESTED
    forgery.write_manifest(_with(forgery, field, text))
    sandbox.refuse(forgery, "LimitExceeded", "manifest.json")


@pytest.mark.parametrize("depth", [150, 900])
@pytest.mark.parametrize("field", ["metrics", "meta"])
def test_json_nested_beyond_use_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str, depth: int
) -> None:
    forgery.write_manifest(
        _with(forgery, field, b'{"a":' * depth + b"1" + b"}" * depth)
    )
    sandbox.refuse(forgery, "LimitExceeded")


@pytest.mark.parametrize("node", [b"[%s]", b'{"kind":"list","children":[%s]}'])
def test_a_structure_nested_beyond_use_is_refused(
    forgery: Forgery, sandbox: Sandbox, node: bytes
) -> None:
    before, after = node.split(b"%s")
    text = before * 300 + b"0" + after * 300
    forgery.write_manifest(_with(forgery, "structure", text))
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"9" * 10_000_000, "Untrusted"),
        (b"1e400", "Untrusted"),
        (b"NaN", "Untrusted"),
        (b"-Infinity", "Untrusted"),
        (b'{"a":1,"a":2}', "Untrusted"),
        (b'{"a":"\\ud800"}', "Untrusted"),
        (b'{"a":"\xff"}', "Untrusted"),
        (b'{"a":"\xed\xa0\x80"}', "Untrusted"),
        (b'{"a":1', "Untrusted"),
        (b'{"a":1}}', "Untrusted"),
        (b"[]", "Untrusted"),
        (b"null", "Untrusted"),
        (b'"' + b"x" * 1_000_000 + b'"', "Untrusted"),
    ],
    ids=lambda value: value[:16].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_json_that_is_not_strict_is_refused(
    forgery: Forgery, sandbox: Sandbox, text: bytes, error: str
) -> None:
    forgery.write_manifest(_with(forgery, "metrics", text))
    sandbox.refuse(forgery, error)


def test_a_byte_order_mark_is_refused(forgery: Forgery, sandbox: Sandbox) -> None:
    forgery.write_manifest(b"\xef\xbb\xbf" + dump(forgery.manifest))
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b",".join(b'"%07d":0' % n for n in range(2_500_000)) + b"}",
        b"[" + b"[]," * 8_000_000 + b"0]",
        b"[" + b"0," * 20_000_000 + b"0]",
    ],
    ids=["keys", "lists", "numbers"],
)
def test_more_json_values_than_any_checkpoint_has_are_refused(
    forgery: Forgery, sandbox: Sandbox, text: bytes
) -> None:
    forgery.write_manifest(_with(forgery, "meta", text))
    sandbox.refuse(forgery, "LimitExceeded")


def test_a_manifest_above_64_mib_is_refused(forgery: Forgery, sandbox: Sandbox) -> None:
    text = b'{"a":"' + b"x" * (65 << 20) + b'"}'
    forgery.write_manifest(_with(forgery, "meta", text))
    sandbox.refuse(forgery, "Untrusted", "from 1 to under")


@pytest.mark.parametrize("honest_size", [True, False])
def test_a_sparse_terabyte_in_place_of_the_manifest_is_not_read(
    forgery: Forgery, sandbox: Sandbox, honest_size: bool
) -> None:
    forgery.write()
    with (forgery.folder / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    if not honest_size:
        size = [1 << 26, "0" * 64]
        document = seal("ckpt-commit", dump(forgery.record | {"manifest": size}))
        forgery.record_path.write_bytes(document)
    sandbox.refuse(forgery, "LimitExceeded")


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ({"version": 2}, "Unsupported"),
        ({"version": 10**400}, "Unsupported"),
        ({"version": True}, "Untrusted"),
        ({"version": "1"}, "Untrusted"),
        ({"version": 0}, "Untrusted"),
        ({"requires": ["reuse-2"]}, "Unsupported"),
        ({"requires": [{}]}, "Unsupported"),
        ({"requires": "none"}, "Untrusted"),
        ({"format": "ckpt-part"}, "Untrusted"),
        ({"format": None}, "Untrusted"),
        ({"kvstore": "http://127.0.0.1/"}, "Untrusted"),
        ({"length": 7}, "Damaged"),
        ({"length": -1}, "Damaged"),
        ({"length": 1e9}, "Damaged"),
        ({"requires": ["x" * 5000]}, "Damaged"),
    ],
    ids=str,
)
def test_a_header_that_is_not_ours_is_refused(
    forgery: Forgery, sandbox: Sandbox, header: dict[str, object], error: str
) -> None:
    body = dump(forgery.manifest | forgery.seal_part())
    forgery.write_manifest(body, **header)
    sandbox.refuse(forgery, error)


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}\n{}\n", b"[" * 4000 + b"\n", b"\0" * 4096, b"\x80\x04N.\n"],
    ids=["empty", "line", "no fields", "brackets", "zeros", "pickle"],
)
def test_a_manifest_without_a_header_is_damaged(
    forgery: Forgery, sandbox: Sandbox, data: bytes
) -> None:
    forgery.commit(data)
    sandbox.refuse(forgery, "Damaged" if data else "Untrusted")


@pytest.mark.parametrize("field", ["kvstore", "driver", "__class__"])
def test_a_field_that_is_unknown_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str
) -> None:
    forgery.manifest[field] = {"driver": "file", "path": "/"}
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("codec", ["lz4", "", 1, [], {"driver": "json"}])
def test_a_codec_that_is_unknown_is_refused(
    forgery: Forgery, sandbox: Sandbox, codec: object
) -> None:
    forgery.manifest["codec"] = codec
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


def test_free_data_under_meta_is_ignored(forgery: Forgery, sandbox: Sandbox) -> None:
    forgery.manifest["meta"] = {"kvstore": "file:///etc/passwd", "x": ["\x1b[2J"]}
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert {name: end["error"] for name, end in ends.items()} == dict.fromkeys(ends)


@pytest.mark.parametrize("metrics", [{"a": {}}, {"a": {"float": "x"}}, {"a": [1]}])
def test_metrics_that_are_no_numbers_are_refused(
    forgery: Forgery, sandbox: Sandbox, metrics: object
) -> None:
    forgery.manifest["metrics"] = metrics
    forgery.write()
    assert sandbox.expose(forgery)["ends"]["show"]["error"] == "Untrusted"


@pytest.mark.parametrize(
    "change",
    [
        {"directory": "../outside"},
        {"directory": "/etc"},
        {"directory": "1-0123456789abcdef"},
        {"directory": ""},
        {"commit": "../../outside"},
        {"commit": "\x1b[2J"},
        {"step": 2},
        {"step": True},
        {"step": -1},
        {"url": "s3://elsewhere"},
        {"manifest": [10**30, "0" * 64]},
        {"manifest": [1.5, "0" * 64]},
        {"manifest": {"driver": "http"}},
    ],
    ids=str,
)
def test_a_record_that_points_elsewhere_is_refused(
    forgery: Forgery, sandbox: Sandbox, change: dict[str, object]
) -> None:
    forgery.write()
    data = (forgery.folder / "manifest.json").read_bytes()
    body = {"manifest": [len(data), hashlib.sha256(data).hexdigest()]}
    body |= forgery.record | change
    forgery.record_path.write_bytes(seal("ckpt-commit", dump(body)))
    sandbox.refuse(forgery, "Untrusted", "steps/1.json")


@pytest.mark.parametrize("size", [1 << 17, 1 << 40])
def test_a_record_of_any_length_is_refused(
    forgery: Forgery, sandbox: Sandbox, size: int
) -> None:
    with forgery.record_path.open("r+b") as file:
        file.truncate(size)
    sandbox.refuse(forgery, "LimitExceeded")


def test_a_manifest_of_json_text_in_json_is_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    forgery.write_manifest(dump(json.dumps(forgery.manifest)))
    sandbox.refuse(forgery, "Untrusted")
