"""One writer per state directory, and which directories are refused as one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flux.app import lock
from flux.core.errors import Code, FluxError

HOLD = """
import sys
from flux.app import lock
held = lock.try_lock(sys.argv[1], sys.argv[2], "fluxctl sandbox shell")
if sys.argv[2] == "daemon":
    held.announce("http://127.0.0.1:1")
print("held", flush=True)
sys.stdin.read()
"""


class Other:
    """Another process that holds the lock until ``end``."""

    def __init__(self, directory: Path, role: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(directory), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    lock.prepare_state_directory(str(path))
    return path


def never(holder: lock.Holder | None) -> None:
    raise AssertionError(f"nothing to wait for, but {holder}")


def take(directory: Path, seconds: float = 0.0) -> lock.StateLock | lock.Holder:
    return lock.acquire(str(directory), "embedded", "fluxctl test", wait_seconds=seconds, waiting=lambda _: None)


def test_a_free_lock_is_taken_at_once_and_given_back(directory: Path) -> None:
    for _ in range(2):
        held = lock.acquire(str(directory), "embedded", "fluxctl test", wait_seconds=0, waiting=never)
        assert isinstance(held, lock.StateLock)
        assert lock.peek(str(directory)) == lock.Holder(pid=os.getpid(), role="embedded", command="fluxctl test")
        held.release()
        held.release()
        assert lock.peek(str(directory)) is None


def test_a_command_waits_for_another_one_and_then_says_who_it_is(directory: Path) -> None:
    other = Other(directory, "embedded")
    told: list[lock.Holder | None] = []
    try:
        with pytest.raises(FluxError) as caught:
            lock.acquire(str(directory), "embedded", "fluxctl test", wait_seconds=0.1, waiting=told.append)
    finally:
        other.end()
    assert caught.value.code is Code.UNAVAILABLE
    assert f"'fluxctl sandbox shell' (process {other.process.pid})" in caught.value.message
    assert caught.value.details["pid"] == other.process.pid
    assert len(told) == 1


def test_the_lock_comes_to_the_one_that_waits(directory: Path) -> None:
    other = Other(directory, "embedded")
    held = lock.acquire(str(directory), "embedded", "fluxctl test", wait_seconds=60, waiting=lambda _: other.end())
    assert isinstance(held, lock.StateLock)
    held.release()


def test_a_daemon_is_returned_without_waiting(directory: Path) -> None:
    other = Other(directory, "daemon")
    try:
        held = lock.acquire(str(directory), "embedded", "fluxctl test", wait_seconds=60, waiting=never)
        assert held == lock.Holder(
            pid=other.process.pid, role="daemon", command="fluxctl sandbox shell", url="http://127.0.0.1:1"
        )
    finally:
        other.end()


def test_a_killed_holder_leaves_nothing_to_clean_up(directory: Path) -> None:
    other = Other(directory, "daemon")
    other.end()
    assert (directory / "lock").stat().st_size > 0
    assert lock.peek(str(directory)) is None
    held = take(directory)
    assert isinstance(held, lock.StateLock)
    held.release()


def test_a_released_lock_keeps_its_block_so_that_a_full_disk_locks_nobody_out(directory: Path) -> None:
    held = take(directory)
    assert isinstance(held, lock.StateLock)
    held.release()
    assert (directory / "lock").read_bytes() == b"\n"


def test_a_lock_that_cannot_be_written_is_refused_and_free(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(FluxError) as caught:
        patch.setattr(os, "pwrite", full)
        take(directory)
    assert caught.value.code is Code.EXHAUSTED
    held = take(directory)
    assert isinstance(held, lock.StateLock)
    held.release()


def test_looking_creates_nothing(tmp_path: Path) -> None:
    assert lock.peek(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_new_directory_belongs_to_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    lock.prepare_state_directory(str(path))
    assert path.stat().st_mode & 0o777 == 0o700


def refusal(path: Path) -> FluxError:
    with pytest.raises(FluxError) as caught:
        lock.prepare_state_directory(str(path))
    assert str(path) in caught.value.message
    return caught.value


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(tmp_path / "file").code is Code.INVALID
    assert refusal(tmp_path / "file" / "below").code is Code.INVALID


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_one_that_others_may_write_to_is_refused_with_the_remedy(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    error = refusal(directory)
    assert error.code is Code.DENIED
    assert f"chmod 700 {directory}" in error.message


@pytest.mark.root
def test_one_of_another_user_is_refused(directory: Path) -> None:
    os.chown(directory, 4_000_123, 4_000_123)
    error = refusal(directory)
    assert error.code is Code.DENIED
    assert "belongs to the user with id 4000123" in error.message


def test_a_lock_that_is_a_link_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (directory / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FluxError) as caught:
        take(directory)
    assert caught.value.code is Code.DENIED
    assert not (tmp_path / "elsewhere").exists()
