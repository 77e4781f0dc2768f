"""Object stores as processes of their own, each behind a proxy that can do wrong.

S3 is moto's server; GCS is `fake_gcs`. What they hold is seen and changed past the
proxy and past our own code, over plain HTTP.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from tests._harness.fake_gcs import TOKEN
from tests._harness.warm import ROOT

BUCKET = "bucket"
START_SECONDS = 60.0
_TRIES = 4

Kind = Literal["s3", "gs"]
KINDS: tuple[Kind, ...] = ("s3", "gs")

Fault = Literal[
    "answer", "reset", "lost", "late", "fail after", "hang", "stall", "truncate",
    "shorten", "corrupt",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests to do wrong, and how.

    Those whose method is `method` and whose path has `path` are counted; `fault`
    strikes `count` of them from the `first` on. "answer" is `status` and `body` without
    asking the store; "reset" breaks off before it is asked, "lost" after; "late" asks
    it only in four seconds and breaks off then; "fail after" asks it and answers 500;
    "hang" never answers, "stall" stops in the middle of the answer, "truncate" breaks
    off there, "shorten" says it were the end; "corrupt" flips a bit.
    """

    fault: Fault
    path: str = ""
    method: str = ".*"
    first: int = 1
    count: int = 1 << 40
    status: int = 503
    body: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a proxy saw; `fault` is what it did to it.

    `bytes` are those of its body, `answered` those of the answer's.
    """

    method: str
    path: str
    bytes: int
    fault: str
    answered: int

    @property
    def writes(self) -> bool:
        """Whether it sends an object."""
        return self.method in ("PUT", "POST") and bool(self.path)


@dataclass(slots=True)
class Cloud:
    """A server, the proxy in front of it, and a way past both.

    What is asked for here goes to `port`, and is given up after `patience` seconds.
    """

    kind: Kind
    port: int
    proxy: int
    _control: Any = field(repr=False)
    patience: float = 60.0

    @property
    def url(self) -> str:
        """Where the proxy is."""
        return f"http://127.0.0.1:{self.proxy}"

    def through_proxy(self, *, patience: float) -> "Cloud":
        """Return the way through the proxy, each request tried once."""
        return replace(self, port=self.proxy, patience=patience)

    def break_with(self, *rules: Rule) -> None:
        """Replace the proxy's rules, and count anew."""
        self._tell({"rules": [asdict(rule) for rule in rules]})

    def take_log(self) -> list[Request]:
        """Return the requests seen since the last call."""
        return [Request(*entry) for entry in self._tell({"log": True})]

    def _tell(self, request: Mapping[str, Any]) -> Any:
        self._control.write(json.dumps(request).encode() + b"\n")
        self._control.flush()
        return json.loads(self._control.readline())

    def make_bucket(self, name: str = BUCKET) -> None:
        if self.kind == "s3":
            self._ask("PUT", f"/{name}")
        else:
            self._ask("POST", "/storage/v1/b", json.dumps({"name": name}).encode())

    def put(self, name: str, data: bytes) -> None:
        if self.kind == "s3":
            self._ask("PUT", f"/{BUCKET}/{quote(name)}", data)
        else:
            self._ask(
                "POST", f"/upload/storage/v1/b/{BUCKET}/o?name={_quoted(name)}", data
            )

    def get(self, name: str) -> bytes:
        return self._ask("GET", self._path(name))

    def delete(self, name: str) -> None:
        self._ask("DELETE", self._path(name).partition("?")[0])

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects that begin with `prefix`."""
        found: list[str] = []
        more = ""
        while True:
            if self.kind == "s3":
                query = f"list-type=2&prefix={_quoted(prefix)}{more}"
                text = self._ask("GET", f"/{BUCKET}?{query}").decode()
                found += [unescape(k) for k in re.findall(r"<Key>(.*?)</Key>", text)]
                token = re.search(r"<NextContinuationToken>(.*?)<", text)
                more = f"&continuation-token={_quoted(token[1])}" if token else ""
            else:
                query = f"prefix={_quoted(prefix)}{more}"
                text = self._ask("GET", f"/storage/v1/b/{BUCKET}/o?{query}").decode()
                listing = json.loads(text)
                found += [unquote(item["name"]) for item in listing["items"]]
                token = listing.get("nextPageToken")
                more = f"&pageToken={_quoted(token)}" if token else ""
            if not more:
                return sorted(found)

    def _path(self, name: str) -> str:
        if self.kind == "s3":
            return f"/{BUCKET}/{quote(name)}"
        return f"/storage/v1/b/{BUCKET}/o/{_quoted(name)}?alt=media"

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        # moto fails now and then while others write: past the proxy, this is not what
        # is tested.
        for _ in range(_TRIES - 1 if self.port != self.proxy else 0):
            with contextlib.suppress(http.client.HTTPException, _ServerFailed):
                return self._ask_once(method, path, body)
        return self._ask_once(method, path, body)

    def _ask_once(self, method: str, path: str, body: bytes | None) -> bytes:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=self.patience
        )
        with contextlib.closing(connection):
            # moto asks only that there be one.
            headers = {"Authorization": f"Bearer {TOKEN}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            if answer.status == 404:
                raise FileNotFoundError(path)
            if answer.status >= 300:
                text = f"{answer.status} to {method} {path}: {data[:200]!r}"
                raise _ServerFailed(text) if answer.status >= 500 else OSError(text)
            return data


class _ServerFailed(OSError):
    """A server answered that it failed."""


def environment(clouds: Mapping[Kind, Cloud]) -> dict[str, str]:
    """Return what a process must have in its environment to reach these clouds."""
    return {
        "TENSORSTORE_GCS_HTTP_URL": clouds["gs"].url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
        "AWS_ENDPOINT_URL": clouds["s3"].url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        # A connection that stalls is tried again after this.
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "1",
        "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
    }


@contextlib.contextmanager
def serve_clouds() -> Generator[dict[Kind, Cloud]]:
    """Serve S3 and GCS, each with an empty bucket, until the block is left."""
    with contextlib.ExitStack() as stack:
        moto = _free_port()
        stack.enter_context(_running("moto.server", "-H", "127.0.0.1", "-p", str(moto)))
        google = stack.enter_context(_running("tests._harness.fake_gcs"))
        ports: dict[Kind, int] = {"gs": int(_first_line(google)), "s3": moto}
        clouds: dict[Kind, Cloud] = {}
        for kind, port in ports.items():
            proxy = stack.enter_context(
                _running("tests._harness.fault_proxy", str(port))
            )
            served, told = map(int, _first_line(proxy).split())
            link = stack.enter_context(socket.create_connection(("127.0.0.1", told)))
            control = stack.enter_context(link.makefile("rwb"))
            clouds[kind] = Cloud(kind, port, served, control)
            _wait_for(port)
            clouds[kind].make_bucket()
        yield clouds


@contextlib.contextmanager
def _running(module: str, *arguments: str) -> Generator[Any]:
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _first_line(process: Any) -> str:
    return process.stdout.readline()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _quoted(name: str) -> str:
    return quote(name, safe="")
