"""Break guards on purpose, one at a time: a test must fail for each (``make mutants``).

Two parts. The list of ``tests/mutants/guards.toml``: each entry replaces one snippet of the source and names the tests
that have to notice. Then mutmut on the modules that decide, where what survives has to have its reason in
``tests/mutants/accepted.toml``. Everything happens in a copy of the tree; the checkout is never touched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
COPIED = ("src", "tests", "scripts", "proto", "pyproject.toml", "setup.py")
MODULES = ("fence", "receipts", "changeset", "conflict")
TIMEOUT_SECONDS = 300
WORKERS = 2
NO_TEST_FAILED = "no test failed"


class Guard:
    """One entry of the list: ``old`` becomes ``new`` in ``file``, and one of ``tests`` must fail."""

    def __init__(self, entry: dict[str, object]) -> None:
        self.name = str(entry["name"])
        self.file = str(entry["file"])
        self.old = str(entry["old"])
        self.new = str(entry["new"])
        tests = entry["tests"]
        assert isinstance(tests, list)
        self.tests = [str(test) for test in tests]


def copy_tree(target: Path) -> None:
    """Copy what the tests need; large or generated folders stay behind."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "mutants")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, target / name)


def environment(tree: Path) -> dict[str, str]:
    """Return an environment in which the copy is imported instead of the checkout."""
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def failure_of(tree: Path, tests: list[str]) -> str | None:
    """Run tests in a copy; return ``None`` if one of them fails or hangs, else why that proves nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 1:
        return None
    if done.returncode == 0:
        return NO_TEST_FAILED
    return f"the tests cannot be run: {(done.stdout + done.stderr)[-1000:]}"


def survivors_of_list(only: str | None) -> list[str]:
    """Apply each guard's mutation to a copy of its own and return what survived, or could not be applied."""
    guards = [Guard(entry) for entry in tomllib.loads((LISTS / "guards.toml").read_text())["guard"]]
    wanted = [guard for guard in guards if only is None or only in guard.name]
    refuse_failing_tests(sorted({test for guard in wanted for test in guard.tests}))
    with ThreadPoolExecutor(WORKERS) as workers:
        return [name for name in workers.map(told, wanted) if name is not None]


def refuse_failing_tests(tests: list[str]) -> None:
    """End the run if a test fails already without any mutation: it would kill every mutant."""
    with tempfile.TemporaryDirectory(prefix="flux-mutant-") as place:
        copy_tree(Path(place))
        if tests and failure_of(Path(place), tests) != NO_TEST_FAILED:
            raise SystemExit(f"these tests have to pass before they can tell anything: {' '.join(tests)}")


def told(guard: Guard) -> str | None:
    """Try a guard and tell what came of it; return its name if it survived."""
    outcome = try_guard(guard)
    print(f"killed    {guard.name}" if outcome is None else f"SURVIVED  {guard.name}: {outcome}", flush=True)
    return None if outcome is None else guard.name


def try_guard(guard: Guard) -> str | None:
    """Return ``None`` if a test notices the broken guard, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="flux-mutant-") as place:
        tree = Path(place)
        copy_tree(tree)
        target = tree / guard.file
        text = target.read_text()
        if text.count(guard.old) != 1:
            return f"its snippet is there {text.count(guard.old)} times in {guard.file}, not once"
        target.write_text(text.replace(guard.old, guard.new))
        return failure_of(tree, guard.tests)


def survivors_of_mutmut(modules: list[str]) -> list[str]:
    """Run mutmut on the deciding modules and return the survivors without a reason."""
    accepted = tomllib.loads((LISTS / "accepted.toml").read_text())
    with tempfile.TemporaryDirectory(prefix="flux-mutmut-") as place:
        tree = Path(place)
        copy_tree(tree)
        sources = [f"src/flux/core/{module}.py" for module in modules]
        tests = [f"tests/unit/test_{module}.py" for module in modules]
        with (tree / "pyproject.toml").open("a") as stream:
            stream.write(
                f"\n[tool.mutmut]\nsource_paths = {sources!r}\nalso_copy = ['src', 'tests', 'scripts']\n"
                f"pytest_add_cli_args_test_selection = {tests!r}\n"
            )
        mutmut = Path(sys.executable).parent / "mutmut"
        log = tree / "log"
        with log.open("w") as stream:
            ran = subprocess.run(
                [mutmut, "run", "--max-children", str(WORKERS)], cwd=tree, stdout=stream, stderr=stream, check=False
            )
        summary = log.read_text().replace("\r", "\n").strip().rsplit("\n", 2)[-2:]
        print("\n".join(summary))
        if ran.returncode:
            raise SystemExit(f"mutmut could not run:\n{log.read_text()[-3000:]}")
        listed = subprocess.run([mutmut, "results"], cwd=tree, capture_output=True, text=True, check=True).stdout
        names = re.findall(r"^\s*(\S+__mutmut_\d+): (?:survived|no tests|timeout|suspicious)", listed, re.MULTILINE)
        return [name for name in names if not reason_for(tree, mutmut, name, accepted)]


def reason_for(tree: Path, mutmut: Path, name: str, accepted: dict[str, object]) -> bool:
    """Tell whether a survivor is accepted: by a rule on what its diff changes, each rule with its reason."""
    shown = subprocess.run([mutmut, "show", name], cwd=tree, capture_output=True, text=True, check=True).stdout
    removed = [line[1:].strip() for line in shown.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line[1:].strip() for line in shown.splitlines() if line.startswith("+") and not line.startswith("+++")]
    rules = accepted["rule"]
    assert isinstance(rules, list)
    for rule in rules:
        if re.search(rule["name"], name) and re.search(rule["removed"], "\n".join(removed)):
            return True
    print(f"SURVIVED  {name}\n    - " + "\n    - ".join(removed) + "\n    + " + "\n    + ".join(added))
    return False


def main() -> None:
    """Run both parts; the exit code tells whether anything survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="guards whose name contains this; mutmut is left out then")
    parser.add_argument(
        "--modules", nargs="*", default=list(MODULES), help="core modules for mutmut; none of them: without it"
    )
    options = parser.parse_args()
    survived = survivors_of_list(options.only)
    if options.only is None and options.modules:
        survived += survivors_of_mutmut(options.modules)
    if survived:
        raise SystemExit(f"{len(survived)} mutants survived without a reason")
    print("every mutant was noticed, or has its reason")


if __name__ == "__main__":
    main()
