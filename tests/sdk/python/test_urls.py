"""Signed URLs of files, used by somebody who has nothing but the URL."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest
from daemons import Flux
from flavours import Sdk

pytestmark = pytest.mark.everywhere

BOUNDARY = "a-boundary"


def fetch(url: str, **headers: str) -> tuple[int, bytes]:
    """Download; return status and content, of a refusal too."""
    return send(urllib.request.Request(url, headers=headers))


def post(url: str, content: bytes) -> tuple[int, bytes]:
    """Upload as a browser's form does."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="any"\r\n\r\n'.encode()
    body = head + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return send(urllib.request.Request(url, data=body, headers=kind, method="POST"))


def send(request: urllib.request.Request) -> tuple[int, bytes]:
    """Send a request and return status and content."""
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


@pytest.mark.parametrize("seconds", [None, 60])
async def test_downloads_and_uploads(box: Any, sdk: Sdk, seconds: int | None) -> None:
    name = "with space & ünïcödé+%"
    options = {} if seconds is None else {"use_signature_expiration": seconds}
    await box.files.write(name, "content\n")
    download = sdk.url(box, "download_url", name, **options)
    assert fetch(download) == (200, b"content\n")
    assert fetch(download, Range="bytes=2-4") == (206, b"nte")
    upload = sdk.url(box, "upload_url", name, **options)
    status, _ = post(upload, b"uploaded\n")
    assert status == 200
    assert await box.files.read(name) == "uploaded\n"
    assert fetch(sdk.url(box, "download_url", "/root/.profile", user="user", **options))[0] in (401, 403, 404)
    await box.files.write("/root/own", "root's", user="root")
    assert fetch(sdk.url(box, "download_url", "own", user="root", **options)) == (200, b"root's")


async def test_a_signature_is_for_what_it_names_only(box: Any, sdk: Sdk) -> None:
    await box.files.write("one", "1")
    await box.files.write("two", "2")
    download = sdk.url(box, "download_url", "one")
    assert fetch(download.replace("path=one", "path=two"))[0] == 401
    assert post(download, b"overwritten")[0] == 401
    assert fetch(sdk.url(box, "upload_url", "one"))[0] == 401
    assert fetch(download.replace("v1_", "v1_A"))[0] == 401
    assert fetch(download.partition("&signature")[0])[0] in (400, 401, 404)  # whose file it is, nobody says
    assert await box.files.read("one") == "1"


async def test_an_expired_signature(box: Any, sdk: Sdk) -> None:
    await box.files.write("one", "1")
    assert fetch(sdk.url(box, "download_url", "one", use_signature_expiration=-1))[0] == 401
    fresh = sdk.url(box, "download_url", "one", use_signature_expiration=60)
    moment = int(fresh.rpartition("signature_expiration=")[2])
    assert fetch(fresh)[0] == 200
    assert fetch(fresh.replace(str(moment), str(moment + 1000)))[0] == 401


async def test_the_url_outlives_a_pause_and_dies_with_the_sandbox(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300)
    await box.files.write("one", "1")
    download = sdk.url(box, "download_url", "one")
    assert await box.pause() is True
    assert fetch(download)[0] in (401, 502)
    await box.connect(timeout=300)
    assert fetch(download) == (200, b"1")
    assert await box.kill() is True
    assert fetch(download)[0] in (401, 502)
