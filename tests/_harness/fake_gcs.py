"""A Google Cloud Storage of our own: the JSON API as far as TensorStore speaks it.

Run as a process, it prints its port. It keeps what Google documents and emulators leave
out: generations are never used twice, `ifGenerationMatch` is checked and applied in one
step on uploads and deletions, a bucket that was not made does not exist, and a token
other than the right one is refused.
"""

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "token"
PAGE = 1000
"""How many names a listing returns at once."""

_OBJECT = re.compile(r"/(?:upload/)?storage/v1/b/([^/]+)/o(?:/(.+))?")
_BUCKETS = "/storage/v1/b"


@dataclass
class Buckets:
    """What is stored: (data, generation) by bucket and name."""

    objects: dict[str, dict[str, tuple[bytes, int]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    written: int = 0

    def put(self, bucket: str, name: str, data: bytes, match: int | None) -> int | None:
        """Store an object if its generation is `match` (0: absent); return the new."""
        with self.lock:
            if not self._matches(bucket, name, match):
                return None
            self.written += 1
            self.objects[bucket][name] = data, self.written
            return self.written

    def delete(self, bucket: str, name: str, match: int | None) -> int:
        """Delete an object, and return the status to answer with."""
        with self.lock:
            if name not in self.objects[bucket]:
                return 404
            if not self._matches(bucket, name, match):
                return 412
            del self.objects[bucket][name]
            return 204

    def names(self, bucket: str) -> list[str]:
        with self.lock:
            return sorted(self.objects[bucket])

    def _matches(self, bucket: str, name: str, match: int | None) -> bool:
        found = self.objects[bucket].get(name)
        return match is None or match == (found[1] if found else 0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    buckets: Buckets

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, message: str) -> None:
        error = {"code": status, "message": message}
        self.answer(status, json.dumps({"error": error}).encode())

    def route(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization", "") != f"Bearer {TOKEN}":
            self.refuse(401, "Invalid Credentials")
            return
        if url.path == _BUCKETS and self.command == "POST":
            self.buckets.objects.setdefault(json.loads(body)["name"], {})
            self.answer(200, b"{}")
            return
        found = _OBJECT.fullmatch(url.path)
        if found is None or found[1] not in self.buckets.objects:
            self.refuse(404, "The specified bucket does not exist.")
            return
        name = unquote(found[2] or "") or query.get("name", "")
        match = query.get("ifGenerationMatch")
        self.route_object(
            found[1], name, query, None if match is None else int(match), body
        )

    def route_object(
        self,
        bucket: str,
        name: str,
        query: dict[str, str],
        match: int | None,
        body: bytes,
    ) -> None:
        if self.command == "POST":
            generation = self.buckets.put(bucket, name, body, match)
            if generation is None:
                self.refuse(412, "Precondition Failed")
            else:
                self.answer(200, _describe(bucket, name, body, generation))
        elif self.command == "DELETE":
            status = self.buckets.delete(bucket, name, match)
            if status == 204:
                self.answer(204)
            else:
                self.refuse(status, "Not deleted")
        elif name:
            self.answer_object(bucket, name, query)
        else:
            self.answer(200, json.dumps(self.list(bucket, query)).encode())

    def answer_object(self, bucket: str, name: str, query: dict[str, str]) -> None:
        found = self.buckets.objects[bucket].get(name)
        if found is None:
            self.refuse(404, f"No such object: {bucket}/{name}")
            return
        data, generation = found
        unless = query.get("ifGenerationNotMatch")
        if unless is not None and int(unless) == generation:
            self.answer(304)
            return
        if query.get("alt") != "media":
            self.answer(200, _describe(bucket, name, data, generation))
            return
        told = {"x_goog_generation": str(generation)}
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            self.answer(200, data, **told)
            return
        start = int(span[1]) if span[1] else max(len(data) - int(span[2]), 0)
        last = int(span[2]) if span[1] and span[2] else len(data) - 1
        stop = min(last + 1, len(data))
        if start >= len(data):
            self.refuse(416, "Requested range not satisfiable")
            return
        told["Content_Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self.answer(206, data[start:stop], **told)

    def list(self, bucket: str, query: dict[str, str]) -> dict[str, object]:
        prefix = query.get("prefix", "")
        low = max(query.get("startOffset", ""), query.get("pageToken", ""))
        high = query.get("endOffset", "\U0010ffff")
        names = [
            name
            for name in self.buckets.names(bucket)
            if name.startswith(prefix) and low <= name < high
        ]
        found: dict[str, object] = {"items": [{"name": name} for name in names[:PAGE]]}
        if len(names) > PAGE:
            found["nextPageToken"] = names[PAGE]
        return found

    do_GET = do_POST = do_DELETE = route


def _describe(bucket: str, name: str, data: bytes, generation: int) -> bytes:
    stored = {"name": name, "bucket": bucket, "id": f"{bucket}/{name}/{generation}"}
    stored |= {"generation": str(generation), "metageneration": "1"}
    return json.dumps(stored | {"size": str(len(data))}).encode()


class Server(ThreadingHTTPServer):
    # Connections past this many that wait are answered only seconds later.
    request_queue_size = 512


def main() -> None:
    """Serve until killed."""
    handler = type("Bound", (Handler,), {"buckets": Buckets()})
    server = Server(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
