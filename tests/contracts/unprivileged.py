"""Running a test file once more as a user without any privilege."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
_ROOT = Path(__file__).resolve().parents[2]
#: In a mount namespace of its own: what nobody may not reach is put in its place again below open directories.
_SCRIPT = """
set -e
for path in "$@"; do
    blocked=
    part=$path
    while [ "$part" != / ]; do
        case $(stat -L -c %A "$part") in ?????????[xt]) ;; *) blocked=$part ;; esac
        part=$(dirname "$part")
    done
    [ -n "$blocked" ] || continue
    mount --rbind "$path" "$SPARE"
    mount -t tmpfs -o mode=755 none "$blocked"
    mkdir -p "$path"
    mount --move "$SPARE" "$path"
done
cd "$ROOT"
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all -- \
    "$PYTHON" -B -m pytest -v -p no:cacheprovider --basetemp="$BASE/tests" "$FILE"
"""


@contextmanager
def _places() -> Iterator[tuple[str, str]]:
    base, spare = tempfile.mkdtemp(prefix="flux-nobody-"), tempfile.mkdtemp(prefix="flux-spare-")
    os.chown(base, NOBODY, NOBODY)
    try:
        yield base, spare
    finally:
        shutil.rmtree(base)
        Path(spare).rmdir()


def run_as_nobody(file: str) -> str:
    """Run a test file of this directory's project as nobody; return what pytest said. Skips where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else; these tests run as whoever runs them anyway")
    missing = [tool for tool in ("setpriv", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install util-linux")
    with _places() as (base, spare):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": base,
            "BASE": base,
            "SPARE": spare,
            "ROOT": str(_ROOT),
            "PYTHON": sys.executable,
            "FILE": file,
        }
        paths = [str(_ROOT), sys.base_prefix]
        result = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh", *paths],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert result.returncode == 0, result.stdout
    return result.stdout
