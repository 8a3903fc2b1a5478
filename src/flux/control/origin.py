"""What a sandbox starts from if it starts from a snapshot: the artifact, and the record it was made from (§6)."""

from __future__ import annotations

import msgspec

from flux.control.context import Control
from flux.core import access
from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import Sandbox
from flux.store.registry import artifacts, sandboxes
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import RegistryTransaction


def found(context: Control, actor: Actor, reference: str) -> tuple[ArtifactRow, Sandbox]:
    """Return a snapshot by its id or name, and the record of the sandbox that it was made of.

    Raises:
        FluxError: ``not_found``, also where the actor may not see it or it is no snapshot; ``not_applicable`` if it is
            older than records of snapshots and its sandbox is gone.
    """
    with context.registry.reading() as tx:
        row = artifacts.find(tx, reference, None if access.sees_all(actor) else actor.key_id)
        source = None if row is None or row.record is not None else sandboxes.read(tx, row.sandbox_id)
    if row is None or row.kind != "snapshot" or not access.sees(actor, row.owner):
        raise _none(reference)
    record = row.record if source is None else source.sandbox
    if record is None:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot start from the snapshot {row.id}: it does not say what sandbox it was made of, and that is gone; "
            "take another one",
        )
    return row, record


def still_there(tx: RegistryTransaction, artifact_id: str) -> None:
    """Hold a snapshot until the row that rests on it is written. Raises ``not_found`` if it was deleted meanwhile."""
    row = artifacts.lock(tx, artifact_id)
    if row is None or row.kind != "snapshot":
        raise _none(artifact_id)


def record(asked: Sandbox, artifact: ArtifactRow, source: Sandbox) -> Sandbox:
    """Return the record of a sandbox that starts from a snapshot.

    What its files lie over and where they may be started is the source's, and so are bounds, ports and mounts unless
    others are asked for; variables that are asked for go over those of the source.
    """
    return msgspec.structs.replace(
        asked,
        kind=source.kind,
        layout=source.layout,
        root_device=source.root_device,
        root_inode=source.root_inode,
        template=source.template,
        template_name=source.template_name,
        built_in=source.built_in,
        snapshot=artifact.id,
        environment={**source.environment, **asked.environment},
        net_ports=asked.net_ports or source.net_ports,
        mounts=asked.mounts or source.mounts,
        memory_mib=asked.memory_mib or source.memory_mib,
        cpus=asked.cpus or source.cpus,
        pids=asked.pids or source.pids,
    )


def _none(reference: str) -> FluxError:
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find the snapshot {printable(reference)[:80]!r}: there is none with that id or name; list them to see",
        {"field": "snapshot"},
    )
