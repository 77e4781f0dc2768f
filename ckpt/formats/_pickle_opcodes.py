"""The operations of pickles, one function each, over a machine with limits."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from .._errors import Damaged, LimitExceeded, Unsupported, Untrusted
from ._pickle_machine import Machine
from ._pickle_make import build, call, check_keys, find_global
from ._record import Record

Operation: TypeAlias = Callable[[Machine], None]

# Looked up here, so that no file makes Python import it.
_UNESCAPE = codecs.getdecoder("raw_unicode_escape")


def _push(value: Any) -> Operation:
    return lambda m: m.stack.append(value)


def _push_new(make: Callable[[], Any], *, times: int = 1) -> Operation:
    def run(m: Machine) -> None:
        m.contain(times)
        m.stack.append(make())

    return run


def _push_number(size: int, *, signed: bool = False) -> Operation:
    def run(m: Machine) -> None:
        at = m.at
        m.at = stop = at + size
        if stop > m.end:
            raise Damaged("expected a number, found the end of the pickle")
        m.stack.append(int.from_bytes(m.data[at:stop], "little", signed=signed))

    return run


def _push_long(size: int) -> Operation:
    def run(m: Machine) -> None:
        count = m.number(size)
        if count > m.limits.number:
            raise LimitExceeded(f"expected numbers of at most {m.limits.number} bytes")
        m.stack.append(int.from_bytes(m.take(count), "little", signed=True))

    return run


def _push_text(size: int) -> Operation:
    def run(m: Machine) -> None:
        m.stack.append(str(m.spell(m.number(size)), "utf-8"))

    return run


def _push_bytes(size: int, kind: type[bytes] | type[bytearray] = bytes) -> Operation:
    def run(m: Machine) -> None:
        m.stack.append(kind(m.spell(m.number(size))))

    return run


def _protocol(m: Machine) -> None:
    version = m.number(1)
    if version > 5:
        raise Unsupported(f"expected a pickle protocol from 0 to 5, found {version}")


def _frame(m: Machine) -> None:
    size = m.number(8)
    if size > m.end - m.at:
        raise Damaged(f"expected a frame of {size} bytes, found {m.end - m.at}")


def _mark(m: Machine) -> None:
    if len(m.marked) >= m.limits.depth:
        raise LimitExceeded(f"expected at most {m.limits.depth} marks at once")
    m.marked.append(m.stack)
    m.stack = []


def _float(m: Machine) -> None:
    m.stack.append(struct.unpack(">d", m.take(8))[0])


def _float_line(m: Machine) -> None:
    m.stack.append(float(m.line()))


def _int_line(m: Machine) -> None:
    line = m.line()
    if line in (b"00", b"01"):
        m.stack.append(line == b"01")
    else:
        m.stack.append(_number(m, line))


def _long_line(m: Machine) -> None:
    m.stack.append(_number(m, m.line().removesuffix(b"L")))


def _number(m: Machine, line: bytes) -> int:
    if len(line) > 2 * m.limits.number:
        raise LimitExceeded(f"expected numbers of at most {2 * m.limits.number} digits")
    return int(line)


def _text_line(m: Machine) -> None:
    text = _UNESCAPE(bytes(m.line(m.limits.text)))[0]
    text.encode()  # Half of a surrogate pair is no text.
    m.spend(len(text))
    m.stack.append(text)


def _string_line(m: Machine) -> None:
    line = m.line().strip()
    if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
        raise Untrusted("expected a quoted string")
    if b"\\" in line:
        raise Unsupported("expected a string of Python 2 without escapes")
    m.stack.append(str(line[1:-1], "utf-8"))


def _tuple(m: Machine) -> None:
    m.contain()
    items = m.since_mark()
    m.stack.append(tuple(items))


def _tuple_of(count: int) -> Operation:
    def run(m: Machine) -> None:
        if len(m.stack) < count:
            raise Untrusted("expected values for a tuple, found none")
        m.contain()
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return run


def _list(m: Machine) -> None:
    m.contain()
    items = m.since_mark()
    m.stack.append(items)


def _dict(m: Machine) -> None:
    m.contain()
    items = m.since_mark()
    m.stack.append({})
    _set(m, items)


def _frozenset(m: Machine) -> None:
    m.contain(4)
    items = m.since_mark()
    m.stack.append(frozenset(check_keys(m, items)))


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _extend(m, [item])


def _appends(m: Machine) -> None:
    _extend(m, m.since_mark())


def _extend(m: Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if isinstance(target, Record):
        target.items = target.items or []
        target.items.extend(items)
    elif isinstance(target, list):
        cast(list[Any], target).extend(items)
    else:
        raise Untrusted("expected a list to append to")


def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _set(m, [key, value])


def _setitems(m: Machine) -> None:
    _set(m, m.since_mark())


def _set(m: Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if len(items) % 2:
        raise Untrusted("expected a value for each key")
    if isinstance(target, dict):
        if items and not target:
            m.contain()  # The first item makes it four times larger.
        keys = items[::2]
        for key in keys:
            if type(key) is not str:
                check_keys(m, keys)
                break
        cast(dict[Any, Any], target).update(zip(keys, items[1::2], strict=True))
    elif isinstance(target, Record):
        pairs = zip(items[::2], items[1::2], strict=True)
        target.items = target.items or []
        target.items.extend(pairs)
    else:
        raise Untrusted("expected a dict to set items of")


def _additems(m: Machine) -> None:
    items = m.since_mark()
    target = m.stack[-1]
    if not isinstance(target, set):
        raise Untrusted("expected a set to add to")
    cast(set[Any], target).update(check_keys(m, items))


def _pop(m: Machine) -> None:
    m.waste()
    if m.stack:
        m.stack.pop()
    else:
        m.since_mark()


def _pop_mark(m: Machine) -> None:
    m.waste()
    m.since_mark()


def _double(m: Machine) -> None:
    m.waste()
    m.stack.append(m.stack[-1])


def _global_line(m: Machine) -> None:
    module, name = str(m.line(), "utf-8"), str(m.line(), "utf-8")
    m.stack.append(find_global(m, module, name))


def _global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise Untrusted("expected the names of a class as texts")
    m.stack.append(find_global(m, module, name))


def _reduce(m: Machine) -> None:
    args, called = m.stack.pop(), m.stack.pop()
    m.stack.append(call(m, called, args))


def _new_with(m: Machine) -> None:
    named, args, cls = m.stack.pop(), m.stack.pop(), m.stack.pop()
    if not isinstance(named, dict) or not isinstance(args, tuple):
        raise Untrusted("expected arguments in a tuple and a dict")
    given = cast(tuple[Any, ...], (*args, named) if named else args)
    m.stack.append(call(m, cls, given))


def _build(m: Machine) -> None:
    state = m.stack.pop()
    build(m.stack[-1], state)


def _persistent(m: Machine, pid: Any) -> None:
    if m.persistent is None:
        raise Untrusted("expected no references to other data, found one")
    m.stack.append(m.persistent(pid))


_TABLE: dict[str, Operation] = {
    "\x80": _protocol,
    "\x95": _frame,
    "(": _mark,
    "0": _pop,
    "1": _pop_mark,
    "2": _double,
    "N": _push(None),
    "\x88": _push(value=True),
    "\x89": _push(value=False),
    "I": _int_line,
    "J": _push_number(4, signed=True),
    "K": _push_number(1),
    "M": _push_number(2),
    "L": _long_line,
    "\x8a": _push_long(1),
    "\x8b": _push_long(4),
    "F": _float_line,
    "G": _float,
    "S": _string_line,
    "T": _push_text(4),
    "U": _push_text(1),
    "V": _text_line,
    "X": _push_text(4),
    "\x8c": _push_text(1),
    "\x8d": _push_text(8),
    "B": _push_bytes(4),
    "C": _push_bytes(1),
    "\x8e": _push_bytes(8),
    "\x96": _push_bytes(8, bytearray),
    ")": _push(()),
    "t": _tuple,
    "\x85": _tuple_of(1),
    "\x86": _tuple_of(2),
    "\x87": _tuple_of(3),
    "]": _push_new(list[Any]),
    "l": _list,
    "a": _append,
    "e": _appends,
    "}": _push_new(dict[Any, Any]),
    "d": _dict,
    "s": _setitem,
    "u": _setitems,
    "\x8f": _push_new(set[Any], times=4),
    "\x90": _additems,
    "\x91": _frozenset,
    "p": lambda m: m.put(_number(m, m.line())),
    "q": lambda m: m.put(m.number(1)),
    "r": lambda m: m.put(m.number(4)),
    "\x94": Machine.put_next,
    "g": lambda m: m.get(_number(m, m.line())),
    "h": lambda m: m.get(m.number(1)),
    "j": lambda m: m.get(m.number(4)),
    "c": _global_line,
    "\x93": _global,
    "R": _reduce,
    "\x81": _reduce,
    "\x92": _new_with,
    "b": _build,
    "P": lambda m: _persistent(m, str(m.line(), "utf-8")),
    "Q": lambda m: _persistent(m, m.stack.pop()),
}

OPCODES: dict[int, Operation] = {ord(name): run for name, run in _TABLE.items()}
"""What each byte does; those that are missing are no operations, or refused."""
