"""Signed file URLs: what is signed, and when a signature is over."""

from __future__ import annotations

import pytest

from flux.core.signature import Operation, is_over, is_signed, opens_ports, sign, traffic_token

TOKEN = "0123456789abcdef" * 3


@pytest.mark.parametrize(
    ("path", "operation", "user", "expires", "signature"),
    [
        ("/home/user/a.txt", "read", None, None, "v1_lwxpwBOGCj03d1HoAlEWAjT/+Y7cWrSRTIQAFSkq90w"),
        ("/home/user/a.txt", "read", "", None, "v1_lwxpwBOGCj03d1HoAlEWAjT/+Y7cWrSRTIQAFSkq90w"),
        ("/home/user/a.txt", "write", "root", "1700000000", "v1_1bEZuWcBR6vV2eGImSxxta+gWMWgrh+SHdq4qUFRc/Q"),
        ("ä b", "read", "user", None, "v1_uGvBaffU5LTexqjaknUCsV682KlOLahlaXyTygHOSJg"),
    ],
)
def test_the_public_form(
    path: str, operation: Operation, user: str | None, expires: str | None, signature: str
) -> None:
    assert sign(path, operation, user, TOKEN, expires) == signature
    assert is_signed(signature, path, operation, user, TOKEN, expires)


@pytest.mark.parametrize(
    ("path", "operation", "user", "token", "expires"),
    [
        ("/other", "read", "user", TOKEN, "1700000000"),
        ("/a", "write", "user", TOKEN, "1700000000"),
        ("/a", "read", "root", TOKEN, "1700000000"),
        ("/a", "read", "user", "f" * 48, "1700000000"),
        ("/a", "read", "user", "", "1700000000"),
        ("/a", "read", "user", TOKEN, "1700000001"),
        ("/a", "read", "user", TOKEN, None),
    ],
)
def test_a_signature_is_for_nothing_else(
    path: str, operation: Operation, user: str, token: str, expires: str | None
) -> None:
    made = sign("/a", "read", "user", TOKEN, "1700000000")
    assert not is_signed(made, path, operation, user, token, expires)


def test_a_token_that_is_empty_signs_nothing() -> None:
    assert not is_signed(sign("/a", "read", None, ""), "/a", "read", None, "")


@pytest.mark.parametrize("given", ["", "v1_", "v2_x", "v1_é", "\udcff"])
def test_what_is_no_signature(given: str) -> None:
    assert not is_signed(given, "/a", "read", None, TOKEN)


@pytest.mark.parametrize(
    ("expires", "over"),
    [
        (None, False),
        ("1000", False),
        ("1001", False),
        ("999", True),
        ("0", True),
        ("", True),
        ("-1", True),
        ("1e9", True),
        ("９９９９", True),
        ("9" * 19, True),
    ],
)
def test_when_it_is_over(expires: str | None, over: bool) -> None:
    assert is_over(expires, 1000.0) is over


def test_the_traffic_token_is_the_token_s_alone_and_tells_nothing_of_it() -> None:
    # hmac-sha256(key=TOKEN, "flux traffic to ports"), 48 hexadecimal digits: clients keep it, so it must not change.
    import hashlib
    import hmac

    made = traffic_token(TOKEN)
    assert made == hmac.new(TOKEN.encode(), b"flux traffic to ports", hashlib.sha256).hexdigest()[:48]
    assert opens_ports(made, TOKEN)
    for wrong in ("", made[:-1], made.upper() + "0", TOKEN, "\udcff"):
        assert not opens_ports(wrong, TOKEN)
    assert not opens_ports(traffic_token(""), "")
