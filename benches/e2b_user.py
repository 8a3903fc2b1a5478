"""A user of the public SDK, in the SDK's own environment: does what it is told and prints milliseconds as JSON.

``steps URL KEY URL KEY ROUNDS`` measures two servers in turn; ``load URL KEY SECONDS ID…`` makes calls of all kinds to
those sandboxes, one after another, until the time is over; ``create URL KEY COUNT`` creates sandboxes and prints their
ids.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from e2b import Sandbox

LARGE = bytes(64 << 20)
SMALL = "x" * 1024
_WARM_ROUNDS = 3
_LARGE_ROUNDS = 5

Samples = dict[str, list[float]]


def _timed(samples: Samples, name: str, action: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = action()
    samples[name].append((time.perf_counter() - started) * 1000)
    return result


def _options(url: str, key: str) -> dict[str, Any]:
    return {"api_key": key, "api_url": url, "sandbox_url": url}


def _life(options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(**options)
    sandbox.commands.run("true")
    sandbox.kill()


def _pause(sandbox: Sandbox) -> None:
    sandbox.pause()
    sandbox.connect()


def _steps(servers: list[tuple[str, str]], rounds: int) -> list[Samples]:
    found: list[Samples] = [defaultdict(list) for _ in servers]
    everywhere = [_options(*server) for server in servers]
    sandboxes = [Sandbox.create(**options) for options in everywhere]
    for number in range(_WARM_ROUNDS + rounds):
        for samples, options, sandbox in zip(found, everywhere, sandboxes, strict=True):
            _timed(samples, "life", partial(_life, options))
            _timed(samples, "run", partial(sandbox.commands.run, "true"))
            _timed(samples, "write", partial(sandbox.files.write, "/tmp/small", SMALL))
            _timed(samples, "read", partial(sandbox.files.read, "/tmp/small"))
            _timed(samples, "pause", partial(_pause, sandbox))
        if number == _WARM_ROUNDS - 1:
            for samples in found:
                samples.clear()
    for _ in range(_LARGE_ROUNDS):
        for samples, sandbox in zip(found, sandboxes, strict=True):
            _timed(samples, "write large", partial(sandbox.files.write, "/tmp/large", LARGE))
            _timed(samples, "read large", partial(sandbox.files.read, "/tmp/large", format="bytes"))
        _timed(found[0], "loopback", lambda: urllib.request.urlopen(f"{servers[0][0]}/files?large").read())
    for sandbox in sandboxes:
        sandbox.kill()
    return found


#: As many kinds as have no divisor in common with a share of the sandboxes, so that each gets each.
_MIXED: tuple[Callable[[Sandbox], Any], ...] = (
    lambda sandbox: sandbox.commands.run("true"),
    lambda sandbox: sandbox.files.write("/tmp/small", SMALL),
    lambda sandbox: sandbox.commands.run("echo $HOME"),
    lambda sandbox: sandbox.files.exists("/tmp/small"),
    lambda sandbox: sandbox.files.list("/"),
    lambda sandbox: sandbox.files.read("/etc/hostname"),
    lambda sandbox: sandbox.is_running(),
)


def _load(url: str, key: str, seconds: float, ids: list[str]) -> dict[str, int]:
    sandboxes = [Sandbox.connect(each, **_options(url, key)) for each in ids]
    done = errors = 0
    ends = time.monotonic() + seconds
    for sandbox, call in zip(cycle(sandboxes), cycle(_MIXED), strict=False):
        if time.monotonic() > ends:
            return {"done": done, "errors": errors}
        try:
            call(sandbox)
            done += 1
        except Exception as error:
            print(error, file=sys.stderr)
            errors += 1
    return {"done": done, "errors": errors}


def main(what: str, *arguments: str) -> None:
    """Do one of the three."""
    if what == "steps":
        url, key, other_url, other_key, rounds = arguments
        print(json.dumps(_steps([(url, key), (other_url, other_key)], int(rounds))))
    elif what == "load":
        print(json.dumps(_load(arguments[0], arguments[1], float(arguments[2]), list(arguments[3:]))))
    else:
        options = _options(arguments[0], arguments[1])
        made = [Sandbox.create(timeout=3600, **options) for _ in range(int(arguments[2]))]
        print(json.dumps([sandbox.sandbox_id for sandbox in made]))


if __name__ == "__main__":
    main(*sys.argv[1:])
