"""The faults that tests of whole daemons arm through a file."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flux import failpoints
from flux.core.errors import Code, FluxError
from flux.failpoints import Point, Steps
from flux.testing.fluxd import Faults


def steps() -> Steps[str]:
    yield Point.ACTIVATE_PREPARE
    yield Point.ACTIVATE_PREPARED
    return "done"


def run(file: Path, sandbox: str, times: int = 1) -> list[str]:
    told = []
    faults = Faults(file)
    with failpoints.armed(faults):
        for _ in range(times):
            try:
                told.append(failpoints.run(steps(), sandbox))
            except FluxError as error:
                told.append(error.code.value)
    return told


def test_a_line_fails_exactly_so_many_steps_of_exactly_one_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("activate.prepare s1 2 error\n")
    assert run(file, "s1", 4) == ["internal", "internal", "done", "done"]
    assert run(file, "s2", 2) == ["done", "done"]
    assert Path(f"{file}.reached").read_text() == "activate.prepare s1\n" * 2


def test_any_sandbox_and_any_code(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("activate.prepared * 1 error:exhausted\n\n")
    assert run(file, "s9", 2) == [Code.EXHAUSTED.value, "done"]


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert run(tmp_path / "none", "s1") == ["done"]


def test_an_unknown_point_is_told(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("activate.nothing * 1 error\n")
    with pytest.raises(ValueError, match=r"activate\.nothing"):
        run(file, "s1")


def test_a_held_step_goes_on_when_its_line_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("activate.prepare s1 1 hold\n")
    told: list[str] = []
    held = threading.Thread(target=lambda: told.extend(run(file, "s1")))
    held.start()
    reached = Path(f"{file}.reached")
    while not reached.exists():
        held.join(0.01)
    assert told == []
    file.write_text("")
    held.join(10)
    assert told == ["done"]


def test_a_kill_ends_the_process_at_its_step(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("activate.prepared s1 1 kill\n")
    script = (
        "import sys; from pathlib import Path; from tests.unit.test_testing_fluxd import run; "
        "run(Path(sys.argv[1]), 's1'); print('went on')"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-9, "")
    assert Path(f"{file}.reached").read_text() == "activate.prepared s1\n"
