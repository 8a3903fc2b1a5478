"""What every implementation of ``ports.executions.Executions`` must do; the fake and the real one pass the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.ports.executions import Executions, Made

_CREATED_AT = 1_700_000_000.0


class Bench:
    """An implementation under test: its executions, a sandbox of a kind that it runs, and ways into the tree."""

    executions: Executions
    sandbox: Sandbox

    def write(self, name: str, text: str) -> None:
        """Write a file at the top of the tree that runs."""
        raise AssertionError(f"cannot write {name}: {text}")

    def files(self) -> dict[str, str]:
        """Return the files that were written so, as the tree that runs has them."""
        raise AssertionError("no tree")

    def close(self) -> None:
        """End what runs."""


class ExecutionsContract:
    """A subclass gives ``bench``."""

    @pytest.fixture
    def bench(self, **_: Any) -> Iterator[Bench]:
        """Give an implementation without any execution."""
        raise AssertionError("the subclass gives it")

    def start(self, bench: Bench, generation: int, artifact: ArtifactReference | None = None) -> None:
        """Activate a generation, as the manager does."""
        bench.executions.admit(bench.sandbox, artifact)
        bench.executions.prepare(bench.sandbox, generation, artifact)
        bench.executions.start(bench.sandbox, generation)

    def capture(self, bench: Bench, generation: int, *, snapshot: bool = False) -> Made:
        """Quiesce and capture."""
        bench.executions.quiesce(bench.sandbox, generation)
        return bench.executions.capture(
            bench.sandbox, generation, None, created_at=_CREATED_AT + generation, snapshot=snapshot
        )

    def test_a_restored_generation_has_what_was_saved(self, bench: Bench) -> None:
        self.start(bench, 1)
        assert bench.executions.alive(bench.sandbox, 1)
        bench.write("a", "1")
        made = self.capture(bench, 1)
        bench.executions.end(bench.sandbox, 1)
        self.start(bench, 2, made.reference)
        assert bench.files() == {"a": "1"}

    def test_a_capture_that_is_given_up_leaves_the_execution_as_it_was(self, bench: Bench) -> None:
        self.start(bench, 1)
        bench.write("a", "1")
        self.capture(bench, 1)
        bench.executions.resume(bench.sandbox, 1)
        bench.executions.resume(bench.sandbox, 1)
        bench.write("b", "2")
        assert bench.files() == {"a": "1", "b": "2"}
        made = self.capture(bench, 1)
        bench.executions.end(bench.sandbox, 1)
        self.start(bench, 2, made.reference)
        assert bench.files() == {"a": "1", "b": "2"}

    def test_a_snapshot_holds_its_moment_and_the_execution_goes_on(self, bench: Bench) -> None:
        self.start(bench, 1)
        bench.write("a", "1")
        made = self.capture(bench, 1, snapshot=True)
        bench.executions.resume(bench.sandbox, 1)
        bench.write("a", "2")
        assert bench.files() == {"a": "2"}
        bench.executions.kill(bench.sandbox, 1)
        self.start(bench, 2, made.reference)
        assert bench.files() == {"a": "1"}

    def test_what_is_killed_leaves_its_artifact_as_it_was(self, bench: Bench) -> None:
        self.start(bench, 1)
        bench.write("a", "1")
        made = self.capture(bench, 1)
        bench.executions.end(bench.sandbox, 1)
        self.start(bench, 2, made.reference)
        bench.write("a", "2")
        bench.executions.kill(bench.sandbox, 2)
        self.start(bench, 3, made.reference)
        assert bench.files() == {"a": "1"}

    def test_a_failed_start_is_undone_and_another_succeeds(self, bench: Bench) -> None:
        self.start(bench, 1)
        bench.write("a", "1")
        made = self.capture(bench, 1)
        bench.executions.end(bench.sandbox, 1)
        bench.executions.prepare(bench.sandbox, 2, made.reference)
        bench.executions.discard(bench.sandbox.id, 2)
        bench.executions.discard(bench.sandbox.id, 2)
        assert [one for one in bench.executions.own() if one.generation == 2] == []
        self.start(bench, 3, made.reference)
        assert bench.files() == {"a": "1"}

    def test_an_artifact_that_is_not_there_starts_nothing(self, bench: Bench) -> None:
        missing = ArtifactReference(id="0" * 32, digest="0" * 64)
        with pytest.raises(FluxError) as refusal:
            bench.executions.prepare(bench.sandbox, 1, missing)
        assert refusal.value.code is Code.NOT_FOUND

    def test_what_is_owned_is_listed_until_it_is_removed(self, bench: Bench) -> None:
        self.start(bench, 1)
        found = [(one.sandbox_id, one.generation) for one in bench.executions.own()]
        assert (bench.sandbox.id, 1) in found
        bench.executions.remove(bench.sandbox.id)
        bench.executions.remove(bench.sandbox.id)
        assert bench.executions.own() == []
