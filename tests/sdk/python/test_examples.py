"""The examples do what they say, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys

from daemons import ROOT, SECONDS_MAX, Flux, fluxctl


def issued(flux: Flux, name: str, role: str) -> str:
    key: str = fluxctl(flux.control.state, "keys", "create", name, "--role", role)["key"]
    return key


def test_an_agent_tries_things_out_and_a_reviewer_decides(pointed: Flux) -> None:
    environment = {
        **os.environ,
        "E2B_API_KEY": issued(pointed, "coder", "agent"),
        "FLUX_REVIEWER_KEY": issued(pointed, "reader", "reviewer"),
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent_loop.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * SECONDS_MAX,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line.startswith("reviewer:")] == [
        "reviewer: approves it; it is applied",
        "reviewer: rejects it",
        "reviewer: approves it; it is applied",
        "reviewer: takes it back",
        "reviewer: approves it; it is applied",
    ]
    assert "notes.txt is still there: True" in lines
    assert [line for line in lines if line.startswith("refused (conflict): cannot apply changeset")] != []
    assert "paused and connected: return round(sum(prices), 2)" in lines
    assert [line for line in lines if line.startswith("the real project ends:")] == [
        "the real project ends: count = len",
        "the real project ends: return round(sum(prices), 2)",
    ]


def test_it_says_which_variables_are_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "FLUX_"))}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent_loop.py")],
        env={**environment, "E2B_API_URL": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cannot start: E2B_API_KEY, FLUX_REVIEWER_KEY not set; examples/README.md says how\n"
