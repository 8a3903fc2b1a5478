-- A database as the release with schema 1 wrote it: a named bound sandbox, a managed one, one being deleted.
BEGIN TRANSACTION;
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
CREATE TABLE idempotency (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT;
INSERT INTO "idempotency" VALUES('ky1','once','digest','sb0000000000000001',1700000000.5);
CREATE TABLE keys (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'reviewer', 'agent', 'user')),
    secret_sha256 TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    revoked_at REAL
) STRICT;
INSERT INTO "keys" VALUES(1,'ky1','bot','agent','hash',5.0,NULL);
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
INSERT INTO "sandboxes" VALUES(1,'sb0000000000000001','box','ky1','running',1700003600.5,'boot-1',4600000000000,'{"id":"sb0000000000000001","kind":"procbox","layout":"bound","state":"running","created_at":1700000000.5,"root_device":1,"root_inode":2,"name":"box","workspace":"/w","template":null,"net_ports":[],"mounts":[],"environment":{"A":"b"},"memory_mib":null,"cpus":null,"pids":null,"ttl_seconds":3600,"expires_at":1700003600.5,"boot_id":"boot-1","expires_boot_ns":4600000000000,"on_timeout":"kill","metadata":{},"owner":"ky1","baseline_at":null,"built_in":false}');
INSERT INTO "sandboxes" VALUES(2,'sb0000000000000002',NULL,NULL,'running',NULL,'boot-1',0,'{"id":"sb0000000000000002","kind":"procbox","layout":"managed","state":"running","created_at":1700000000.5,"root_device":1,"root_inode":2,"name":null,"workspace":null,"template":"/","net_ports":[443],"mounts":[],"environment":{"A":"b"},"memory_mib":null,"cpus":null,"pids":null,"ttl_seconds":null,"expires_at":null,"boot_id":"boot-1","expires_boot_ns":0,"on_timeout":"kill","metadata":{},"owner":null,"baseline_at":null,"built_in":true}');
INSERT INTO "sandboxes" VALUES(4,'sb0000000000000004',NULL,NULL,'deleting',NULL,'boot-1',0,'{"id":"sb0000000000000004","kind":"procbox","layout":"bound","state":"deleting","created_at":1700000000.5,"root_device":1,"root_inode":2,"name":"gone","workspace":"/w","template":null,"net_ports":[],"mounts":[],"environment":{"A":"b"},"memory_mib":null,"cpus":null,"pids":null,"ttl_seconds":null,"expires_at":null,"boot_id":"boot-1","expires_boot_ns":0,"on_timeout":"kill","metadata":{},"owner":null,"baseline_at":null,"built_in":false}');
CREATE INDEX changesets_by_sandbox ON changesets (sandbox_id, number);
CREATE INDEX changesets_with_intent ON changesets (number) WHERE intent IS NOT NULL;
CREATE UNIQUE INDEX keys_in_force_by_name ON keys (name) WHERE revoked_at IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('sandboxes',4);
INSERT INTO "sqlite_sequence" VALUES('keys',1);
COMMIT;
PRAGMA user_version = 1;
