-- Sandboxes: the record is one JSON document; what is searched or guarded stands beside it.
CREATE TABLE sandboxes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT UNIQUE,
    owner TEXT,
    state TEXT NOT NULL CHECK (state IN ('running', 'deleting')),
    expires_at REAL,
    boot_id TEXT NOT NULL,
    expires_boot_ns INTEGER NOT NULL,
    record TEXT NOT NULL
) STRICT;

-- An index of the changesets' meta.json files, which are the truth. An intent is set before a file changes, with the
-- audit line that it calls for, and cleared when both are durable; recovery looks only at rows that have one.
CREATE TABLE changesets (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    sandbox_id TEXT NOT NULL,
    owner TEXT,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'applied', 'rejected', 'expired', 'failed')),
    intent TEXT CHECK (intent IN ('create', 'approve', 'reject', 'expire', 'apply', 'fail', 'update', 'delete')),
    line TEXT,
    expires_at REAL NOT NULL,
    boot_id TEXT NOT NULL,
    expires_boot_ns INTEGER NOT NULL,
    finished_at REAL,
    finished_boot_id TEXT,
    finished_boot_ns INTEGER
) STRICT;

CREATE INDEX changesets_by_sandbox ON changesets (sandbox_id, number);
CREATE INDEX changesets_with_intent ON changesets (number) WHERE intent IS NOT NULL;

CREATE TABLE idempotency (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT;

CREATE TABLE keys (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'reviewer', 'agent', 'user')),
    secret_sha256 TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    revoked_at REAL
) STRICT;

CREATE UNIQUE INDEX keys_in_force_by_name ON keys (name) WHERE revoked_at IS NULL;
