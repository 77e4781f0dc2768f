"""What is used of JAX's coordination service, which is not public, is as expected."""

import subprocess
import sys

SCRIPT = """
import socket, time
import jax
from jax._src import distributed

with socket.create_server(("127.0.0.1", 0)) as free:
    address = f"127.0.0.1:{free.getsockname()[1]}"
jax.distributed.initialize(address, num_processes=1, process_id=0)
client = distributed.global_state.client


def refusal(call, *arguments):
    try:
        call(*arguments)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return "none"


client.key_value_set_bytes("a/b/0", b"zero")
client.key_value_set_bytes("a/b/1", b"one")
assert "ALREADY_EXISTS" in refusal(client.key_value_set_bytes, "a/b/1", b"two")
client.key_value_set_bytes("a/b/1", b"three", True)
assert client.blocking_key_value_get_bytes("a/b/1", 1000) == b"three"
begun = time.monotonic()
found = refusal(client.blocking_key_value_get_bytes, "a/none", 200)
assert "DEADLINE_EXCEEDED" in found, found
assert 0.1 < time.monotonic() - begun < 5
assert dict(client.key_value_dir_get_bytes("a/b/")) == {
    "a/b/0": b"zero", "a/b/1": b"three"
}
client.key_value_set_bytes("ab/0", b"kept")
client.key_value_delete("a/")
assert client.key_value_dir_get_bytes("a/") == []
assert client.blocking_key_value_get_bytes("ab/0", 1000) == b"kept"
print("as expected")
"""


def test_the_private_calls_do_what_agreement_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "as expected\n", done.stderr
