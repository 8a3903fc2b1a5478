"""What the node manager's operations share: the store, the ports, the time, and who works on what."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.fence import Fence, NodeRow, Reason, Refusal, refused
from flux.core.node import ArtifactReference
from flux.core.route import Execution, Route
from flux.core.sandbox import Sandbox
from flux.engine.node.desk import Desk
from flux.ports.artifacts import Artifacts
from flux.ports.clock import Clock
from flux.ports.executions import Executions
from flux.ports.observer import Observer, Unobserved
from flux.store import artifact_rows, fences, node_identity, sandboxes
from flux.store.database import Database, Moment, Transaction

_ID_BYTES = 16
_SECRET_BYTES = 32


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one node works. Times in seconds, sizes in bytes.

    ``uploads``: there is an object store. ``evict_idle_seconds``: rows at rest that are idle for longer may be evicted.
    ``disk_free_least``: below this the node evicts what was used least recently. ``orphan_age_seconds``: younger
    resources without a row are left alone. ``address``: where the data plane listens.
    ``upload_retry_seconds`` and ``upload_retry_most_seconds``: the first and the longest pause between tries.
    """

    uploads: bool = True
    evict_idle_seconds: float = 86400.0
    disk_free_least: int = 0
    orphan_age_seconds: float = 60.0
    upload_retry_seconds: float = 1.0
    upload_retry_most_seconds: float = 300.0
    address: str = ""
    kinds: tuple[str, ...] = ()
    version: str = ""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The state directory's file system, in bytes."""

    total: int
    free: int


class Node:
    """One node's surroundings; opening it makes this the one manager that may write to the store.

    Args:
        database: the node's store.
        executions: what runs here.
        artifacts: what is saved here.
        clock: the time.
        settings: how to work.
        disk: tells how full the disk is.
        destroyed: puts an end to what others keep for a sandbox that is being destroyed; repeated after a failure.
        chance: gives random bytes.
        desk: who works on what.
        observer: hears of refusals by reason (``fence.REASON``), of uploads (``upload.OUTCOME``, ``uploaded_bytes``).
    """

    def __init__(
        self,
        database: Database,
        executions: Executions,
        artifacts: Artifacts,
        clock: Clock,
        settings: NodeSettings,
        *,
        disk: Callable[[], Disk] = lambda: Disk(total=0, free=0),
        destroyed: Callable[[Sandbox], None] = lambda _: None,
        chance: Callable[[int], bytes] = os.urandom,
        desk: Desk | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.database = database
        self.executions = executions
        self.artifacts = artifacts
        self.clock = clock
        self.settings = settings
        self.disk = disk
        self.destroyed = destroyed
        self.desk = desk or Desk()
        self.observer = observer or Unobserved()
        self._owner = chance(_ID_BYTES).hex()
        with database.transaction() as tx:
            self._identity = node_identity.adopt(tx, self._owner, _fresh(chance))

    @property
    def store_id(self) -> str:
        """The id of this node's store: a reinstalled node is another node (§2)."""
        return self._identity.node_store_id

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Open a writing transaction; ``fenced`` if another manager has opened the store since."""
        with self.database.transaction() as tx:
            node_identity.check(tx, self._owner)
            yield tx
        self.desk.changed()

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that sees one state of the store and changes nothing."""
        with self.database.reading() as tx:
            yield tx

    def moment(self) -> Moment:
        """Return now on every clock."""
        return Moment(wall=self.clock.wall(), boot_id=self.clock.boot_id(), boot_ns=self.clock.boot_ns())

    def check_store(self, node_store_id: str, sandbox_id: str, action: str, about: Route | Execution | None) -> None:
        """Refuse a call that was meant for another store (§2). Raises ``fenced`` with the reason ``OtherStore``."""
        if node_store_id == self.store_id:
            return
        refusal = Refusal(
            reason=Reason.OTHER_STORE,
            message=f"the call is for the node store {node_store_id[:40]}, and this is {self.store_id}; "
            "the node was reinstalled or its address has changed",
        )
        with self.reading() as tx:
            fence = fences.find(tx, sandbox_id)
        raise self.refusal(refusal, sandbox_id, action, about, fence)

    def refusal(
        self, refusal: Refusal, sandbox_id: str, action: str, about: Route | Execution | None, fence: Fence
    ) -> FluxError:
        """Return the error that carries a refusal, signed by this store (§5)."""
        self.observer.count(f"fence.{refusal.reason.value}")
        generation = None if about is None else about.generation
        self.observer.note(
            "refused", sandbox=sandbox_id, action=action, generation=generation, reason=refusal.reason.value
        )
        return refused(refusal, sandbox_id, action, node_store_id=self.store_id, route=about, fence=fence)

    def credential(self, sandbox_id: str, route: Route) -> str:
        """Return what opens the data plane of one execution; the same for every repetition of its attempt."""
        text = f"{sandbox_id}\0{route.generation}\0{route.attempt_id}\0{route.pod_uid}"
        return "fluxg_" + hmac.new(self._identity.secret, text.encode(), hashlib.sha256).hexdigest()

    def is_abandoned(self, row: NodeRow) -> bool:
        """Tell whether a row in flight has nobody who works on it; asked inside a transaction."""
        return not self.desk.is_held(row.sandbox_id)


def _fresh(chance: Callable[[int], bytes]) -> node_identity.Identity:
    return node_identity.Identity(node_store_id=chance(_ID_BYTES).hex(), secret=chance(_SECRET_BYTES))


def record_of(tx: Transaction, sandbox_id: str) -> Sandbox:
    """Return the record of a sandbox that has a row. Raises ``internal`` if it has none."""
    found = sandboxes.record(tx, sandbox_id)
    if found is None:
        raise FluxError(Code.INTERNAL, f"cannot work on the sandbox {sandbox_id}: its row has gone; ask again")
    return found


def reference_of(tx: Transaction, artifact_id: str | None) -> ArtifactReference | None:
    """Return an artifact by id and digest, ``None`` for none."""
    return None if artifact_id is None else artifact_rows.reference(tx, artifact_id)


def digest_of(credential: str) -> str:
    """Return what the row keeps of a credential."""
    return hashlib.sha256(credential.encode()).hexdigest()
