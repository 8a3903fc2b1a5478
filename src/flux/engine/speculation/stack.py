"""Speculations that start from unapplied changesets (spec: speculation, ``--from``).

The base is copied, the parents are applied to the copy, and the run works on that. What the run changed is then told
in terms of the real tree as it will be once the parents are applied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from flux.core import manifest, paths
from flux.core.access import Actor
from flux.core.changeset import Changeset, State
from flux.core.errors import Code, FluxError
from flux.core.manifest import Manifest, Token
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import generations, roots
from flux.engine.lifecycle.roots import Root
from flux.engine.speculation import lookup
from flux.failpoints import Point
from flux.store.changesets import BLOBS
from flux.store.places import MASK, MASK_WORK
from flux.store.state import DIRECTORY
from flux.trees import run as trees
from flux.trees.apply import ApplyJob, apply
from flux.trees.scan import scan
from flux.trees.workspace import Workspace

if TYPE_CHECKING:
    from flux.engine.speculation.isolated import Finished

_OPEN = (State.PENDING, State.APPROVED)


class Base:
    """The tree that a run starts from: the real one, or a copy with the parents applied."""

    def __init__(self, workspace: Workspace, root: int, skip: Sequence[str]) -> None:
        self.workspace = workspace
        self.root = root
        self.skip = skip

    def translate(self, finished: Finished) -> Finished:
        """Return what the run did in terms of the real tree."""
        return finished


class Stacked(Base):
    """A copy of the real tree with the parents applied; ``real`` is the manifest of the tree that was copied."""

    def __init__(self, workspace: Workspace, root: int, real: Manifest, touched: Mapping[str, str | None]) -> None:
        super().__init__(workspace, root, ())
        self._real = real
        self._touched = touched

    def translate(self, finished: Finished) -> Finished:
        """Put the real tree's fingerprints for what the parents leave alone.

        What they change keeps the copy's, with a digest: when the parents are applied it is compared by content.
        """
        capture = finished.capture
        base = {path: self._token(path, token) for path, token in capture.base.items()}
        return msgspec.structs.replace(finished, capture=msgspec.structs.replace(capture, base=base))

    def _token(self, path: str, copied: Token) -> Token:
        real = None if path in self._touched else self._real.get(path)
        digest = manifest.parse(copied).digest or self._touched.get(path)
        return copied if digest is None and real is None else _with(real or copied, digest)


def _with(token: Token, digest: str | None) -> Token:
    return token if digest is None else manifest.with_digest(token, digest)


def lineage(context: Context, actor: Actor, sandbox: Sandbox, parent: str | None) -> list[Changeset]:
    """Return the unapplied changesets that ``parent`` stands on, the lowest first, ``parent`` last.

    Raises:
        FluxError: ``not_found``, ``conflict`` if one of them is final but was not applied.
    """
    found: list[Changeset] = []
    while parent is not None:
        row = lookup.find(context, actor, sandbox.id, parent)
        record = context.stores.changesets.read(row.id)
        if record.state is State.APPLIED:
            break
        if record.state not in _OPEN:
            raise FluxError(
                Code.CONFLICT,
                f"cannot start from the changeset {record.id}: it is {record.state}; start from one that is open",
                {"state": record.state.value},
            )
        if record.unstaged:
            raise FluxError(
                Code.NOT_APPLICABLE, f"cannot start from the changeset {record.id}: it has entries that were not staged"
            )
        found.append(record)
        parent = record.parent
    return found[::-1]


@contextmanager
def stacked(
    context: Context, sandbox: Sandbox, root: Root, scratch: str, parents: Sequence[Changeset]
) -> Iterator[Base]:
    """Hold the tree that a run starts from."""
    workspace, skip = own(context, sandbox, scratch), roots.not_its_own(sandbox)
    if not parents:
        yield Base(workspace, root.descriptor, skip)
        return
    if sandbox.built_in:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot start from the changeset {parents[-1].id}: that copies the whole tree, which in this sandbox "
            "includes the host's system; apply the changeset first",
        )
    copy = trees.prepare(
        workspace,
        root.descriptor,
        os.path.join(scratch, "parents"),
        paths=[paths.ROOT],
        requested="copy",
        max_bytes=context.settings.max_workspace_bytes,
        files=context.files,
        skip=skip,
    )
    try:
        tree = copy.tree
        assert isinstance(tree, str), "a copy is a directory"
        descriptor = roots.open_directory(tree)
        try:
            touched = _apply_parents(context, parents, descriptor, scratch)
            yield Stacked(Workspace(layout="bound", directory=tree), descriptor, copy.base.manifest, touched)
        finally:
            os.close(descriptor)
    finally:
        copy.close()


def own(context: Context, sandbox: Sandbox, scratch: str) -> Workspace:
    """Return a sandbox's workspace for ``trees``; ``scratch`` is the run's directory."""
    if sandbox.directory is not None:
        return Workspace(layout="bound", directory=sandbox.directory)
    tree = generations.overlay(context, sandbox, sandbox.generation)
    below = None
    if tree.below is not None:
        mask, work = f"{scratch}/{MASK}", f"{scratch}/{MASK_WORK}"
        below = generations.base_below(context, sandbox, mask, work, throwaway=True)
    place = context.stores.places.generation(sandbox.id, sandbox.generation)
    return Workspace(layout="managed", directory=place, template=tree.lower, below=below)


def _apply_parents(context: Context, parents: Sequence[Changeset], root: int, scratch: str) -> dict[str, str | None]:
    """Apply changesets to a copy; return the digests of what they touch."""
    touched: dict[str, str | None] = {}
    for parent in parents:
        changes = lookup.effective(context, parent).every()
        touched.update((change.location, None if change.after is None else change.after.digest) for change in changes)
        directory = _stage(context, parent.id, scratch)
        try:
            job = ApplyJob(
                changeset_id=parent.id,
                root=root,
                directory=directory,
                changes=changes,
                base=scan(root).manifest,
                paths=[paths.ROOT],
                scope="touched",
                files=context.files,
            )
            apply(job, lambda: None)
        finally:
            os.close(directory)
    return touched


def _stage(context: Context, changeset_id: str, scratch: str) -> int:
    """Open a directory that stands for a changeset's own: its blobs under further names, nothing else of it."""
    stage = os.path.join(scratch, changeset_id)
    os.makedirs(os.path.join(stage, BLOBS))
    directory = roots.open_directory(stage)
    with context.stores.changesets.opened(changeset_id) as own_directory:
        source, target = (os.open(BLOBS, DIRECTORY, dir_fd=holder) for holder in (own_directory, directory))
        try:
            for name in os.listdir(source):
                context.files.link(Point.SCRATCH, source, name, target, name)
        finally:
            os.close(source)
            os.close(target)
    return directory
