"""Documentation that cannot drift: links resolve, modules and commands exist, generated pages are fresh."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.style import house

ARCHITECTURE_LINES_MAX = 200
PAGES = sorted(path for path in house.tracked() if path.suffix == ".md")


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings make, as common renderers do."""
    headings = re.findall(r"^#+\s+(.*?)\s*#*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        aim = (path.parent / name).resolve() if name else path
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text())):
            found.append(target)
    return found


def shell_lines(text: str) -> list[str]:
    """Return the commands of a page's shell blocks, without prompts, results and comments."""
    lines = []
    for block in re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL):
        prompted = "\n$ " in "\n" + block
        joined = block.replace("\\\n", " ")
        lines += [
            line.removeprefix("$ ").strip()
            for line in joined.split("\n")
            if line.strip() and not line.startswith("#") and (line.startswith("$ ") or not prompted)
        ]
    return lines


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(house.ROOT)))
def test_links_resolve(path: Path) -> None:
    assert not broken_links(path, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(house.ROOT)))
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (house.ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)`", text))
    named |= {match[1] for line in shell_lines(text) if (match := re.match(r"make ([a-z-]+)", line))}
    assert named <= targets, f"no such target: {sorted(named - targets)}"


def test_the_architecture_page_is_short_and_true() -> None:
    text = (house.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert text.count("\n") < ARCHITECTURE_LINES_MAX
    source = house.ROOT / "src/flux"
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", text))
    gone = sorted(name for name in named if not ((source / name).exists() or (house.ROOT / name).exists()))
    assert not gone, house.report("names modules that are not there:", gone)
    packages = {
        path.parent.relative_to(source).as_posix() for path in house.python("src/flux") if path.name == "__init__.py"
    }
    silent = sorted(name for name in packages - {"."} if f"`{name}/`" not in text)
    assert not silent, house.report("does not name the packages:", silent)


def test_each_run_time_dependency_has_a_decision() -> None:
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    decision = (house.ROOT / "docs/adr/0008-run-time-dependencies.md").read_text(encoding="utf-8")
    decided = set(re.findall(r"^\| `([\w-]+)` \|", decision, re.MULTILINE))
    assert decided == wanted
    pins = (house.ROOT / "requirements/run.in").read_text()
    assert {re.split(r"[<>=\[]", line)[0] for line in pins.split("\n") if line and line[0] != "#"} == wanted


def test_every_decision_says_what_it_costs() -> None:
    decisions = sorted((house.ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [path.name[:4] for path in decisions] == [f"{number:04d}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        for heading in ("## Context", "## Decision", "## Consequences"):
            assert heading in text, f"{path.name} has no {heading}"


@pytest.mark.parametrize("script", ["reference.py", "diagrams.py"])
def test_generated_pages_are_fresh(script: str) -> None:
    check = [sys.executable, f"scripts/{script}", "--check"]
    result = subprocess.run(check, cwd=house.ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_broken_link_is_found() -> None:
    assert broken_links(house.ROOT / "README.md", "[a](nowhere.md) [b](LICENSE)") == ["nowhere.md"]
    assert shell_lines("```console\n$ make demo\nresult\n```") == ["make demo"]


def command_exists(words: list[str]) -> bool:
    """Tell whether the command line knows the groups, the command and the options of ``fluxctl`` words."""
    import click

    from flux.cli.main import root

    command: click.Command = root
    known = {"-h", "--help"}
    for word in words:
        if word == "--":
            return True
        context = click.Context(command)
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        if word.startswith("-") and not re.match(r"-\w+$", word):
            if word.split("=")[0] not in known:
                return False
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None and word not in {"DIR", "FILE", "URL"} and not word.startswith(("http", "/")):
                return False
            command = found or command
    return True


def fluxctl_words(line: str) -> list[str]:
    """Return the words of the ``fluxctl`` in a shell line, up to the next command; none if there is no such command."""
    match = re.search(r"(?:^|[\s(/])fluxctl (.*?)(?=\s(?:&&|\||#)|\)|$)", line)
    return match[1].split() if match else []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(house.ROOT)))
def test_commands_in_the_text_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = shell_lines(text) + re.findall(r"`(fluxctl [^`]+)`", text)
    wrong = [line for line in lines if (words := fluxctl_words(line)) and not command_exists(words)]
    assert not wrong, house.report("the command line does not know:", wrong)


def test_an_unknown_command_is_found() -> None:
    assert command_exists(fluxctl_words("fluxctl --json sandbox approve SB CS --only /a && true"))
    assert not command_exists(fluxctl_words("fluxctl sandbox bless SB"))
    assert not command_exists(fluxctl_words("$(fluxctl sandbox approve SB CS --blindly)"))
