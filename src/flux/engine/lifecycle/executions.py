"""Executions on this machine: layered trees, saving and restoring them (spec: generations, §5–§8).

Implements ``ports.executions.Executions`` for substrates whose init can be started again in place on the same tree.
What a generation writes lies in its own layer; saving it makes that layer the artifact's, by a rename, and restoring
puts an empty one over the saved ones, so both cost what changed and not what there is.

The order of a suspension's capture: describe and sync the layer → note its id in the generation's directory → rename
it → write the artifact. Until the artifact is named by the row, ``resume`` (and ``alive`` and ``start``, after a crash)
brings the layer back; the mounted tree is the same directory all the time, so a frozen execution simply runs on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from flux.core.artifact import Artifact
from flux.core.errors import Code, FluxError
from flux.core.limits import MIB
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.engine.context import Context, from_os
from flux.engine.lifecycle import generations, launch, roots, saving
from flux.engine.locks import Claim
from flux.ports.artifacts import Artifacts
from flux.ports.executions import Made, OwnExecution
from flux.ports.substrate import Instance
from flux.trees.layers.verify import Verifier

_RESERVE_SHARE = 20


class _Quiet(msgspec.Struct, eq=False):
    """An execution that is kept still, and what keeps others from its tree."""

    claim: Claim
    instance: Instance | None


class Executions:
    """The executions of one node.

    Args:
        context: the engine's surroundings.
        artifacts: brings artifacts here.
    """

    def __init__(self, context: Context, artifacts: Artifacts) -> None:
        self._context = context
        self._artifacts = artifacts
        self._verifier = Verifier(context.layers)
        self._lock = threading.Lock()
        self._quiet: dict[tuple[str, int], _Quiet] = {}

    def admit(self, sandbox: Sandbox, artifact: ArtifactReference | None) -> None:
        """Implements ``Executions.admit``: the disk keeps its reserve, or a twentieth where it is small."""
        status = os.statvfs(self._context.stores.state.path)
        reserve = min(
            self._context.settings.disk_reserve_mib * MIB, status.f_blocks * status.f_frsize // _RESERVE_SHARE
        )
        free = status.f_bavail * status.f_frsize
        if free < reserve or (status.f_files and not status.f_favail):
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot start the sandbox {sandbox.id}: {free // MIB} MiB are left on the state directory's disk, and "
                f"{reserve // MIB} MiB are to stay free; free some space, or start it on another node",
                {"reason": "disk", "free_bytes": free, "reserve_bytes": reserve},
            )

    def prepare(self, sandbox: Sandbox, generation: int, artifact: ArtifactReference | None) -> None:
        """Implements ``Executions.prepare``."""
        with _errors("prepare the sandbox's files"):
            saved = None if artifact is None else self._fetched(artifact)
            if sandbox.layout == "bound":
                self._prepare_bound(sandbox)
                return
            self._context.stores.places.remove_generation(sandbox.id, generation)
            self._context.stores.places.make_generation(sandbox.id, generation)
            stack = generations.Stack()
            if artifact is not None and saved is not None:
                stack = generations.Stack(artifact_id=artifact.id, layers=tuple(saved.layers))
            saving.lay_out(self._context, sandbox, generation, stack)

    def _fetched(self, artifact: ArtifactReference) -> Artifact:
        """Return an artifact that is complete here and that nothing has changed."""
        self._artifacts.fetch(artifact)
        saved = self._context.layers.read_artifact(artifact.id, artifact.digest)
        self._verifier.check(saved)
        return saved

    def _prepare_bound(self, sandbox: Sandbox) -> None:
        self._context.stores.places.make_sandbox(sandbox.id)
        os.close(roots.open_directory(sandbox.directory or ""))

    def start(self, sandbox: Sandbox, generation: int) -> None:
        """Implements ``Executions.start``; without a daemon it is a proof that the sandbox starts."""
        instances = self._context.instances
        with _errors("start the sandbox"):
            self._bring_back(sandbox.id, generation)
            with instances.live(
                sandbox.id, generation, lambda: launch.start_generation(self._context, sandbox, generation)
            ) as instance:
                if not instance.alive():
                    raise FluxError(
                        Code.UNAVAILABLE, f"cannot start the sandbox {sandbox.id}: its init ended at once; try again"
                    )

    def discard(self, sandbox_id: str, generation: int) -> None:
        """Implements ``Executions.discard``."""
        with _errors("undo the sandbox's start"):
            self._end_instance(sandbox_id, generation)
            self._context.stores.places.remove_generation(sandbox_id, generation)

    def alive(self, sandbox: Sandbox, generation: int) -> bool:
        """Implements ``Executions.alive``: it goes on wherever its tree is, with its processes or without."""
        with _errors("look at the sandbox"):
            if sandbox.directory is not None:
                return os.path.isdir(sandbox.directory)
            self._bring_back(sandbox.id, generation)
            return os.path.isdir(saving.upper(self._context, sandbox.id, generation))

    def quiesce(self, sandbox: Sandbox, generation: int) -> None:
        """Implements ``Executions.quiesce``."""
        key = (sandbox.id, generation)
        with self._lock:
            if key in self._quiet:
                return
        with _errors("hold the sandbox still"):
            claim = self._context.locks.take_root(roots.own_extent(self._context, sandbox), exclusive=True)
            try:
                instance = self._context.instances.settled(sandbox.id, generation)
                if instance is not None:
                    instance.freeze()
            except BaseException:
                self._context.locks.give_root(claim)
                raise
        with self._lock:
            self._quiet[key] = _Quiet(claim, instance)

    def resume(self, sandbox: Sandbox, generation: int) -> None:
        """Implements ``Executions.resume``."""
        with _errors("let the sandbox run on"):
            self._bring_back(sandbox.id, generation)
            quiet = self._loose(sandbox.id, generation)
            if quiet is not None and quiet.instance is not None:
                quiet.instance.thaw()

    def _loose(self, sandbox_id: str, generation: int) -> _Quiet | None:
        """Let others at a tree again."""
        with self._lock:
            quiet = self._quiet.pop((sandbox_id, generation), None)
        if quiet is not None:
            self._context.locks.give_root(quiet.claim)
        return quiet

    def _bring_back(self, sandbox_id: str, generation: int) -> None:
        saving.bring_back(self._context, sandbox_id, generation)

    def capture(
        self, sandbox: Sandbox, generation: int, parent: ArtifactReference | None, *, created_at: float, snapshot: bool
    ) -> Made:
        """Implements ``Executions.capture``."""
        with _errors("save the sandbox"):
            if sandbox.layout == "bound":
                saved = saving.Saved(layers=(), size=0, stored=0)
            elif snapshot:
                saved = saving.copy_layer(self._context, sandbox, generation)
            else:
                saved = saving.move_layer(self._context, sandbox, generation)
            reference = self._context.layers.write_artifact(
                Artifact(
                    sandbox_id=sandbox.id,
                    generation=generation,
                    kind="snapshot" if snapshot else "suspend",
                    substrate=sandbox.kind,
                    layers=list(saved.layers),
                    created_at=created_at,
                    size=saved.size,
                    parent=None if parent is None else parent.id,
                    template=sandbox.template,
                    built_in=sandbox.built_in,
                    bound=sandbox.layout == "bound",
                )
            )
        return Made(reference=reference, size=saved.size, stored=saved.stored, layers=saved.layers)

    def end(self, sandbox: Sandbox, generation: int) -> None:
        """Implements ``Executions.end``."""
        with _errors("end the sandbox"):
            self._end_instance(sandbox.id, generation)
            if sandbox.layout == "managed":
                self._context.stores.places.remove_generation(sandbox.id, generation)

    def kill(self, sandbox: Sandbox, generation: int) -> None:
        """Implements ``Executions.kill``: the files of what was never saved stay, as nothing stands for them."""
        with _errors("end the sandbox"):
            self._end_instance(sandbox.id, generation)
            if sandbox.layout == "bound":
                return
            if generations.read(self._context, sandbox.id, generation).artifact_id is not None:
                self._context.stores.places.remove_generation(sandbox.id, generation)

    def remove(self, sandbox_id: str) -> None:
        """Implements ``Executions.remove``."""
        with _errors("remove the sandbox's files"):
            self._end_instance(sandbox_id, None)
            self._context.stores.places.remove_sandbox(sandbox_id)

    def _end_instance(self, sandbox_id: str, generation: int | None) -> None:
        """Kill first, then let those go on who wait for the tree: they find it dead, and leave."""
        instances, wait = self._context.instances, self._context.settings.lock_wait_seconds
        instances.stop(sandbox_id, generation)
        with self._lock:
            held = [key for key in self._quiet if key[0] == sandbox_id and generation in (None, key[1])]
        for _, one in held:
            self._loose(sandbox_id, one)
        instances.forget(sandbox_id, generation, wait_seconds=wait)

    def own(self) -> list[OwnExecution]:
        """Implements ``Executions.own``: directories of generations and of sandboxes, and live executions."""
        places, now = self._context.stores.places, self._context.clock.wall()
        ages: dict[tuple[str, int], float] = {}
        for sandbox_id in places.sandboxes():
            for generation, changed in places.generations(sandbox_id) or [(0, places.changed(sandbox_id))]:
                ages[sandbox_id, generation] = max(now - changed, 0.0)
        for sandbox_id, generation, age in self._context.instances.ages():
            ages[sandbox_id, generation] = max(age, ages.get((sandbox_id, generation), 0.0))
        return [
            OwnExecution(sandbox_id=sandbox_id, generation=generation, age_seconds=age)
            for (sandbox_id, generation), age in sorted(ages.items())
        ]


@contextmanager
def _errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os(error, action) from error
