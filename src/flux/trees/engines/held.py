"""Scanning a throwaway tree after a run, also where the run closed directories to their own owner."""

from __future__ import annotations

import os

from flux.core import paths
from flux.core.manifest import Manifest
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import _native
from flux.trees.beneath import DIRECTORY, open_beneath, open_parent


def scan_held(held: int, files: Files, base: Manifest | None) -> tuple[Manifest, list[str]]:
    """Return what ``_native.scan`` finds in a tree of our own, and its linked entries.

    Directories that only their permissions keep us out of are opened; they are listed as they were.
    """
    entries, _, unreadable, _, _, linked = _native.scan(held, paths.ROOT, [], base)
    while unreadable:
        closed = [path for path, _ in unreadable if _open_up(held, path, files)]
        unreadable = []
        for path in closed:
            token = entries.get(path)
            inside, more, again = _scan_below(held, path, base)
            entries = {
                other: was for other, was in entries.items() if other == path or not paths.is_within(other, path)
            }
            entries.update(inside)
            if token is None:
                entries.pop(path, None)
            else:
                entries[path] = token
            linked += more
            unreadable += again
    return entries, linked


def _scan_below(held: int, path: str, base: Manifest | None) -> tuple[Manifest, list[str], list[tuple[str, str]]]:
    descriptor = open_beneath(held, path, DIRECTORY)
    try:
        found = _native.scan(descriptor, path, [], base)
    finally:
        os.close(descriptor)
    return found[0], found[5], found[2]


def _open_up(held: int, path: str, files: Files) -> bool:
    """Give a directory of our own its owner's permissions; tell whether it can be listed now."""
    parent, name = open_parent(held, path)
    try:
        files.set_mode(Point.SCRATCH, parent, name, 0o700)
        os.close(os.open(name, DIRECTORY, dir_fd=parent))
    except OSError:
        return False
    finally:
        os.close(parent)
    return True
