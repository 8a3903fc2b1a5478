-- Generations: what runs on this node, what it saved, and what may never start here again (spec: generations, §3).
--
--   node_identity (one row)      which store this is; which manager may write to it; the secret of its credentials
--
--   sandboxes ──< artifacts      a row rests on artifact_id, restores restoring, and names named while it is suspended
--       ·            │
--       ·            ├──  upload_jobs   at most one for each artifact; open until the object store confirmed every part
--       ·            └──< pins          a holder (a snapshot) that needs the artifact
--       ·
--   fences ──< endings           by sandbox id, without a foreign key: they outlive the row, and a fence is never deleted
--
-- Every write of a row of sandboxes makes its version greater by one: the witness that guarded updates compare.

CREATE TABLE node_identity (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    node_store_id TEXT NOT NULL,
    secret BLOB NOT NULL,
    owner TEXT NOT NULL
) STRICT;

CREATE TABLE rows_of_generations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT,
    owner TEXT,
    record TEXT NOT NULL,
    bound INTEGER NOT NULL CHECK (bound IN (0, 1)),
    state TEXT NOT NULL CHECK (state IN (
        'created', 'running', 'suspended', 'stopped', 'activating', 'suspending', 'stopping', 'capturing', 'deleting'
    )),
    version INTEGER NOT NULL CHECK (version >= 1),
    generation INTEGER CHECK (generation >= 1),
    attempt_id TEXT,
    pod_uid TEXT,
    prior_state TEXT CHECK (prior_state IN ('created', 'suspended', 'stopped')),
    prior_generation INTEGER CHECK (prior_generation >= 1),
    prior_pod_uid TEXT,
    artifact_id TEXT,
    restoring TEXT,
    named TEXT,
    backup INTEGER NOT NULL DEFAULT 0 CHECK (backup IN (0, 1)),
    last_activity REAL NOT NULL,
    receipt TEXT,
    intent TEXT CHECK (intent IN ('evicted', 'stale', 'destroyed', 'cleaned_up')),
    credential_sha256 TEXT,
    -- a route is a pair, or nothing; so is the prior one
    CHECK ((generation IS NULL) = (pod_uid IS NULL)),
    CHECK ((prior_generation IS NULL) = (prior_pod_uid IS NULL)),
    CHECK ((state = 'activating') = (prior_state IS NOT NULL) OR state = 'deleting'),
    CHECK (state <> 'deleting' OR intent IS NOT NULL)
) STRICT;

-- What ran goes on as generation 1. Only its own database knew of it, so no attempt of this name is ever repeated.
INSERT INTO rows_of_generations (
    number, id, name, owner, record, bound, state, version, generation, attempt_id, pod_uid, last_activity, intent
)
SELECT number, id, name, owner, record, json_extract(record, '$.layout') = 'bound', state, 1, 1, 'imported', 'imported',
       json_extract(record, '$.created_at'), CASE state WHEN 'deleting' THEN 'destroyed' END
FROM sandboxes;

CREATE TABLE fences (
    sandbox_id TEXT PRIMARY KEY,
    claimed INTEGER NOT NULL DEFAULT 0 CHECK (claimed >= 0),
    claimed_attempt TEXT,
    claimed_pod_uid TEXT,
    claimed_digest TEXT,
    retired INTEGER NOT NULL DEFAULT 0 CHECK (retired >= 0),
    delete_receipt TEXT,
    -- a row that is rebuilt goes on from the version of the deleted one, so that no old witness fits it
    last_version INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO fences (sandbox_id, claimed, claimed_attempt, claimed_pod_uid, claimed_digest, retired)
SELECT id, 1, 'imported', 'imported', '', CASE state WHEN 'deleting' THEN 9223372036854775807 ELSE 0 END FROM sandboxes;

CREATE TABLE endings (
    sandbox_id TEXT NOT NULL REFERENCES fences (sandbox_id),
    generation INTEGER NOT NULL CHECK (generation >= 1),
    ended_as TEXT NOT NULL CHECK (ended_as IN ('suspended', 'rolled_back', 'stopped', 'superseded', 'destroyed')),
    artifact_id TEXT,
    artifact_digest TEXT,
    PRIMARY KEY (sandbox_id, generation),
    CHECK ((artifact_id IS NULL) = (artifact_digest IS NULL))
) STRICT;

CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    digest TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('suspend', 'snapshot')),
    state TEXT NOT NULL CHECK (state IN ('local', 'uploading', 'durable')),
    parent TEXT,
    size INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    created_at REAL NOT NULL
) STRICT;

CREATE INDEX artifacts_by_sandbox ON artifacts (sandbox_id);

CREATE TABLE pins (
    holder TEXT PRIMARY KEY,
    artifact_id TEXT NOT NULL REFERENCES artifacts (id)
) STRICT;

CREATE TABLE upload_jobs (
    artifact_id TEXT PRIMARY KEY REFERENCES artifacts (id) ON DELETE CASCADE,
    state TEXT NOT NULL CHECK (state IN ('open', 'done')),
    tries INTEGER NOT NULL DEFAULT 0,
    due_boot_id TEXT NOT NULL,
    due_boot_ns INTEGER NOT NULL,
    error TEXT,
    sent INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL
) STRICT;

CREATE INDEX upload_jobs_open ON upload_jobs (due_boot_ns) WHERE state = 'open';

-- Creating sandboxes, and so the keys of such requests, is the registry's from here on.
DROP TABLE idempotency;
DROP TABLE sandboxes;
ALTER TABLE rows_of_generations RENAME TO sandboxes;
CREATE INDEX sandboxes_by_name ON sandboxes (name) WHERE name IS NOT NULL;
CREATE INDEX sandboxes_by_artifact ON sandboxes (artifact_id) WHERE artifact_id IS NOT NULL;
CREATE INDEX sandboxes_in_flight ON sandboxes (number)
    WHERE state IN ('activating', 'suspending', 'stopping', 'capturing', 'deleting');
