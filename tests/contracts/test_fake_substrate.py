"""The fake keeps the substrate's contract, so that a test on it says something about the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.testing.contracts.substrate import SubstrateContract
from flux.testing.substrate import FakeSubstrate


class TestFakeSubstrate(SubstrateContract):
    """Its paths inside are the host's."""

    @pytest.fixture
    def substrate(self) -> FakeSubstrate:
        return FakeSubstrate()

    def seen(self, place: Path, inside: str) -> str:
        return {"/work": str(place / "workspace"), "/home/user": str(place / "home"), "/tmp": str(place / "scratch")}[
            inside
        ]
