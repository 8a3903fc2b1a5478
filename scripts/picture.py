"""Take the picture of the review page that the README shows: a real daemon, the demo's changeset, a real browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from demo import AGENT, FLUXCTL, PROJECT
from playwright.sync_api import sync_playwright

TARGET = Path(__file__).resolve().parent.parent / "docs/images/review.png"
VIEW = {"width": 1180, "height": 1240}


def fluxctl(place: Path, *words: str) -> Any:
    """Run the command line and return its reply."""
    environment = {**os.environ, "FLUX_STATE_DIR": str(place / "state")}
    done = subprocess.run([FLUXCTL, "--json", *words], env=environment, check=True, capture_output=True)
    return json.loads(done.stdout)


def make_changesets(place: Path) -> str:
    """Let a few commands wait for their review; return the page's address of the one to show."""
    project = place / "greet"
    for name, content in PROJECT.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    fluxctl(place, "sandbox", "create", "--workspace", str(project), "--name", "greet")
    done = fluxctl(place, "sandbox", "speculate", "greet", "--", "echo 'Says hello politely.' >> README.md")
    fluxctl(place, "sandbox", "reject", "greet", done["id"])
    script = project / "agent.sh"
    script.write_text(AGENT.lstrip())
    shown = fluxctl(place, "sandbox", "speculate", "greet", "--", "bash", "agent.sh")
    fluxctl(place, "sandbox", "speculate", "greet", "--", "sed -i s/name/person/ notes/idea.txt")
    return f"{shown['sandbox_id']}/{shown['id']}"


def take(url: str, token: str, changeset: str) -> None:
    """Open the changeset on the page and save what is seen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(viewport=VIEW, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.goto(f"{url}/ui#token={token}")
        page.locator(".entry").first.wait_for()
        page.goto(f"{url}/ui#/{changeset}")
        page.get_by_role("button", name="Approve").first.wait_for()
        page.get_by_text("stranger").first.wait_for()
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(TARGET))
        browser.close()


def main() -> int:
    """Take the picture in a throwaway directory."""
    with tempfile.TemporaryDirectory(prefix="flux-picture-") as name:
        place = Path(name)
        changeset = make_changesets(place)
        url = fluxctl(place, "daemon", "start", "--listen", "127.0.0.1:0")["url"]
        try:
            take(url, (place / "state/admin-token").read_text().strip(), changeset)
        finally:
            fluxctl(place, "daemon", "stop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
