"""Small writers, safe and unsafe, on which the harness shows that it can fail."""

import os
from collections.abc import Callable
from pathlib import Path


def overwrite(path: str, text: str) -> None:
    """Write a file in place: a crash shows an empty or half a file."""
    Path(path).write_text(text)


def replace(
    path: str, text: str, *, sync_file: bool = True, sync_folder: bool = True
) -> None:
    """Write beside a file and rename over it; safe when both are synced."""
    fresh = f"{path}.new"
    with open(fresh, "w") as file:
        file.write(text)
        if sync_file:
            file.flush()
            os.fsync(file.fileno())
    os.rename(fresh, path)
    if sync_folder:
        folder = os.open(Path(path).parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def replace_without_file_sync(path: str, text: str) -> None:
    """Rename a file whose bytes may still be in memory."""
    replace(path, text, sync_file=False)


def replace_without_folder_sync(path: str, text: str) -> None:
    """Return while the rename may still be in memory."""
    replace(path, text, sync_folder=False)


def write_tensors(folder: str) -> None:
    """Write a sharded Zarr array with TensorStore, whose threads do the writing."""
    import numpy as np
    import tensorstore as ts

    sharded = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [4, 4], "codecs": [{"name": "bytes"}]},
    }
    store = ts.open(
        {
            "driver": "zarr3",
            "kvstore": f"file://{folder}/array/",
            "metadata": {
                "shape": [16, 16],
                "data_type": "float32",
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [8, 8]},
                },
                "codecs": [sharded],
            },
        },
        create=True,
    ).result()
    store.write(np.arange(256, dtype=np.float32).reshape(16, 16)).result()


def use_every_call(folder: str) -> list[str]:
    """Change files by every call that Python offers, and return the names in order."""
    done: list[str] = []

    def step(name: str, call: Callable[[], object]) -> None:
        call()
        done.append(name)

    top = os.open(folder, os.O_RDONLY)
    a, b = f"{folder}/a", f"{folder}/b"
    step("mkdir", lambda: os.mkdir(f"{folder}/d"))
    step("mkdir", lambda: os.mkdir("e", dir_fd=top))
    file = os.open(a, os.O_CREAT | os.O_RDWR)
    done.append("open")
    step("write", lambda: os.write(file, b"0123456789"))
    step("pwrite", lambda: os.pwrite(file, b"01", 4))
    step("writev", lambda: os.writev(file, [b"abc", b"def"]))
    step("pwritev2", lambda: os.pwritev(file, [b"abc", b"def"], 20))
    step("pwritev2", lambda: os.pwritev(file, [b"x"], 0, os.RWF_DSYNC))
    step("ftruncate", lambda: os.ftruncate(file, 100))
    step("truncate", lambda: os.truncate(a, 50))
    step("fallocate", lambda: os.posix_fallocate(file, 0, 4096))
    step("fsync", lambda: os.fsync(file))
    step("fdatasync", lambda: os.fdatasync(file))
    other = os.open("b", os.O_CREAT | os.O_RDWR, dir_fd=top)
    done.append("open")
    step("copy_file_range", lambda: os.copy_file_range(file, other, 8, 0, 0))
    step("sendfile", lambda: os.sendfile(other, file, 0, 8))
    unnamed = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    done.append("open")
    step("write", lambda: os.write(unnamed, b"unnamed"))
    step("open", lambda: os.close(os.open(b, os.O_WRONLY | os.O_TRUNC)))
    step("rename", lambda: os.rename(a, f"{folder}/c"))
    step("rename", lambda: os.rename("b", "b2", src_dir_fd=top, dst_dir_fd=top))
    step("rename", lambda: os.replace(f"{folder}/b2", b))
    step("link", lambda: os.link(b, f"{folder}/l"))
    step("link", lambda: os.link("b", "l2", src_dir_fd=top, dst_dir_fd=top))
    step("symlink", lambda: os.symlink("b", f"{folder}/s"))
    step("symlink", lambda: os.symlink("b", "s2", dir_fd=top))
    step("unlink", lambda: os.unlink(f"{folder}/s"))
    step("unlink", lambda: os.unlink("s2", dir_fd=top))
    step("rmdir", lambda: os.rmdir(f"{folder}/d"))
    step("rmdir", lambda: os.rmdir("e", dir_fd=top))
    os.chdir(folder)
    step("mkdir", lambda: os.mkdir("relative"))
    step("mkdir", lambda: os.mkdir("relative/../dotted"))
    for descriptor in (file, other, unnamed, top):
        os.close(descriptor)
    return done
