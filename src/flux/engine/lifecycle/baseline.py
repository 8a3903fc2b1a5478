"""Baselines: a remembered manifest, and what changed since (spec: sandboxes)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flux.core import diff, manifest, paths, risk
from flux.core.access import Actor
from flux.core.changeset import Changes, Noted
from flux.core.errors import Code, FluxError
from flux.core.manifest import Manifest
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.results import Baseline
from flux.store import sandboxes
from flux.trees import scan


def remember(context: Context, actor: Actor, reference: str) -> Baseline:
    """Remember the tree as it is now, contents included, so that a rewrite of the same bytes is no change."""
    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id):
        with roots.opened(context, sandbox) as root, roots.locked(context, root, exclusive=False):
            found = scan.scan(root.descriptor, skip=roots.not_its_own(sandbox))
            scan.fill_digests(root.descriptor, found.manifest, _files(found.manifest))
        context.stores.baselines.write(sandbox.id, found.manifest)
        now = context.clock.wall()
        with context.stores.database.transaction() as tx:
            sandboxes.replace_record(tx, msgspec.structs.replace(sandbox, baseline_at=now))
    return Baseline(
        sandbox_id=sandbox.id,
        created_at=now,
        entries=len(found.manifest),
        size=found.total_bytes,
        not_captured=[_noted(path, "another file system is mounted there") for path in found.nested]
        + [_noted(path, reason) for path, reason in found.unreadable],
    )


def changes(context: Context, actor: Actor, reference: str, path: str | None) -> Changes:
    """Compare the tree with the baseline.

    Raises:
        FluxError: ``conflict`` if none was remembered, ``invalid`` for a path that is none.
    """
    sandbox = context.sandbox(actor, reference)
    top = paths.ROOT if path is None else paths.normalise(path)
    base = context.stores.baselines.read(sandbox.id)
    if base is None:
        raise FluxError(
            Code.CONFLICT,
            f"cannot tell what changed in the sandbox {sandbox.id}: no baseline was remembered; make one first",
            {"reason": "no_baseline"},
        )
    before = {place: token for place, token in base.items() if paths.is_within(place, top)}
    with (
        context.locks.sandbox(sandbox.id),
        roots.opened(context, sandbox) as root,
        roots.locked(context, root, exclusive=False),
    ):
        after = scan.scan(root.descriptor, [top], skip=roots.not_its_own(sandbox)).manifest
        touched = [place for place in before.keys() | after.keys() if before.get(place) != after.get(place)]
        scan.fill_digests(root.descriptor, after, _files({place: after[place] for place in touched if place in after}))
    found = diff.compare(
        before, after, touched, before_links=diff.links(_inodes(before)), after_links=diff.links(_inodes(after))
    )
    changed = {change.location for change in found.changes}
    return risk.flag(Changes.of(found.changes, unchanged=sum(1 for place in before if place not in changed)))


def _inodes(entries: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the entries whose inode may have another name."""
    for place, token in entries.items():
        if not token.startswith("d ") and manifest.parse(token).links > 1:
            yield place, diff.inode(token)


def _files(entries: Manifest) -> list[str]:
    return [path for path, token in entries.items() if token.startswith("f ")]


def _noted(path: str, reason: str) -> Noted:
    text, encoded = paths.to_json(path)
    return Noted(path=text, path_base64=encoded, reason=reason)
