"""What a folder is told to hold."""

from hypothesis import given, strategies as st

from ckpt._store import open_store
from ckpt.formats._entry import Folder


@given(st.sets(st.text("ab/", max_size=3)), st.text("ab/", max_size=3))
def test_a_folder_has_the_names_that_it_was_given(names: set[str], name: str) -> None:
    folder = Folder(open_store("memory://folder-has"), tuple(sorted(names)))
    assert folder.has(name) == (name in names)
    assert all(map(folder.has, names))
