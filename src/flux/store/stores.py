"""Everything that a state directory holds, opened together."""

from __future__ import annotations

from flux.ports.clock import Clock
from flux.ports.files import Files
from flux.store.audit import Audit
from flux.store.baselines import Baselines
from flux.store.changesets import Changesets
from flux.store.database import Database
from flux.store.places import Places
from flux.store.state import StateDirectory

DATABASE = "flux.db"


class Stores:
    """The stores of one state directory. Who opens it holds the directory's lock (``app.lock``).

    Args:
        path: the state directory; it exists.
        clock: the time.
        files: the mutating file calls.
    """

    def __init__(self, path: str, clock: Clock, files: Files) -> None:
        self.state = StateDirectory(path, files)
        try:
            self.database = Database(f"{self.state.path}/{DATABASE}", clock)
            self.changesets = Changesets(self.state, files)
            self.baselines = Baselines(self.state, files)
            self.places = Places(self.state, files)
            self.audit = Audit(self.state, files)
        except BaseException:
            self.state.close()
            raise
        self._closed = False

    def close(self) -> None:
        """Close everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.places.close()
        self.audit.close()
        self.database.close()
        self.state.close()
