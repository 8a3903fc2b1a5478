"""Captured output: bounded, marked, lossless."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core.output import KEPT_BYTES, Capture, output


def captured(data: bytes, limit: int, chunk: int = 7) -> tuple[str, str | None, int]:
    capture = Capture(limit)
    for start in range(0, len(data), chunk):
        capture.feed(data[start : start + chunk])
    result = capture.result()
    return result.text, result.base64, result.size


def test_the_limit_is_exact() -> None:
    at_limit = Capture()
    at_limit.feed(b"x" * KEPT_BYTES)
    assert at_limit.result() == output(b"x" * KEPT_BYTES, KEPT_BYTES)
    assert at_limit.result().text == "x" * KEPT_BYTES
    at_limit.feed(b"x")
    assert at_limit.result().text == "x" * KEPT_BYTES + "[truncated 1 bytes]"
    assert at_limit.result().size == KEPT_BYTES + 1


@pytest.mark.parametrize(
    ("data", "limit", "text", "exact"),
    [
        (b"", 4, "", None),
        (b"abcd", 4, "abcd", None),
        (b"abcdef", 4, "abcd[truncated 2 bytes]", None),
        ("abcé".encode(), 4, "abc[truncated 2 bytes]", None),
        ("ab€!".encode(), 4, "ab[truncated 4 bytes]", None),
        ("a😀!".encode(), 4, "a[truncated 5 bytes]", None),
        ("😀!".encode(), 4, "😀[truncated 1 bytes]", None),
        ("abé!".encode(), 4, "abé[truncated 1 bytes]", None),
        (b"ab\xff\xfe", 4, "ab\\xff\\xfe", b"ab\xff\xfe"),
        (b"ab\xff\xfe!", 4, "ab\\xff\\xfe[truncated 1 bytes]", b"ab\xff\xfe"),
        (b"ab\xc3", 4, "ab\\xc3", b"ab\xc3"),
        (b"\x80\x80\x80\x80\x80", 4, "\\x80\\x80\\x80\\x80[truncated 1 bytes]", b"\x80" * 4),
        (b"\0\x1b[2J", 9, "\0\x1b[2J", None),
    ],
)
def test_cases(data: bytes, limit: int, text: str, exact: bytes | None) -> None:
    encoded = None if exact is None else base64.b64encode(exact).decode()
    assert captured(data, limit) == (text, encoded, len(data))


@given(st.text(), st.integers(0, 40))
def test_text_stays_text_wherever_it_is_cut(text: str, limit: int) -> None:
    data = text.encode("utf-8", "replace")
    shown, exact, size = captured(data, limit)
    assert exact is None and size == len(data)
    kept = shown.partition("[truncated ")[0] if len(data) > limit else shown
    assert data.startswith(kept.encode()) and len(kept.encode()) > min(limit, len(data)) - 4


@given(st.binary(), st.integers(0, 40), st.integers(1, 50))
def test_the_kept_bytes_can_be_had_back(data: bytes, limit: int, chunk: int) -> None:
    shown, exact, size = captured(data, limit, chunk)
    assert size == len(data)
    if exact is not None:
        assert base64.b64decode(exact) == data[:limit]
    elif len(data) <= limit:
        assert shown.encode() == data
