"""What every store keeps to, whatever it stores in."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckpt._errors import Damaged, LimitExceeded, NotFound, StoreError, Unsupported
from tests.ckpt._stores import Case, write


def run_all(work: Callable[[Any], None], arguments: Iterable[object]) -> None:
    threads = [threading.Thread(target=work, args=[given]) for given in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_is_written_in_pieces_is_there_whole(case: Case) -> None:
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    with case.store.write("a/b/0", size=None) as writer:
        writer.write([b"one", bytearray(b"two"), memoryview(b"three")])
        writer.write([])
        writer.write([b"", array, np.zeros((0, 3)), np.array(1, np.float32)])
    expected = b"onetwothree" + array.tobytes() + np.float32(1).tobytes()
    assert case.get("a/b/0") == expected


def test_more_buffers_than_one_system_call_takes_are_written(case: Case) -> None:
    pieces = [bytes([n % 251]) * (n % 7) for n in range(5000)]
    with case.store.write("a/0", size=None) as writer:
        writer.write(pieces)
    assert case.get("a/0") == b"".join(pieces)


def test_an_object_of_another_size_than_said_is_not_kept(case: Case) -> None:
    writer = case.store.write("a/0", size=4)
    writer.write([b"abc"])
    with pytest.raises(ValueError, match="Expected 4 bytes to be written, found 3"):
        writer.close()
    assert case.store.list("") == []


def test_an_exception_while_writing_leaves_nothing(case: Case) -> None:
    with pytest.raises(KeyError), case.store.write("a/0", size=None) as writer:  # noqa: PT012
        writer.write([b"abc"])
        raise KeyError
    assert case.store.list("") == []


def test_objects_are_written_once(case: Case) -> None:
    case.put("a/0", b"first")
    with pytest.raises(StoreError, match="Objects are written once"):
        write(case.store, "a/0", b"second")
    assert case.get("a/0") == b"first"


def test_an_object_takes_the_place_of_another_whole_and_last(case: Case) -> None:
    case.put("a/0", b"first")
    with case.store.write("a/0", size=6, over=True) as writer:
        writer.write([b"sec"])
        assert case.get("a/0") == b"first"
        writer.write([b"ond"])
    assert case.get("a/0") == b"second"
    with pytest.raises(KeyError), case.store.write("a/0", size=1, over=True) as writer:  # noqa: PT012
        writer.write([b"x"])
        raise KeyError
    with pytest.raises(ValueError, match="Expected 9 bytes to be written, found 1"):  # noqa: SIM117
        with case.store.write("a/0", size=9, over=True) as writer:
            writer.write([b"x"])
    assert case.get("a/0") == b"second"
    with case.store.write("a/1", size=None, over=True) as writer:
        writer.write([b"new"])
    assert case.store.list("") == ["a/0", "a/1"]


def test_pieces_are_written_where_they_belong_from_any_thread(case: Case) -> None:
    expected = bytes(n % 251 for n in range(5000))
    with case.store.write("a/0", size=5000) as writer:
        run_all(
            lambda at: writer.write_at(
                at, [expected[at : at + 60], expected[at + 60 :][:40]]
            ),
            reversed(range(0, 5000, 100)),
        )
    assert case.get("a/0") == expected
    writer = case.store.write("a/1", size=4)
    writer.write_at(2, [b"x"])
    with pytest.raises(ValueError, match="Expected 4 bytes to be written"):
        writer.close()
    assert case.store.list("") == ["a/0"]


@pytest.mark.parametrize("hint", [None, 0, 5, 8, 10, 11, 400])
def test_the_size_is_true_whatever_is_expected(case: Case, hint: int | None) -> None:
    case.put("a/0", b"0123456789")
    case.put("a/1", b"")
    with case.store.open("a/0", size=hint) as reader:
        assert reader.size == 10
    with case.store.open("a/1", size=hint) as reader:
        assert reader.size == 0


def test_ranges_fill_buffers_of_any_kind(case: Case) -> None:
    case.put("a/0", bytes(range(100)))
    with case.store.open("a/0") as reader:
        buffer = bytearray(10)
        reader.read_into(90, buffer)
        assert bytes(buffer) == bytes(range(90, 100))
        array = np.zeros((2, 3), ml_dtypes.bfloat16)
        reader.read_into(4, array)
        assert array.tobytes() == bytes(range(4, 16))
        view = memoryview(bytearray(4))
        reader.read_into(0, view[1:3])
        assert bytes(view) == b"\0\0\1\0"
        reader.read_into(100, bytearray())


def test_a_buffer_with_gaps_is_refused(case: Case) -> None:
    case.put("a/0", bytes(100))
    with (
        case.store.open("a/0") as reader,
        pytest.raises(ValueError, match="Expected a C-contiguous buffer"),
    ):
        reader.read_into(0, np.zeros((4, 4))[:, ::2])


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (5, 6), (10, 1), (50, 2)])
def test_a_range_past_the_end_is_damaged(case: Case, offset: int, length: int) -> None:
    case.put("a/0", b"0123456789")
    with case.store.open("a/0") as reader, pytest.raises(Damaged) as caught:
        reader.read_into(offset, bytearray(length))
    text = str(caught.value)
    assert f"Expected {offset + length} bytes or more" in text
    assert f"(truncated) - at `a/0` in {case.store.url}." in text


def test_readers_serve_threads_at_once(case: Case) -> None:
    data = np.random.default_rng(0).bytes(40_000)
    case.put("a/0", data)
    wrong: list[int] = []

    def work(first: int) -> None:
        for offset in range(first * 100, 40_000 - 400, 4000):
            buffer = bytearray(400)
            reader.read_into(offset, buffer)
            if buffer != data[offset : offset + 400]:
                wrong.append(offset)

    with case.store.open("a/0") as reader:
        run_all(work, range(8))
    assert not wrong


def test_a_small_object_is_read_within_its_limit(case: Case) -> None:
    case.put("a/0", b"0123456789")
    case.put("a/1", b"")
    assert case.store.read("a/0", limit=10) == b"0123456789"
    assert case.store.read("a/0", limit=1000) == b"0123456789"
    assert case.store.read("a/1", limit=0) == b""
    with pytest.raises(LimitExceeded, match=r"at most 9 bytes.* - at `a/0` in"):
        case.store.read("a/0", limit=9)


def test_what_is_absent_is_not_found(case: Case) -> None:
    case.put("a/0", b"x")
    for name in ["b", "a/1", "a/b/c/d", "a/0/b"]:
        message = (
            f"^Expected an object, found none - at `{name}` in {case.store.url}\\.$"
        )
        with pytest.raises(NotFound, match=message):
            case.store.open(name)
        with pytest.raises(NotFound, match=message):
            case.store.read(name, limit=10)
        assert case.store.size(name) is None
        assert case.store.remove(name) is False
        assert case.store.remove_tree(name) == 0
        assert case.store.list(name) == []
    assert case.get("a/0") == b"x"


def test_create_takes_a_free_name_only(case: Case) -> None:
    assert case.store.create("a/record", b"first") is True
    assert case.store.create("a/record", b"second") is False
    assert case.get("a/record") == b"first"
    assert case.store.list("") == ["a/record"]


def test_one_of_many_creators_wins(case: Case) -> None:
    names = [f"a/{turn}" for turn in range(5)]
    start, won = threading.Barrier(6), list[tuple[str, bytes]]()

    def work(mine: bytes) -> None:
        for name in names:
            start.wait()
            if case.store.create(name, mine):
                won.append((name, mine))

    run_all(work, [b"writer %d" % n for n in range(6)])
    assert sorted(won) == [(name, case.get(name)) for name in names]
    assert case.store.list("") == names


def test_replace_needs_the_expected_content(case: Case) -> None:
    case.put("a/record", b"old")
    if case.kind == "path":
        with pytest.raises(Unsupported, match="Nothing was changed"):
            case.store.replace("a/record", b"new", expected=b"old")
        return
    for expected in [b"", b"ol", b"olD", b"older"]:
        assert case.store.replace("a/record", b"new", expected=expected) is False
        assert case.get("a/record") == b"old"
    assert case.store.replace("a/record", b"newer", expected=b"old") is True
    assert case.get("a/record") == b"newer"
    assert case.store.replace("a/absent", b"new", expected=b"") is False
    assert case.store.list("") == ["a/record"]


def test_one_of_many_replacers_wins(case: Case) -> None:
    if case.kind == "path":
        return
    case.put("a/record", b"old")
    start, won = threading.Barrier(6), list[bytes]()

    def work(mine: bytes) -> None:
        start.wait()
        if case.store.replace("a/record", mine, expected=b"old"):
            won.append(mine)

    run_all(work, [b"by %d" % n for n in range(6)])
    assert won == [case.get("a/record")]


def test_remove_of_expected_content_leaves_other_content(case: Case) -> None:
    case.put("a/record", b"new")
    for expected in (b"old", b"", b"newer"):
        assert case.store.remove("a/record", expected=expected) is False
    assert case.get("a/record") == b"new"
    assert case.store.remove("a/record", expected=b"new") is True
    assert case.store.list("") == []
    assert case.store.remove("a/record", expected=b"new") is False


def test_list_is_sorted_and_knows_whole_segments(case: Case) -> None:
    for name in ["a/b/2", "a/10", "a/b/1", "ab/0", "a/.x~", "a-/y", "z"]:
        case.put(name, b"")
    whole = ["a-/y", "a/.x~", "a/10", "a/b/1", "a/b/2", "ab/0", "z"]
    assert case.store.list("") == whole
    assert case.store.list("a") == ["a/.x~", "a/10", "a/b/1", "a/b/2"]
    assert case.store.list("a/b") == ["a/b/1", "a/b/2"]
    assert case.store.list("z") == []
    assert case.store.child("a").list("") == [".x~", "10", "b/1", "b/2"]
    assert case.store.child("a").list("b") == ["b/1", "b/2"]


def test_remove_tree_takes_what_is_below_and_nothing_else(case: Case) -> None:
    for name in ["a/b/2", "a/b/c/1", "a/bc", "b/0"]:
        case.put(name, b"12345")
    assert case.store.remove_tree("a/b") == 10
    assert case.store.remove_tree("a/b") == 0
    assert case.store.list("") == ["a/bc", "b/0"]


def test_remove_takes_one_object(case: Case) -> None:
    case.put("a/0", b"x")
    case.put("a/01", b"y")
    assert case.store.remove("a/0") is True
    assert case.store.remove("a/0") is False
    assert case.store.list("") == ["a/01"]


def test_a_child_is_the_folder_itself(case: Case) -> None:
    child = case.store.child("a").child("b")
    assert child.url == f"{case.store.url}/a/b"
    child.make_folders(["c"])
    write(child, "c/0", b"x")
    child.sync_folders(["", "c"])
    assert case.get("a/b/c/0") == b"x"
    assert child.size("c/0") == 1
    assert child.create("record", b"r") is True
    assert case.store.read("a/b/record", limit=9) == b"r"
    assert child.remove("record") is True
    assert child.remove_tree("c") == 1
