"""Registries of both kinds, and worlds over them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flux.store.registry.database import RegistryDatabase, SqliteRegistry
from flux.testing.clock import FakeClock
from tests.control.kit import World

_NO_POSTGRES = "no PostgreSQL here: apt-get install postgresql"


def _binaries() -> Path | None:
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin")]
    return next((place for place in found if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


def _as_postgres() -> dict[str, int]:
    """Root cannot run PostgreSQL: it becomes the user that the package made."""
    if os.getuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("no user postgres here, and root cannot run PostgreSQL: apt-get install postgresql")
    return {"user": user.pw_uid, "group": user.pw_gid}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """A PostgreSQL server of its own, on a unix socket in its own directory."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip(_NO_POSTGRES)
    identity = _as_postgres()
    place = Path(tempfile.mkdtemp(prefix="flux-postgres-", dir="/tmp"))
    if identity:
        os.chown(place, identity["user"], identity["group"])

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=place, stdout=subprocess.DEVNULL, extra_groups=[], **identity)  # type: ignore[call-overload]

    data = str(place / "data")
    try:
        run(str(binaries / "initdb"), "-D", data, "-A", "trust", "-U", "flux", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses= -k {place} -c fsync=off"
        run(str(binaries / "pg_ctl"), "-D", data, "-w", "-l", str(place / "log"), "-o", options, "start")
        try:
            yield place
        finally:
            run(str(binaries / "pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: Path) -> Iterator[str]:
    """The URL of an empty database."""
    import psycopg

    name = f"t{os.urandom(6).hex()}"
    admin = f"postgresql://flux@/postgres?host={postgres_server}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"postgresql://flux@/{name}?host={postgres_server}"
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryDatabase]:
    """A registry, in SQLite and in PostgreSQL."""
    clock = FakeClock()
    if request.param == "sqlite":
        opened: RegistryDatabase = SqliteRegistry(str(tmp_path / "control.db"), clock)
    else:
        from flux.store.registry.postgres import PostgresRegistry

        opened = PostgresRegistry(request.getfixturevalue("postgres_url"), clock)
    try:
        yield opened
    finally:
        opened.close()


Worlds = Callable[..., World]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Makes worlds of named nodes over SQLite, and closes them."""
    made: list[World] = []

    def make(*names: str) -> World:
        world = World(tmp_path, None, *names)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A world of one node."""
    return worlds("n1")
