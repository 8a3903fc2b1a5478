// One entry's difference: a unified diff with line numbers, or what there is to say about one that has no text.

import { bytes, el, visibleLine } from "./text.js";

const LINES_AT_ONCE = 800;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;

export function renderDiff(file) {
  if (file.text === null || file.text === undefined) return facts(file);
  const lines = file.text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const body = lines.filter((line, index) => !(index < 2 && /^(---|\+\+\+) /.test(line)));
  if (body.length === 0) return facts(file);
  const rows = el("tbody");
  const table = el("table.diff", rows);
  const frame = el("div.scroll", { tabindex: "0" }, table);
  let numbers = [0, 0];
  let shown = 0;
  const more = el("button.quiet.wide", { type: "button", onclick: () => show() });
  function show() {
    const until = Math.min(body.length, shown + LINES_AT_ONCE);
    for (; shown < until; shown += 1) numbers = append(rows, body[shown], numbers);
    more.hidden = shown === body.length;
    more.textContent = `Show ${Math.min(LINES_AT_ONCE, body.length - shown)} more of ${body.length - shown} lines`;
  }
  show();
  return el("div", attributes(file), frame, more);
}

function append(rows, line, [before, after]) {
  const hunk = HUNK.exec(line);
  if (hunk) {
    rows.append(el("tr.hunk", el("td.number"), el("td.number"), el("td.sign"), el("td", visibleLine(line))));
    return [Number(hunk[1]), Number(hunk[2])];
  }
  const sign = line[0] ?? " ";
  const text = visibleLine(line.slice(1));
  if (sign === "\\") {
    rows.append(el("tr.remark", el("td.number"), el("td.number"), el("td.sign"), el("td", text)));
    return [before, after];
  }
  const kind = sign === "+" ? "tr.plus" : sign === "-" ? "tr.minus" : "tr.same";
  const old = sign === "+" ? "" : String(before);
  const now = sign === "-" ? "" : String(after);
  rows.append(
    el(kind, el("td.number", { "data-line": old }), el("td.number", { "data-line": now }), el("td.sign", { "data-sign": sign }), el("td", text)),
  );
  return [before + (sign === "+" ? 0 : 1), after + (sign === "-" ? 0 : 1)];
}

// Mode, owner and the like beside a text diff, where they changed too.
function attributes(file) {
  const { before, after } = file;
  if (!before || !after) return null;
  const changed = ["mode", "uid", "gid"].filter((name) => before[name] !== after[name]);
  if (changed.length === 0) return null;
  return el("p.facts", changed.map((name) => el("span.fact", `${name} ${before[name]} → ${after[name]}`)));
}

function facts(file) {
  const note = file.note ? el("p.note", sentence(file.note)) : null;
  const sides = [["before", file.before], ["after", file.after]].filter(([, entry]) => entry);
  return el("div.plain", note, el("dl.sides", sides.map(([name, entry]) => [el("dt", name), el("dd", describe(entry))])));
}

function describe(entry) {
  const parts = [entry.type.replace("_", " ")];
  if (entry.type === "file") parts.push(bytes(entry.size));
  if (entry.type !== "symlink") parts.push(`mode ${entry.mode}`);
  parts.push(`owner ${entry.uid}:${entry.gid}`);
  if (entry.rdev) parts.push(`device ${entry.rdev}`);
  const lines = [parts.join(" · ")];
  if (entry.target !== undefined) lines.push(el("div.mono", "→ ", visibleLine(entry.target)));
  if (entry.digest) lines.push(el("div.mono.muted", entry.digest));
  for (const name of Object.keys(entry.xattrs ?? {})) lines.push(el("div.mono.muted", visibleLine(name)));
  return lines;
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);
