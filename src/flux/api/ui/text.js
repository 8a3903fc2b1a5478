// Building the page from data. Nothing here parses markup: text is text, and what could deceive the eye is written out.

// Controls, bidirectional marks, invisible and unassigned characters, line separators.
const DECEIVING = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;
const COLOURS = /\x1b\[[0-9;]*m/g;

// el("div.card", { title: "…" }, child, …): an element; a string child is text.
export function el(kind, ...parts) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const part of parts.flat(Infinity)) {
    if (part === null || part === undefined || part === false) continue;
    if (part instanceof Node) node.append(part);
    else if (typeof part === "object") assign(node, part);
    else node.append(String(part));
  }
  return node;
}

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") node.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

function escape(character) {
  const point = character.codePointAt(0);
  if (point <= 0xff) return `\\x${point.toString(16).padStart(2, "0")}`;
  return point <= 0xffff ? `\\u${point.toString(16).padStart(4, "0")}` : `\\u{${point.toString(16)}}`;
}

// Text whose deceiving characters are shown as escapes; `keep` are characters that mean what they always mean.
export function visible(text, keep = "") {
  const parts = [];
  let plain = "";
  for (const character of text) {
    if (!DECEIVING.test(character) || keep.includes(character)) {
      plain += character;
      continue;
    }
    if (plain) parts.push(plain);
    plain = "";
    parts.push(el("span.escape", { title: "A character that would not show" }, escape(character)));
  }
  if (plain) parts.push(plain);
  return parts;
}

export const visibleLine = (text) => visible(text, "\t");
export const visibleOutput = (text) => visible(text.replace(COLOURS, "").replace(/\r\n/g, "\n"), "\n\t");
export const path = (text) => el("bdi.path", visible(text));

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  let size = count;
  let unit = -1;
  do {
    size /= 1024;
    unit += 1;
  } while (size >= 1024 && unit < 3);
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${["KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function duration(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return span(ms / 1000);
}

function span(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.round(whole / 60)} min`;
  if (whole < 86400) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} d`;
}

export function when(time) {
  const seconds = (Date.parse(time) - Date.now()) / 1000;
  const text = Math.abs(seconds) < 5 ? "now" : seconds < 0 ? `${span(-seconds)} ago` : `in ${span(seconds)}`;
  return el("time", { datetime: time, title: new Date(time).toLocaleString() }, text);
}

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

export const exactPath = (entry) => (entry.path_base64 ? `base64:${entry.path_base64}` : entry.path);
