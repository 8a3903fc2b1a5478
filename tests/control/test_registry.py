"""The registry, in SQLite and in PostgreSQL: the same promises of both (spec: generations, §2, §9)."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState, NodeState
from flux.core.node import ArtifactReport
from flux.core.sandbox import Sandbox
from flux.store.database import Moment
from flux.store.registry import artifacts, idempotency, nodes, sandboxes, starts
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import MIGRATIONS, Duplicate, RegistryDatabase, SqliteRegistry, open_registry
from flux.store.registry.sandboxes import SandboxRow
from flux.testing.clock import FakeClock
from tests.control.conftest import Worlds
from tests.control.kit import described


def row(sandbox: str, name: str | None = None, state: ControlState = ControlState.PAUSED) -> SandboxRow:
    record = Sandbox(
        id=sandbox, kind="fake", layout="managed", state=NodeState.CREATED, created_at=1.0, root_device=0,
        root_inode=0, name=name, metadata={"nul": "a\0b", "wide": "ü\U0001f600"},
    )  # fmt: skip
    return SandboxRow(id=sandbox, name=name, owner="ky1", state=state, record=record)


def insert(registry: RegistryDatabase, *rows: SandboxRow) -> None:
    with registry.transaction() as tx:
        for each in rows:
            sandboxes.insert(tx, each)


def test_a_row_comes_back_as_it_was_written(registry: RegistryDatabase) -> None:
    full = msgspec.structs.replace(
        row("sb1", "a"), generation=2**63 - 1, attempt_id="a1", pod_uid="p1", node="n1", node_store_id="s1",
        artifact_id="x", artifact_digest="y", artifact_durable=True, artifact_generation=5, woke_from="artifact",
        stopped=True, lived=True, ttl_seconds=60, expires_at=1234.5, boot_id="b", expires_boot_ns=2**62, failure="f",
    )  # fmt: skip
    insert(registry, full)
    with registry.reading() as tx:
        found = sandboxes.find(tx, "a")
    assert found is not None
    assert msgspec.structs.replace(found, number=0) == full
    assert found.number > 0


def test_a_write_bumps_the_version(registry: RegistryDatabase) -> None:
    insert(registry, row("sb1"))
    with registry.transaction() as tx:
        held = sandboxes.lock(tx, "sb1")
        assert held is not None
        assert sandboxes.write(tx, held, generation=3).version == 1
    with registry.reading() as tx:
        found = sandboxes.read(tx, "sb1")
    assert found is not None
    assert (found.version, found.generation) == (1, 3)


def test_what_a_block_raises_rolls_it_back(registry: RegistryDatabase) -> None:
    with pytest.raises(RuntimeError, match="stop"), registry.transaction() as tx:
        sandboxes.insert(tx, row("sb1"))
        raise RuntimeError("stop")
    with registry.reading() as tx:
        assert sandboxes.read(tx, "sb1") is None


def test_names_are_one_living_sandboxs(registry: RegistryDatabase) -> None:
    insert(registry, row("sb1", "a"), row("sb2"), row("sb3"))
    with pytest.raises(FluxError) as taken:
        insert(registry, row("sb4", "a"))
    assert taken.value.code is Code.ALREADY_EXISTS
    with registry.transaction() as tx:
        held = sandboxes.lock(tx, "sb1")
        assert held is not None
        sandboxes.write(tx, held, name=None)
    insert(registry, row("sb4", "a"))


@pytest.mark.parametrize("reference", ["", "\udcff", "a\0", "'; DROP TABLE sandboxes; --", "ü"])
def test_a_reference_that_names_nothing_finds_nothing(registry: RegistryDatabase, reference: str) -> None:
    insert(registry, row("sb1", "a"))
    with registry.reading() as tx:
        assert sandboxes.find(tx, reference) is None
        assert artifacts.find(tx, reference) is None
        assert nodes.find(tx, reference) is None


def test_time_outs_are_measured_on_the_boot_clock_of_their_boot(registry: RegistryDatabase) -> None:
    def until(sandbox: str, boot: str, boot_ns: int, wall: float) -> SandboxRow:
        return msgspec.structs.replace(
            row(sandbox, state=ControlState.RUNNING), expires_at=wall, boot_id=boot, expires_boot_ns=boot_ns
        )

    insert(registry, until("sb1", "b1", 10, 9e9), until("sb2", "b1", 11, 0.0), until("sb3", "b0", 99, 5.0))
    insert(registry, row("sb4", state=ControlState.RUNNING), until("sb5", "b0", 0, 6.0))
    with registry.reading() as tx:
        due = sandboxes.due(tx, Moment(wall=5.0, boot_id="b1", boot_ns=10))
    assert [found.id for found in due] == ["sb1", "sb3"]


def test_idempotency_keys_are_first_come(registry: RegistryDatabase) -> None:
    insert(registry, row("sb1"), row("sb2"))
    with registry.transaction() as tx:
        assert idempotency.insert(tx, "", "k", "d1", "sb1")
        assert not idempotency.insert(tx, "", "k", "d2", "sb2")
        assert idempotency.insert(tx, "other", "k", "d2", "sb2")
    with registry.reading() as tx:
        held = idempotency.find(tx, "", "k")
    assert held is not None
    assert (held.request_sha256, held.sandbox_id) == ("d1", "sb1")
    with registry.transaction() as tx:
        sandboxes.delete(tx, "sb1")
        assert idempotency.find(tx, "", "k") is None
        idempotency.delete_before(tx, tx.now + 1)
        assert idempotency.find(tx, "other", "k") is None


def test_starts_outlive_everything_but_their_sandbox(registry: RegistryDatabase) -> None:
    insert(registry, row("sb1"))
    with registry.transaction() as tx:
        for _ in range(2):
            starts.record(tx, "sb1", "s1", "n1")
        starts.record(tx, "sb1", "s2", "n2")
        starts.acknowledge(tx, "sb1", "s1")
        starts.record(tx, "sb1", "s1", "n1")
        assert [(start.node, start.acknowledged) for start in starts.of(tx, "sb1")] == [("n1", True), ("n2", False)]
        assert [found.id for found in sandboxes.started_at(tx, "s2")] == ["sb1"]
        sandboxes.delete(tx, "sb1")
        assert starts.of(tx, "sb1") == []


def test_a_start_of_nothing_is_refused(registry: RegistryDatabase) -> None:
    with pytest.raises(Duplicate), registry.transaction() as tx:
        starts.record(tx, "sb9", "s1", "n1")


def test_an_artifact_becomes_durable_once(registry: RegistryDatabase) -> None:
    made = ArtifactRow(id="a1", digest="d1", sandbox_id="sb1", generation=1, kind="suspend", created_at=1.0)
    report = ArtifactReport(
        id="a1", sandbox_id="sb1", generation=1, digest="d1", state="durable", kind="suspend", size=10, stored=5,
        local=True, created_at=1.0,
    )  # fmt: skip
    resting = msgspec.structs.replace(row("sb1"), artifact_id="a1", artifact_digest="d1")
    insert(registry, resting)
    with registry.transaction() as tx:
        artifacts.add(tx, made)
        artifacts.add(tx, msgspec.structs.replace(made, digest="other"))
        assert artifacts.report(tx, report)
        assert not artifacts.report(tx, report)
        assert not artifacts.report(tx, msgspec.structs.replace(report, state="local"))
        assert sandboxes.made_durable(tx, "a1") == 1
        assert sandboxes.made_durable(tx, "a1") == 0
        found = artifacts.find(tx, "a1")
    assert found == msgspec.structs.replace(made, durable=True, size=10, stored=5)


def test_a_snapshots_name_means_the_latest(registry: RegistryDatabase) -> None:
    def made(name: str, at: float) -> ArtifactRow:
        return ArtifactRow(id=name, digest="d", sandbox_id="sb1", generation=1, kind="suspend", created_at=at)

    with registry.transaction() as tx:
        for each in (made("a1", 1.0), made("a2", 2.0), made("a3", 3.0)):
            artifacts.add(tx, each)
        artifacts.keep(tx, "a1", "s")
        artifacts.keep(tx, "a2", "s")
        found = artifacts.find(tx, "s")
        assert found is not None
        assert found.id == "a2"
        artifacts.release(tx, "a2")
        found = artifacts.find(tx, "s")
        assert found is not None
        assert found.id == "a1"
        assert [each.id for each in artifacts.of_sandbox(tx, "sb1")] == ["a3", "a2", "a1"]


def test_nodes_are_known_by_name_and_by_store(registry: RegistryDatabase) -> None:
    with registry.transaction() as tx:
        nodes.insert(tx, "n1", "host:1", described("s1"))
    for name, store in (("n1", "s2"), ("n2", "s1")):
        with pytest.raises(FluxError) as taken, registry.transaction() as tx:
            nodes.insert(tx, name, "host:2", described(store))
        assert taken.value.code is Code.ALREADY_EXISTS
    with registry.transaction() as tx:
        nodes.unreachable(tx, "n1")
        nodes.seen(tx, "n1", described("s2", ("other",)))
        held = nodes.find(tx, "n1")
        assert held is not None
        assert (held.reachable, held.kinds) == (False, ("fake",)), "another store is another node"
        nodes.seen(tx, "n1", described("s1", ("other",)))
        held = nodes.find(tx, "n1")
        assert held is not None
        assert (held.reachable, held.kinds) == (True, ("other",))


def test_two_who_mint_at_once_never_mint_the_same(registry: RegistryDatabase) -> None:
    insert(registry, row("sb1"))
    minted: list[int] = []

    def mint() -> None:
        for _ in range(25):
            with registry.transaction() as tx:
                held = sandboxes.lock(tx, "sb1")
                assert held is not None
                minted.append(sandboxes.write(tx, held, generation=held.generation + 1).generation)

    threads = [threading.Thread(target=mint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(minted) == list(range(1, 101))


def test_a_newer_registry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    SqliteRegistry(str(path), FakeClock()).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FluxError) as refused:
        SqliteRegistry(str(path), FakeClock())
    assert refused.value.code is Code.INVALID


def test_a_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(FluxError) as refused:
        open_registry(str(path), FakeClock())
    assert refused.value.code is Code.INTERNAL


def test_a_newer_schema_in_postgres_is_refused(postgres_url: str) -> None:
    import psycopg

    open_registry(postgres_url, FakeClock()).close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO registry_schema (version) VALUES (99)")
    with pytest.raises(FluxError) as refused:
        open_registry(postgres_url, FakeClock())
    assert refused.value.code is Code.INVALID


def test_a_postgres_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(FluxError) as refused:
        open_registry(f"postgresql://flux@/none?host={tmp_path}", FakeClock())
    assert refused.value.code is Code.UNAVAILABLE


def test_a_connection_that_was_cut_is_replaced(postgres_url: str) -> None:
    import psycopg

    registry = open_registry(postgres_url, FakeClock())
    insert(registry, row("sb1"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with registry.transaction() as tx:
        assert sandboxes.read(tx, "sb1") is not None
    with pytest.raises(FluxError) as cut, registry.transaction() as tx:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        sandboxes.delete(tx, "sb1")
    assert cut.value.code is Code.UNAVAILABLE
    with registry.reading() as tx:
        assert sandboxes.read(tx, "sb1") is not None
    registry.close()


def test_every_column_is_in_the_struct_and_the_reverse() -> None:
    connection = sqlite3.connect(":memory:")
    for script in sorted(MIGRATIONS.glob("*.sql")):
        connection.executescript(script.read_text())
    for table, struct in (("sandboxes", SandboxRow), ("artifacts", ArtifactRow)):
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        assert sorted(columns) == sorted(struct.__struct_fields__)
    connection.close()


def test_the_same_life_on_either_database(registry: RegistryDatabase, worlds: Worlds, tmp_path: Path) -> None:
    from tests.control.kit import World

    world = World(tmp_path, registry, "n1", "n2")
    sandbox = world.create(name="a", key="k", ttl_seconds=60).sandbox.id
    home = world.row(sandbox).node or ""
    world.places[home].machine.write(sandbox, "f", "1")
    world.pause("a")
    world.uploaded(home)
    world.places[home].machine.fail("prepare")
    woken = world.connect("a")
    assert (woken.generation, woken.node != home) == (3, True)
    world.snapshot("a", "s")
    (copy,) = world.fork("a", name="b")
    world.clock.advance(61)
    swept = world.sweep()
    assert set(swept.timed_out) == {sandbox, copy.sandbox.id}
    assert not world.exists("a")
    for place in world.places.values():
        assert not place.machine.running
        place.close()
