"""Chunks through the codecs, against numcodecs, zarr-python and the stdlib."""

import gzip
import json
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, strategies as st

from ckpt._codec import codec_document, decode_chunk, encode_chunk

CODECS = [None, "zstd", "gzip", "blosc"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
DTYPES = ["bool", *INTEGERS, *FLOATS]


def numcodecs_of(codec: str) -> Any:
    return {
        "zstd": numcodecs.Zstd(level=3),
        "gzip": numcodecs.GZip(level=5),
        "blosc": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE),
    }[codec]


def random_chunk(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


@given(
    codec=st.sampled_from(CODECS),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 7), max_size=4).map(tuple),
    seed=st.integers(0, 1000),
)
def test_every_dtype_and_shape_comes_back_bit_equal(
    codec: str | None, dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    chunk = random_chunk(dtype, shape, seed)
    data = encode_chunk(codec, chunk)
    found = decode_chunk(codec, data, chunk.dtype, shape)
    assert found.dtype == chunk.dtype
    assert found.shape == chunk.shape
    assert found.tobytes() == chunk.tobytes()
    assert found.flags.writeable
    if codec is not None and chunk.size:
        assert bytes(numcodecs_of(codec).decode(data)) == chunk.tobytes()


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_numcodecs_compressed_is_decoded(codec: str, dtype: str) -> None:
    chunk = random_chunk(dtype, (33, 5), seed=1)
    data = bytes(numcodecs_of(codec).encode(chunk))
    found = decode_chunk(codec, data, chunk.dtype, chunk.shape)
    assert found.tobytes() == chunk.tobytes()


def test_gzip_is_the_standard_library_s() -> None:
    chunk = np.arange(1000, dtype="<i8")
    assert gzip.decompress(encode_chunk("gzip", chunk)) == chunk.tobytes()


def test_strided_and_big_endian_chunks_are_stored_in_c_order_little_endian() -> None:
    values = np.arange(24, dtype=">f4").reshape(2, 3, 4)[:, ::-1, ::2]
    expected = np.array(values.tolist(), "<f4").tobytes()
    for codec in CODECS:
        data = encode_chunk(codec, values)
        found = decode_chunk(codec, data, np.dtype("f4"), values.shape)
        assert found.tobytes() == expected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float64", "complex128"])
def test_zarr_python_reads_a_chunk_of_ours_under_the_codec_document(
    codec: str | None, dtype: str, tmp_path: Path
) -> None:
    chunk = random_chunk(dtype, (4, 6), seed=2)
    fill: Any = {"b": False, "i": 0, "f": 0.0, "c": [0.0, 0.0]}[chunk.dtype.kind]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codec_document(codec, chunk.dtype.itemsize),
        "attributes": {},
    }
    (tmp_path / "c" / "0").mkdir(parents=True)
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    (tmp_path / "c" / "0" / "0").write_bytes(encode_chunk(codec, chunk))
    found = np.asarray(zarr.open_array(tmp_path, mode="r")[...])
    assert found.tobytes() == chunk.tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_of_another_size_is_refused(codec: str | None) -> None:
    data = encode_chunk(codec, np.arange(64, dtype=np.int32))
    for shape in [(63,), (65,), (64, 64)]:
        with pytest.raises(ValueError, match=r"Expected .* bytes"):
            decode_chunk(codec, data, np.dtype("int32"), shape)


@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_chunk_is_refused_and_the_next_one_is_right(
    codec: str | None,
) -> None:
    chunk = random_chunk("int32", (100,), seed=3)
    data = encode_chunk(codec, chunk)
    for length in [0, 1, len(data) // 2, len(data) - 1]:
        with pytest.raises(ValueError, match="Expected 400 bytes"):
            decode_chunk(codec, data[:length], chunk.dtype, chunk.shape)
    assert (
        decode_chunk(codec, data, chunk.dtype, chunk.shape).tolist() == chunk.tolist()
    )


@given(codec=st.sampled_from(CODECS[1:]), data=st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(codec: str, data: bytes) -> None:
    try:
        found = decode_chunk(codec, data, np.dtype("uint8"), (16,))
    except ValueError:
        return
    assert bytes(numcodecs_of(codec).decode(data)) == found.tobytes()


def test_the_message_holds_no_specification() -> None:
    with pytest.raises(ValueError, match=r"^Expected 16 bytes compressed by") as caught:
        decode_chunk("zstd", b"junk", np.dtype("uint8"), (16,))
    assert "{" not in str(caught.value)
    assert caught.value.__suppress_context__


BOMBS = """
import pathlib, sys
import numpy as np
from ckpt._codec import decode_chunk

def status(field):
    # ru_maxrss would do, but a child inherits its parent's.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(field + ":"))

def growth(codec, size):
    data = pathlib.Path(sys.argv[1], codec).read_bytes()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is now
    before = status("VmRSS")
    try:
        decode_chunk(codec, data, np.dtype("u1"), (size,))
        verdict = "decoded"
    except ValueError:
        verdict = "refused"
    return verdict, status("VmHWM") - before >> 10

for codec, size in [("zstd", 64), ("gzip", 64), ("zstd", 256 << 20)]:
    print(*growth(codec, size))
"""


def test_a_decompression_bomb_is_refused_without_the_memory(tmp_path: Path) -> None:
    bomb = bytes(256 << 20)
    (tmp_path / "zstd").write_bytes(numcodecs.Zstd().encode(bomb))
    (tmp_path / "gzip").write_bytes(gzip.compress(bomb, 1))
    command = [sys.executable, "-c", BOMBS, str(tmp_path)]
    lines = subprocess.check_output(command, text=True).splitlines()
    (zstd, zstd_mib), (gz, gz_mib), (asked, asked_mib) = map(str.split, lines)
    assert (zstd, gz) == ("refused", "refused")
    assert int(zstd_mib) < 32
    assert int(gz_mib) < 32
    # The measure can fail: 256 MiB that are asked for take their memory.
    assert asked == "decoded"
    assert int(asked_mib) > 200


def test_a_boolean_is_0_or_1() -> None:
    data = encode_chunk("zstd", np.array([0, 1, 2], np.uint8))
    with pytest.raises(ValueError, match="Expected booleans"):
        decode_chunk("zstd", data, np.dtype(bool), (3,))


def test_an_unknown_codec_is_refused() -> None:
    for use in [
        lambda: codec_document("lz4", 4),
        lambda: encode_chunk("lz4", np.zeros(3)),
        lambda: encode_chunk("lz4", np.zeros(0)),
        lambda: decode_chunk("lz4", b"", np.dtype("f4"), (1,)),
    ]:
        with pytest.raises(ValueError, match="found 'lz4'"):
            use()


def test_threads_do_not_see_each_other_s_chunks() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(30):
            chunk = random_chunk("int32", (256,), seed * 100 + step)
            data = encode_chunk("zstd", chunk)
            found = decode_chunk("zstd", data, chunk.dtype, chunk.shape)
            if found.tobytes() != chunk.tobytes():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_shapes_keep_few_arrays_open() -> None:
    for length in range(1, 60):
        chunk = np.full(length, 7, np.uint8)
        data = encode_chunk("zstd", chunk)
        assert (
            decode_chunk("zstd", data, chunk.dtype, (length,)).tolist() == [7] * length
        )
