"""A bucket in this process that speaks as much S3 and GCS as TensorStore asks for.

Conditions are kept as both services document them: create-only, and only if unchanged.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Cloud:
    """Objects by name, what was asked for, and what to do wrong."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests: list[str] = []
        self.lose_answers = 0
        self.hide_sizes = False
        self.url = ""
        self.lock = threading.Lock()
        self._writes = 0

    def put(self, name: str, data: bytes, *, expected: int | None) -> int | None:
        """Store an object whose number is `expected` (0: absent) and return its own."""
        with self.lock:
            if expected is not None and expected != self.number(name):
                return None
            self._writes += 1
            self.objects[name] = data, self._writes
            return self._writes

    def number(self, name: str) -> int:
        return self.objects[name][1] if name in self.objects else 0

    def loses_answer(self) -> bool:
        with self.lock:
            self.lose_answers -= 1
            return self.lose_answers >= 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: Cloud

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_object(self, name: str) -> None:
        if name not in self.cloud.objects:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, number = self.cloud.objects[name]
        headers = {"ETag": f'"{number}"', "x-goog-generation": str(number)}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            self.answer(200, data, headers)
            return
        start = int(span[1])
        stop = min(int(span[2] or len(data)) + 1, len(data))
        if start >= len(data):
            size = f"<ActualObjectSize>{len(data)}</ActualObjectSize>"
            told = "" if self.cloud.hide_sizes else size
            self.answer(416, f"<Error><Code>InvalidRange</Code>{told}</Error>".encode())
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self.answer(206, data[start:stop], headers)

    def store(self, name: str, expected: int | None) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        number = self.cloud.put(name, data, expected=expected)
        if self.cloud.loses_answer():
            self.close_connection = True
        elif number is None:
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            # GCS tells what it stored; S3's answer has no body that matters.
            stored = {"name": name, "bucket": "bucket", "generation": str(number)}
            stored |= {"size": str(len(data)), "metageneration": "1", "id": name}
            body = json.dumps(stored).encode()
            self.answer(200, body, {"ETag": f'"{number}"'})

    def route(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.cloud.requests.append(f"{self.command} {self.path}")
        gcs = re.fullmatch(r"(?:/upload)?/storage/v1/b/[^/]+/o(?:/(.+))?", url.path)
        if gcs:
            self.route_gcs(unquote(gcs[1] or query.get("name", "")), query)
        else:
            self.route_s3(unquote(url.path.split("/", 2)[2]), query)

    def route_gcs(self, name: str, query: dict[str, str]) -> None:
        if self.command == "POST":
            match = query.get("ifGenerationMatch")
            self.store(name, None if match is None else int(match))
        elif self.command == "DELETE":
            found = self.cloud.objects.pop(name, None)
            self.answer(204 if found else 404)
        elif name:
            self.answer_object(name)
        else:
            names = self.names(query)
            self.answer(
                200, json.dumps({"items": [{"name": n} for n in names]}).encode()
            )

    def route_s3(self, name: str, query: dict[str, str]) -> None:
        if self.command == "PUT":
            match = self.headers.get("If-Match")
            expected = int(match.strip('"')) if match else None
            self.store(name, 0 if self.headers.get("If-None-Match") else expected)
        elif self.command == "DELETE":
            self.cloud.objects.pop(name, None)
            self.answer(204)
        elif name:
            self.answer_object(name)
        else:
            keys = "".join(
                f"<Contents><Key>{escape(n)}</Key><Size>1</Size></Contents>"
                for n in self.names(query)
            )
            count = f"<KeyCount>{keys.count('<Key>')}</KeyCount>"
            body = f"<ListBucketResult>{count}<IsTruncated>false</IsTruncated>{keys}"
            self.answer(200, f"{body}</ListBucketResult>".encode())

    def names(self, query: dict[str, str]) -> list[str]:
        prefix = query.get("prefix", "")
        low, high = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        with self.cloud.lock:
            names = sorted(self.cloud.objects)
        return [n for n in names if n.startswith(prefix) and low <= n < high]

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = route


@contextlib.contextmanager
def serve_cloud() -> Iterator[Cloud]:
    """Serve an empty bucket until the block is left."""
    cloud = Cloud()
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
