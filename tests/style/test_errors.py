"""What a user meets when something fails: one wording, one status and one exit code for each code."""

from __future__ import annotations

import ast
import re

import pytest

from flux.core.errors import Code
from flux.failpoints import Point
from tests.style import house


def opening(node: ast.expr) -> str | None:
    """Return the literal text that a message begins with, or None if it is made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = opening(node.left), opening(node.right)
        return None if left is None else left + (right or "…")
    return None


def badly_worded(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and fault of every message that does not read: cannot do this: that is why; do this next."""
    found = []
    for name, call in house.calls(tree):
        if name.rpartition(".")[2] != "FluxError" or len(call.args) < 2:
            continue
        text = opening(call.args[1])
        if text is None:
            continue
        if re.match(r"[A-Z][a-z]", text):
            found.append((call.lineno, f"begins with a capital: {text!r}"))
        if text.endswith((".", "!")):
            found.append((call.lineno, f"ends with a full stop: {text!r}"))
        if "\n" in text or "  " in text:
            found.append((call.lineno, f"is not one line: {text!r}"))
        if not text.startswith("…") and " " not in text:
            found.append((call.lineno, f"is one word: {text!r}"))
    return found


def test_messages_are_worded_alike() -> None:
    findings = [
        f"{house.where(path, line)} {fault}"
        for path in house.python("src/flux")
        for line, fault in badly_worded(house.parsed(path))
    ]
    assert not findings, house.report("a message of an error:", findings)


@pytest.mark.parametrize("text", ["Cannot do this", "cannot do this.", "cannot\\ndo", "wrong"])
def test_a_bad_message_is_found(text: str) -> None:
    assert badly_worded(ast.parse(f'raise FluxError(Code.INVALID, "{text}")'))


def test_every_code_has_one_status_and_one_exit_code() -> None:
    from flux.api.rest import errors as statuses
    from flux.cli import errors as exits

    assert set(statuses.STATUSES) == set(Code)
    assert all(400 <= status < 600 for status in statuses.STATUSES.values())
    assert set(exits.EXIT_CODES) == set(Code)
    assert len(set(exits.EXIT_CODES.values())) == len(Code), "two codes share an exit code"
    assert not {0, 1, 2} & set(exits.EXIT_CODES.values()), "0, 1 and 2 mean other things to a shell"


def test_every_failpoint_is_reached_somewhere() -> None:
    text = "\n".join(
        path.read_text()
        for path in house.python("src/flux")
        if path.name != "failpoints.py" and "testing" not in path.parts
    )
    unused = [point.name for point in Point if f"Point.{point.name}" not in text]
    assert not unused, house.report("points that no code reaches:", unused)
