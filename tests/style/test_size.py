"""Functions of 50 lines and files of 500 are the most that a reader is asked to hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.style import house

FUNCTION_LINES_MAX = 50
FILE_LINES_MAX = 500
SIZED = ("src/flux", "scripts", "benches", "tests")

Sizes = list[tuple[int, str]]


def python_functions(path: Path, tree: ast.Module) -> Sizes:
    """Return the length in lines of every function with its place."""
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{house.where(path, node.lineno)} {node.name}")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def c_functions(path: Path, text: str) -> Sizes:
    """Return the same for C, whose functions begin and end with a brace in the first column."""
    found: Sizes = []
    lines = text.split("\n")
    start, name = 0, ""
    for number, line in enumerate(lines, 1):
        if start == 0 and re.match(r"^\w[^;=]*\{$", line) and "(" in line:
            start, name = number, line.split("(")[0].split()[-1]
        elif start == 0 and line == "{" and number > 1 and "(" in lines[number - 2]:
            start, name = number - 1, lines[number - 2].split("(")[0].split()[-1]
        elif start and line.startswith("}"):
            found.append((number - start + 1, f"{house.where(path, start)} {name}"))
            start = 0
    return found


def too_long(sizes: Sizes, limit: int) -> list[str]:
    """Return the worst ten, longest first, if any is over the limit."""
    if not any(size > limit for size, _ in sizes):
        return []
    return [f"{size} lines: {place}" for size, place in sorted(sizes, reverse=True)[:10]]


def test_functions_are_short() -> None:
    sizes = [size for path in house.python(*SIZED) for size in python_functions(path, house.parsed(path))]
    sizes += [size for path, text in house.texts() if path.suffix == ".c" for size in c_functions(path, text)]
    worst = too_long(sizes, FUNCTION_LINES_MAX)
    assert not worst, house.report(f"a function has more than {FUNCTION_LINES_MAX} lines; the longest:", worst)


def test_files_are_short() -> None:
    code = {".py", ".c", ".h", ".sql", ".js", ".css", ".sh"}
    sizes = [(text.count("\n"), house.where(path)) for path, text in house.texts() if path.suffix in code]
    worst = too_long(sizes, FILE_LINES_MAX)
    assert not worst, house.report(f"a file has more than {FILE_LINES_MAX} lines; the longest:", worst)


def test_a_long_function_is_found_in_either_language() -> None:
    body = "\n".join("    x = 1" for _ in range(FUNCTION_LINES_MAX))
    path = house.ROOT / "sample"
    assert too_long(python_functions(path, ast.parse(f"def long():\n{body}\n")), FUNCTION_LINES_MAX)
    assert not too_long(python_functions(path, ast.parse("def short():\n    return 1\n")), FUNCTION_LINES_MAX)
    for head in ("int long(void) {", "int long(void)\n{"):
        assert too_long(c_functions(path, f"{head}\n{body}\n}}\n"), FUNCTION_LINES_MAX), head
