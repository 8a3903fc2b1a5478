"""What every test stands on: nothing of the user's own configuration, and property tests that mind a busy machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Two shared cores make any deadline a coin toss; a failure prints what reproduces it.
settings.register_profile("flux", deadline=None, print_blob=True)
settings.load_profile("flux")

# A shell lets what it starts in the background ignore SIGINT, and every program started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: The public SDKs have an environment of their own, and `make sdk` to run them in it.
collect_ignore = ["sdk"]

SWEEPS = Path(__file__).parent / "crash"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the crash sweeps among the slow tests: they have a make target of their own."""
    for item in items:
        if item.path.is_relative_to(SWEEPS):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, and say so, what only root can do."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("only root can do this: run the tests with sudo")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the test a home of its own and no ``FLUX_`` variable, so that it cannot read or write the user's state."""
    for name in [name for name in os.environ if name.startswith("FLUX_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home
