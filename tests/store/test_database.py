"""The database: durable settings, whole transactions, migrations that know their place."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.store.database import MIGRATIONS, Database, Moment
from flux.testing.clock import FakeClock


@pytest.fixture
def database(tmp_path: Path, clock: FakeClock) -> Database:
    return Database(str(tmp_path / "flux.db"), clock)


def test_every_commit_is_durable_and_checked(database: Database) -> None:
    with database.reading() as tx:
        assert tx.one("PRAGMA journal_mode") == ("wal",)
        assert tx.one("PRAGMA synchronous") == (2,)
        assert tx.one("PRAGMA foreign_keys") == (1,)
        assert all(
            "STRICT" in sql
            for (sql,) in tx.every(
                "SELECT sql FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%' AND name NOT LIKE 'sqlite_%'"
            )
        )


def test_only_its_owner_may_read_it(tmp_path: Path, database: Database) -> None:
    for name in ("flux.db", "flux.db-wal"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600


def test_a_transaction_has_one_now(database: Database, clock: FakeClock) -> None:
    with database.transaction() as tx:
        first = tx.now
        clock.advance(5)
        assert tx.now == first


def test_what_raises_is_rolled_back(database: Database) -> None:
    with pytest.raises(KeyError), database.transaction() as tx:
        tx.execute("INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES ('k', 'n', 'user', 's', 0)")
        raise KeyError
    with database.transaction() as tx:
        assert tx.one("SELECT count(*) FROM keys") == (0,)


def test_reading_changes_nothing(database: Database) -> None:
    with database.reading() as tx:
        tx.execute("INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES ('k', 'n', 'user', 's', 0)")
    with database.reading() as tx:
        assert tx.one("SELECT count(*) FROM keys") == (0,)


def test_threads_take_turns(database: Database) -> None:
    def add(number: int) -> None:
        for step in range(20):
            with database.transaction() as tx:
                tx.execute(
                    "INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES (?1, ?1, 'user', ?1, 0)",
                    (f"{number}-{step}",),
                )

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as tx:
        assert tx.one("SELECT count(*) FROM keys") == (80,)


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "flux.db"
    Database(str(path), clock).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 999")
    raw.close()
    with pytest.raises(FluxError) as caught:
        Database(str(path), clock)
    assert caught.value.code is Code.INVALID
    assert "newer Flux" in caught.value.message
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (999,)
    raw.close()


def test_migrations_continue_where_a_database_stands(tmp_path: Path, clock: FakeClock) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    path = str(tmp_path / "flux.db")
    first = Database(path, clock, folder)
    assert first.created
    first.close()
    (folder / "9001_more.sql").write_text("CREATE TABLE more (id TEXT PRIMARY KEY) STRICT;\n")
    second = Database(path, clock, folder)
    assert not second.created
    with second.reading() as tx:
        assert tx.one("PRAGMA user_version") == (9001,)
        assert tx.one("SELECT count(*) FROM more") == (0,)
    second.close()


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, clock: FakeClock) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    path = str(tmp_path / "flux.db")
    Database(path, clock, folder).close()
    (folder / "9001_wrong.sql").write_text("CREATE TABLE half (id TEXT) STRICT;\nCREATE TABLE keys (id TEXT) STRICT;\n")
    with pytest.raises(FluxError):
        Database(path, clock, folder)
    raw = sqlite3.connect(path)
    newest = max(int(script.name.split("_")[0]) for script in MIGRATIONS.glob("*.sql"))
    assert raw.execute("PRAGMA user_version").fetchone() == (newest,)
    assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    raw.close()


def test_a_file_that_is_no_database_is_an_error_of_ours(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "flux.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(FluxError) as caught:
        Database(str(path), clock)
    assert caught.value.code is Code.INTERNAL
    assert caught.value.details == {"reason": "DatabaseDamaged"}
    assert path.read_bytes() == b"not a database at all" * 100


def test_a_damaged_page_is_an_error_of_ours(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "flux.db"
    database = Database(str(path), clock)
    with database.transaction() as tx:
        for number in range(2000):
            tx.execute(
                "INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES (?1, ?1, 'user', ?1, 0)",
                (f"key{number}" * 5,),
            )
    database.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(bytes(content))
    with pytest.raises(FluxError) as caught:
        Database(str(path), clock).close()
    assert caught.value.code is Code.INTERNAL
    assert "put a copy of the whole state directory in its place" in caught.value.message


def test_a_database_that_another_program_locks_is_unavailable(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.store.database.BUSY_SECONDS", 0.01)
    database = Database(str(tmp_path / "flux.db"), clock)
    other = sqlite3.connect(tmp_path / "flux.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(FluxError) as caught, database.transaction():
        pass
    assert caught.value.code is Code.UNAVAILABLE
    other.execute("ROLLBACK")
    other.close()
    with database.transaction() as tx:
        assert tx.one("SELECT count(*) FROM keys") == (0,)


@pytest.mark.parametrize(
    ("boot_id", "boot_ns", "wall", "over"),
    [
        ("now", 100, 0.0, True),
        ("now", 101, 0.0, False),
        ("before", 0, 50.0, True),
        ("before", 0, 50.1, False),
    ],
)
def test_a_time_is_over_by_the_boot_clock_in_its_boot_and_by_the_wall_clock_later(
    boot_id: str, boot_ns: int, wall: float, over: bool
) -> None:
    assert Moment(wall=50.0, boot_id="now", boot_ns=100).after(boot_id, boot_ns, wall) is over


def test_text_that_is_not_utf8_is_nothing_that_was_stored(database: Database) -> None:
    with database.transaction() as tx:
        tx.execute("INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES ('k', 'n', 'user', 's', 0)")
        assert tx.one("SELECT id FROM keys WHERE name = ?", ("n\udcff",)) is None
        assert tx.every("SELECT id FROM keys WHERE name <> ?", ("\ud800",)) == [("k",)]
