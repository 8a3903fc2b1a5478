"""The real executions and the fake ones keep the same promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flux.testing.clock import FakeClock
from flux.testing.contracts.executions import Bench, ExecutionsContract
from flux.testing.executions import KIND, FakeExecutions, FakeMachine
from tests.engine.executions.kit import Machine


class RealBench(Bench):
    """Over a template, on the machine's own kernel."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder)
        self.executions = self.machine.executions
        self.sandbox = self.machine.sandbox()

    def write(self, name: str, text: str) -> None:
        descriptor = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=self.machine.tree(self.sandbox), mode=0o644
        )
        os.write(descriptor, text.encode())
        os.close(descriptor)

    def files(self) -> dict[str, str]:
        tree = self.machine.tree(self.sandbox)
        found = {}
        for name in os.listdir(tree):
            if len(name) == 1:
                descriptor = os.open(name, os.O_RDONLY, dir_fd=tree)
                found[name] = os.read(descriptor, 100).decode()
                os.close(descriptor)
        return found

    def close(self) -> None:
        self.machine.context.close()


class FakeBench(Bench):
    """In memory."""

    def __init__(self, sandbox: Any) -> None:
        self.machine = FakeMachine(FakeClock())
        self.executions = FakeExecutions(self.machine)
        self.sandbox = msgspec.structs.replace(sandbox, kind=KIND)

    def write(self, name: str, text: str) -> None:
        self.machine.write(self.sandbox.id, name, text)

    def files(self) -> dict[str, str]:
        return dict(self.machine.files(self.sandbox.id))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")
class TestReal(ExecutionsContract):
    """On the machine's own kernel."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        made = RealBench(tmp_path)
        yield made
        made.close()


class TestFake(ExecutionsContract):
    """In memory."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        machine = Machine(tmp_path)
        sandbox = machine.sandbox()
        machine.context.close()
        yield FakeBench(sandbox)
