"""The public JavaScript SDK: its own tests, run by Node, with what they say shown when one fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from daemons import ENVIRONMENT, ROOT, Flux

TESTS = ROOT / "tests" / "sdk" / "js"
MADE = ROOT / ".cache" / "sdk" / "js"
SECONDS_MAX = 300


@pytest.mark.everywhere
@pytest.mark.parametrize("name", sorted(path.name for path in TESTS.glob("*.test.js")))
def test_javascript(pointed: Flux, tmp_path: Path, name: str) -> None:
    if not (MADE / "node_modules" / "e2b").is_dir():
        pytest.skip("the JavaScript SDK is not installed: scripts/sdk.sh says why, and what to do")
    # Node looks for packages beside the file that asks for them.
    for source in (*TESTS.glob("*.js"), TESTS / "package.json"):
        shutil.copy(source, tmp_path)
    (tmp_path / "node_modules").symlink_to(MADE / "node_modules")
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", name],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**ENVIRONMENT, **{key: value for key, value in os.environ.items() if key.startswith("E2B_")}},
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout.decode()
