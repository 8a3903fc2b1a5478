"""Remembered manifests: ``sandboxes/<id>/baseline.json`` (spec: sandboxes)."""

from __future__ import annotations

import os

from flux.core import manifest
from flux.core.manifest import Manifest
from flux.failpoints import Point
from flux.ports.files import Files
from flux.store import whole
from flux.store.errors import from_os
from flux.store.state import DIRECTORY, StateDirectory

NAME = "baseline.json"


class Baselines:
    """The baselines of a state directory's sandboxes, at most one each."""

    def __init__(self, state: StateDirectory, files: Files) -> None:
        self._directory = state.sandboxes
        self._files = files

    def write(self, sandbox_id: str, entries: Manifest) -> None:
        """Remember a manifest in place of the one before, durably.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``.
        """
        try:
            directory = os.open(sandbox_id, DIRECTORY, dir_fd=self._directory)
            try:
                whole.replace(self._files, Point.SANDBOX_WRITE, directory, NAME, manifest.encode(entries))
            finally:
                os.close(directory)
        except OSError as error:
            raise from_os(error, f"remember the baseline of the sandbox {sandbox_id}") from error

    def read(self, sandbox_id: str) -> Manifest | None:
        """Return the remembered manifest, ``None`` if there is none."""
        try:
            directory = os.open(sandbox_id, DIRECTORY, dir_fd=self._directory)
            try:
                return manifest.decode(whole.read(directory, NAME))
            finally:
                os.close(directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os(error, f"read the baseline of the sandbox {sandbox_id}") from error
