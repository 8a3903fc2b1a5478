"""Which headers go on to what listens in a sandbox, and which come back."""

from __future__ import annotations

import pytest

from flux.api.e2b.passing import Headers, body_of, inward, outward

HOST = (b"host", b"3000-sb1.boxes.test")
FORWARDED = [(b"x-forwarded-proto", b"http"), (b"x-forwarded-host", HOST[1])]


@pytest.mark.parametrize(
    "name",
    [
        "x-api-key",
        "x-access-token",
        "e2b-traffic-access-token",
        "flux-actor",
        "flux-user",
        "flux-x",
        "e2b-sandbox-id",
        "e2b-sandbox-port",
        "connection",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "content-length",
    ],
)
def test_what_does_not_go_in(name: str) -> None:
    assert inward([HOST, (name.encode(), b"1")], None, "http") == [HOST, *FORWARDED]


def test_the_credential_of_a_route_does_not_go_in_and_others_do() -> None:
    given = [HOST, (b"authorization", b"Flux-Route sb1.1.secret"), (b"authorization", b"Basic eA==")]
    assert inward(given, None, "http") == [HOST, given[2], *FORWARDED]


def test_what_connection_names_stays_but_not_what_a_message_needs() -> None:
    given = [HOST, (b"connection", b"X-Hop, host , content-type"), (b"x-hop", b"1"), (b"content-type", b"a/b")]
    assert inward(given, None, "http") == [HOST, given[3], *FORWARDED]


@pytest.mark.parametrize(
    ("given", "scheme", "origin"),
    [(None, "http", b"http"), (None, "wss", b"https"), (b"HTTPS", "http", b"https"), (b"gopher", "http", b"http")],
)
def test_who_forwarded_is_told(given: bytes | None, scheme: str, origin: bytes) -> None:
    before = [] if given is None else [(b"x-forwarded-proto", given)]
    found = dict(inward([HOST, (b"x-forwarded-for", b"192.0.2.1"), *before], "192.0.2.2", scheme))
    assert found[b"x-forwarded-for"] == b"192.0.2.1, 192.0.2.2"
    assert found[b"x-forwarded-proto"] == origin


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([(b"content-length", b"3")], [(b"content-length", b"3")]),
        ([(b"transfer-encoding", b"chunked")], [(b"transfer-encoding", b"chunked")]),
        ([(b"content-length", b"3"), (b"transfer-encoding", b"chunked")], [(b"transfer-encoding", b"chunked")]),
    ],
)
def test_how_long_a_body_is(given: Headers, expected: Headers) -> None:
    assert body_of(given) == expected


def test_what_comes_back() -> None:
    kept = [(b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"content-length", b"3"), (b"server", b"x")]
    dropped = [
        (b"X-Request-Id", b"1"),
        (b"Flux-Actor", b"1"),
        (b"Date", b"now"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
    ]
    assert outward([*kept, *dropped]) == kept
