"""The review page in a real browser: list, diff, approve, conflict, apply, and names that try to deceive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from flux.api.http import HttpClient
from flux.core.access import Role
from flux.core.requests import CreateSandbox, Speculate
from tests.api.daemons import Daemon

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
MARKUP = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


class Visit:
    """One tab, and everything it complained of or asked of other hosts."""

    def __init__(self, browser: Browser, daemon: Daemon, **options: Any) -> None:
        self.daemon = daemon
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self._hear(message.type, message.text))
        self.page.on("request", lambda request: self._watch(request.url))

    def _hear(self, kind: str, text: str) -> None:
        # A refused decision is a failed request, which browsers report; the page shows it.
        if kind == "error" and "status of 4" not in text:
            self.complaints.append(text)

    def _watch(self, url: str) -> None:
        if not url.startswith((self.daemon.url, "data:")):
            self.elsewhere.append(url)

    def enter(self, token: str, path: str = "") -> None:
        """Open the page as the holder of a token, then go to a changeset."""
        self.page.goto(f"{self.daemon.url}/ui#token={token}")
        expect(self.page.locator(".entry, .list .empty").first).to_be_visible()
        if path:
            self.page.goto(f"{self.daemon.url}/ui#/{path}")


@pytest.fixture
def visit(browser: Browser, daemon: Daemon) -> Iterator[Visit]:
    """A tab that must not have complained."""
    one = Visit(browser, daemon)
    yield one
    one.context.close()
    assert one.complaints == []
    assert one.elsewhere == []


@pytest.fixture
def changeset(client: HttpClient, sandbox: str) -> dict[str, Any]:
    """A pending changeset that adds, changes and deletes."""
    command = "echo 'print(3)' >> src/main.py; rm notes.txt; printf '#!/bin/sh\\n' > run.sh; chmod +x run.sh; echo done"
    made: dict[str, Any] = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command=command))
    return made


def place_of(changeset: dict[str, Any]) -> str:
    """Return the page's address of a changeset."""
    return f"{changeset['sandbox_id']}/{changeset['id']}"


def test_a_token_is_asked_for_and_kept_out_of_the_address(visit: Visit, changeset: dict[str, Any]) -> None:
    page = visit.page
    page.goto(f"{visit.daemon.url}/ui")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".problem")).to_contain_text("cannot")
    page.get_by_label("Token").fill(visit.daemon.token)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".entry").first).to_be_visible()
    page.goto(f"{visit.daemon.url}/ui#token={visit.daemon.token}")
    expect(page.locator(".entry").first).to_be_visible()
    assert visit.daemon.token not in page.url
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Forget token").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_list_shows_what_waits(visit: Visit, changeset: dict[str, Any]) -> None:
    visit.enter(visit.daemon.token)
    entry = visit.page.locator(f".entry[href='#/{place_of(changeset)}']")
    expect(entry).to_contain_text("print(3)")
    expect(entry).to_contain_text("+1")
    expect(entry).to_contain_text("−1")
    entry.click()
    expect(visit.page.locator("h1")).to_contain_text("print(3)")
    expect(entry).to_have_attribute("aria-current", "page")


def test_risks_and_deletions_come_first(visit: Visit, changeset: dict[str, Any]) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    page = visit.page
    expect(page.locator(".card.stop")).to_contain_text("Deletes 1 file")
    expect(page.locator(".card.care")).to_contain_text("becomes executable")
    order = page.locator(".changeset section > h2").all_text_contents()
    assert order[0] == "Look here first"
    assert [title.split()[0] for title in order] == ["Look", "Side", "Output", "Files"]
    expect(page.locator(".output pre")).to_have_text("done\n")
    added = page.locator(".file", has_text="/src/main.py").locator("tr.plus td:last-child")
    expect(added).to_have_text("print(3)")


def test_approve_sends_what_was_shown_and_apply_writes_it(
    visit: Visit, changeset: dict[str, Any], client: HttpClient, workspace: Path
) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    page = visit.page
    page.get_by_label("Comment").fill("looks right")
    with page.expect_request("**/approve") as sent:
        page.get_by_role("button", name="Approve").click()
    assert sent.value.post_data_json == {"comment": "looks right", "digest": changeset["digest"]}
    expect(page.locator(".head .state")).to_have_text("Approved, not applied yet")
    expect(page.locator(".decision")).to_contain_text("looks right")
    assert (workspace / "notes.txt").exists()
    page.get_by_role("button", name="Apply to the sandbox").click()
    expect(page.locator(".head .state")).to_have_text("Applied")
    assert not (workspace / "notes.txt").exists()
    assert "print(3)" in (workspace / "src/main.py").read_text()
    page.get_by_role("button", name="Revert").click()
    expect(page.locator(".head .state")).to_have_text("Waiting for a decision")
    found = client.call("changeset.get", sandbox=changeset["sandbox_id"], changeset=page.url.rpartition("/")[2])
    assert found["reverts"] == changeset["id"]


def test_a_part_is_approved(visit: Visit, changeset: dict[str, Any], client: HttpClient) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    page = visit.page
    page.locator(".file", has_text="/notes.txt").locator("input").uncheck()
    page.locator(".file", has_text="/run.sh").locator("input").uncheck()
    page.get_by_role("button", name="Approve 1 of 3").click()
    expect(page.locator(".head .state")).to_have_text("Approved, not applied yet")
    found = client.call("changeset.get", sandbox=changeset["sandbox_id"], changeset=changeset["id"])
    assert found["only"] == ["/src/main.py"]


def test_a_conflict_is_shown_with_its_paths(visit: Visit, changeset: dict[str, Any], workspace: Path) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    page = visit.page
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("button", name="Apply to the sandbox")).to_be_visible()
    (workspace / "src" / "main.py").write_text("someone else was here\n")
    page.get_by_role("button", name="Apply to the sandbox").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot apply")
    expect(page.locator(".conflicts td .path")).to_have_text("/src/main.py")
    expect(page.locator(".head .state")).to_have_text("Approved, not applied yet")
    page.get_by_role("button", name="Reject").click()
    expect(page.locator(".head .state")).to_have_text("Rejected")


def test_what_others_decide_shows_at_once(visit: Visit, changeset: dict[str, Any], client: HttpClient) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    expect(visit.page.get_by_role("button", name="Approve")).to_be_visible()
    client.call("changeset.reject", sandbox=changeset["sandbox_id"], changeset=changeset["id"])
    expect(visit.page.locator(".head .state")).to_have_text("Rejected")


def test_a_stale_review_is_refused(visit: Visit, changeset: dict[str, Any], client: HttpClient) -> None:
    visit.enter(visit.daemon.token, place_of(changeset))
    page = visit.page
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.route("**/v1/audit*", lambda route: route.abort())
    page.evaluate("document.querySelector('.digest')")
    page.route("**/approve", lambda route: route.continue_(post_data='{"digest": "sha256:other"}'))
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("alert")).to_contain_text("digest")
    found = client.call("changeset.get", sandbox=changeset["sandbox_id"], changeset=changeset["id"])
    assert found["state"] == "pending"
    visit.complaints.clear()


def test_nothing_in_a_changeset_is_markup_or_deceives(visit: Visit, client: HttpClient, sandbox: str) -> None:
    commands = (
        f"printf '%s\\n' '{MARKUP}' > 'a{MARKUP.replace('/', '')}'",
        "printf 'x' > \"$(printf 'in\\342\\200\\256gpj.exe')\"",
        "printf 'a\\nb' > \"$(printf 'new\\nline')\"",
        f"echo '{MARKUP}'",
        "printf '\\033]0;title\\007 \\033[31mred\\033[0m\\n'",
    )
    command = "; ".join(commands)
    made = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command=command))
    visit.enter(visit.daemon.token, place_of(made))
    page = visit.page
    page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    expect(page.locator(".output pre")).to_contain_text(MARKUP)
    expect(page.locator(".output pre")).to_contain_text("\\x1b]0;title\\x07 red")
    expect(page.locator(".files")).to_contain_text("/in\\u202egpj.exe")
    expect(page.locator(".files")).to_contain_text("/new\\x0aline")
    assert page.locator(".detail img").count() == 0
    assert page.evaluate("document.body.innerText.includes('\\u202e')") is False


def test_a_long_changeset_stays_usable(visit: Visit, client: HttpClient, sandbox: str) -> None:
    command = "mkdir many; cd many; for i in $(seq 1000); do echo $i > f$i; done; seq 5000 > long"
    made = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command=command))
    visit.enter(visit.daemon.token, place_of(made))
    page = visit.page
    expect(page.locator(".file")).to_have_count(200)
    page.get_by_role("button", name="more of").last.click()
    expect(page.locator(".file")).to_have_count(400)


def test_a_reviewer_decides_without_being_an_administrator(
    visit: Visit, changeset: dict[str, Any], keys: dict[Role, str]
) -> None:
    visit.enter(keys[Role.REVIEWER], place_of(changeset))
    visit.page.get_by_role("button", name="Reject").click()
    expect(visit.page.locator(".head .state")).to_have_text("Rejected")
    expect(visit.page.locator(".decision")).to_contain_text("matrix-reviewer")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_window(
    browser: Browser, daemon: Daemon, changeset: dict[str, Any], scheme: Any, client: HttpClient
) -> None:
    visit = Visit(browser, daemon, color_scheme=scheme)
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.enter(daemon.token)
    page = visit.page
    page.locator(f".entry[href='#/{place_of(changeset)}']").click()
    expect(page.get_by_role("button", name="Approve")).to_be_in_viewport()
    expect(page.locator(".list")).to_be_hidden()
    for part in ("document.documentElement", "document.querySelector('#detail')"):
        assert page.evaluate(f"{part}.scrollWidth") <= 390
    page.get_by_role("link", name="All changesets").click()
    expect(page.locator(".list")).to_be_visible()
    visit.context.close()
    assert visit.complaints == []


def test_an_empty_daemon_says_how_to_begin(browser: Browser, start_daemon: Any) -> None:
    daemon = start_daemon()
    visit = Visit(browser, daemon)
    visit.enter(daemon.token)
    expect(visit.page.locator(".list .empty")).to_contain_text("fluxctl sandbox speculate")
    visit.context.close()
    assert visit.complaints == []


def test_a_sandbox_is_called_by_its_name(visit: Visit, client: HttpClient, workspace: Path) -> None:
    made = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace), name="shop-front"))
    changeset = client.call("sandbox.speculate", sandbox=made["id"], body=Speculate(command="echo x > y"))
    visit.enter(visit.daemon.token, place_of(changeset))
    expect(visit.page.locator(".meta")).to_contain_text("shop-front")
    client.call("sandbox.delete", sandbox=made["id"])
