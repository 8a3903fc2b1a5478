"""Tests that can fail, say why when they are skipped, and never clash."""

from __future__ import annotations

import ast
from collections import Counter

from tests.style import house

PROVING = ("assert", "check", "expect", "prove", "raises", "fail", "verify")


def unexplained(tree: ast.Module) -> list[int]:
    """Return the lines that skip a test and do not say why."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = house.dotted(node.func)
            explained = any(item.arg == "reason" for item in node.keywords)
            if name in {"pytest.mark.skip", "pytest.mark.skipif", "pytest.importorskip"} and not explained:
                found.append(node.lineno)
            if name == "pytest.skip" and not (node.args or explained):
                found.append(node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [item.lineno for item in node.decorator_list if house.dotted(item) == "pytest.mark.skip"]
        if isinstance(node, ast.Attribute) and house.dotted(node) == "pytest.mark.xfail":
            found.append(node.lineno)
    return found


def toothless(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the tests without an assertion, an expected error or a call of something that proves."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test"):
            continue
        asserts = any(isinstance(item, ast.Assert | ast.Raise) for item in ast.walk(node))
        proves = any(name.rpartition(".")[2].lstrip("_").startswith(PROVING) for name, _ in house.calls(node))
        if not (asserts or proves):
            found.append((node.lineno, node.name))
    return found


def test_a_skip_says_why() -> None:
    findings = [house.where(path, line) for path in house.python("tests") for line in unexplained(house.parsed(path))]
    assert not findings, house.report("skipped without a reason, or expected to fail:", findings)


def test_every_test_can_fail() -> None:
    findings = [
        f"{house.where(path, line)} {name}"
        for path in house.python("tests")
        for line, name in toothless(house.parsed(path))
    ]
    assert not findings, house.report("tests that prove nothing:", findings)


def test_no_two_test_files_have_one_name() -> None:
    names = Counter(path.name for path in house.python("tests") if path.name.startswith("test_"))
    twice = [name for name, count in names.items() if count > 1]
    assert not twice, house.report("pytest imports test files by name; these are there twice:", twice)


def test_offenders_are_found() -> None:
    assert unexplained(ast.parse("@pytest.mark.skip\ndef test_a(): ...")) == [1]
    assert unexplained(ast.parse("pytest.skip()")) == [1]
    assert unexplained(ast.parse("@pytest.mark.xfail\ndef test_a(): ...")) == [1]
    assert not unexplained(ast.parse('pytest.skip("no btrfs here")'))
    assert toothless(ast.parse("def test_a():\n    run()")) == [(1, "test_a")]
    assert not toothless(ast.parse("def test_a():\n    assert run()"))
