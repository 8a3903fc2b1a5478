"""Calls that belong to one place only: file changes to the port, time to the clock, printing to the command line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.style import house

Rule = Callable[[str, ast.Call], bool]

CHANGING_OS = """
chmod chown copy_file_range fchmod fchown fdatasync fsync ftruncate lchown link makedirs mkdir mkfifo mknod
pwrite remove removedirs removexattr rename renames replace rmdir sendfile setxattr symlink truncate unlink utime write
"""
CHANGING_PATH = {"hardlink_to", "mkdir", "rmdir", "symlink_to", "touch", "write_bytes", "write_text"}
WALL_CLOCK = {"time.time", "time.time_ns", "time.clock_gettime", "date.today", "datetime.now", "datetime.utcnow"}


def changes_files(name: str, call: ast.Call) -> bool:
    """Tell whether a call changes a file system by itself."""
    if name.startswith("shutil.") or (name.startswith("os.") and name[3:] in CHANGING_OS.split()):
        return True
    if name == "os.open":
        return any(isinstance(node, ast.Attribute) and node.attr == "O_CREAT" for node in ast.walk(call))
    if name == "open":
        modes = [argument.value for argument in call.args[1:2] if isinstance(argument, ast.Constant)]
        return any(set(str(mode)) & set("wax+") for mode in modes)
    return "." in name and name.rpartition(".")[2] in CHANGING_PATH


def reads_the_wall_clock(name: str, call: ast.Call) -> bool:
    """Tell whether a call asks the machine what time it is."""
    return name in WALL_CLOCK or name.removeprefix("datetime.") in WALL_CLOCK


def prints(name: str, call: ast.Call) -> bool:
    """Tell whether a call writes to the standard output."""
    return name in {"print", "sys.stdout.write", "sys.stderr.write"}


def sleeps(name: str, call: ast.Call) -> bool:
    """Tell whether a call only lets time pass."""
    return name in {"time.sleep", "sleep"} or (name in {"asyncio.sleep", "anyio.sleep"} and bool(call.args))


def lists_what_is_shared(name: str, call: ast.Call) -> bool:
    """Tell whether a call lists a directory by a descriptor that an object keeps."""
    if name not in {"os.listdir", "os.scandir"} or not call.args or not isinstance(call.args[0], ast.Attribute):
        return False
    return ast.unparse(call.args[0]).startswith("self._")


# rule, folders it holds in, the only places that may, why
RULES: dict[str, tuple[Rule, tuple[str, ...], tuple[str, ...], str]] = {
    "files": (
        changes_files,
        ("src/flux/trees", "src/flux/store"),
        ("src/flux/trees/files.py", "src/flux/store/database.py"),
        "a change of a file must go through the Files port, or no test can make it fail",
    ),
    "clock": (
        reads_the_wall_clock,
        ("src/flux",),
        ("src/flux/app/clock.py", "src/flux/trees/files.py"),
        "time comes from the Clock port, or no test can own it",
    ),
    "print": (
        prints,
        ("src/flux",),
        ("src/flux/cli", "src/flux/app", "src/flux/testing/explorer/__main__.py", "src/flux/trees/overlay_trial.py"),
        "only the command line speaks to a terminal",
    ),
    "listings": (
        lists_what_is_shared,
        ("src/flux",),
        (),
        "two threads that list by one descriptor hide names from each other: open one for each listing",
    ),
    "sleep": (sleeps, ("tests",), (), "a test waits for an event, never for time to pass"),
}


def offenders(rule: Rule, path: Path, tree: ast.Module) -> list[str]:
    """Return the place and name of every call that breaks ``rule``."""
    return [f"{house.where(path, call.lineno)} {name}" for name, call in house.calls(tree) if rule(name, call)]


@pytest.mark.parametrize("name", RULES)
def test_calls_stay_where_they_belong(name: str) -> None:
    rule, folders, allowed, reason = RULES[name]
    places = [house.ROOT / place for place in allowed]
    findings = [
        finding
        for path in house.python(*folders)
        if not any(path.is_relative_to(place) for place in places)
        for finding in offenders(rule, path, house.parsed(path))
    ]
    assert not findings, house.report(f"{reason}:", findings)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("files", "os.rename(a, b)"),
        ("files", "shutil.rmtree(a)"),
        ("files", "os.open(a, os.O_CREAT | os.O_WRONLY)"),
        ("files", "open(a, 'w')"),
        ("files", "path.write_text('x')"),
        ("clock", "time.time()"),
        ("clock", "datetime.datetime.now()"),
        ("print", "print('x')"),
        ("listings", "os.listdir(self._layers)"),
        ("listings", "os.scandir(self._state.scratch)"),
        ("sleep", "time.sleep(1)"),
    ],
)
def test_each_rule_finds_its_offender(name: str, bad: str) -> None:
    rule = RULES[name][0]
    assert offenders(rule, house.ROOT / "sample.py", ast.parse(bad))
    assert not offenders(
        rule, house.ROOT / "sample.py", ast.parse("os.open(a, os.O_RDONLY); open(a); files.rename(s, d, n)")
    )
