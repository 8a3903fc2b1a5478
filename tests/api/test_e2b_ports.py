"""Ports of sandboxes by host name: HTTP and WebSockets, who may come, what nobody reaches (spec: e2b, §2)."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flux.core.access import Role
from flux.core.requests import CreateKey
from tests.api.daemons import Daemon
from tests.api.ports import CLOSED, DOMAIN, PORT, Box, boxed, raw, spoken

MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="entering a sandbox's network needs root: run the tests as root"
)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a domain."""
    place = tmp_path_factory.mktemp("named")
    (place / "flux.toml").write_text(f'[e2b]\ndomain = "{DOMAIN}"\n')
    running = Daemon(place / "state", "--config", str(place / "flux.toml"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def key(named: Daemon) -> str:
    """A key of the daemon."""
    return str(named.client().call("keys.create", body=CreateKey(name="ports", role=Role.USER.value))["key"])


@pytest.fixture(scope="module")
def box(named: Daemon, key: str) -> Iterator[Box]:
    """A sandbox with the server."""
    with boxed(named, key) as made:
        made.serve()
        yield made


# What passes


def test_a_request_arrives_as_it_was_sent_and_no_key_of_flux_with_it(box: Box) -> None:
    secrets = {"x-api-key": "k", "x-access-token": box.token, "e2b-traffic-access-token": "t", "flux-actor": "me"}
    sent = {**secrets, "authorization": "Bearer mine", "cookie": "a=1", "x-own": "1", "te": "trailers"}
    reply = box.ask("/a%2Fb/%20c?x=1&x=%C3%A9", "PUT", content=b"body", headers=[*sent.items(), ("x-own", "2")])
    assert reply.status_code == 200, reply.text
    told = reply.json()
    assert (reply.status_code, told["method"], told["path"]) == (200, "PUT", "/a%2Fb/%20c?x=1&x=%C3%A9")
    assert told["body"] == "body"
    headers = [(name.lower(), value) for name, value in told["headers"]]
    got = dict(headers)
    assert not set(secrets) & set(got)
    assert "te" not in got
    assert (got["host"], got["authorization"], got["cookie"]) == (box.host(), "Bearer mine", "a=1")
    assert [value for name, value in headers if name == "x-own"] == ["1", "2"]
    assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert got["x-forwarded-host"] == box.host()


def test_what_a_proxy_before_flux_says_is_passed_on(box: Box) -> None:
    reply = box.ask("/", headers=[("x-forwarded-for", "192.0.2.7"), ("x-forwarded-proto", "https")])
    got = {name.lower(): value for name, value in reply.json()["headers"]}
    assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == ("192.0.2.7, 127.0.0.1", "https")


def test_a_header_that_connection_names_stays_with_the_connection(box: Box) -> None:
    reply = box.ask("/", headers=[("connection", "x-hop"), ("x-hop", "1"), ("x-stays", "1")])
    got = {name.lower() for name, _ in reply.json()["headers"]}
    assert "x-stays" in got
    assert "x-hop" not in got


def test_statuses_bodies_and_headers_of_replies_pass_and_none_of_flux_is_forged(box: Box) -> None:
    reply = box.ask("/none")
    assert (reply.status_code, reply.content) == (404, b"nothing here")
    assert "x-content-type-options" not in reply.headers
    assert "should-retry" not in reply.headers
    forged = box.ask("/forged")
    assert forged.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert "flux-actor" not in forged.headers
    assert len(forged.headers.get_list("x-request-id")) == 1
    assert forged.headers["x-request-id"] != "forged"
    assert len(forged.headers.get_list("date")) == 1


def test_head_has_the_length_and_no_body(box: Box) -> None:
    reply = box.ask("/large", "HEAD")
    assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, str(16 * MIB), b"")


def test_16_mib_pass_both_ways_at_once(box: Box) -> None:
    content = os.urandom(MIB) * 16
    assert (
        hashlib.sha256(box.ask("/echo", "POST", content=content).content).digest() == hashlib.sha256(content).digest()
    )
    pieces = (content[start : start + 100_000] for start in range(0, len(content), 100_000))
    chunked = box.ask("/echo", "POST", content=pieces)
    assert hashlib.sha256(chunked.content).digest() == hashlib.sha256(content).digest()


def test_a_body_is_answered_while_it_comes(box: Box) -> None:
    with raw(box.url) as connection:
        head = f"POST /echo HTTP/1.1\r\nHost: {box.host()}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"3\r\none\r\n")
        got = b""
        while b"one" not in got:
            got += connection.recv(65536)
        connection.sendall(b"3\r\ntwo\r\n0\r\n\r\n")
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65536)
        assert b"two" in got


def test_a_slow_reader_gets_everything(box: Box) -> None:
    with httpx.stream("GET", box.url + "/large", headers={"host": box.host()}, timeout=60) as reply:
        pieces = reply.iter_raw(4096)
        first = next(pieces)
        assert box.ask("/none").status_code == 404  # others are served meanwhile
        assert first + b"".join(pieces) == bytes(range(256)) * (16 * MIB // 256)


def test_who_hangs_up_hangs_up_inside(named: Daemon, key: str) -> None:
    with boxed(named, key) as box:
        box.serve()
        with httpx.stream("GET", box.url + "/endless", headers={"host": box.host()}, timeout=60) as reply:
            next(reply.iter_raw())
        assert box.ask("/gone").content == b"True"


def test_who_hangs_up_while_sending_hangs_up_inside(named: Daemon, key: str) -> None:
    with boxed(named, key) as box:
        box.serve()
        with raw(box.url) as connection:
            connection.sendall(f"POST /seen HTTP/1.1\r\nHost: {box.host()}\r\nContent-Length: 9\r\n\r\nabc".encode())
        assert box.ask("/gone").content == b"True"


def test_a_server_on_the_other_loopback_is_found(box: Box) -> None:
    box.serve(8006, "::1")
    assert box.ask("/none", host=box.host(8006)).status_code == 404


def test_a_port_may_be_named_with_the_daemon_s_and_in_capitals(box: Box) -> None:
    assert box.ask("/none", host=f"{box.host().upper()}:7788").status_code == 404


# WebSockets


def test_messages_pass_both_ways(box: Box) -> None:
    offered = [Subprotocol("one"), Subprotocol("two")]
    with box.socket(subprotocols=offered, additional_headers={"x-api-key": "k", "origin": "http://x"}) as ws:
        assert ws.subprotocol == "two"
        headers = {name.lower(): value for name, value in json.loads(ws.recv()).items()}
        assert (headers["host"], headers["origin"]) == (box.host(), "http://x")
        assert headers["x-forwarded-proto"] == "http"
        assert "x-api-key" not in headers
        ws.send("text ä")
        assert ws.recv() == "text ä"
        binary = os.urandom(MIB - 1)
        ws.send(binary)
        assert ws.recv() == binary
        ws.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "enough")


def test_a_closed_socket_is_closed_inside(named: Daemon, key: str) -> None:
    with boxed(named, key) as box:
        box.serve()
        with box.socket() as ws:
            ws.recv()
        assert box.ask("/gone").content == b"True"


def test_a_refused_upgrade_is_told_as_it_was(box: Box) -> None:
    with pytest.raises(InvalidStatus) as refused:
        box.socket("/wsno")
    assert (refused.value.response.status_code, refused.value.response.body) == (403, b"no sockets for you")


def test_a_socket_to_a_closed_port_is_refused(box: Box) -> None:
    with pytest.raises(InvalidStatus) as refused:
        box.socket(port=1)
    assert refused.value.response.status_code == 502
    assert json.loads(refused.value.response.body or b"")["message"] == CLOSED


# What does not pass


def test_a_port_at_which_nothing_listens_is_told(box: Box) -> None:
    reply = box.ask("/", host=box.host(8001))
    assert reply.status_code == 502
    assert reply.json() == {"sandboxId": box.id, "message": CLOSED, "port": 8001, "code": 502}
    assert box.ask("/", host=box.host(0)).status_code == 400
    assert box.ask("/", host=box.host(99999)).status_code == 400


@pytest.mark.parametrize("path", ["/junk", "/wide"])
def test_a_reply_that_is_none_is_an_error(box: Box, path: str) -> None:
    reply = box.ask(path)
    assert (reply.status_code, reply.json()["code"]) == (502, 502)
    assert "was not found" not in reply.text
    assert "port is not open" not in reply.text


def test_a_reply_that_breaks_off_is_cut_off(box: Box) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        box.ask("/broken")


def test_no_such_sandbox_and_a_paused_one_are_not_found(named: Daemon, key: str) -> None:
    reply = httpx.get(named.url, headers={"host": f"8000-sbnone.{DOMAIN}"})
    assert (reply.status_code, reply.json()["message"]) == (502, "The sandbox was not found")
    with boxed(named, key) as box:
        box.serve()
        assert box.control("POST", "/pause", json={}).status_code == 204
        reply = box.ask("/none")
    assert (reply.status_code, reply.json()["message"]) == (502, "The sandbox was not found")


def test_use_wakes_a_sandbox_that_may_be_woken(named: Daemon, key: str) -> None:
    with boxed(named, key, autoPause=True, autoResume={"enabled": True}) as box:
        box.serve()
        assert box.control("POST", "/pause", json={}).status_code == 204
        reply = box.ask("/none")
        assert (reply.status_code, reply.json()["message"]) == (502, CLOSED)
        box.serve()
        assert box.ask("/none").status_code == 404


def test_pause_ends_connections(named: Daemon, key: str) -> None:
    with boxed(named, key) as box:
        box.serve()
        with box.socket() as ws:
            ws.recv()
            assert box.control("POST", "/pause", json={}).status_code == 204
            with pytest.raises(ConnectionClosed):
                ws.recv(timeout=60)


@pytest.mark.parametrize(
    "host",
    [
        "8000-{id}.elsewhere.test",
        "8000-{id}.x." + DOMAIN,
        "8000-{id}." + DOMAIN + ".evil.test",
        "8000-{id}.127.0.0.1.nip.io",
    ],
)
def test_other_domains_lead_nowhere(box: Box, host: str) -> None:
    reply = box.ask("/none", host=host.format(id=box.id))
    assert (reply.status_code, reply.json()["code"]) == (501, 501)
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{host.format(id=box.id)}/ws", sock=raw(box.url), proxy=None)
    assert refused.value.response.status_code == 403


def test_headers_alone_lead_to_no_port(box: Box) -> None:
    reply = httpx.get(box.url + "/none", headers={"e2b-sandbox-id": box.id, "e2b-sandbox-port": str(PORT)})
    assert reply.status_code == 501
    other = box.ask("/none", headers=[("e2b-sandbox-id", "sbother"), ("e2b-sandbox-port", str(PORT))])
    assert other.status_code == 400


def test_no_route_of_flux_is_served_by_such_a_name(box: Box, key: str) -> None:
    told = box.ask("/v2/sandboxes", headers=[("x-api-key", key)]).json()
    assert told["path"] == "/v2/sandboxes"
    assert box.ask("/v1/health").json()["path"] == "/v1/health"


@pytest.mark.parametrize("target", ["http://127.0.0.1:22/", "127.0.0.1:22", "*"])
@pytest.mark.parametrize("method", ["GET", "CONNECT", "OPTIONS"])
def test_nobody_is_led_elsewhere(box: Box, method: str, target: str) -> None:
    request = f"{method} {target} HTTP/1.1\r\nHost: {box.host()}\r\nConnection: close\r\n\r\n"
    assert spoken(box.url, request.encode()).startswith(b"HTTP/1.1 400 ")


def test_the_daemon_s_own_loopback_is_out_of_reach(box: Box) -> None:
    port = urlsplit(box.url).port
    assert port is not None
    reply = box.ask("/", host=box.host(port))
    assert (reply.status_code, reply.json()["message"]) == (502, CLOSED)


def test_without_a_domain_ports_are_refused(daemon: Daemon) -> None:
    made = daemon.client().call("keys.create", body=CreateKey(name="no-ports", role="user"))["key"]
    with boxed(daemon, made) as box:
        reply = box.ask("/none")
        assert (reply.status_code, reply.json()["port"]) == (501, PORT)


def test_connections_are_bounded(box: Box) -> None:
    opened: list[socket.socket] = []
    try:
        request = f"GET /endless HTTP/1.1\r\nHost: {box.host()}\r\n\r\n".encode()
        for _ in range(128):
            opened.append(raw(box.url))
            opened[-1].sendall(request)
        for one in opened:
            assert one.recv(12) == b"HTTP/1.1 200"
        refused = box.ask("/none")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    finally:
        for one in opened:
            one.close()


# Tokens


def test_a_sandbox_without_public_traffic_wants_its_token(named: Daemon, key: str) -> None:
    with boxed(named, key, network={"allowPublicTraffic": False}) as box:
        box.serve()
        made = httpx.post(f"{named.url}/v2/sandboxes/{box.id}/connect", json={}, headers={"x-api-key": key}).json()
        token = made["trafficAccessToken"]
        assert len(token) == 48
        assert token != box.token
        for wrong in ([], [("e2b-traffic-access-token", "wrong")], [("e2b-traffic-access-token", box.token)]):
            refused = box.ask("/none", headers=wrong)
            assert refused.status_code == 403
            assert (refused.json()["sandboxId"], refused.json()["code"]) == (box.id, 403)
        given = [("e2b-traffic-access-token", token)]
        assert box.ask("/none", headers=given).status_code == 404
        seen = box.ask("/seen", headers=given).json()["headers"]
        assert "e2b-traffic-access-token" not in {name.lower() for name, _ in seen}
        with box.socket(additional_headers=dict(given)) as ws:
            ws.recv()
        with pytest.raises(InvalidStatus):
            box.socket()
        # It opens ports, and nothing else of the sandbox.
        assert httpx.get(f"{box.url}/envs", headers={**box.headers, "x-access-token": token}).status_code == 401


def test_a_public_sandbox_has_no_such_token(named: Daemon, key: str) -> None:
    body = {"templateID": "base", "timeout": 600, "network": {"allowPublicTraffic": True}}
    made = httpx.post(f"{named.url}/v2/sandboxes", json=body, headers={"x-api-key": key}, timeout=60).json()
    assert made["trafficAccessToken"] is None
    assert made["domain"] == DOMAIN
    httpx.delete(f"{named.url}/sandboxes/{made['sandboxID']}", headers={"x-api-key": key}, timeout=60)
