"""The program ``fluxctl``."""

from __future__ import annotations

import sys

from flux.app.clock import SystemClock
from flux.app.open import open_session
from flux.cli.main import run


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    sys.exit(run(sys.argv[1:], open_session, SystemClock()))


if __name__ == "__main__":
    main()
