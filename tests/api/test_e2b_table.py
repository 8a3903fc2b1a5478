"""The table of the guide for E2B's users: what is supported is tested with the SDK, the rest refused as it says."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.api.daemons import Daemon

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "sdk"
GUIDE = ROOT / "docs" / "guide" / "e2b.md"
#: What no route refuses: it is not asked of the daemon, or refused by what create's tests show.
ELSEWHERE = {"code interpreter", "network rules", "secure=False", "memory kept"}


def table() -> list[tuple[str, str, str]]:
    """Return the rows: what, whether, and how it is known."""
    section = GUIDE.read_text(encoding="utf-8").partition("## What is supported\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("| ")][1:]
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [(what, here, known) for what, here, known in rows]


#: What the daemon has to be told a domain for.
WITH_A_DOMAIN = "with a domain"
ROWS = table()
SUPPORTED = [(what, known.partition(";")[0]) for what, here, known in ROWS if here in ("yes", WITH_A_DOMAIN)]
REFUSED = [
    (*match.groups(), what) for what, here, known in ROWS if (match := re.match(r"`([A-Z]+) (/\S*)` is (\d+)", known))
]


def test_the_table_says_yes_or_no_of_everything() -> None:
    assert {here for _, here, _ in ROWS} == {"yes", "no", WITH_A_DOMAIN}
    assert len(SUPPORTED) >= 15
    no_route = [what for what, here, known in ROWS if here == "no" and not known.startswith("`")]
    assert [what for what in no_route if not any(part in what for part in ELSEWHERE)] == []


@pytest.mark.parametrize(("what", "known"), SUPPORTED)
def test_what_is_supported_is_called_by_the_named_tests(what: str, known: str) -> None:
    tests = TESTS / known.strip("`")
    shared = (TESTS / "python" / name for name in ("flavours.py", "named.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in (tests, *shared))
    assert "def test_" in text
    calls = [call.rpartition(".")[2] for call in re.findall(r"`([A-Za-z_.]+)`", what)]
    assert [call for call in calls if re.search(rf"\b{call}\b", text) is None] == []


@pytest.mark.parametrize(("method", "path", "status", "what"), REFUSED)
def test_what_is_not_supported_says_so(daemon: Daemon, method: str, path: str, status: str, what: str) -> None:
    with httpx.Client(base_url=daemon.url, headers={"x-api-key": daemon.token}) as client:
        reply = client.request(method, path, json={} if method == "POST" else None)
    assert reply.status_code == int(status), what
    assert (reply.json()["code"], reply.headers["should-retry"]) == (int(status), "false")
    assert reply.json()["message"].startswith("cannot ")


@pytest.mark.parametrize(
    "more",
    [{"secure": False}, {"network": {"allowOut": ["192.0.2.1"]}}, {"network": {"denyOut": ["192.0.2.1"]}}],
)
def test_what_create_does_not_support_says_so(daemon: Daemon, more: dict[str, object]) -> None:
    with httpx.Client(base_url=daemon.url, headers={"x-api-key": daemon.token}) as client:
        reply = client.post("/v2/sandboxes", json={"templateID": "base", **more})
    assert (reply.status_code, reply.headers["should-retry"]) == (501, "false")
