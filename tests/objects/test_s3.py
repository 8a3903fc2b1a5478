"""The object store's contract on S3, spoken to a server on this machine; and services that are down, slow or refuse."""

from __future__ import annotations

import base64
import hashlib
import itertools
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from moto.server import ThreadedMotoServer

from flux.core.errors import Code
from flux.objects.s3 import S3Store
from flux.testing.contracts.objects import ObjectStoreContract, refusal

_numbers = itertools.count()


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def new_bucket(service: str) -> str:
    name = f"bucket-{next(_numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{service}/{name}", method="PUT")).close()
    return name


@pytest.fixture
def store(service: str) -> S3Store:
    return S3Store(new_bucket(service), endpoint=service, region="us-east-1", retries=1)


class TestS3(ObjectStoreContract):
    """At the top of a bucket."""


class TestS3WithPrefix(ObjectStoreContract):
    """Below a prefix."""

    @pytest.fixture
    def store(self, service: str) -> S3Store:
        return S3Store(new_bucket(service), "some/prefix", endpoint=service, region="us-east-1", retries=1)


def test_a_prefix_keeps_stores_apart(service: str) -> None:
    bucket = new_bucket(service)
    one, other = (S3Store(bucket, prefix, endpoint=service, region="us-east-1") for prefix in ("one", "other"))
    assert one.put_new("packs/a", b"1") and other.put_new("packs/a", b"2")
    assert (one.get("packs/a"), other.get("packs/a")) == (b"1", b"2")
    assert [key for key, _, _ in S3Store(bucket, endpoint=service).list("")] == ["one/packs/a", "other/packs/a"]


def test_a_listing_of_many_pages_is_complete(store: S3Store) -> None:
    keys = [f"packs/{number:04}" for number in range(1100)]
    for key in keys:
        store.put_new(key, b"")
    assert [key for key, _, _ in store.list("packs/")] == keys


def test_a_bucket_that_is_not_there_is_unavailable(service: str) -> None:
    store = S3Store("never-made", endpoint=service, region="us-east-1", retries=0)
    assert refusal(lambda: store.put_new("packs/a", b"1")) is Code.UNAVAILABLE
    assert refusal(lambda: store.list("")) is Code.UNAVAILABLE


def test_a_service_that_is_down_is_unavailable() -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    store = S3Store("bucket", endpoint=endpoint, region="us-east-1", timeout_seconds=2, retries=1)
    for call in every_call(store):
        assert refusal(call) is Code.UNAVAILABLE


def every_call(store: S3Store) -> list[Callable[[], object]]:
    return [
        lambda: store.put_new("packs/a", b"1"),
        lambda: store.get("packs/a"),
        lambda: store.get_range("packs/a", 0, 1),
        lambda: store.head("packs/a"),
        lambda: store.list("packs/"),
        lambda: store.delete("packs/a"),
    ]


def test_a_service_that_does_not_answer_is_given_up_in_time() -> None:
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        store = S3Store(
            "bucket", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.2, retries=1
        )
        started = time.monotonic()
        for call in every_call(store):
            assert refusal(call) is Code.UNAVAILABLE
        assert time.monotonic() - started < 20


class _Answer(BaseHTTPRequestHandler):
    status = 500
    head_status: int | None = None
    headers_seen: ClassVar[list[dict[str, str]]] = []

    def _answer(self) -> None:
        type(self).headers_seen.append({key.lower(): value for key, value in self.headers.items()})
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response((self.head_status if self.command == "HEAD" else None) or self.status)
        self.send_header("content-length", "0")
        self.send_header("etag", '"0"')
        self.end_headers()

    do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def answering() -> Iterator[Callable[[int], S3Store]]:
    servers = []

    def start(status: int) -> S3Store:
        handler = type("Handler", (_Answer,), {"status": status, "headers_seen": []})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        store = S3Store("bucket", endpoint=f"http://127.0.0.1:{server.server_port}", region="us-east-1", retries=0)
        store.handler = handler  # type: ignore[attr-defined]
        return store

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("status", "code"), [(503, Code.UNAVAILABLE), (500, Code.UNAVAILABLE), (403, Code.DENIED)])
def test_a_service_that_refuses_has_a_code(answering: Callable[[int], S3Store], status: int, code: Code) -> None:
    for call in every_call(answering(status)):
        assert refusal(call) is code


def test_a_put_in_conflict_with_another_request_is_not_taken_for_done(answering: Callable[[int], S3Store]) -> None:
    """A service may answer 409 although the key is free; the object is then not there."""
    store = answering(409)
    store.handler.head_status = 404  # type: ignore[attr-defined]
    assert refusal(lambda: store.put_new("packs/a", b"1")) is Code.UNAVAILABLE


def test_a_put_is_conditional_signed_and_bears_its_digest(answering: Callable[[int], S3Store]) -> None:
    store = answering(200)
    store.put_new("packs/a", b"data")
    (headers,) = store.handler.headers_seen  # type: ignore[attr-defined]
    assert headers["if-none-match"] == "*"
    assert headers["x-amz-checksum-sha256"] == base64.b64encode(hashlib.sha256(b"data").digest()).decode()
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=test/")
