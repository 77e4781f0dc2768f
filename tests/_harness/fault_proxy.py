"""A proxy in front of an object store that does wrong what it is told to.

`python -m tests._harness.fault_proxy UPSTREAM` prints the port it serves, and the port
at which it is told, a line of JSON each: {"rules": [Rule]} replaces the rules,
{"log": true} returns the requests seen since, as
[method, path, body bytes, fault, bytes of the answer's body].
"""

import asyncio
import contextlib
import json
import re
import sys
from typing import Any

_HANG_SECONDS = 3600.0
_LATE_SECONDS = 4.0


class _Proxy:
    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.rules: list[dict[str, Any]] = []
        self.log: list[list[Any]] = []
        self.turn = asyncio.Lock()

    def find_fault(self, method: str, path: str) -> dict[str, Any] | None:
        """Return the first rule that strikes this request."""
        for rule in self.rules:
            if re.fullmatch(rule["method"], method) and re.search(rule["path"], path):
                rule["seen"] = rule.get("seen", 0) + 1
                if rule["first"] <= rule["seen"] < rule["first"] + rule["count"]:
                    return rule
        return None

    async def tell(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            answer: Any = None
            if "rules" in request:
                self.rules = request["rules"]
            else:
                answer, self.log = self.log, []
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head, body = await _receive(reader, writer)
                if not await self.answer(head, body, writer):
                    break
        writer.close()

    async def answer(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False when the connection was broken off."""
        method, path = head.split(b" ")[:2]
        rule = self.find_fault(method.decode(), path.decode())
        fault = rule["fault"] if rule else ""
        entry = [method.decode(), path.decode(), len(body), fault, 0]
        self.log.append(entry)
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "hang":
            await asyncio.sleep(_HANG_SECONDS)
        if fault == "late":
            await asyncio.sleep(_LATE_SECONDS)
        if fault == "answer" and rule:
            writer.write(_make_answer(rule["status"], rule["body"].encode()))
            await writer.drain()
            return True
        # moto looks whether a condition holds, and writes some time later.
        conditional = b"\r\nif-" in head.lower() and method == b"PUT"
        async with self.turn if conditional else contextlib.nullcontext():
            found_head, found = await self.forward(head, body, method)
        entry[-1] = len(found)
        if fault in ("lost", "late"):
            writer.transport.abort()
            return False
        if fault == "fail after":
            writer.write(
                _make_answer(500, b"<Error><Code>InternalError</Code></Error>")
            )
        elif fault in ("stall", "truncate"):
            writer.write(found_head + found[: len(found) // 2])
            await writer.drain()
            if fault == "stall":
                await asyncio.sleep(_HANG_SECONDS)
            writer.transport.abort()
            return False
        elif fault == "shorten":
            found = found[: len(found) // 2]
            length = b"Content-Length: %d" % len(found)
            writer.write(re.sub(rb"(?i)content-length: *\d+", length, found_head))
            writer.write(found)
        elif fault == "corrupt" and found:
            middle = len(found) // 2
            flipped = bytes([found[middle] ^ 1])
            writer.write(found_head + found[:middle] + flipped + found[middle + 1 :])
        else:
            writer.write(found_head + found)
        await writer.drain()
        return True

    async def forward(
        self, head: bytes, body: bytes, method: bytes
    ) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            close = re.sub(rb"(?i)\r\n(connection|expect):[^\r]*", b"", head)
            writer.write(close[:-2] + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            found = await reader.readuntil(b"\r\n\r\n")
            found = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", found)
            if method == b"HEAD":
                return found, b""
            return found, await _receive_body(reader, found)
        finally:
            writer.close()


def _make_answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Fault\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


async def _receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"100-continue" in head.lower():
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    return head, await _receive_body(reader, head)


async def _receive_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
        return await reader.readexactly(int(length[1]))
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        pieces: list[bytes] = []
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line, 16)
            pieces += [line, await reader.readexactly(size + 2)]
        return b"".join(pieces)
    return b""


async def main(upstream: int) -> None:
    """Serve until killed."""
    proxy = _Proxy(upstream)
    limit = 1 << 20
    served = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=limit)
    told = await asyncio.start_server(proxy.tell, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (served, told)]
    print(*ports, flush=True)
    async with served, told:
        await asyncio.gather(served.serve_forever(), told.serve_forever())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
