"""The loop over a pickle: what most of its bytes say inline, the rest by a table.

A call costs more than most operations do. So these few keep the state in local
variables, and what they make is counted after each batch: that is little memory.
"""

from __future__ import annotations

from typing import Any

from .._errors import Damaged, Untrusted
from ._pickle_machine import Machine
from ._pickle_make import call
from ._pickle_opcodes import OPCODES
from ._record import Record

_BATCH = 1024
"""How many operations are run between two looks at the limits."""

_STOP, _MARK, _REDUCE, _BUILD, _BININT1, _BINUNICODE = b".(RbKX"
_BINGET, _LONG_BINGET, _BINPUT, _LONG_BINPUT = b"hjqr"
_EMPTY_DICT, _EMPTY_TUPLE, _TUPLE = b"})t"
_NEWOBJ, _TUPLE1, _TUPLE2, _SHORT_BINUNICODE, _MEMOIZE = b"\x81\x85\x86\x8c\x94"
_CALLS, _TEXTS = (_REDUCE, _NEWOBJ), (_SHORT_BINUNICODE, _BINUNICODE)


def run(m: Machine) -> Any:
    """Run operations until the one that ends the pickle, and return its value."""
    try:
        return _run(m)
    except IndexError:
        # Of the data, or of a stack that is empty: only one is possible before the end.
        if m.at < m.end:
            raise
        raise Damaged("expected more of a pickle, found its end") from None


def _run(m: Machine) -> Any:
    data, number = m.data, int.from_bytes
    memo, far, marked, depth = m.memo, m.far, m.marked, m.limits.depth
    at, stack, made = m.at, m.stack, 0
    try:
        while True:
            m.at, m.stack = at, stack
            m.settle(_BATCH, made)
            made = 0
            for _ in range(_BATCH):
                code = data[at]
                at += 1
                if code == _MEMOIZE and not far:
                    memo.append(stack[-1])
                elif code == _BINGET and (index := data[at]) < len(memo):
                    stack.append(memo[index])
                    at += 1
                elif code == _LONG_BINGET and (
                    index := number(data[at : at + 4], "little")
                ) < len(memo):
                    stack.append(memo[index])
                    at += 4
                elif code == _BININT1:
                    stack.append(data[at])
                    at += 1
                elif code == _TUPLE2:
                    item = stack.pop()
                    stack[-1] = (stack[-1], item)
                    made += 1
                elif code in _CALLS:
                    m.at = at
                    item = stack.pop()
                    stack[-1] = call(m, stack[-1], item)
                elif code == _LONG_BINPUT and number(
                    data[at : at + 4], "little"
                ) == len(memo):
                    memo.append(stack[-1])
                    at += 4
                elif code == _MARK and len(marked) < depth:
                    marked.append(stack)
                    stack = []
                elif (
                    code == _BUILD
                    and type(item := stack[-2]) is Record
                    and item.state is None
                ):
                    item.state = stack.pop()
                elif code == _TUPLE:
                    item = tuple(stack)
                    stack = marked.pop()
                    stack.append(item)
                    made += 1
                elif code in _TEXTS:
                    m.at = at + (1 if code == _SHORT_BINUNICODE else 4)
                    size = number(data[at : m.at], "little")
                    stack.append(str(m.spell(size), "utf-8"))
                    at = m.at
                elif code == _EMPTY_TUPLE:
                    stack.append(())
                elif code == _EMPTY_DICT:
                    stack.append({})
                    made += 1
                elif code == _TUPLE1:
                    stack[-1] = (stack[-1],)
                    made += 1
                elif code == _BINPUT and data[at] == len(memo):
                    memo.append(stack[-1])
                    at += 1
                elif code in OPCODES:
                    m.at, m.stack = at, stack
                    OPCODES[code](m)
                    at, stack = m.at, m.stack
                elif code == _STOP:
                    m.at, m.stack = at, stack
                    m.settle(0, made)
                    return m.stop()
                else:
                    raise Untrusted(
                        "expected an operation of pickles, found the byte "
                        f"{bytes([code])!r}"
                    )
    finally:
        m.at = max(m.at, at)
