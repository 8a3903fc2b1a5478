"""Whether an overlay keeps full fidelity here, found out by mounting one (spec: speculation).

The workspace itself is mounted as the lower layer, in a mount namespace that ends with the probe, so that what the file
systems lack shows: then the behaviour is tried out on files of our own. The answer holds for a pair of file systems, a
kernel and a user, and is remembered.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import _native
from flux.trees.area import remove_tree
from flux.trees.beneath import DIRECTORY

PROBE = "probe"
_TIMEOUT_SECONDS = 60
_KEPT_MAX = 64


class _NotTried(Exception):
    """The probe itself failed, which says nothing about the next time."""


def probe_overlay(root: int | None, scratch: str, files: Files, cache: str | None) -> str | None:
    """Return why an overlay over the workspace would not behave like it, or ``None``.

    Args:
        root: the workspace's root, open; ``None`` to try only what the writable layer's file system can do.
        scratch: a directory on the file system that the writable layer will be on.
        cache: a file that remembers answers; nothing is remembered without it.
    """
    descriptor = os.open(scratch, DIRECTORY)
    try:
        key = _key(root, descriptor)
        known = _read(cache)
        if key in known:
            return known[key] or None
        problem = _try(root, scratch, descriptor, files)
    except _NotTried as reason:
        return str(reason)
    finally:
        os.close(descriptor)
    if cache is not None:
        _remember(cache, {**dict(list(known.items())[-_KEPT_MAX:]), key: problem or ""}, files)
    return problem


def _key(root: int | None, scratch: int) -> str:
    places = [scratch] if root is None else [root, scratch]
    names = (f"{os.fstat(at).st_dev}:{os.statvfs(at).f_fsid:x}:{_native.filesystem(at):x}" for at in places)
    return " ".join([os.uname().release, str(os.geteuid()), *names])


def _read(cache: str | None) -> dict[str, str]:
    if cache is None:
        return {}
    try:
        return msgspec.json.decode(Path(cache).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _remember(cache: str, known: dict[str, str], files: Files) -> None:
    """Write the answers anew. That this fails costs time later on, nothing else."""
    head, _, name = cache.rpartition("/")
    new = f"{name}.{os.getpid()}"
    with suppress(OSError):
        directory = os.open(head or ".", DIRECTORY)
        try:
            descriptor = files.create(Point.SCRATCH, directory, new)
            try:
                files.write(Point.SCRATCH, descriptor, msgspec.json.encode(known))
            finally:
                os.close(descriptor)
            files.rename(Point.SCRATCH, directory, new, directory, name)
        finally:
            os.close(directory)


def _try(root: int | None, scratch: str, descriptor: int, files: Files) -> str | None:
    import subprocess  # only the first run of all needs it, and loading it takes as long as that run's scans

    remove_tree(files, Point.SCRATCH, descriptor, PROBE)
    files.make_directory(Point.SCRATCH, descriptor, PROBE)
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-sP",
                "-m",
                "flux.trees.overlay_trial",
                "-" if root is None else str(root),
                f"{scratch}/{PROBE}",
            ],
            capture_output=True,
            pass_fds=() if root is None else (root,),
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NotTried(f"the probe did not run: {error}") from error
    finally:
        remove_tree(files, Point.SCRATCH, descriptor, PROBE)
    if done.returncode != 0:
        raise _NotTried(f"the probe failed: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
    return done.stdout.decode("utf-8", "replace").strip() or None
