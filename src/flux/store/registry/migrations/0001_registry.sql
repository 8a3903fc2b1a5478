-- The control plane's registry (spec: generations, §2, §9). One text for both databases; see registry/schema.py.
--
--   sandboxes ──< starts >── nodes          starts: every node store ever sent a Start of a sandbox
--       │ artifact_id                       acknowledged: it answered the sandbox's destruction
--       ▼
--   artifacts ── parent ──> artifacts       all artifacts known, also those of sandboxes that are gone
--   idempotency ──> sandboxes
--
-- sandboxes.state moves by core.lifecycle.CONTROL_LIFE. A wake is the row itself:
--
--   paused ── mint generation, attempt, request ──> waking ── guarded by (generation, attempt) ──> running
--   killing, killed: the tombstone. Its name is free. It stays until every start is acknowledged.

-- generation: the highest one ever minted; never lowered. attempt_id, pod_uid, node, node_store_id: its route.
-- request: the exact Activate of the attempt, since a repeat must be the same. tries, refused: what this wake has spent.
-- driver: the control process that works on it. wake_id and failure: how the last wake ended, for those who joined it.
-- artifact_*: what the sandbox wakes from; artifact_generation made it; artifact_store is the node store that has it.
CREATE TABLE sandboxes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT UNIQUE,
    owner TEXT,
    state TEXT NOT NULL
        CHECK (state IN ('waking', 'running', 'pausing', 'paused', 'settling', 'killing', 'killed')),
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt_id TEXT,
    pod_uid TEXT,
    node TEXT,
    node_store_id TEXT,
    address TEXT NOT NULL,
    credential TEXT NOT NULL,
    request TEXT,
    tries INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    driver TEXT,
    wake_id TEXT,
    failure TEXT,
    artifact_id TEXT,
    artifact_digest TEXT,
    artifact_durable INTEGER NOT NULL CHECK (artifact_durable IN (0, 1)),
    artifact_generation INTEGER NOT NULL,
    artifact_store TEXT,
    woke_from TEXT CHECK (woke_from IN ('artifact', 'last_artifact_after_stop', 'cold')),
    stopped INTEGER NOT NULL CHECK (stopped IN (0, 1)),
    lived INTEGER NOT NULL CHECK (lived IN (0, 1)),
    ttl_seconds INTEGER,
    on_timeout TEXT NOT NULL CHECK (on_timeout IN ('kill', 'pause')),
    expires_at REAL,
    boot_id TEXT NOT NULL,
    expires_boot_ns INTEGER NOT NULL
) STRICT;

CREATE INDEX sandboxes_by_state ON sandboxes (state, number);
CREATE INDEX sandboxes_by_artifact ON sandboxes (artifact_id);

CREATE TABLE nodes (
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    node_store_id TEXT NOT NULL UNIQUE,
    added_at REAL NOT NULL,
    kinds TEXT NOT NULL,
    data_address TEXT NOT NULL,
    disk_total INTEGER NOT NULL,
    disk_free INTEGER NOT NULL,
    running INTEGER NOT NULL,
    software TEXT NOT NULL,
    seen_at REAL,
    reachable INTEGER NOT NULL CHECK (reachable IN (0, 1)),
    forgotten_at REAL
) STRICT;

CREATE TABLE starts (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    node_store_id TEXT NOT NULL,
    node TEXT NOT NULL,
    acknowledged INTEGER NOT NULL CHECK (acknowledged IN (0, 1)),
    PRIMARY KEY (sandbox_id, node_store_id)
) STRICT;

CREATE INDEX starts_by_store ON starts (node_store_id);

CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    owner TEXT,
    generation INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('suspend', 'snapshot')),
    name TEXT,
    node TEXT,
    node_store_id TEXT,
    parent TEXT,
    durable INTEGER NOT NULL CHECK (durable IN (0, 1)),
    size INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    error TEXT,
    created_at REAL NOT NULL
) STRICT;

CREATE INDEX artifacts_by_sandbox ON artifacts (sandbox_id);

CREATE TABLE idempotency (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT;
