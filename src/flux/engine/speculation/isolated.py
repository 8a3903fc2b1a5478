"""One run of a command in a throwaway copy of a sandbox's tree, up to the capture of what it changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from flux.core import paths, policy, sideeffects
from flux.core.changeset import Changeset, Discarded, Flow, SideEffects
from flux.core.limits import MIB
from flux.core.requests import CopyEngine, DryRun, Speculate
from flux.core.sandbox import HOME, TEMPORARY, Sandbox
from flux.engine import ids
from flux.engine.context import Context
from flux.engine.lifecycle import kinds, launch, roots
from flux.engine.lifecycle.launch import Place
from flux.engine.lifecycle.roots import Root
from flux.engine.speculation import stack
from flux.engine.speculation.drive import Outcome, drive
from flux.engine.speculation.guard import DiskGuard, tree_size
from flux.engine.speculation.record import Tree
from flux.ports.substrate import Instance, Overlay
from flux.trees import run as trees
from flux.trees.area import same_mount
from flux.trees.run import Capture, CaptureRequest, RunTree
from flux.trees.workspace import Workspace

PROBES = "probes.json"


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over: how it ended, what it changed, and of what."""

    outcome: Outcome
    capture: Capture
    engine: str
    engine_reason: str
    discarded: list[Discarded]
    side_effects: SideEffects
    tree: Tree


class Targets(msgspec.Struct, frozen=True):
    """The open directories that take staged contents and pre-images."""

    blobs: int
    preimages: int


def run(
    context: Context,
    sandbox: Sandbox,
    request: Speculate | DryRun,
    targets: Targets,
    parents: Sequence[Changeset] = (),
) -> Finished:
    """Run a request's command, kill everything, capture. The caller uses the sandbox already.

    Args:
        context: the engine's surroundings.
        sandbox: whose tree.
        request: the command and how to run it.
        targets: where contents go.
        parents: unapplied changesets to start from, the first one first.
    """
    seconds = launch.timeout_seconds(context, request)
    launch.arguments(request)
    wanted = checked_paths(request.paths)
    with (
        roots.opened(context, sandbox) as root,
        roots.locked(context, root, exclusive=False),
        _scratch(context) as scratch,
        stack.stacked(context, sandbox, root, scratch, parents) as base,
    ):
        tree = trees.prepare(
            base.workspace,
            base.root,
            os.path.join(scratch, "tree"),
            paths=wanted,
            requested=_engine(context, request),
            max_bytes=context.settings.max_workspace_bytes,
            files=context.files,
            skip=base.skip,
            probe_cache=_probes(context),
        )
        try:
            setting = _Setting(sandbox, request, root, tree, scratch, wanted, targets, seconds)
            with _home(context, sandbox, scratch) as home:
                finished = _run_in(context, setting, home)
        finally:
            tree.close()
        return base.translate(finished)


class _Setting(msgspec.Struct, frozen=True):
    """What one run is made of."""

    sandbox: Sandbox
    request: Speculate | DryRun
    root: Root
    tree: RunTree
    scratch: str
    wanted: list[str]
    targets: Targets
    seconds: float

    @property
    def network(self) -> bool:
        """Whether the run has the sandbox's network, or none."""
        return self.request.network != "none"


def _run_in(context: Context, setting: _Setting, home: str | Overlay | None) -> Finished:
    sandbox, tree, scratch = setting.sandbox, setting.tree, setting.scratch
    place = Place(tree=tree.tree, home=home, scratch=os.path.join(scratch, "tmp"))
    spec = launch.spec(context, sandbox, place, network=setting.network)
    # An overlay would show what lies beneath a mount of the workspace, which the real sandbox's tree does not show.
    nested = tuple(setting.root.path + point for point in tree.base.nested)
    spec = msgspec.structs.replace(spec, hidden=(*spec.hidden, *nested))
    guard = DiskGuard.of(
        scratch, reserve_bytes=context.settings.disk_reserve_mib * MIB, run_bytes=context.settings.run_max_bytes
    )
    private = _Private(place)
    substrate = kinds.substrate(context, sandbox.kind)
    with context.instances.throwaway(sandbox.id, lambda: substrate.start(spec)) as instance:
        outcome = drive(
            instance,
            launch.command(sandbox, instance, setting.request),
            timeout_seconds=setting.seconds,
            output_bytes=context.settings.caps.output_bytes,
            guard=guard,
        )
        flows, enforced = instance.flows(), instance.network_enforced()
        capture = _capture(context, instance, setting)
    return Finished(
        outcome=outcome,
        capture=capture,
        engine=tree.engine,
        engine_reason=tree.reason,
        discarded=[*capture.discarded, *private.discarded()],
        side_effects=_side_effects(sandbox, setting.network, flows, enforced, capture),
        tree=Tree(
            path=setting.root.path,
            device=setting.root.device,
            inode=setting.root.inode,
            same_mount=same_mount(setting.root.descriptor, context.stores.state.changesets),
        ),
    )


def _capture(context: Context, instance: Instance, setting: _Setting) -> Capture:
    request = CaptureRequest(
        paths=setting.wanted,
        blobs=setting.targets.blobs,
        preimages=setting.targets.preimages,
        caps=context.settings.caps,
        files=context.files,
    )
    return setting.tree.capture(instance.tree_descriptor, request)


def checked_paths(asked: Sequence[str] | None) -> list[str]:
    """Return what a changeset covers: normal, sorted, none inside another; all of the workspace by default.

    Raises:
        FluxError: ``invalid`` for a relative path or one with dots.
    """
    wanted = sorted({paths.normalise(path) for path in asked or [paths.ROOT]})
    return [path for path in wanted if not any(paths.is_within(path, other) for other in wanted if other != path)]


def _engine(context: Context, request: Speculate | DryRun) -> CopyEngine:
    return context.settings.copy_engine if request.copy_engine == "auto" else request.copy_engine


@contextmanager
def _scratch(context: Context) -> Iterator[str]:
    run_id = ids.run()
    scratch = context.stores.places.make_scratch(run_id)
    try:
        yield scratch
    finally:
        context.stores.places.remove_scratch(run_id)


@contextmanager
def _home(context: Context, sandbox: Sandbox, scratch: str) -> Iterator[str | Overlay | None]:
    """Hold the run's home: a throwaway copy of the sandbox's own, or an empty one where there is nothing in it.

    A managed sandbox has its home in its tree, so that what the run does there is captured like anything else.
    """
    if sandbox.layout == "managed":
        yield None
        return
    own = context.stores.state.place("sandboxes", sandbox.id, "home")
    mine = os.path.join(scratch, "home")
    if not os.listdir(own):
        yield mine
        return
    root = roots.open_directory(own)
    try:
        tree = trees.prepare(
            Workspace(layout="bound", directory=own),
            root,
            mine,
            paths=[paths.ROOT],
            requested="auto",
            max_bytes=context.settings.max_workspace_bytes,
            files=context.files,
            probe_cache=_probes(context),
        )
        try:
            yield tree.tree
        finally:
            tree.close()
    finally:
        os.close(root)


def _probes(context: Context) -> str:
    return os.path.join(context.stores.state.path, PROBES)


class _Private:
    """What the run writes beside the workspace, which goes with it."""

    def __init__(self, place: Place) -> None:
        self._places = {} if place.scratch is None else {TEMPORARY: place.scratch}
        if place.home is not None:
            self._places[HOME] = place.home.upper if isinstance(place.home, Overlay) else place.home
        self._before = {place: tree_size(path) for place, path in self._places.items()}

    def discarded(self) -> list[Discarded]:
        """Tell how much more there is than at the start."""
        found = []
        for place, path in self._places.items():
            before, now = self._before[place], tree_size(path)
            entries, size = max(now.entries - before.entries, 0), max(now.content - before.content, 0)
            if entries or size:
                found.append(Discarded(place=place, entries=entries, size=size))
        return found


def _side_effects(
    sandbox: Sandbox, network: bool, flows: list[Flow] | None, enforced: bool, capture: Capture
) -> SideEffects:
    egress = policy.classify(sandbox.network if network else "none", sandbox.net_ports)
    return sideeffects.report(
        egress, enforced=enforced, observed=flows, changes=len(capture.changes.every()), place=sandbox.place
    )
