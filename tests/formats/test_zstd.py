"""zstd streams without a size: hand-made frames, and TensorStore's without theirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported
from ckpt._codec import encode_chunk
from ckpt.formats._zstd import decode_zstd

Block = tuple[int, int, bytes]


def frame(*blocks: Block, descriptor: int = 0, header: bytes = b"\x58") -> bytes:
    """Put blocks (type, size, body) in a frame, with a window of 2 MiB."""
    text = [b"\x28\xb5\x2f\xfd", bytes([descriptor]), header]
    for number, (kind, size, body) in enumerate(blocks):
        last = number == len(blocks) - 1
        text += [(size << 3 | kind << 1 | last).to_bytes(3, "little"), body]
    return b"".join(text)


def raw(text: bytes) -> Block:
    return 0, len(text), text


def repeated(text: bytes, times: int) -> Block:
    return 1, times, text


def compressed(text: bytes) -> bytes:
    """Compress, and drop the size from the frame's header."""
    data = encode_chunk("zstd", np.frombuffer(text, np.uint8))
    descriptor = data[4]
    single = descriptor >> 5 & 1
    width = (single, 2, 4, 8)[descriptor >> 6]
    window = b"\x58" if single else data[5:6]
    return data[:4] + bytes([descriptor & 4]) + window + data[6 - single + width :]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 9000))),
    st.integers(0, 100_000),
)
def test_streams_come_back_whatever_size_is_guessed(
    pieces: list[tuple[bytes, int]], guess: int
) -> None:
    texts = [piece * times for piece, times in pieces]
    data = b"".join(compressed(text) for text in texts)
    whole = b"".join(texts)
    assert decode_zstd(data, limit=len(whole), guess=guess) == whole


def test_blocks_and_frames_of_every_kind_come_back() -> None:
    one = frame(raw(b"abc"), repeated(b"x", 70_000), raw(b""))
    skipped = bytes.fromhex("5f2a4d18") + b"\3\0\0\0abc"
    data = skipped + one + frame(raw(b"")) + skipped + one
    whole = 2 * (b"abc" + b"x" * 70_000)
    assert decode_zstd(data, limit=len(whole), guess=5) == whole
    assert decode_zstd(b"", limit=10, guess=5) == b""
    sized = frame(raw(b"abc"), descriptor=0x20, header=b"\3")
    assert decode_zstd(sized, limit=3, guess=0) == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"\x28\xb5\x2f",
        b"PK\3\4" + bytes(20),
        frame(raw(b"abc"))[:-1],
        frame(raw(b"abc")) + b"x",
        frame((3, 3, b"abc")),
        frame((2, 3, b"abc")),
        frame(raw(b"abc"), descriptor=8),
        frame(raw(b"abc"), descriptor=4) + b"\1\2\3",
        frame(raw(b"abc"), descriptor=4) + b"\1\2\3\4",
        frame(raw(b"abc"), descriptor=0x20, header=b"\4"),
        bytes.fromhex("502a4d18") + b"\4\0\0\0abc",
    ],
)
def test_anything_but_whole_frames_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged, match="whole zstd frames"):
        decode_zstd(data, limit=1000, guess=3)


def test_a_compressed_block_of_other_bytes_is_damaged() -> None:
    data = bytearray(compressed(bytes(range(200)) * 50))
    data[9:] = b"\xff" * len(data[9:])
    with pytest.raises(Damaged, match="whole zstd frames"):
        decode_zstd(bytes(data), limit=100_000, guess=10_000)


def test_longer_streams_than_the_limit_are_refused_undecoded() -> None:
    bomb = frame(*[repeated(b"x", 131_072)] * 1000)
    with pytest.raises(LimitExceeded, match="1,000,000 bytes at most"):
        decode_zstd(bomb, limit=1_000_000, guess=1000)
    text = compressed(bytes(100_000))
    with pytest.raises(LimitExceeded, match="99,999 bytes at most"):
        decode_zstd(text, limit=99_999, guess=1000)
    with pytest.raises(LimitExceeded):
        decode_zstd(frame(raw(b"")) * 1000, limit=99_999, guess=1000)
    said = frame(raw(b"abc"), descriptor=0xC0, header=b"\x58" + b"\xff" * 7 + b"\x0f")
    with pytest.raises((LimitExceeded, Damaged)):
        decode_zstd(said, limit=99_999, guess=1000)


def test_windows_and_dictionaries_that_cost_memory_are_refused() -> None:
    with pytest.raises(LimitExceeded, match="window of 134,217,728"):
        decode_zstd(frame(raw(b"abc"), header=b"\x91"), limit=99, guess=3)
    with pytest.raises(Unsupported, match="dictionary"):
        decode_zstd(
            frame(raw(b"abc"), descriptor=1, header=b"\x58\7"), limit=9, guess=3
        )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_but_our_errors_leaves(data: st.DataObject) -> None:
    text = bytearray(compressed(b"some text and more " * 20) + frame(raw(b"abc")))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(text)))
    try:
        found = decode_zstd(bytes(text[:cut]), limit=5000, guess=400)
    except CkptError:
        return
    assert len(found) <= 5000
