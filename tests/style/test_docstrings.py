"""Whatever other code may call says in one sentence what it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.style import house

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_protocol(node: ast.ClassDef) -> bool:
    """Tell whether a class is a port: its words hold for every implementation."""
    return any(
        house.dotted(base.value if isinstance(base, ast.Subscript) else base).endswith("Protocol")
        for base in node.bases
    )


def public(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Documented]]:
    """Yield the public functions and classes of a module and the public methods of those classes."""
    for node in tree.body:
        if not isinstance(node, Documented) or node.name.startswith("_"):
            continue
        yield None, node
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Documented) and not member.name.startswith("_"):
                    yield node, member


def promised(trees: list[ast.Module]) -> set[str]:
    """Return the methods that some protocol documents; an implementation need not repeat them."""
    return {
        member.name
        for tree in trees
        for owner, member in public(tree)
        if owner is not None and is_protocol(owner) and ast.get_docstring(member)
    }


def undocumented(tree: ast.Module, already: set[str]) -> list[tuple[int, str]]:
    """Return line and name of what lacks a docstring."""
    found = [] if ast.get_docstring(tree) else [(1, "the module")]
    for owner, node in public(tree):
        implements = owner is not None and node.name in already
        decorated = {house.dotted(item) for item in node.decorator_list}
        if ast.get_docstring(node) or implements or decorated & {"overload", "typing.overload"}:
            continue
        if any(name.endswith(".setter") for name in decorated):
            continue
        # The name of a contract's test is its sentence.
        if node.name.startswith("test_"):
            continue
        found.append((node.lineno, node.name))
    return found


def test_everything_public_is_documented() -> None:
    files = house.python("src/flux")
    already = promised([house.parsed(path) for path in files])
    findings = [
        f"{house.where(path, line)} {name}"
        for path in files
        for line, name in undocumented(house.parsed(path), already)
    ]
    assert not findings, house.report("public and without a docstring:", findings)


def test_a_missing_docstring_is_found() -> None:
    bad = (
        '"""M."""\nclass A:\n    """A."""\n    def shown(self): ...\n    def _hidden(self): ...\ndef shown_too(): ...\n'
    )
    assert undocumented(ast.parse(bad), set()) == [(4, "shown"), (6, "shown_too")]
    assert undocumented(ast.parse(bad), {"shown"}) == [(6, "shown_too")]
    assert undocumented(ast.parse("x = 1"), set()) == [(1, "the module")]
