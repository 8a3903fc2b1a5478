"""Files over raw HTTP: forms and plain bodies, ranges, compression, metadata, refusals; and the file system service."""

from __future__ import annotations

import gzip
import json
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flux.api.envd.files import date_of
from tests.api.daemons import Daemon
from tests.api.envd import STREAM, Envd, frame

MIB = 1 << 20
OCTETS = {"content-type": "application/octet-stream"}
BOUNDARY = "----xyz"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture(scope="module")
def envd(daemon: Daemon) -> Iterator[Envd]:
    one = Envd(daemon.url, daemon.token)
    yield one
    one.close()


def put(envd: Envd, path: str, content: bytes, **headers: str) -> httpx.Response:
    return envd.http.post("/files", params={"path": path}, content=content, headers={**OCTETS, **headers})


def get(envd: Envd, path: str, **headers: str) -> httpx.Response:
    return envd.http.get("/files", params={"path": path}, headers={"accept-encoding": "identity", **headers})


def ask(envd: Envd, method: str, **body: Any) -> Any:
    return envd.http.post(f"/filesystem.Filesystem/{method}", json=body)


def form(*files: tuple[str | None, bytes], field: str = "file") -> bytes:
    parts = []
    for name, content in files:
        named = "" if name is None else f'; filename="{name}"'
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"{named}\r\n'
        parts.append(head.encode() + b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post(envd: Envd, body: bytes, **query: str) -> httpx.Response:
    return envd.http.post("/files", params=query, content=body, headers=FORM)


def test_a_plain_body(envd: Envd) -> None:
    reply = put(envd, "plain", b"content")
    assert (reply.status_code, reply.json()) == (200, [{"name": "plain", "path": "/home/user/plain", "type": "file"}])
    found = get(envd, "~/plain")
    assert (found.status_code, found.content, found.headers["content-length"]) == (200, b"content", "7")
    head = envd.http.head("/files", params={"path": "plain"}, headers={"accept-encoding": "identity"})
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "7")


def test_a_form_with_one_file_and_its_path_in_the_query(envd: Envd) -> None:
    assert post(envd, form(("anything", b"1\r\n--2")), path="a b+c").json()[0]["path"] == "/home/user/a b+c"
    assert get(envd, "a b+c").content == b"1\r\n--2"


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("forms/with space", "forms/with space"),
        ("forms/文件 🙂", "forms/文件 🙂"),
        ("forms/it's %22quoted%22; filename=x", 'forms/it\'s "quoted"; filename=x'),
        (r"forms/it's \"quoted\" too", 'forms/it\'s "quoted" too'),
        (r"forms/back\\slash", r"forms/back\slash"),
        (r"forms/one\back", r"forms/one\back"),
        ("forms/line%0D%0Aend", "forms/line\r\nend"),
        ("forms/100%41", "forms/100%41"),
    ],
)
def test_forms_with_several_files_are_named_by_their_paths(envd: Envd, written: str, path: str) -> None:
    reply = post(envd, form((written, b"1"), ("forms/second", b"22"), ("forms/empty", b"")))
    assert [each["path"] for each in reply.json()] == [
        f"/home/user/{name}" for name in (path, "forms/second", "forms/empty")
    ]
    assert [get(envd, name).content for name in (path, "forms/second", "forms/empty")] == [b"1", b"22", b""]


def test_a_form_in_small_pieces(envd: Envd) -> None:
    content = (b"\r\n--" + BOUNDARY[:-1].encode() + b"!\r\n--") * 50
    body = b"a preamble\r\n" + form(("pieces", content), ("pieces2", b"y"))
    reply = envd.http.post("/files", content=(body[at : at + 7] for at in range(0, len(body), 7)), headers=FORM)
    assert len(reply.json()) == 2
    assert get(envd, "pieces").content == content


@pytest.mark.parametrize(
    ("body", "query"),
    [
        (b"", {}),
        (form(("x", b"1"))[:-4], {"path": "broken"}),
        (form((None, b"1")), {}),
        (form(("same", b"1"), ("same", b"2")), {}),
        (form(("one", b"1"), ("two", b"2")), {"path": "broken"}),
        (b"--" + BOUNDARY.encode() + b"\r\nno: disposition\r\n\r\nx\r\n--" + BOUNDARY.encode() + b"--", {}),
        (b"--" + BOUNDARY.encode() + b"\r\n" + b"x" * 40_000, {}),
    ],
)
def test_forms_that_are_refused_whole(envd: Envd, body: bytes, query: dict[str, str]) -> None:
    reply = post(envd, body, **query)
    assert (reply.status_code, reply.json()["code"]) == (400, 400)
    assert [get(envd, name).status_code for name in ("broken", "same", "one", "two")] == [404] * 4


def test_metadata(envd: Envd) -> None:
    assert put(envd, "noted", b"x", **{"X-Metadata-Author": "me", "x-metadata-note": "a b; c"}).json()[0][
        "metadata"
    ] == {
        "author": "me",
        "note": "a b; c",
    }
    assert ask(envd, "Stat", path="noted").json()["entry"]["metadata"] == {"author": "me", "note": "a b; c"}
    put(envd, "noted", b"y")
    assert "metadata" not in ask(envd, "Stat", path="noted").json()["entry"]
    assert put(envd, "noted", b"y", **{"X-Metadata-k": "x" * 3000}).status_code == 400


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=3-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=" + "9" * 5000 + "-", 200, b"0123456789", None),
    ],
)
def test_ranges(envd: Envd, asked: str, status: int, content: bytes, told: str | None) -> None:
    put(envd, "ten", b"0123456789")
    found = get(envd, "ten", range=asked)
    assert (found.status_code, found.content, found.headers.get("content-range")) == (status, content, told)


@pytest.mark.parametrize(
    ("nanoseconds", "told"),
    [
        (1_700_000_000_999_999_999, "Tue, 14 Nov 2023 22:13:20 GMT"),
        (-(2**63), "Thu, 01 Jan 1970 00:00:00 GMT"),
        ((2**63 - 1) * 10**9, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
)
def test_times_that_sandboxes_give_to_files(nanoseconds: int, told: str) -> None:
    assert date_of(nanoseconds) == told


def test_ranges_of_a_large_file(envd: Envd) -> None:
    content = os.urandom(3 * MIB + 17)
    put(envd, "large", content)
    assert get(envd, "large").content == content
    assert get(envd, "large", range=f"bytes={MIB - 1}-{2 * MIB}").content == content[MIB - 1 : 2 * MIB + 1]


@pytest.mark.parametrize("size", [0, 10, 5 * MIB])
def test_gzip_both_ways(envd: Envd, size: int) -> None:
    content = (b"again and again\n" * (size // 16 + 1))[:size]
    assert put(envd, "zipped", gzip.compress(content), **{"content-encoding": "gzip"}).status_code == 200
    assert get(envd, "zipped").content == content
    found = get(envd, "zipped", **{"accept-encoding": "gzip"})
    assert (found.headers["content-encoding"], found.content) == ("gzip", content)
    assert "content-encoding" not in get(envd, "zipped", **{"accept-encoding": "gzip, deflate, br"}).headers
    two = gzip.compress(content) + gzip.compress(b"more")
    put(envd, "zipped", two, **{"content-encoding": "gzip"})
    assert get(envd, "zipped").content == content + b"more"


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"no gzip", "gzip"), (gzip.compress(b"x" * 1000)[:-9], "gzip"), (b"x", "br")]
)
def test_content_that_is_not_as_its_header_says(envd: Envd, body: bytes, encoding: str) -> None:
    put(envd, "kept", b"kept")
    assert put(envd, "kept", body, **{"content-encoding": encoding}).status_code == 400
    assert get(envd, "kept").content == b"kept"


def test_what_unpacks_to_much_takes_no_memory(envd: Envd, daemon: Daemon) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(256)) + packer.flush()
    before = _peak(daemon)
    assert put(envd, "bomb", bomb, **{"content-encoding": "gzip"}).status_code == 200
    assert ask(envd, "Stat", path="bomb").json()["entry"]["size"] == str(256 * MIB)
    assert _peak(daemon) - before < 100 * MIB
    ask(envd, "Remove", path="bomb")


def _peak(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def test_a_sender_that_hangs_up_changes_nothing(envd: Envd) -> None:
    put(envd, "kept", b"kept")
    address = urlsplit(envd.url)
    lines = [f"POST /files?path=kept HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: 9000000\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in {**envd.headers, **OCTETS}.items()]
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall("".join(lines).encode() + b"\r\n" + bytes(4 * MIB))
    assert get(envd, "kept").content == b"kept"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/home/user", 400), ("nothing", 404), ("/dev/zero", 400), ("/proc/1/environ", 403), ("a%00b", 404), ("", 400)],
)
def test_what_cannot_be_read(envd: Envd, path: str, status: int) -> None:
    reply = get(envd, path)
    assert (reply.status_code, reply.json()["code"]) == (status, status)
    assert "was not found" not in reply.text


def test_requests_that_are_refused(envd: Envd) -> None:
    assert envd.http.get("/files?path=a%00b").status_code == 400
    assert envd.http.post("/files", content=b"x", headers=OCTETS).status_code == 400
    assert envd.http.post("/files?path=x", content=b"x", headers={"content-type": "text/plain"}).status_code == 400
    assert envd.http.put("/files?path=x", content=b"x").status_code == 400
    for user in ("nobody else", "1" * 5000, "٣", "4294967295", "1:" + "1" * 5000):
        assert envd.http.get("/files", params={"path": "x", "username": user}).status_code == 400, user[:20]
    assert put(envd, "l" * 256, b"x").status_code == 400


def test_names_that_are_no_text(envd: Envd) -> None:
    reply = envd.http.post("/files?path=odd/%FF", content=b"x", headers=OCTETS)
    assert reply.json()[0]["name"] == "\\xff"
    assert envd.http.get("/files?path=odd/%FF").content == b"x"
    [entry] = ask(envd, "ListDir", path="odd").json()["entries"]
    assert (entry["name"], entry["path"]) == ("\\xff", "/home/user/odd/\\xff")


def test_parts_are_joined(envd: Envd) -> None:
    for name in ("p1", "p2"):
        put(envd, name, name.encode())
    asked = {"source_paths": ["p1", "p2"], "destination": "joined/whole", "username": "user"}
    reply = envd.http.post("/files/compose", json=asked)
    assert reply.json() == {"name": "whole", "path": "/home/user/joined/whole", "type": "file"}
    assert (get(envd, "joined/whole").content, get(envd, "p1").status_code) == (b"p1p2", 404)
    assert envd.http.post("/files/compose", json={**asked, "source_paths": []}).status_code == 400
    assert envd.http.post("/files/compose", json=asked).status_code == 404
    assert envd.http.post("/files/compose", content=b"[").status_code == 400
    assert envd.http.post("/files/compose", content=b'{"x": ' + b"[" * 100_000).status_code == 400


def test_the_service_s_entries_and_errors(envd: Envd) -> None:
    put(envd, "dir/f", b"12345")
    entry = ask(envd, "Stat", path="dir/f").json()["entry"]
    assert entry.pop("modifiedTime").endswith("Z")
    assert entry == {
        "name": "f",
        "type": "FILE_TYPE_FILE",
        "path": "/home/user/dir/f",
        "size": "5",
        "mode": 0o644,
        "permissions": "-rw-r--r--",
        "owner": "user",
        "group": "user",
    }
    for method, body, status, code in (
        ("Stat", {"path": "nothing"}, 404, "not_found"),
        ("MakeDir", {"path": "dir"}, 409, "already_exists"),
        ("ListDir", {"path": "dir/f"}, 400, "invalid_argument"),
        ("ListDir", {"path": "nothing"}, 404, "not_found"),
        ("Move", {"source": "nothing", "destination": "x"}, 404, "not_found"),
        ("GetWatcherEvents", {"watcherId": "w1"}, 404, "not_found"),
        ("RemoveWatcher", {"watcherId": "w1"}, 404, "not_found"),
        ("CreateWatcher", {"path": "dir/f"}, 400, "invalid_argument"),
    ):
        reply = ask(envd, method, **body)
        assert (reply.status_code, reply.json()["code"]) == (status, code), method
    assert ask(envd, "Remove", path="nothing").json() == {}
    assert ask(envd, "ListDir", path="dir").json()["entries"][0]["name"] == "f"
    assert ask(envd, "ListDir", path="/opt").json() == {"entries": []}


def test_a_watcher_that_is_asked(envd: Envd) -> None:
    ask(envd, "MakeDir", path="watched")
    watcher = ask(envd, "CreateWatcher", path="watched", includeEntry=True).json()["watcherId"]
    put(envd, "watched/new", b"x")
    events = ask(envd, "GetWatcherEvents", watcherId=watcher).json()["events"]
    assert {(event["type"], event["name"]) for event in events} >= {
        ("EVENT_TYPE_CREATE", "new"),
        ("EVENT_TYPE_WRITE", "new"),
    }
    assert {event["entry"]["path"] for event in events} == {"/home/user/watched/new"}
    assert ask(envd, "GetWatcherEvents", watcherId=watcher).json() == {"events": []}
    assert ask(envd, "RemoveWatcher", watcherId=watcher).json() == {}
    assert ask(envd, "GetWatcherEvents", watcherId=watcher).status_code == 404


def test_watchers_are_bounded_and_come_free_again(envd: Envd) -> None:
    ask(envd, "MakeDir", path="many")
    made = [ask(envd, "CreateWatcher", path="many") for _ in range(65)]
    assert [reply.status_code for reply in made] == [200] * 64 + [429]
    for reply in made[:64]:
        ask(envd, "RemoveWatcher", watcherId=reply.json()["watcherId"])
    again = ask(envd, "CreateWatcher", path="many")
    assert again.status_code == 200
    ask(envd, "RemoveWatcher", watcherId=again.json()["watcherId"])


def test_a_watch_that_pushes_ends_with_the_execution(daemon: Daemon) -> None:
    own = Envd(daemon.url, daemon.token)
    try:
        ask(own, "MakeDir", path="watched")
        body = frame(json.dumps({"path": "watched", "recursive": True}).encode())
        with own.http.stream("POST", "/filesystem.Filesystem/WatchDir", content=body, headers=STREAM) as reply:
            messages = _messages(reply)
            assert next(messages) == {"start": {}}
            put(own, "watched/a/b", b"x")
            seen: set[tuple[str, str]] = set()
            while ("EVENT_TYPE_CREATE", "a/b") not in seen:
                event = next(messages)["filesystem"]
                seen.add((event["type"], event["name"]))
            assert own.control("POST", "/pause", json={}).status_code == 204
            *_, last = messages
            assert last["error"]["code"] == "unavailable"
    finally:
        own.close()


def _messages(reply: httpx.Response) -> Iterator[Any]:
    held = b""
    for chunk in reply.iter_bytes():
        held += chunk
        while len(held) >= 5 and len(held) >= 5 + (length := int.from_bytes(held[1:5], "big")):
            yield json.loads(held[5 : 5 + length])
            held = held[5 + length :]
