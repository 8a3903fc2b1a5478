"""The Connect protocol of the data plane: frames, refusals, deadlines, keepalives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.requests import Request

from flux.api.envd.connect import FRAME_BYTES_MAX, frames
from flux.core.errors import Code, FluxError
from tests.api.daemons import Daemon
from tests.api.envd import HEADER, STREAM, Ended, Envd, collect, events, frame, selected, start


@pytest.fixture(scope="module")
def envd(daemon: Daemon) -> Iterator[Envd]:
    one = Envd(daemon.url, daemon.token)
    yield one
    one.close()


def read(*chunks: bytes) -> list[bytes]:
    """Return the messages of a stream that comes in these chunks."""
    left = list(chunks)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": left.pop(0) if left else b"", "more_body": bool(left)}

    async def run() -> list[bytes]:
        request = Request({"type": "http", "headers": []}, receive)  # type: ignore[arg-type]  # no more is looked at
        return [message async for message in frames(request)]

    return asyncio.run(run())


def test_frames_may_be_cut_everywhere() -> None:
    whole = frame(b'{"a":1}') + frame(b"") + frame(b"x" * 300)
    expected = [b'{"a":1}', b"", b"x" * 300]
    for cut in range(1, len(whole)):
        assert read(whole[:cut], whole[cut:]) == expected
    assert read(*(whole[at : at + 1] for at in range(len(whole)))) == expected


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"{}")[:-1], Code.INVALID),
        (b"\0\0\0", Code.INVALID),
        (HEADER.pack(0, FRAME_BYTES_MAX + 1), Code.TOO_LARGE),
        (b"\xff" * 8, Code.TOO_LARGE),
        (frame(b"{}", 1), Code.INVALID),
    ],
)
def test_what_is_no_stream(sent: bytes, code: Code) -> None:
    with pytest.raises(FluxError) as caught:
        read(sent)
    assert caught.value.code is code


def test_nothing_follows_an_end_frame() -> None:
    assert read(frame(b"1") + frame(b"{}", 2) + frame(b"2")) == [b"1"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", "invalid_argument"),
        (frame(b"{}") * 2, "invalid_argument"),
        (frame(b"not json"), "invalid_argument"),
        (frame(b"[" * 100_000), "invalid_argument"),
        (frame(b'{"process": {"cmd": 7}}'), "invalid_argument"),
        (frame(b"{}"), "invalid_argument"),
        (HEADER.pack(0, FRAME_BYTES_MAX + 1), "resource_exhausted"),
        (frame(b"{}", 1), "invalid_argument"),
    ],
)
def test_an_error_is_an_end_frame_of_a_good_reply(envd: Envd, sent: bytes, code: str) -> None:
    reply = envd.http.post("/process.Process/Start", content=sent, headers=STREAM)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/connect+json")
    with pytest.raises(Ended) as caught:
        list(events(iter([reply.content])))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "application/proto"}, 415, "invalid_argument"),
        ({"content-type": "application/connect+json"}, 415, "invalid_argument"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 501, "unimplemented"),
        ({"content-type": "application/json; charset=utf-8"}, 200, None),
        ({"content-type": "application/json", "connect-timeout-ms": "nonsense"}, 200, None),
    ],
)
def test_what_calls_are_sent_as(envd: Envd, headers: dict[str, str], status: int, code: str | None) -> None:
    reply = envd.http.post("/process.Process/List", content=b"{}", headers=headers)
    assert (reply.status_code, reply.json().get("code")) == (status, code)


def test_methods_that_are_not_there(envd: Envd) -> None:
    assert envd.raw("Nothing", b"{}").json()["code"] == "unimplemented"
    assert envd.raw("Nothing", b"{}").status_code == 404
    assert envd.http.get("/process.Process/List").status_code == 405


def test_a_call_of_too_many_bytes_is_refused(envd: Envd) -> None:
    reply = envd.raw("List", b" " * (FRAME_BYTES_MAX + 1))
    assert (reply.status_code, reply.json()["code"]) == (429, "resource_exhausted")


def test_unknown_fields_and_an_empty_body_are_let_pass(envd: Envd) -> None:
    assert envd.raw("List", b"").status_code == 200
    assert envd.raw("List", json.dumps({"later": 1}).encode()).status_code == 200


def test_a_deadline_ends_the_stream_and_the_process(envd: Envd) -> None:
    with envd.stream("Start", start("sleep 600"), connect_timeout_ms="300") as happened:
        pid = next(happened)["start"]["pid"]
        with pytest.raises(Ended) as caught:
            next(happened)
    assert caught.value.code == "deadline_exceeded"
    with envd.stream("Connect", selected(pid)) as happened:  # ends when the process does
        assert collect(happened)[2]["status"] == "signal: killed"
    assert pid not in envd.pids()


def test_the_deadline_of_a_listener_is_its_own(envd: Envd) -> None:
    with envd.stream("Start", start("read line; echo $line", stdin=True)) as happened:
        pid = next(happened)["start"]["pid"]
        with (
            envd.stream("Connect", selected(pid), connect_timeout_ms="200") as other,
            pytest.raises(Ended) as caught,
        ):
            list(other)
        assert caught.value.code == "deadline_exceeded"
        envd.call("SendInput", {**selected(pid), "input": {"stdin": "aGkK"}})
        assert collect(happened)[0] == b"hi\n"


def test_a_deadline_in_a_call_that_waits(envd: Envd) -> None:
    with envd.stream("Start", start("sleep 600", stdin=True)) as happened:
        pid = next(happened)["start"]["pid"]
        body = {**selected(pid), "input": {"stdin": "QUFB" * 262144}}
        reply = envd.raw("SendInput", json.dumps(body).encode(), connect_timeout_ms="300")
        assert (reply.status_code, reply.json()["code"]) == (504, "deadline_exceeded")
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGKILL"})


def test_a_silent_stream_is_kept_alive(envd: Envd) -> None:
    with envd.stream("Start", start("read line", stdin=True), keepalive_ping_interval="1") as happened:
        pid = next(happened)["start"]["pid"]
        assert next(happened) == {"keepalive": {}}
        envd.call("CloseStdin", selected(pid))
        assert [*happened][-1]["end"]["status"] == "exit status 1"
