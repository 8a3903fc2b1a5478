"""A Flux with failpoints for the public SDK's tests, and what they cannot see or do: ``python -m tests.sdk.beside``.

The SDK's interpreter has nothing of Flux. It starts this with Flux's own, in another process, and asks it things in
lines of JSON: ``{"call": NAME, "arguments": {…}}``, answered by ``{"result": …}`` or ``{"error": TRACEBACK}``. What it
asserts it asserts here, by the same functions as the scenarios over REST and gRPC.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec

from flux.core.fence import Teardown
from flux.core.node import Activate, ArtifactReference
from flux.core.route import Execution, Route
from tests.cases import life
from tests.cases.disks import missing, mounted
from tests.scenarios.daemons import Platform, platform, until
from tests.scenarios.inside import left, published
from tests.scenarios.test_generations import Story, is_late, is_refusal, supersedes


class Tale(Story):
    """A sandbox that the SDK created, wrote to and paused; what the scenarios know of it."""

    def __init__(self, flux: Platform, sandbox: str, before: set[str]) -> None:
        self.platform, self.rest, self.id, self.before = flux, flux.rest, sandbox, before
        self.node, self.store = flux.client(), flux.node_store
        until(lambda: self.rest.get(sandbox)["artifact_durable"], "its artifact is in the object store")
        self.first = Execution(generation=1, pod_uid=str(self.row["pod_uid"]))
        [only] = self.store.artifacts(sandbox)
        self.original = ArtifactReference(id=only["id"], digest=only["digest"], durable=True)
        self.request: Activate | None = None


class Beside:
    """What the SDK's tests may ask. Every argument and answer is a value of JSON."""

    def __init__(self, flux: Platform) -> None:
        self.flux = flux
        self._tales: dict[str, Tale] = {}
        self._clock = ExitStack()
        self._whole: dict[Path, bytes] = {}
        self._before: set[str] = set()

    def about(self) -> dict[str, str]:
        """Say where it listens and where its control plane's state is."""
        return {"url": self.flux.control.url, "state": str(self.flux.control.state)}

    # ---- failpoints, deaths, time

    def arm(self, faults: list[str], *, control: bool = False) -> None:
        (self.flux.control if control else self.flux.node).faults.arm(*faults)

    def replace(self, faults: list[str], *, control: bool = False) -> None:
        (self.flux.control if control else self.flux.node).faults.replace(*faults)

    def clear(self) -> None:
        self.flux.control.faults.clear()
        self.flux.node.faults.clear()

    def reached(self, point: str, *, control: bool = False) -> int:
        return (self.flux.control if control else self.flux.node).faults.reached(point)

    def passes(self, point: str, more_than: int, *, control: bool = False) -> None:
        """Wait until a point was reached once more."""
        until(lambda: self.reached(point, control=control) > more_than, f"{point} is reached")

    def died(self) -> int:
        """Wait for the node's death by a failpoint; return its exit code."""
        return self.flux.node.ended()

    def kill(self) -> None:
        self.flux.node.kill()

    def restart(self) -> str:
        """Start again what died; return where it listens."""
        self.flux.restart()
        return self.flux.control.url

    def set_clock(self, seconds: float) -> None:
        """Set the node's wall clock beside the machine's; 0: as it is."""
        self._clock.close()
        if seconds:
            self._clock.enter_context(self.flux.node.later(seconds))

    # ---- what is known

    def state_of(self, sandbox: str) -> dict[str, Any]:
        found = self.flux.rest.get(sandbox)
        return {name: found[name] for name in ("state", "generation", "artifact_id", "artifact_durable", "woke_from")}

    def recorded(self, sandbox: str) -> str:
        """Return the state of the control plane's row, of a tombstone too."""
        state: str = self.flux.control_store.row(sandbox)["state"]
        return state

    def recorded_as(self, sandbox: str, states: list[str]) -> None:
        until(lambda: self.recorded(sandbox) in states, f"its row says one of {states}")

    def artifacts(self, sandbox: str) -> list[str]:
        return [row["id"] for row in self.flux.node_store.artifacts(sandbox)]

    def published(self) -> list[str]:
        return published(self.flux.objects)

    def is_gone(self, sandbox: str) -> None:
        life.is_gone(self.flux, sandbox)

    def nothing_left(self, sandbox: str) -> None:
        until(lambda: left(self.flux.node.state, sandbox, pid=self.flux.node.process.pid) == {}, "nothing is left")

    def one_init(self, sandbox: str) -> None:
        life.one_init(sandbox)

    def durable(self, sandbox: str) -> None:
        until(lambda: self.flux.rest.get(sandbox)["artifact_durable"], "its artifact is in the object store")

    def is_not_evicted(self, sandbox: str) -> None:
        life.is_not_evicted(self.flux, sandbox)

    def collect(self) -> int:
        deleted: int = self.flux.rest.collect()["deleted"]
        return deleted

    def evict(self, sandbox: str) -> None:
        life.evict(self.flux, sandbox, self.flux.rest.get(sandbox)["artifact_id"])

    # ---- damage

    def remember(self) -> None:
        """Take note of what the object store has, so that what comes after is told from it."""
        self._before = set(published(self.flux.objects)) | {str(path) for path in self._packs()}

    def flip_pack(self) -> None:
        """Flip a bit of the only pack that came since ``remember``."""
        [pack] = [path for path in self._packs() if str(path) not in self._before]
        self._whole[pack] = pack.read_bytes()
        life.flipped(pack)

    def mend(self) -> None:
        for path, content in self._whole.items():
            path.write_bytes(content)
        self._whole.clear()

    def spoil_manifest(self, sandbox: str, damage: str) -> None:
        """Damage the local manifest of a sandbox's artifact: ``flipped``, ``missing`` or ``garbage``."""
        artifact = self.flux.rest.get(sandbox)["artifact_id"]
        manifest = self.flux.node.state / "artifacts" / f"{artifact}.json"
        if damage == "flipped":
            life.flipped(manifest)
        elif damage == "missing":
            manifest.unlink()
        else:
            manifest.write_bytes(b"\xff\x00{")

    def _packs(self) -> list[Path]:
        return [path for path in (self.flux.objects / "packs").glob("*") if path.is_file()]

    # ---- the scenarios of a failed first activation

    def tell(self, sandbox: str) -> None:
        """Take over a sandbox that was paused for the first time."""
        self._tales[sandbox] = Tale(self.flux, sandbox, self._before)

    def fail_second(self, sandbox: str, *, hold: bool) -> None:
        """Let generation 2 fail its prepare; ``hold``: and keep generation 3 back until ``release``."""
        if hold:
            self.flux.control.faults.arm("wake.answered * 1 hold")
        self.flux.node.faults.arm(f"activate.prepare {sandbox} 1 error")

    def second_failed(self, sandbox: str, more_than: int) -> None:
        """Wait until generation 2 was answered, and see that it is rolled back."""
        tale = self._tales[sandbox]
        self.passes("wake.answered", more_than, control=True)
        tale.request = self.flux.control_store.request(sandbox)
        assert tale.request.route.generation == 2
        tale.is_rolled_back(tale.request)

    def evict_first(self, sandbox: str) -> None:
        self._tales[sandbox].evict()

    def same_attempt(self, sandbox: str, *, evicted: bool) -> None:
        tale, request = self._told(sandbox)
        is_late(tale, request, evicted=evicted)

    def new_attempt(self, sandbox: str, *, evicted: bool) -> None:
        tale, request = self._told(sandbox)
        other = msgspec.structs.replace(request, route=Route(generation=2, attempt_id="other", pod_uid="otherpod"))
        error = tale.refused(other)
        if evicted:
            said = "generation 2 was retired on this node"
            is_refusal(error, "RetiredGeneration", grpc.StatusCode.FAILED_PRECONDITION, said)
        else:
            is_refusal(error, "RouteHeld", grpc.StatusCode.ABORTED, "generation 2 was claimed by attempt")

    def tear_down(self, sandbox: str, *, evicted: bool) -> None:
        tale, request = self._told(sandbox)
        supersedes(tale, request, evicted=evicted)

    def third_prepares(self, sandbox: str) -> None:
        """Let generation 3 come as far as its prepare, and hold it there."""
        node = self.flux.node.faults
        held = node.reached("activate.prepare")
        node.replace(f"activate.prepare {sandbox} 1 hold")
        if self.flux.split:
            self.flux.control.faults.clear()
        until(lambda: node.reached("activate.prepare") > held, "generation 3 prepares")
        row = self._tales[sandbox].row
        assert (row["state"], row["generation"]) == ("activating", 3)

    def late_cold_starts(self, sandbox: str, *, evicted: bool) -> None:
        """Send generation 2 again, and as a cold start; and tear it down: generation 3 is not touched."""
        tale, request = self._told(sandbox)
        cold = msgspec.structs.replace(request, artifact=None)
        for late in (request, cold, msgspec.structs.replace(cold, create=True)):
            error = tale.refused(late)
            reason = "RetiredGeneration" if evicted else "StaleGeneration"
            is_refusal(error, reason, grpc.StatusCode.FAILED_PRECONDITION, "generation 2")
            assert error.details["floor"] == 3
        torn = tale.tear_down(Execution(generation=2, pod_uid=request.route.pod_uid))
        assert (torn.outcome, torn.new_job) == (Teardown.NEWER, False)

    def ends_well(self, sandbox: str, generation: int) -> None:
        """Assert one artifact, one job, and the original restored."""
        tale = self._tales[sandbox]
        woken = self.flux.rest.get(sandbox)
        assert (woken["state"], woken["generation"]) == ("running", generation)
        assert (woken["artifact_id"], woken["woke_from"]) == (tale.original.id, "artifact")
        tale.has_one_artifact()
        assert (tale.row["state"], tale.row["generation"]) == ("running", generation)
        assert tale.row["artifact_id"] == tale.original.id
        if generation == 2:
            assert tale.store.rollback(sandbox) is None

    def late_at_the_end(self, sandbox: str) -> None:
        tale, request = self._told(sandbox)
        error = tale.refused(request)
        is_refusal(error, "RetiredGeneration", grpc.StatusCode.FAILED_PRECONDITION, "generation 2 was retired")

    def _told(self, sandbox: str) -> tuple[Tale, Activate]:
        tale = self._tales[sandbox]
        assert tale.request is not None
        return tale, tale.request


def serve(beside: Beside) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": getattr(beside, asked["call"])(**asked["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Run a Flux on a disk of its own, ``split`` or with every role, until the input ends."""
    with ExitStack() as held:
        if missing("ext4") is None:
            disk = held.enter_context(mounted("ext4"))
        else:
            disk = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="flux-beside-")))
        flux = held.enter_context(platform(disk / "platform", split="split" in sys.argv[1:]))
        serve(Beside(flux))


if __name__ == "__main__":
    main()
