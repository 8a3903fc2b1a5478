"""Puts a node manager together from an engine's surroundings."""

from __future__ import annotations

import os

import msgspec

import flux
from flux.engine.artifacts.mover import ArtifactMover
from flux.engine.context import Context
from flux.engine.lifecycle import delete
from flux.engine.lifecycle.executions import Executions
from flux.engine.node.manager import NodeManager
from flux.engine.node.node import Disk, NodeSettings
from flux.ports.artifacts import ObjectStore


def open_node(context: Context, objects: ObjectStore | None, settings: NodeSettings | None) -> NodeManager:
    """Return the node manager of a state directory; the only one that may write to its store from now on.

    Args:
        context: the engine's surroundings.
        objects: where artifacts are brought; ``None`` if they stay on their node.
        settings: how to work; what the engine knows itself is filled in.
    """
    mover = ArtifactMover(context.layers, context.files, objects, lambda: manager.store_id)

    def disk() -> Disk:
        status = os.statvfs(context.stores.state.path)
        return Disk(total=status.f_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize)

    manager = NodeManager(
        context.stores.database,
        Executions(context, mover),
        mover,
        context.clock,
        msgspec.structs.replace(
            settings or NodeSettings(),
            uploads=objects is not None,
            kinds=tuple(sorted(context.substrates)),
            version=flux.__version__,
        ),
        disk=disk,
        observer=context.observer,
        destroyed=lambda sandbox: delete.destroyed(context, sandbox),
    )
    return manager
