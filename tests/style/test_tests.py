"""Tests that can fail, and say why when they are skipped."""

from __future__ import annotations

import ast
from collections.abc import Collection

from tests.style import house

LIBRARY = {"raises", "fail", "expect"}


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


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function of a module, methods and nested ones included."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def proves(node: ast.AST, proving: Collection[str]) -> bool:
    """Tell whether a body asserts something, or calls what does."""
    if any(isinstance(item, ast.Assert | ast.Raise) for item in ast.walk(node)):
        return True
    return any((short := name.rpartition(".")[2]) in proving or short in LIBRARY for name, _ in house.calls(node))


def provers(trees: list[ast.Module]) -> set[str]:
    """Return the names of all functions that assert something, themselves or through another."""
    everything = [node for tree in trees for node in functions(tree) if not node.name.startswith("test")]
    found: set[str] = set()
    while more := {node.name for node in everything if node.name not in found and proves(node, found)}:
        found |= more
    return found


def toothless(tree: ast.Module, proving: Collection[str]) -> list[tuple[int, str]]:
    """Return the tests without an assertion, an expected error or a call of something that asserts."""
    tests = [node for node in functions(tree) if node.name.startswith("test")]
    return [(node.lineno, node.name) for node in tests if not proves(node, proving)]


def test_a_skip_says_why() -> None:
    findings = [house.where(path, line) for path in house.python("tests") for line in unexplained(house.parsed(path))]
    assert not findings, house.report("skipped without a reason, or expected to fail:", findings)


def test_every_test_can_fail() -> None:
    proving = provers([house.parsed(path) for path in house.python("tests", "src/flux/testing")])
    findings = [
        f"{house.where(path, line)} {name}"
        for path in house.python("tests")
        for line, name in toothless(house.parsed(path), proving)
    ]
    assert not findings, house.report("tests that prove nothing:", findings)


def test_offenders_are_found() -> None:
    assert unexplained(ast.parse("@pytest.mark.skip\ndef test_a(): ...")) == [1]
    assert unexplained(ast.parse("pytest.skip()")) == [1]
    assert unexplained(ast.parse("@pytest.mark.xfail\ndef test_a(): ...")) == [1]
    assert not unexplained(ast.parse('pytest.skip("no btrfs here")'))
    assert toothless(ast.parse("def test_a():\n    run()"), {"walk"}) == [(1, "test_a")]
    assert not toothless(ast.parse("def test_a():\n    run()"), {"run"})
    assert not toothless(ast.parse("def test_a():\n    assert run()"), set())
    assert provers([ast.parse("def a():\n    b()\ndef b():\n    assert c\ndef d(): ...")]) == {"a", "b"}
