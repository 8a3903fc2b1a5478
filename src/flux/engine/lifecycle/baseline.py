"""Baselines: a remembered manifest, and what changed since (20-sandboxes §3)."""

from __future__ import annotations

import msgspec

from flux.core import paths
from flux.core.access import Actor
from flux.core.changeset import Noted
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.results import Baseline
from flux.store import sandboxes
from flux.trees import scan


def remember(context: Context, actor: Actor, reference: str) -> Baseline:
    """Remember the tree as it is now, contents included, so that a rewrite of the same bytes is no change."""
    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id):
        with roots.opened(context, sandbox) as root, context.locks.root(root.extent, exclusive=False):
            found = scan.scan(root.descriptor)
            scan.fill_digests(root.descriptor, found.manifest, _files(found.manifest))
        context.stores.baselines.write(sandbox.id, found.manifest)
        now = context.clock.wall()
        with context.stores.database.transaction() as tx:
            sandboxes.update(tx, msgspec.structs.replace(sandbox, baseline_at=now))
    return Baseline(
        sandbox_id=sandbox.id,
        created_at=now,
        entries=len(found.manifest),
        size=found.total_bytes,
        not_captured=[_noted(path, "another file system is mounted there") for path in found.nested]
        + [_noted(path, reason) for path, reason in found.unreadable],
    )


def _files(entries: dict[str, str]) -> list[str]:
    return [path for path, token in entries.items() if token.startswith("f ")]


def _noted(path: str, reason: str) -> Noted:
    text, encoded = paths.to_json(path)
    return Noted(path=text, path_base64=encoded, reason=reason)
