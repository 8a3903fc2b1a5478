"""Executions and artifacts in memory: a machine whose disk survives the death of the manager that works on it.

``FakeMachine`` is the disk and the processes, ``FakeRemote`` the object store behind one or several machines. A new
``FakeExecutions`` on the same machine is what a restarted manager finds. A test writes into an execution's tree, looks
which artifact a generation was restored from, and makes single calls fail before or after their effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from flux.core import artifact as format
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.ports.artifacts import Progress
from flux.ports.executions import Made, OwnExecution
from flux.testing.clock import FakeClock

KIND = "fake"
_ID_LENGTH = 32


class Tree(msgspec.Struct, kw_only=True):
    """One generation's files. ``restored_from``: the artifact that they were laid over, ``None`` for a cold start."""

    files: dict[str, str]
    restored_from: str | None
    made_at: float


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact with its content. ``broken``: a byte of it was flipped."""

    reference: ArtifactReference
    files: dict[str, str]
    parent: str | None
    broken: bool = False


class FakeRemote:
    """An object store. ``down``: what every call raises."""

    def __init__(self) -> None:
        self.saved: dict[str, Saved] = {}
        self.down: FluxError | None = None

    def check(self) -> None:
        """Raise what is wrong with the store."""
        if self.down is not None:
            raise self.down


class _Failure(msgspec.Struct, kw_only=True):
    error: Exception
    after: bool
    times: int
    sandbox_id: str | None


class FakeMachine:
    """Disk and processes of one node.

    Args:
        clock: gives resources their age.
        remote: the object store.
        survives: kinds whose executions go on in place when their processes died.
    """

    def __init__(self, clock: FakeClock, remote: FakeRemote | None = None, survives: Iterable[str] = (KIND,)) -> None:
        self.clock = clock
        self.remote = remote or FakeRemote()
        self.survives = frozenset(survives)
        self.trees: dict[tuple[str, int], Tree] = {}
        self.running: set[tuple[str, int]] = set()
        self.frozen: set[tuple[str, int]] = set()
        self.saved: dict[str, Saved] = {}
        self.log: list[tuple[str, str, int, str | None]] = []
        self.room = True
        self.free = 1 << 40
        self._failures: dict[str, _Failure] = {}

    # What a test does

    def fail(
        self,
        call: str,
        error: Exception | None = None,
        *,
        after: bool = False,
        times: int = 1,
        sandbox: str | None = None,
    ) -> None:
        """Make the next ``times`` calls of a name ("prepare", "upload") fail, before or after their effect.

        ``sandbox``: only those for this sandbox.
        """
        refusal = error or FluxError(Code.UNAVAILABLE, f"cannot {call}: the test says so")
        self._failures[call] = _Failure(error=refusal, after=after, times=times, sandbox_id=sandbox)

    def write(self, sandbox_id: str, name: str, text: str) -> None:
        """Write a file into the one running execution of a sandbox, durably."""
        (generation,) = self.generations_running(sandbox_id)
        self.trees[sandbox_id, generation].files[name] = text

    def files(self, sandbox_id: str) -> dict[str, str]:
        """Return the files of the one running execution of a sandbox."""
        (generation,) = self.generations_running(sandbox_id)
        return dict(self.trees[sandbox_id, generation].files)

    def generations_running(self, sandbox_id: str) -> list[int]:
        """Return the generations of a sandbox that can write to its state."""
        return sorted(generation for held, generation in self.running if held == sandbox_id)

    def restored_from(self, sandbox_id: str, generation: int) -> str | None:
        """Return which artifact a generation was restored from, the last time that it was."""
        return next(
            artifact
            for call, held, number, artifact in reversed(self.log)
            if (call, held, number) == ("prepare", sandbox_id, generation)
        )

    def die(self, sandbox_id: str, generation: int) -> None:
        """End an execution's processes; its files stay."""
        self.running.discard((sandbox_id, generation))

    def power_cycle(self) -> None:
        """End every process; the disk stays."""
        self.running.clear()
        self.frozen.clear()

    def flip_a_byte(self, artifact_id: str) -> None:
        """Damage the local copy of an artifact."""
        self.saved[artifact_id] = msgspec.structs.replace(self.saved[artifact_id], broken=True)

    # What the fakes do

    def enter(self, call: str, sandbox_id: str) -> None:
        """Fail where a failure before the effect is armed."""
        self._meet(call, sandbox_id, after=False)

    def leave(self, call: str, sandbox_id: str, generation: int = 0, artifact: str | None = None) -> None:
        """Note a call; fail where a failure after the effect is armed."""
        self.log.append((call, sandbox_id, generation, artifact))
        self._meet(call, sandbox_id, after=True)

    def _meet(self, call: str, sandbox_id: str, *, after: bool) -> None:
        failure = self._failures.get(call)
        if failure is None or failure.after is not after or failure.sandbox_id not in (None, sandbox_id):
            return
        failure.times -= 1
        if failure.times <= 0:
            del self._failures[call]
        raise failure.error


class FakeArtifacts:
    """``ports.artifacts.Artifacts`` on a machine."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine

    def upload(self, reference: ArtifactReference, tell: Callable[[Progress], None] = lambda _: None) -> int:
        """Bring an artifact to the object store."""
        machine = self._machine
        machine.enter("upload", reference.id)
        machine.remote.check()
        saved = self._whole(reference)
        sent = 0 if reference.id in machine.remote.saved else _size(saved.files)
        machine.remote.saved.setdefault(reference.id, saved)
        tell(Progress(sent=sent, total=_size(saved.files)))
        machine.leave("upload", reference.id, artifact=reference.id)
        return sent

    def fetch(self, reference: ArtifactReference) -> None:
        """Make an artifact present locally."""
        machine = self._machine
        machine.enter("fetch", reference.id)
        if reference.id not in machine.saved:
            machine.remote.check()
            if reference.id not in machine.remote.saved:
                raise format.missing("artifact", reference.id)
            machine.saved[reference.id] = machine.remote.saved[reference.id]
        self._whole(reference)
        machine.leave("fetch", reference.id, artifact=reference.id)

    def has(self, artifact_id: str) -> bool:
        """Tell whether an artifact is complete on this machine."""
        return artifact_id in self._machine.saved

    def verify(self, reference: ArtifactReference) -> None:
        """Hash every local content."""
        self._whole(reference)

    def keep_only(self, artifact_ids: Iterable[str]) -> int:
        """Remove the local copies of all other artifacts."""
        machine = self._machine
        machine.enter("keep_only", "")
        kept = set(artifact_ids)
        gone = [name for name in machine.saved if name not in kept]
        freed = sum(_size(machine.saved.pop(name).files) for name in gone)
        machine.leave("keep_only", "")
        return freed

    def _whole(self, reference: ArtifactReference) -> Saved:
        saved = self._machine.saved.get(reference.id)
        if saved is None:
            raise format.missing("artifact", reference.id)
        if saved.broken or saved.reference.digest != reference.digest:
            raise format.damaged("artifact", reference.id, "a digest is wrong")
        return saved


class FakeExecutions:
    """``ports.executions.Executions`` on a machine."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine
        self._artifacts = FakeArtifacts(machine)

    def admit(self, sandbox: Sandbox, artifact: ArtifactReference | None) -> None:
        """Make sure that there is room."""
        self.machine.enter("admit", sandbox.id)
        if not self.machine.room:
            raise FluxError(Code.EXHAUSTED, "cannot start the sandbox: the disk is full; free some space")
        self.machine.leave("admit", sandbox.id, artifact=_id(artifact))

    def prepare(self, sandbox: Sandbox, generation: int, artifact: ArtifactReference | None) -> None:
        """Fetch the artifact and lay the generation's tree over it."""
        machine = self.machine
        machine.enter("prepare", sandbox.id)
        files: dict[str, str] = {}
        if artifact is not None:
            self._artifacts.fetch(artifact)
            files = dict(machine.saved[artifact.id].files)
        restored_from = _id(artifact)
        machine.trees[sandbox.id, generation] = Tree(
            files=files, restored_from=restored_from, made_at=machine.clock.wall()
        )
        machine.leave("prepare", sandbox.id, generation, restored_from)

    def start(self, sandbox: Sandbox, generation: int) -> None:
        """Start the prepared execution."""
        machine = self.machine
        machine.enter("start", sandbox.id)
        if (sandbox.id, generation) not in machine.trees:
            raise FluxError(Code.INTERNAL, f"cannot start the sandbox {sandbox.id}: nothing was prepared")
        machine.running.add((sandbox.id, generation))
        machine.leave("start", sandbox.id, generation)

    def discard(self, sandbox_id: str, generation: int) -> None:
        """Undo everything of a generation."""
        machine = self.machine
        machine.enter("discard", sandbox_id)
        self._forget(sandbox_id, generation)
        machine.leave("discard", sandbox_id, generation)

    def alive(self, sandbox: Sandbox, generation: int) -> bool:
        """Tell whether the execution can go on."""
        key = (sandbox.id, generation)
        return key in self.machine.running or (sandbox.kind in self.machine.survives and key in self.machine.trees)

    def quiesce(self, sandbox: Sandbox, generation: int) -> None:
        """Freeze the execution."""
        self.machine.enter("quiesce", sandbox.id)
        self._living(sandbox, generation)
        self.machine.frozen.add((sandbox.id, generation))
        self.machine.leave("quiesce", sandbox.id, generation)

    def resume(self, sandbox: Sandbox, generation: int) -> None:
        """Undo ``quiesce``."""
        self.machine.enter("resume", sandbox.id)
        self.machine.frozen.discard((sandbox.id, generation))
        if self.alive(sandbox, generation):
            self.machine.running.add((sandbox.id, generation))
        self.machine.leave("resume", sandbox.id, generation)

    def capture(
        self, sandbox: Sandbox, generation: int, parent: ArtifactReference | None, *, created_at: float, snapshot: bool
    ) -> Made:
        """Save the quiesced execution as an artifact."""
        machine = self.machine
        machine.enter("capture", sandbox.id)
        if (sandbox.id, generation) not in machine.frozen:
            raise FluxError(Code.INTERNAL, f"cannot save the sandbox {sandbox.id}: it is not frozen")
        files = dict(machine.trees[sandbox.id, generation].files)
        kind: Literal["suspend", "snapshot"] = "snapshot" if snapshot else "suspend"
        layer = format.digest_of(repr(sorted(files.items())).encode())
        manifest = format.Artifact(
            sandbox_id=sandbox.id, generation=generation, kind=kind, substrate=KIND, layers=[layer],
            created_at=created_at, size=_size(files), parent=_id(parent),
        )  # fmt: skip
        digest = format.digest_of(format.encode(manifest))
        reference = ArtifactReference(id=digest[:_ID_LENGTH], digest=digest)
        machine.saved[reference.id] = Saved(reference=reference, files=files, parent=manifest.parent)
        machine.leave("capture", sandbox.id, generation, reference.id)
        return Made(reference=reference, size=manifest.size, stored=manifest.size, layers=(layer,))

    def end(self, sandbox: Sandbox, generation: int) -> None:
        """End a saved execution."""
        self.machine.enter("end", sandbox.id)
        self._forget(sandbox.id, generation)
        self.machine.leave("end", sandbox.id, generation)

    def kill(self, sandbox: Sandbox, generation: int) -> None:
        """End an execution that is not saved."""
        self.machine.enter("kill", sandbox.id)
        self._forget(sandbox.id, generation)
        self.machine.leave("kill", sandbox.id, generation)

    def remove(self, sandbox_id: str) -> None:
        """Remove everything of a sandbox but its artifacts."""
        self.machine.enter("remove", sandbox_id)
        for held, generation in {*self.machine.trees, *self.machine.running}:
            if held == sandbox_id:
                self._forget(held, generation)
        self.machine.leave("remove", sandbox_id)

    def own(self) -> list[OwnExecution]:
        """Return everything that carries the name of an execution."""
        machine = self.machine
        now = machine.clock.wall()
        return [
            OwnExecution(
                sandbox_id=sandbox_id,
                generation=generation,
                age_seconds=now - machine.trees[sandbox_id, generation].made_at
                if (sandbox_id, generation) in machine.trees
                else now,
            )
            for sandbox_id, generation in sorted({*machine.trees, *machine.running})
        ]

    def _living(self, sandbox: Sandbox, generation: int) -> None:
        if not self.alive(sandbox, generation):
            raise FluxError(Code.UNAVAILABLE, f"cannot freeze the sandbox {sandbox.id}: its execution has ended")

    def _forget(self, sandbox_id: str, generation: int) -> None:
        key = (sandbox_id, generation)
        self.machine.running.discard(key)
        self.machine.frozen.discard(key)
        self.machine.trees.pop(key, None)


def _size(files: dict[str, str]) -> int:
    return sum(len(name) + len(text) for name, text in files.items())


def _id(reference: ArtifactReference | None) -> str | None:
    return None if reference is None else reference.id
