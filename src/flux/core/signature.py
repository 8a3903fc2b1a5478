"""What a sandbox's token makes for others: signed URLs of one file, the token of its ports (spec: e2b, §4)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Literal, TypeAlias

Operation: TypeAlias = Literal["read", "write"]

_PREFIX = "v1_"
_TRAFFIC_LABEL = b"flux traffic to ports"
_TRAFFIC_DIGITS = 48


def sign(path: str, operation: Operation, user: str | None, token: str, expires: str | None = None) -> str:
    """Return the signature of one operation on one path.

    Args:
        path: as the URL has it.
        operation: what is allowed.
        user: whom the URL names, if it names one.
        token: the sandbox's.
        expires: when it ends, in seconds since the epoch, as the URL writes it; ``None``: with the sandbox.
    """
    parts = [path, operation, user or "", token, *([] if expires is None else [expires])]
    digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogateescape")).digest()
    return _PREFIX + base64.b64encode(digest).decode("ascii").rstrip("=")


def is_signed(
    given: str, path: str, operation: Operation, user: str | None, token: str, expires: str | None = None
) -> bool:
    """Tell whether a signature is the one that this token makes, in a time that tells nothing of it."""
    expected = sign(path, operation, user, token, expires)
    return token != "" and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("ascii"))


def is_over(expires: str | None, now: float) -> bool:
    """Tell whether a signature's time is over at ``now``, seconds since the epoch; what is no number is over."""
    if expires is None:
        return False
    return not (expires.isascii() and expires.isdigit() and len(expires) <= 18) or now > int(expires)


def traffic_token(token: str) -> str:
    """Return what opens the ports of a sandbox that are not public, made of its ``token`` and telling nothing of it."""
    digest = hmac.new(token.encode("utf-8"), _TRAFFIC_LABEL, hashlib.sha256).hexdigest()
    return digest[:_TRAFFIC_DIGITS]


def opens_ports(given: str, token: str) -> bool:
    """Tell whether a traffic token is the one that this token makes, in a time that tells nothing of it."""
    expected = traffic_token(token)
    return token != "" and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("ascii"))
