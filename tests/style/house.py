"""What the tests of the house rules share: the tracked files, parsed once, and how a finding is written."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {".py", ".pyi", ".c", ".h", ".md", ".toml", ".txt", ".in", ".sql", ".html", ".css", ".js", ".sh", ""}


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Return the files that a fresh clone would have, the ones not yet committed included."""
    listing = subprocess.run(
        # The owner of a checkout may be another user than the one who runs its tests.
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    names = sorted({os.fsdecode(name) for name in listing.split(b"\0") if name})
    return tuple(path for name in names if (path := ROOT / name).is_file())


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every tracked text file with its contents."""
    for path in tracked():
        if path.suffix in TEXT_SUFFIXES:
            yield path, path.read_text(encoding="utf-8")


def python(*folders: str) -> list[Path]:
    """Return the tracked Python files in ``folders``, or all of them."""
    wanted = [ROOT / folder for folder in folders] or [ROOT]
    return [path for path in tracked() if path.suffix == ".py" and any(path.is_relative_to(at) for at in wanted)]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(path: Path, line: int = 0) -> str:
    """Return a place as an editor opens it."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{line}" if line else str(name)


def dotted(node: ast.expr) -> str:
    """Return ``os.path.join`` for the expression that says so; an empty text for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else f"?.{node.attr}"
    return ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def report(title: str, findings: list[str]) -> str:
    """Return a failure's text: what is wrong and every place."""
    return title + "".join(f"\n  {finding}" for finding in findings)
