"""Artifacts on this machine and in the object store, as the node manager uses them (spec: generations, §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from flux.core.node import ArtifactReference


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an upload has come. Bytes of packs and manifests that were really sent."""

    sent: int
    total: int


class Artifacts(Protocol):
    """Keeps artifacts locally, and moves them to and from the object store."""

    def upload(self, reference: ArtifactReference, tell: Callable[[Progress], None] = lambda _: None) -> int:
        """Bring an artifact to the object store: intent, missing packs, layers, then the manifest, create-if-absent.

        Returns when every part's digest was confirmed by the store. Idempotent; whatever an interrupted upload sent is
        used again. Contents that are not what they were captured as are never uploaded.

        Returns:
            Bytes sent.

        Raises:
            FluxError: ``unavailable`` (store down, slow or refusing), ``internal`` with ``DataLoss``.
        """
        ...

    def fetch(self, reference: ArtifactReference) -> None:
        """Make an artifact present locally, every digest checked; nothing is done where it is.

        Raises:
            FluxError: ``not_found``, ``internal`` with ``DataLoss``, ``unavailable``, ``exhausted``.
        """
        ...

    def has(self, artifact_id: str) -> bool:
        """Tell whether an artifact is complete on this machine."""
        ...

    def verify(self, reference: ArtifactReference) -> None:
        """Hash every local content of an artifact. Raises ``internal`` with ``DataLoss``, ``not_found``."""
        ...

    def keep_only(self, artifact_ids: Iterable[str]) -> int:
        """Remove the local copies of all other artifacts, and layers that none of these needs; return bytes freed."""
        ...


class ObjectStore(Protocol):
    """A flat store of immutable objects. Keys are ``/``-separated ASCII. All errors are ``FluxError``.

    ``unavailable``: down, slow, refusing; ``not_found``; ``exhausted``. One contract suite holds both adapters to this.
    """

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object, durably; ``False``, and nothing changes, if the key is taken (create-if-absent)."""
        ...

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a part of an object's content."""
        ...

    def head(self, key: str) -> int | None:
        """Return an object's size in bytes, ``None`` if there is none."""
        ...

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        """Return key, size and time of last change (wall-clock seconds) of all objects below a prefix, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens if there is none."""
        ...
