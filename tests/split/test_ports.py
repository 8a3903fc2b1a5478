"""Ports of sandboxes on another node: bytes through a tunnel that only the control plane opens (spec: e2b, §2)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flux.core.requests import CreateKey
from tests.api.ports import CLOSED, PORT, Box, boxed, raw
from tests.split.conftest import Split

MIB = 1 << 20

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="entering a sandbox's network needs root: run tests as root")


@pytest.fixture(scope="module")
def key(split: Split) -> str:
    """A key of the control plane."""
    return str(split.client().call("keys.create", body=CreateKey(name="split-ports", role="user"))["key"])


@pytest.fixture(scope="module")
def box(split: Split, key: str) -> Iterator[Box]:
    """A sandbox with the server, on one of the nodes."""
    with boxed(split.control, key) as made:
        made.serve()
        yield made


def test_requests_reach_the_node_s_sandbox_and_no_credential_of_the_node_with_them(box: Box) -> None:
    reply = box.ask("/a%2Fb?x=1", "PUT", content=b"body", headers=[("authorization", "Bearer mine")])
    told = reply.json()
    assert (told["method"], told["path"], told["body"]) == ("PUT", "/a%2Fb?x=1", "body")
    got = {name.lower(): value for name, value in told["headers"]}
    assert (got["host"], got["authorization"]) == (box.host(), "Bearer mine")
    assert not [name for name in got if name.startswith("flux-")]
    assert box.ask("/none").status_code == 404


def test_16_mib_pass_both_ways_at_once(box: Box) -> None:
    content = os.urandom(MIB) * 16
    echoed = box.ask("/echo", "POST", content=content).content
    assert hashlib.sha256(echoed).digest() == hashlib.sha256(content).digest()


def test_a_slow_reader_gets_everything(box: Box) -> None:
    with httpx.stream("GET", box.url + "/large", headers={"host": box.host()}, timeout=60) as reply:
        assert b"".join(reply.iter_raw(4096)) == bytes(range(256)) * (16 * MIB // 256)


def test_who_hangs_up_hangs_up_inside(box: Box) -> None:
    with httpx.stream("GET", box.url + "/endless", headers={"host": box.host()}, timeout=60) as reply:
        next(reply.iter_raw())
    assert box.ask("/gone").content == b"True"


def test_websockets_pass(box: Box) -> None:
    with box.socket() as ws:
        ws.recv()
        data = os.urandom(MIB - 1)
        ws.send(data)
        assert ws.recv() == data


def test_a_closed_port_is_told(box: Box) -> None:
    reply = box.ask("/", host=box.host(8001))
    assert (reply.status_code, reply.json()["message"]) == (502, CLOSED)
    with pytest.raises(InvalidStatus) as refused:
        box.socket(port=8001)
    assert refused.value.response.status_code == 502


def test_nobody_else_opens_a_tunnel(split: Split, box: Box) -> None:
    for node in split.nodes.values():
        for headers in ({}, {"authorization": f"Flux-Route {box.id}.1.wrong", "flux-actor": "{}"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(
                    f"ws://127.0.0.1/v1/sandboxes/{box.id}.1/ports/{PORT}",
                    sock=raw(node.url),
                    additional_headers=headers,
                    proxy=None,
                )
            assert refused.value.response.status_code in (401, 403, 404, 409)
