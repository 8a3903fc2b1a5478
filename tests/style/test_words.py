"""The project speaks of itself, in whole words, and leaves nothing for later."""

from __future__ import annotations

import ast
import re

import pytest

from tests.style import house

HERE = house.ROOT / "tests/style/test_words.py"
PINS = (*(f"requirements/{name}.txt" for name in ("build", "run", "dev")), "tests/sdk/python/requirements.txt")
GENERATED = {*PINS, "LICENSE"}

# pattern → why not
BANNED = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "leave nothing for later",
    r"\bfor now\b": "leave nothing for later",
    r"\bNotImplementedError\b": "no stubs: what is not there has no name yet",
    r"(?i)\b(issue|ticket|pull request|PR) ?#?\d+": "the reason belongs in the text, not in a tracker",
    r"(?:^|[\s(])#\d+\b": "the reason belongs in the text, not in a tracker",
    r"/work/(main|shared|\.library)\b": "a path of one machine",
    r"/(root|home/\w+)/\.(cache|pyenv)\b": "a path of one machine",
    r"(?i)\b(files\.python"
    + r"hosted|py"
    + r"pi|registry\.npm"
    + r"js|deb\.deb"
    + r"ian)\.(org|io)\b": "a registry's host",
    r"(?i)\b(this|last|next|previous|earlier|my|our|an? (agent|developer)('s)?) session\b": "speak only of the project",
    r"(?i)\b(co-authored-by|generated (by|with) (an? )?(ai|llm|assistant))\b": "the project speaks only of itself",
}
SHORT = {"cb", "cfg", "cnt", "conf", "ctx", "fn", "idx", "mgr", "msg", "req", "resp", "svc", "tmpdir", "val", "vals"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "misc", "common"}


def banned(text: str, suffix: str = ".md") -> list[tuple[int, str]]:
    """Return line and reason of every banned word."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, reason in BANNED.items():
            if re.search(pattern, line) and not (suffix == ".css" and "#" in pattern):
                found.append((number, f"{reason}: {line.strip()[:100]}"))
    return found


def abbreviations(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and name of every abbreviated variable, argument, attribute and function."""
    found = []
    for node in ast.walk(tree):
        names = {
            ast.arg: lambda item: (
                item.arg if item.annotation is None or "click" not in ast.unparse(item.annotation) else ""
            ),
            ast.FunctionDef: lambda item: item.name,
            ast.AsyncFunctionDef: lambda item: item.name,
            ast.Name: lambda item: item.id if isinstance(item.ctx, ast.Store) else "",
        }
        name = names.get(type(node), lambda item: "")(node)
        if name in SHORT:
            found.append((node.lineno, name))
    return found


def test_no_banned_word() -> None:
    findings = [
        f"{house.where(path, line)} {reason}"
        for path, text in house.texts()
        if path != HERE and str(path.relative_to(house.ROOT)) not in GENERATED
        for line, reason in banned(text, path.suffix)
    ]
    assert not findings, house.report("words that do not belong here:", findings)


def test_names_are_whole_words() -> None:
    findings = [
        f"{house.where(path, line)} {name}"
        for path in house.python("src/flux", "scripts", "benches", "tests")
        for line, name in abbreviations(house.parsed(path))
    ]
    findings += [house.where(path) for path in house.python() if path.stem in EMPTY_NAMES]
    assert not findings, house.report("abbreviations, or names that say nothing:", findings)


@pytest.mark.parametrize(
    "line",
    ["# TODO: later", "it is enough for now", "see issue 12", "fixed in (#12)", "cd /work/main", "in this session"],
)
def test_a_banned_word_is_found(line: str) -> None:
    assert banned(line)


@pytest.mark.parametrize(
    "line", ['@pytest.fixture(scope="session")', "cd /work", "# 1 is first", "fluxctl sandbox list"]
)
def test_a_good_word_is_left_alone(line: str) -> None:
    assert not banned(line)


def test_an_abbreviation_is_found() -> None:
    assert [name for _, name in abbreviations(ast.parse("def f(ctx):\n    msg = 1"))] == ["ctx", "msg"]


def test_requirements_name_no_place() -> None:
    for name in PINS:
        text = (house.ROOT / name).read_text()
        assert not re.search(r"://|--find-links|--index|--extra-index|file:/| @ |^/|^\.", text, re.MULTILINE), name
        pins = re.findall(r"^([\w.-]+)==\S+ \\$", text, re.MULTILINE)
        assert pins and text.count("--hash=sha256:") >= len(pins), name
    locked = (house.ROOT / "tests/sdk/js/package-lock.json").read_text()
    assert '"resolved"' not in locked and locked.count('"integrity"') > 1
