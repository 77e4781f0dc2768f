"""Small values, keys and texts that no honest writer makes."""

from typing import Any

import pytest

import ckpt
from tests.attacks._forge import Forgery
from tests.attacks._sandbox import Sandbox

VALUES: dict[str, list[Any]] = {
    "int": [
        "",
        "1",
        "0x",
        "x" * 99,
        " 0x1",
        "0x1_0",
        "0X1",
        "\u0661",
        1,
        True,
        None,
        [],
    ],
    "float": ["1.0", "0x1p99999", "nan", "nan:00", "nan:zz", "nan:", "1e999", 1.0, {}],
    "bool": ["True", 1, 0, None, []],
    "complex": [[], ["0x0p+0"], ["a", "b"], [1, 2], "ab", {"a": 1}, None, [None, None]],
    "str": [1, None, ["a"], {"a": 1}, False],
    "bytes": ["0", "zz", "AB", " 61", 1, None, ["61"]],
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind, values in VALUES.items() for value in values],
    ids=lambda value: ascii(value)[:16],
)
def test_a_value_that_is_none_of_its_kind_is_refused(
    forgery: Forgery, sandbox: Sandbox, kind: str, value: Any
) -> None:
    forgery.leaf("point/y/0").update(kind=kind, value=value)
    forgery.write()
    sandbox.refuse_to_restore(forgery, "Untrusted", "point/y/0")


@pytest.mark.parametrize("digits", ["9" * 10_000_000, "0" * 10_000_000])
def test_ten_million_digits_are_refused(
    forgery: Forgery, sandbox: Sandbox, digits: str
) -> None:
    forgery.leaf("point/y/0")["value"] = digits
    forgery.write()
    sandbox.refuse_to_restore(forgery, "Untrusted", "point/y/0")


def test_an_honest_huge_integer_is_read(forgery: Forgery, sandbox: Sandbox) -> None:
    forgery.leaf("point/y/0")["value"] = "0x" + "f" * 1_000_000
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert {key: end["error"] for key, end in ends.items()} == dict.fromkeys(ends)


@pytest.mark.parametrize("depth", [2, 60])
def test_a_nested_value_is_refused(
    forgery: Forgery, sandbox: Sandbox, depth: int
) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    forgery.leaf("point/y/3")["value"] = value
    forgery.write()
    sandbox.refuse(forgery, "LimitExceeded", "point/y/3")


@pytest.mark.parametrize(
    "impl", ["rbg", "unsafe_rbg", "threefry", "fry", "", "__class__", "\x1b[2J"]
)
def test_a_prng_that_jax_does_not_have_is_refused(
    forgery: Forgery, sandbox: Sandbox, impl: str
) -> None:
    forgery.leaf("key")["impl"] = impl
    forgery.write()
    sandbox.refuse_to_restore(forgery, "Untrusted", "`key`")


@pytest.mark.parametrize("impl", [None, 1, True, ["threefry2x32"], {}])
def test_a_prng_that_is_no_name_is_refused(
    forgery: Forgery, sandbox: Sandbox, impl: Any
) -> None:
    forgery.leaf("key")["impl"] = impl
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "`key`")


def test_key_data_that_is_no_key_is_refused(forgery: Forgery, sandbox: Sandbox) -> None:
    forgery.leaf("key")["shape"] = [1, 2, 1]
    del forgery.leaf("key")["placement"]
    forgery.write()
    sandbox.refuse_to_restore(forgery, "Untrusted", "`key`")


@pytest.mark.parametrize("kind", ["str", "bytes", "key", "numpy_scalar"])
def test_an_array_under_the_name_of_another_kind_is_refused(
    forgery: Forgery, sandbox: Sandbox, kind: str
) -> None:
    forgery.leaf("small")["kind"] = kind
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "`small`")


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_a_long_text_that_is_not_utf8_is_refused(
    forgery: Forgery, sandbox: Sandbox, data: bytes
) -> None:
    forgery.put("text", (data * 2000)[: len("long " * 400)])
    forgery.write()
    sandbox.refuse_to_restore(forgery, "Untrusted", "`text`")


@pytest.mark.parametrize("field", ["weak", "placement", "piece"])
@pytest.mark.parametrize("value", ["yes", 2, -1, 10**30, 0.5, [1e9], {}])
def test_a_field_of_another_type_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str, value: Any
) -> None:
    if (field, value) == ("placement", 2):
        value = 99
    forgery.leaf("small")[field] = value
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "`small`")


def test_a_forgery_is_caught_by_the_digest_that_save_returned(
    forgery: Forgery,
) -> None:
    digest = ckpt.open(forgery.run).digest
    forgery.leaf("point/y/0")["value"] = "0x7"
    forgery.write()
    assert ckpt.restore(forgery.run)["point"].y[0] == 7
    with pytest.raises(ckpt.Damaged, match=digest):
        ckpt.restore(forgery.run, expect=digest)
