// One changeset as a reviewer wants it: what is dangerous and what is lost first, then what happened, then every file.

import * as client from "./client.js";
import { renderDiff } from "./diff.js";
import { bytes, count, duration, el, exactPath, path, visible, visibleOutput, when } from "./text.js";

const FILES_AT_ONCE = 200;
const OPEN_AT_FIRST = 6;
const WHOLE_DIFF_FILES = 200;
const KINDS = [
  ["deleted", "D", "Deleted"],
  ["type_changed", "T", "Type changed"],
  ["modified", "M", "Modified"],
  ["added", "A", "Added"],
];
const RISKS = {
  setuid: "runs with its owner's rights (setuid or setgid)",
  capability: "carries kernel capabilities",
  exec_bit: "becomes executable",
  git_hook: "is a git hook: git will run it",
  git_config: "is git configuration, which can name programs to run",
  symlink_escapes: "is a link that leads out of the workspace",
  deletes_many: "is part of a large deletion",
  secret_like_name: "has a name that secrets have",
  control_chars_in_name: "has control characters in its name",
};
const STATES = {
  pending: "Waiting for a decision",
  approved: "Approved, not applied yet",
  applied: "Applied",
  rejected: "Rejected",
  expired: "Expired",
  failed: "Failed",
};

const DECISIONS = { approved: "Approved", applied: "Approved", rejected: "Rejected", failed: "Approved" };

export class ChangesetView {
  constructor(place, sandboxName, changed) {
    this.place = place;
    this.sandboxName = sandboxName;
    this.changed = changed;
  }

  async show(sandbox, id) {
    const data = await client.changeset(sandbox, id);
    if (this.data?.id === data.id && this.data.state === data.state && this.data.digest === data.digest) return;
    const same = this.data?.id === data.id;
    this.data = data;
    this.problem = null;
    this.files = KINDS.flatMap(([kind, letter]) => data.changes[kind].map((entry) => ({ kind, letter, entry })));
    this.files.sort((one, other) => (other.entry.risks?.length ? 1 : 0) - (one.entry.risks?.length ? 1 : 0));
    this.chosen = new Set(this.files);
    this.diffs = null;
    this.draw();
    if (!same) this.place.scrollTop = 0;
  }

  draw() {
    const { data } = this;
    this.actionsPlace = el("div.actions");
    this.place.replaceChildren(
      el("article.changeset", this.head(), this.attention(), this.sideEffects(), this.output(), this.fileList(), this.remarks()),
      this.actionsPlace,
    );
    this.drawActions();
    document.title = `${data.command.slice(0, 60)} · Flux review`;
  }

  head() {
    const { data } = this;
    const ended = data.timed_out ? "timed out" : data.signal ? `ended by signal ${data.signal}` : `exit ${data.exit_code}`;
    const ran = data.run_via === "revert" ? "Undoes an applied changeset" : `${ended} after ${duration(data.duration_ms)}`;
    const open = data.state === "pending" || data.state === "approved";
    return el(
      "header.head",
      el("a.back", { href: "#/" }, "← All changesets"),
      el("div.line", el(`span.state.${data.state}`, STATES[data.state]), open && el("span.muted", "expires ", when(data.expires_at))),
      el("h1.command", visible(data.command, "\n\t")),
      el(
        "p.meta",
        el("span", "in ", el("b", visible(this.sandboxName(data.sandbox_id)))),
        el("span", { class: data.exit_code === 0 || data.run_via === "revert" ? "" : "warn" }, ran),
        el("span", when(data.created_at)),
        data.copy_engine && el("span", { title: data.copy_engine_reason ?? "" }, `${data.run_via}, ${data.copy_engine}`),
        el("span.mono.id", data.id),
      ),
      data.decided_by && el("p.decision", DECISIONS[data.state] ?? "Decided", " by ", el("b", visible(data.decided_by)), data.comment && [": “", visible(data.comment), "”"]),
      data.error && el("p.problem", visible(data.error)),
    );
  }

  attention() {
    const { data } = this;
    const cards = [...this.unstagedCards(), ...this.deletionCards(), ...this.riskCards(), ...this.runCards()];
    if (!data.revertible && data.state !== "applied" && data.revertible_reason) {
      cards.push(card("note", "Cannot be reverted once applied", [visible(data.revertible_reason)]));
    }
    return cards.length ? el("section.attention", el("h2", "Look here first"), cards) : null;
  }

  unstagedCards() {
    const entries = this.data.unstaged;
    if (!entries.length) return [];
    const items = entries.map((entry) => [path(entry.path), el("span.muted", ` ${entry.reason}`)]);
    return [card("stop", `${count(entries.length, "entry", "entries")} cannot be carried, so this cannot be applied as a whole`, listed(items))];
  }

  deletionCards() {
    const gone = this.data.changes.deleted;
    if (!gone.length) return [];
    const size = gone.reduce((sum, entry) => sum + (entry.before.type === "file" ? entry.before.size : 0), 0);
    const files = gone.filter((entry) => entry.before.type !== "directory").length;
    const directories = gone.length - files;
    const what = [files && count(files, "file"), directories && count(directories, "directory", "directories")].filter(Boolean).join(" and ");
    return [card("stop", `Deletes ${what}, ${bytes(size)}`, listed(gone.map((entry) => [path(entry.path)])))];
  }

  riskCards() {
    const byRisk = new Map();
    for (const { entry } of this.files) {
      for (const risk of entry.risks ?? []) byRisk.set(risk, [...(byRisk.get(risk) ?? []), entry]);
    }
    byRisk.delete("deletes_many");
    return [...byRisk].map(([risk, entries]) => {
      const one = entries.length === 1;
      const title = one ? [path(entries[0].path), ` ${RISKS[risk] ?? risk}`] : [`${entries.length} entries: each ${RISKS[risk] ?? risk}`];
      return card("care", title, one ? null : listed(entries.map((entry) => [path(entry.path)])));
    });
  }

  runCards() {
    const { data } = this;
    const cards = [];
    if (data.timed_out) cards.push(card("care", "The command was killed by its time-out: the changes may be half of something"));
    if (data.base_changed_during_run) {
      cards.push(card("care", "The real workspace changed while the command ran", listed(data.base_changes.map((text) => [path(text)]))));
    }
    for (const text of data.warnings) cards.push(card("care", visible(text)));
    return cards;
  }

  sideEffects() {
    const report = this.data.side_effects;
    const egress = { blocked: "No network", allow_listed: "Network by allow-list", unrestricted: "Unrestricted network" }[report.egress];
    const lines = [...report.non_replayable.map((text) => el("li.warn", visible(text))), ...report.replayable.map((text) => el("li", visible(text)))];
    const flows = (report.observed ?? []).map((flow) =>
      el(
        "li",
        el(`span.verdict.${flow.verdict}`, flow.verdict),
        el("span.mono", ` ${flow.proto} `, visible(flow.name ?? flow.dst), flow.port ? `:${flow.port}` : ""),
        flow.connections > 1 && el("span.muted", ` × ${flow.connections}`),
      ),
    );
    return el(
      "section",
      el("h2", "Side effects"),
      el(
        "div.panel",
        el("p", el(`span.egress.${report.egress}`, egress), el("span.muted", report.enforced ? " enforced by the kernel" : " not enforced"), report.observed === null && el("span.muted", ", not observed")),
        report.destinations.length > 0 && el("p.muted", "May reach ", visible(report.destinations.join(", "))),
        flows.length > 0 && el("ul.flows", flows),
        lines.length > 0 && el("ul.effects", lines),
      ),
    );
  }

  output() {
    const { data } = this;
    const parts = [["stdout", data.stdout, data.stdout_bytes], ["stderr", data.stderr, data.stderr_bytes]].filter(([, text]) => text);
    if (!parts.length) return null;
    return el(
      "section",
      el("h2", "Output"),
      parts.map(([name, text, size]) =>
        el("details.output", { open: text.length < 4000 }, el("summary", name, el("span.muted", ` ${bytes(size)}`)), el("pre", { tabindex: "0" }, visibleOutput(text))),
      ),
    );
  }

  fileList() {
    const { data } = this;
    if (!this.files.length) return el("section", el("h2", "Files"), el("p.panel.muted", "The command changed no file."));
    const rows = el("div.files");
    const more = el("button.quiet.wide", { type: "button", onclick: () => show() });
    let shown = 0;
    this.opened = 0;
    const show = () => {
      const next = this.files.slice(shown, shown + FILES_AT_ONCE);
      for (const file of next) rows.append(this.fileRow(file, this.opens(file)));
      shown += next.length;
      more.hidden = shown >= this.files.length;
      more.textContent = `Show ${Math.min(FILES_AT_ONCE, this.files.length - shown)} more of ${this.files.length - shown} files`;
    };
    show();
    const summary = KINDS.filter(([kind]) => data.changes[kind].length).map(([kind, , label]) => el(`span.tally.${kind}`, `${data.changes[kind].length} ${label.toLowerCase()}`));
    return el("section", el("h2", "Files ", el("span.tallies", summary, el("span.muted", `${data.changes.unchanged} unchanged`))), rows, more);
  }

  // The first few files whose content changed are open; what has no text to read is not.
  opens({ entry }) {
    const content = (entry.after ?? entry.before).type === "file" && entry.before?.digest !== entry.after?.digest;
    if (!content || this.opened >= OPEN_AT_FIRST) return false;
    this.opened += 1;
    return true;
  }

  fileRow(file, open) {
    const { entry, kind, letter } = file;
    const body = el("div.body");
    const box = this.data.state === "pending" && el("input", { type: "checkbox", checked: true, "aria-label": "Include in the approval" });
    if (box) {
      box.addEventListener("change", () => this.choose(file, box.checked));
      box.addEventListener("click", (event) => event.stopPropagation());
    }
    const row = el(
      "details.file",
      el(
        "summary",
        box,
        el(`span.kind.${kind}`, { title: kind.replace("_", " ") }, letter),
        path(entry.path),
        (entry.risks ?? []).map((risk) => el("span.risk", { title: RISKS[risk] ?? "" }, risk.replaceAll("_", " "))),
        el("span.change", change(entry)),
      ),
      body,
    );
    row.addEventListener("toggle", () => row.open && !body.hasChildNodes() && this.fill(body, entry));
    row.open = open;
    return row;
  }

  async fill(body, entry) {
    body.append(el("p.muted.loading", "Reading the difference …"));
    try {
      body.replaceChildren(renderDiff(await this.difference(entry)));
    } catch (error) {
      body.replaceChildren(el("p.problem", visible(error.message)));
    }
  }

  async difference(entry) {
    const { sandbox_id: sandbox, id } = this.data;
    const whole = this.files.length <= WHOLE_DIFF_FILES;
    // A name that is not UTF-8 cannot be asked for in an address that a page writes; the whole has it.
    const asked = whole || entry.path_base64 ? (this.diffs ??= client.diff(sandbox, id)) : client.diff(sandbox, id, { path: entry.path });
    const { files } = await asked;
    return files.find((file) => exactPath(file) === exactPath(entry)) ?? { ...entry, text: null, note: "no difference to show" };
  }

  remarks() {
    const { data } = this;
    const groups = [
      ["Not captured", data.not_captured.map((item) => [path(item.path), el("span.muted", ` ${item.reason}`)])],
      ["Skipped", data.skipped.map((item) => [path(item.path), el("span.muted", ` ${item.reason}`)])],
      ["Discarded with the run", data.discarded.map((item) => [path(item.place), el("span.muted", ` ${count(item.entries, "entry", "entries")}, ${bytes(item.size)}`)])],
    ].filter(([, items]) => items.length);
    return el(
      "section",
      groups.map(([title, items]) => el("details.remark", el("summary", title, el("span.muted", ` ${items.length}`)), listed(items))),
      el("p.digest", "Conflict scope ", el("b", data.conflict_scope), " · digest ", el("span.mono", data.digest)),
    );
  }

  choose(file, wanted) {
    if (wanted) this.chosen.add(file);
    else this.chosen.delete(file);
    this.drawActions();
  }

  drawActions() {
    const verbs = this.verbs();
    if (!verbs.length && !this.problem) {
      this.actionsPlace.replaceChildren();
      return;
    }
    const previous = this.comment?.value ?? "";
    this.comment = el("input.comment", { type: "text", placeholder: "Comment for the record", "aria-label": "Comment", maxlength: "2000" });
    this.comment.value = previous;
    const buttons = verbs.map(([verb, label, kind]) =>
      el(`button.${kind}`, { type: "button", "data-verb": verb, onclick: () => this.decide(verb) }, label),
    );
    this.actionsPlace.replaceChildren(el("div.inner", this.problem && problemPanel(this.problem), verbs.length > 0 && el("div.row", this.comment, el("div.buttons", buttons))));
  }

  verbs() {
    const { state } = this.data;
    if (state === "pending") {
      const all = this.chosen.size === this.files.length;
      const label = all ? "Approve" : `Approve ${this.chosen.size} of ${this.files.length}`;
      const approve = this.chosen.size > 0 || this.files.length === 0 ? [["approve", label, "primary"]] : [];
      return [["reject", "Reject", "danger"], ...approve];
    }
    if (state === "approved") return [["reject", "Reject", "danger"], ["apply", "Apply to the sandbox", "primary"]];
    if (state === "applied" && this.data.revertible && !this.data.reverted_by) return [["revert", "Revert", "secondary"]];
    return [];
  }

  async decide(verb) {
    const { sandbox_id: sandbox, id, digest } = this.data;
    const body = this.comment.value.trim() ? { comment: this.comment.value.trim() } : {};
    if (verb === "approve") {
      body.digest = digest;
      if (this.chosen.size < this.files.length) body.only = [...this.chosen].map(({ entry }) => exactPath(entry));
    }
    for (const button of this.actionsPlace.querySelectorAll("button")) button.disabled = true;
    this.problem = null;
    try {
      const reply = await client.decide(sandbox, id, verb, body);
      this.comment.value = "";
      if (verb === "revert") location.hash = `#/${sandbox}/${reply.id}`;
    } catch (error) {
      this.problem = error;
    }
    const problem = this.problem;
    await this.changed(sandbox);
    this.problem = problem;
    this.drawActions();
  }
}

function card(kind, title, body = null) {
  return el(`div.card.${kind}`, el("p.title", title), body);
}

function listed(items, most = 8) {
  const line = (item) => el("li", item);
  const list = el("ul.paths", items.slice(0, most).map(line));
  if (items.length <= most) return list;
  const more = el("button.quiet", { type: "button" }, `and ${items.length - most} more`);
  more.addEventListener("click", () => {
    list.append(...items.slice(most).map(line));
    more.remove();
  });
  return el("div", list, more);
}

function change({ before, after, attributes }) {
  if (before?.type === "file" && after?.type === "file") {
    const parts = [];
    if ((attributes ?? []).includes("content")) parts.push(`${bytes(before.size)} → ${bytes(after.size)}`);
    if (before.mode !== after.mode) parts.push(`${before.mode} → ${after.mode}`);
    if (before.uid !== after.uid || before.gid !== after.gid) parts.push(`owner ${after.uid}:${after.gid}`);
    return parts.join(" · ") || (attributes ?? []).join(", ");
  }
  if (before && after && before.type !== after.type) return `${before.type} → ${after.type}`;
  const entry = after ?? before;
  return entry.type === "file" ? bytes(entry.size) : entry.type.replace("_", " ");
}

function problemPanel(error) {
  const conflicts = error.details.conflicts ?? [];
  return el(
    "div.problem",
    { role: "alert" },
    el("p", visible(error.message)),
    conflicts.length > 0 &&
      el(
        "table.conflicts",
        el("thead", el("tr", el("th", "Path"), el("th", "Expected"), el("th", "Found"))),
        el("tbody", conflicts.map((item) => el("tr", el("td", path(item.path)), el("td", visible(String(item.expected))), el("td", visible(String(item.found)))))),
      ),
  );
}
