-- A paused sandbox and what it rests on, as the first schema's software wrote them.
INSERT INTO sandboxes (id, name, owner, state, version, record, generation, attempt_id, pod_uid, node, node_store_id,
    address, credential, request, tries, refused, driver, wake_id, failure, artifact_id, artifact_digest,
    artifact_durable, artifact_generation, artifact_store, woke_from, stopped, lived, ttl_seconds, on_timeout,
    expires_at, boot_id, expires_boot_ns)
VALUES ('sb0123456789abcdef', 'old', 'ky1', 'paused', 7,
    '{"id":"sb0123456789abcdef","kind":"procbox","layout":"managed","state":"created","created_at":1700000000.5,"root_device":64,"root_inode":2,"name":"old","workspace":null,"template":"/","net_ports":[],"mounts":[],"environment":{"A":"1"},"memory_mib":null,"cpus":null,"pids":null,"ttl_seconds":null,"expires_at":null,"boot_id":"b","expires_boot_ns":5,"on_timeout":"kill","metadata":{},"owner":"ky1","baseline_at":null,"built_in":true,"generation":0}',
    3, 'at3', 'pod3', 'local', 'store1', '', '', NULL, 0, 0, NULL, 'wake3', NULL, 'a1', 'd1', 0, 3, 'store1', NULL, 0,
    1, NULL, 'kill', NULL, 'b', 5);
INSERT INTO artifacts (id, digest, sandbox_id, owner, generation, kind, name, node, node_store_id, parent, durable, size,
    stored, error, created_at)
VALUES ('a1', 'd1', 'sb0123456789abcdef', 'ky1', 3, 'suspend', NULL, 'local', 'store1', NULL, 0, 10, 10, NULL, 1700000001.0);
