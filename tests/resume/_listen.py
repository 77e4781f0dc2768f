"""A process that listens for notices and prints what it hears, a line each.

What it does beside is its arguments: "file PATH", "ask N", "busy" (in one call of C),
"distributed" (jax.distributed, after it has begun to listen), "loop" (an event loop).
"""

import asyncio
import hashlib
import os
import signal
import socket
import sys
import time
from typing import Any

import jax

from ckpt.resume._notice import Notices


def tell(source: str) -> None:
    # One call: another thread may tell something, too.
    os.write(1, f"{source}\n".encode())


def main(doing: str, argument: str) -> None:
    signal.signal(signal.SIGUSR1, lambda number, _: tell(f"before {number}"))
    asked = 0

    def is_noticed() -> bool:
        nonlocal asked
        asked += 1
        return asked >= int(argument)

    source: Any = {"file": argument, "ask": is_noticed}.get(doing)
    if doing == "loop":
        asyncio.run(wait_in_loop())
        return
    notices = Notices(tell, source=source)
    if doing == "distributed":
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
        notices.renew_if_taken()
    tell("ready")
    if doing == "busy":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 40_000_000)
    for line in sys.stdin:
        if line == "forget\n":
            notices.forget()
            tell("forgotten")
        else:
            break
    notices.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    tell(f"after {signal.getsignal(signal.SIGTERM) is signal.SIG_DFL}")


async def wait_in_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    notices = Notices(tell)
    tell("ready")
    for _ in range(500):
        await asyncio.sleep(0.01)
    notices.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    time.sleep(0)
