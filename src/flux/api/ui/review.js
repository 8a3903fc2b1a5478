// The shell of the page: the list of changesets, the address, and hearing of what happens elsewhere.

import { ChangesetView } from "./changeset.js";
import * as client from "./client.js";
import { count, el, visible, when } from "./text.js";

const ASKED_AT_ONCE = 6;
const FALLBACK_POLL_MS = 10000;
const REDRAW_MS = 30000;
const GROUPS = [
  ["Waiting for a decision", ["pending"]],
  ["Approved, not applied", ["approved"]],
  ["Finished", ["applied", "failed", "rejected", "expired"]],
];

const place = (id) => document.getElementById(id);
const names = new Map();
const bySandbox = new Map();
let all = [];
let loaded = false;
let following = new AbortController();

const view = new ChangesetView(place("detail"), (id) => names.get(id) ?? id, (sandbox) => refresh(new Set([sandbox])));

// Reads the changesets anew: those of some sandboxes, by id, or of all.
async function refresh(ids = null) {
  if (ids === null || ![...ids].every((id) => names.has(id))) {
    names.clear();
    for (const sandbox of await client.sandboxes()) names.set(sandbox.id, sandbox.name ?? sandbox.id);
  }
  for (const id of bySandbox.keys()) if (!names.has(id)) bySandbox.delete(id);
  const waiting = ids === null ? [...names.keys()] : [...ids].filter((id) => names.has(id));
  const worker = async () => {
    for (let id = waiting.shift(); id; id = waiting.shift()) {
      try {
        bySandbox.set(id, await client.changesets(id));
      } catch (error) {
        // A sandbox that was deleted meanwhile has no changesets.
        if (error.code !== "not_found") throw error;
        bySandbox.delete(id);
        names.delete(id);
      }
    }
  };
  await Promise.all(Array.from({ length: ASKED_AT_ONCE }, worker));
  all = [...bySandbox.values()].flat().sort((one, other) => other.created_at.localeCompare(one.created_at));
  loaded = true;
  drawList();
  await drawDetail();
}

function drawList() {
  const { id } = route();
  const groups = GROUPS.map(([title, states]) => [title, all.filter((item) => states.includes(item.state))]);
  const parts = groups.filter(([, items]) => items.length).map(([title, items]) => el("section", el("h2", title, el("span.number", String(items.length))), el("ul", items.map((item) => el("li", entry(item, id))))));
  place("list").replaceChildren(...(parts.length ? parts : [emptyList()]));
  const pending = groups[0][1].length;
  status(pending ? `${count(pending, "changeset")} to decide` : "Nothing to decide", pending ? "busy" : "calm");
}

function entry(item, current) {
  const { added, modified, deleted, type_changed: changed } = item.counts;
  const tallies = [["added", added, "+"], ["modified", modified, "~"], ["type_changed", changed, "⇄"], ["deleted", deleted, "−"]].filter(([, number]) => number);
  return el(
    "a.entry",
    { href: `#/${item.sandbox_id}/${item.id}`, "aria-current": item.id === current ? "page" : null },
    el("span.command", visible(item.command.slice(0, 200))),
    el(
      "span.facts",
      el("span.sandbox", visible(names.get(item.sandbox_id) ?? item.sandbox_id)),
      el("span.tallies", tallies.length ? tallies.map(([kind, number, sign]) => el(`span.tally.${kind}`, `${sign}${number}`)) : el("span.muted", "no changes")),
      item.unstaged_count > 0 && el("span.risk", "not applicable"),
      item.state !== "pending" && el(`span.state.${item.state}`, item.state),
      el("span.time", when(item.created_at)),
    ),
  );
}

function emptyList() {
  return el(
    "div.empty",
    el("p", "No changesets yet."),
    el("p.muted", "They appear here when a command is speculated:"),
    el("pre", "fluxctl sandbox speculate SANDBOX -- COMMAND"),
  );
}

const route = () => {
  const [, sandbox, id] = /^#\/([^/]+)\/([^/]+)$/.exec(location.hash) ?? [];
  return { sandbox, id };
};

async function drawDetail() {
  const { sandbox, id } = route();
  place("page").classList.toggle("chosen", Boolean(id));
  if (!id) {
    view.data = null;
    document.title = "Flux review";
    place("detail").replaceChildren(el("div.empty.large", el("p", loaded && all.length ? "Choose a changeset to review it." : "")));
    return;
  }
  try {
    await view.show(sandbox, id);
  } catch (error) {
    if (error.status === 401) throw error;
    view.data = null;
    place("detail").replaceChildren(el("div.empty.large", el("p.problem", visible(error.message)), el("a", { href: "#/" }, "All changesets")));
  }
}

function status(text, kind) {
  place("status").className = `status ${kind}`;
  place("status").textContent = text;
}

// Waits for the audit log to grow; who may not read it is served by asking again now and then.
async function follow() {
  const mine = new AbortController();
  following.abort();
  following = mine;
  let cursor;
  while (!mine.signal.aborted) {
    try {
      const page = await client.auditAfter(cursor, mine.signal);
      cursor = page.next_cursor ?? cursor;
      const ids = new Set(page.items.map((line) => line.sandbox_id).filter(Boolean));
      if (ids.size) await refresh(ids);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 401) return askForToken(error.message);
      if (error.status !== 403) status("The daemon does not answer", "lost");
      await new Promise((resolve) => setTimeout(resolve, FALLBACK_POLL_MS));
      await refresh().catch(() => undefined);
    }
  }
}

function askForToken(problem) {
  following.abort();
  client.forgetToken();
  place("leave").hidden = true;
  status("", "calm");
  const input = el("input", { type: "password", autocomplete: "off", placeholder: "Token", "aria-label": "Token", required: true });
  const form = el(
    "form.token",
    el("h1", "Who is reviewing?"),
    el("p.muted", "Paste the admin token (the file ", el("code", "admin-token"), " in the state directory) or a reviewer's key. It stays in this tab."),
    problem && el("p.problem", visible(problem)),
    el("div.row", input, el("button.primary", { type: "submit" }, "Continue")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    client.setToken(input.value.trim());
    void start();
  });
  place("list").replaceChildren();
  place("page").classList.add("locked");
  place("page").classList.remove("chosen");
  place("detail").replaceChildren(form);
  input.focus();
}

async function start() {
  if (!client.hasToken()) return askForToken();
  place("page").classList.remove("locked");
  place("leave").hidden = false;
  status("Reading …", "calm");
  try {
    await refresh();
  } catch (error) {
    if (error.status === 401 || error.status === 403) return askForToken(error.message);
    status("The daemon does not answer", "lost");
  }
  return follow();
}

window.addEventListener("hashchange", () => {
  if (client.adoptToken()) return void start();
  if (!client.hasToken()) return;
  drawList();
  drawDetail().catch((error) => error.status === 401 && askForToken(error.message));
});
setInterval(() => loaded && client.hasToken() && drawList(), REDRAW_MS);
place("leave").addEventListener("click", () => {
  client.forgetToken();
  location.reload();
});
client.adoptToken();
void start();
