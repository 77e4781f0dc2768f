"""What a Run saves as text comes back as it was, and odd text is refused."""

import contextlib
import json
import random
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

import ckpt
from ckpt.resume._plain import decode_plain, encode_plain
from ckpt.resume._rng import make_rng, read_rng
from tests.resume._counter import train

DTYPES = hnp.scalar_dtypes().filter(lambda d: d.kind in "biufc" and d.itemsize <= 16)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.binary(max_size=8)
    | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("~ab", max_size=4), inner, max_size=3)
        | st.dictionaries(st.integers() | st.booleans(), inner, max_size=2)
    ),
    max_leaves=8,
)


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two plain values are of one type and have the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        told = [(x.shape, x.dtype.newbyteorder("="), x.tolist()) for x in (one, other)]
        return repr(told[0]) == repr(told[1])
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return is_same([*one.items()], [*other.items()])
    return repr(one) == repr(other)


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    text = encode_plain(value)
    assert text.isascii()
    assert is_same(decode_plain(text), value)


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["~int", "~float", "~bytes", "~tuple", "~dict", "~array", "a"]
                ),
                inner,
            )
        ),
        max_leaves=6,
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    with contextlib.suppress(ckpt.Untrusted):
        decode_plain(json.dumps(value))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), 1j])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(ckpt.Unsupported, match="expected"):
        encode_plain({"deep": [value]})


@given(
    st.sampled_from(["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]),
    st.integers(0, 1 << 64),
    st.integers(0, 9),
)
def test_a_generator_goes_on_where_it_was(name: str, seed: int, drawn: int) -> None:
    made = getattr(np.random, name)(seed)
    for rng in (np.random.Generator(made), random.Random(seed)):
        for _ in range(drawn):
            rng.random()
        again = make_rng(decode_plain(encode_plain(read_rng(rng))))
        assert [again.random() for _ in range(3)] == [rng.random() for _ in range(3)]


def forge(path: Path, host: str, run: str) -> None:
    """Commit a step 2 that has these texts beside its state."""
    tree = {"state": {"sum": np.int64(5)}, "host": ckpt.PerProcess(host), "run": run}
    ckpt.save(tree, None, path, step=2)


@pytest.mark.parametrize("which", ["host", "run"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        "[" * 100_000 + "]" * 100_000,
        "1" * 100_000,
        '"\\ud800"',
        '{"~int":"0x1","~float":"1"}',
        '{"~float":"zz"}',
        '{"~dict":[[[1],2]]}',
        '{"rngs":{"~array":["<u4",[-1],"AAAAAA=="]}}',
        '{"rngs":{"~array":["O",[1],"AAAA"]}}',
        '{"rngs":{"~array":["<u4",[1000000000000],""]}}',
        '{"settings":{},"config":{},"data":"x","rngs":7}',
        '{"settings":[],"config":{},"data":null}',
    ],
)
def test_a_step_with_odd_texts_is_skipped(
    memory_run: Path, which: str, text: str
) -> None:
    train(memory_run, 1)
    whole = ckpt.restore(memory_run)
    host, run = whole["host"].value, whole["run"]
    texts = {"host": host, "run": run, which: text}
    forge(memory_run, **texts)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, seen = train(memory_run, 2)
    assert seen == [1001]
    assert [str(w.message)[:43] for w in told] == [
        "expected to resume from step 2, found it un"
    ]
