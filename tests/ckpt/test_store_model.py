"""Any sequence of changes to a store agrees with the same changes to a dict."""

import pytest
from hypothesis import given, settings, strategies as st

from ckpt._errors import StoreError
from ckpt._store import Store, open_store
from tests._harness.servers import Cloud, Kind
from tests.ckpt._stores import cloud_case, write

NAMES = st.sampled_from(["a/0", "a/1", "a/b/0", "c"])
DATA = st.sampled_from([b"", b"1", b"22", b"333"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, DATA),
        st.tuples(st.just("create"), NAMES, DATA),
        st.tuples(st.just("replace"), NAMES, DATA, DATA),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("remove_tree"), st.sampled_from(["a", "a/b"])),
    ),
    max_size=12,
)


def follow(model: dict[str, bytes], step: tuple[str, ...]) -> object:
    """Do to a dict what the step does to a store."""
    action, name, *data = step
    match action:
        case "write" | "create":
            free = name not in model
            model.setdefault(name, data[0])  # pyright: ignore[reportArgumentType]
            return free
        case "replace":
            same = model.get(name) == data[1]
            if same:
                model[name] = data[0]  # pyright: ignore[reportArgumentType]
            return same
        case "remove":
            return model.pop(name, None) is not None
        case _:
            gone = [key for key in model if key.startswith(name + "/")]
            return sum(len(model.pop(key)) for key in gone)


def perform(store: Store, step: tuple[object, ...]) -> object:
    store.make_folders(["a/b"])
    match step:
        case ("write", str(name), bytes(data)):
            try:
                write(store, name, data)
            except StoreError:
                return False
            return True
        case ("create", str(name), bytes(data)):
            if store.size(name) is not None:
                # Equal bytes under the name would count as the caller's own.
                return False
            return store.create(name, data)
        case ("replace", str(name), bytes(data), bytes(expected)):
            return store.replace(name, data, expected=expected)
        case ("remove", str(name)):
            return store.remove(name)
        case (_, str(name)):
            return store.remove_tree(name)
        case _:
            raise AssertionError(step)


@pytest.mark.parametrize("kind", ["folder", "memory", "s3", "gs"])
def test_any_sequence_of_changes_agrees_with_a_dict(
    kind: str, clouds: dict[Kind, Cloud], tmp_path_factory: pytest.TempPathFactory
) -> None:
    turn = iter(range(10**6))

    # A server in Python takes its time.
    share = {"s3": 12, "gs": 5}.get(kind, 1)

    @settings(max_examples=max(1, settings().max_examples // share))
    @given(STEPS)
    def run(steps: list[tuple[str, ...]]) -> None:
        if kind == "folder":
            store = open_store(tmp_path_factory.mktemp("run"))
        elif kind == "memory":
            store = open_store(f"memory://sequence/{next(turn)}")
        else:
            store = cloud_case(clouds["s3" if kind == "s3" else "gs"]).store
        model: dict[str, bytes] = {}
        for step in steps:
            if kind != "folder" and step[0] == "write" and step[1] in model:
                # Remote: equal bytes under the name count as the caller's own.
                continue
            assert perform(store, step) == follow(model, step)
            assert store.list("") == sorted(model)
        for name, data in model.items():
            assert store.read(name, limit=100) == data
            assert store.size(name) == len(data)

    run()
