"""Running a part of a test as a user without privileges, in a child process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def place() -> Iterator[Path]:
    """Make a directory that belongs to the unprivileged user and that it can reach."""
    top = Path(tempfile.mkdtemp(prefix="flux-unprivileged-"))
    os.chown(top, NOBODY, NOBODY)
    try:
        yield top
    finally:
        shutil.rmtree(top)


def as_nobody(action: Callable[[], None]) -> None:
    """Run ``action`` without privileges; what it raises makes the test fail."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir("/")
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            # The interpreter of the tests may lie where only its owner may go.
            if not os.access(sys.executable, os.X_OK):
                sys.executable = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "failed without privileges, see above"
