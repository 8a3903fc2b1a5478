// Calls to the daemon. The token stays in this tab: in sessionStorage, never in a cookie or in the address.

const KEY = "flux-token";

export class Refusal extends Error {
  constructor(status, code, message, details) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details ?? {};
  }
}

// Takes a token from `#token=…` and removes it from the address and its history entry; tells whether there was one.
export function adoptToken() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return false;
  sessionStorage.setItem(KEY, decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + "#/");
  return true;
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const setToken = (token) => sessionStorage.setItem(KEY, token);
export const forgetToken = () => sessionStorage.removeItem(KEY);

async function call(method, path, { query, body, signal } = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null) parameters.append(name, String(value));
  }
  const address = parameters.size ? `${path}?${parameters}` : path;
  const headers = { authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(address, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "unreachable", "The daemon does not answer.", {});
  }
  const fields = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Refusal(reply.status, fields.code ?? "unknown", fields.message ?? `Status ${reply.status}`, fields.details);
  return fields;
}

const sandboxPath = (sandbox) => `/v1/sandboxes/${encodeURIComponent(sandbox)}`;
const changesetPath = (sandbox, changeset) => `${sandboxPath(sandbox)}/changesets/${encodeURIComponent(changeset)}`;

async function every(path) {
  const items = [];
  let cursor;
  do {
    const page = await call("GET", path, { query: { limit: 500, cursor } });
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}

export const sandboxes = () => every("/v1/sandboxes");
export const changesets = (sandbox) => every(`${sandboxPath(sandbox)}/changesets`);
export const changeset = (sandbox, id) => call("GET", changesetPath(sandbox, id));
export const diff = (sandbox, id, query) => call("GET", `${changesetPath(sandbox, id)}/diff`, { query });
export const decide = (sandbox, id, verb, body) => call("POST", `${changesetPath(sandbox, id)}/${verb}`, { body });
export const auditAfter = (cursor, signal) => call("GET", "/v1/audit", { query: { cursor, wait_seconds: 25 }, signal });
