"""The object store's artifacts, as the control plane sees to them; implements ``control.context.RemoteArtifacts``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flux.control.collect import collect
from flux.core.control import Collected
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.engine.artifacts.inspect import inspect
from flux.failpoints import run
from flux.ports.artifacts import Artifacts, ObjectStore
from flux.ports.clock import Clock
from flux.ports.node import Node


class RemoteArtifacts:
    """Verifies and collects.

    Args:
        store: the object store.
        local: the artifacts of the node in this process, if it has one: hashed where they lie.
        nodes: returns every node that may refer to artifacts; raises if one of them cannot be reached.
        clock: the time.
        grace_seconds: between marking an object and deleting it.
    """

    def __init__(
        self,
        store: ObjectStore | None,
        local: Artifacts | None,
        nodes: Callable[[], Iterable[Node]],
        clock: Clock,
        grace_seconds: float,
    ) -> None:
        self._store = store
        self._local = local
        self._nodes = nodes
        self._clock = clock
        self._grace_seconds = grace_seconds

    def verify(self, reference: ArtifactReference) -> None:
        """Hash every part, of the local copy if there is one, and of the object store's if it has all of it."""
        if self._local is not None and self._local.has(reference.id):
            self._local.verify(reference)
        if self._store is not None and reference.durable:
            inspect(self._store, reference)

    def collect(self, needed: Callable[[], set[str]]) -> Collected:
        """Remove what neither the registry nor any node needs; ``needed`` is asked when it counts (§6)."""
        if self._store is None:
            raise FluxError(
                Code.NOT_APPLICABLE, "cannot collect: there is no object store; set [objects] url in the configuration"
            )
        return run(collect(self._store, lambda: needed() | self._held(), self._clock, self._grace_seconds))

    def _held(self) -> set[str]:
        held: set[str] = set()
        for node in self._nodes():
            try:
                listed = node.list()
            except FluxError as error:
                raise FluxError(
                    error.code,
                    f"cannot collect while a node does not say what it needs: {error.message}; bring it back, or "
                    "forget it if it is lost: fluxctl node forget",
                    error.details,
                ) from error
            held.update(report.id for report in listed.artifacts)
            held.update(row.artifact.id for row in listed.rows if row.artifact is not None)
        return held
