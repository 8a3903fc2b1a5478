"""The public SDK against Flux, and against a server of canned replies in the same run (root; after ``scripts/sdk.sh``).

Latencies are the medians of rounds that take turns. Large files are compared with what plain HTTP carries over the
loopback, from the server of canned replies.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches.measure import ROOT, Row, folder
from benches.service import daemon

ROUNDS = 100
SANDBOXES, CLIENTS = 100, 8
ALONE_SECONDS, WARM_SECONDS, TOGETHER_SECONDS = 20, 5, 60
_SDK = ROOT / ".cache" / "sdk" / "python" / "bin" / "python"
_CANNED_KEY = "canned"


@contextmanager
def _canned() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benches.canned"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.communicate()


def _begin(*arguments: object) -> subprocess.Popen[str]:
    if not _SDK.exists():
        raise SystemExit("the public SDK is not installed: run scripts/sdk.sh")
    # -P: beside the program lies a module with the name of the SDK
    command = [str(_SDK), "-P", str(ROOT / "benches" / "e2b_user.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _user(*arguments: object) -> Any:
    return _end(_begin(*arguments))


def _end(process: subprocess.Popen[str]) -> Any:
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a user of the SDK ended with exit code {process.returncode}")
    return json.loads(printed)


def _memory_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _median(samples: dict[str, list[float]], name: str) -> float:
    return statistics.median(samples[name])


def _latencies(canned: dict[str, list[float]], flux: dict[str, list[float]]) -> Iterator[Row]:
    for name, key, limit in (
        ("SDK: create, run true, kill", "life", 40.0),
        ("SDK: run true", "run", 15.0),
        ("SDK: write 1 KiB", "write", 3.0),
        ("SDK: read 1 KiB", "read", 3.0),
    ):
        yield Row(name, _median(flux, key), _median(canned, key), "ms", "more", limit)
    slow = statistics.quantiles(flux["life"], n=100)[98]
    yield Row("SDK: create, run true, kill: p99 to median", slow, _median(flux, "life"), "ms", "ratio", 4.0)
    yield Row("SDK: pause, connect", _median(flux, "pause"), _median(canned, "pause"), "ms", "absolute", 150.0)
    loopback = _median(canned, "loopback")
    yield Row("SDK: write 64 MiB, to the loopback", _median(flux, "write large"), loopback, "ms", "ratio", 1 / 0.3)
    yield Row("SDK: read 64 MiB, to the loopback", _median(flux, "read large"), loopback, "ms", "ratio", 1 / 0.5)


def _load(url: str, key: str, pid: int) -> Iterator[Row]:
    ids = _user("create", url, key, SANDBOXES)
    alone = _user("load", url, key, ALONE_SECONDS, *ids)
    share = SANDBOXES // CLIENTS
    shares = [ids[number * share : (number + 1) * share] for number in range(CLIENTS)]
    _together(url, key, WARM_SECONDS, shares)  # what each thread of the daemon needs once does not count as growth
    before = _memory_mib(pid)
    together = _together(url, key, TOGETHER_SECONDS, shares)
    grown = _memory_mib(pid) - before
    one = alone["done"] / ALONE_SECONDS
    many = sum(each["done"] for each in together) / TOGETHER_SECONDS
    errors = sum(each["errors"] for each in (alone, *together))
    yield Row(
        f"SDK: time per call of mixed ones, {CLIENTS} clients to one", 1000 / many, 1000 / one, "ms", "ratio", 1 / 1.2
    )
    yield Row(f"SDK: errors of {CLIENTS} clients", errors, 0.0, "", "absolute", 0.0)
    yield Row(f"SDK: memory that {CLIENTS} clients cost", grown, before, "MiB", "absolute", 10.0)


def _together(url: str, key: str, seconds: float, shares: list[list[str]]) -> list[dict[str, int]]:
    return [_end(each) for each in [_begin("load", url, key, seconds, *share) for share in shares]]


def run() -> Iterator[Row]:
    """Yield the comparisons."""
    with folder() as place, daemon(place) as flux, _canned() as canned:
        key = (place / "state" / "admin-token").read_text().strip()
        found = _user("steps", canned, _CANNED_KEY, flux.url, key, ROUNDS)
        yield from _latencies(*found)
        yield from _load(flux.url, key, flux.pid)
