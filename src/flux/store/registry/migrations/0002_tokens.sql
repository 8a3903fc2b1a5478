-- sandboxes.token: what opens the sandbox's data plane to its holder; stable for the sandbox's life. NULL in rows that
-- are older than it, until it is first needed.
-- artifacts.record: the sandbox's record as it was, so that a snapshot outlives its sandbox. NULL in older rows.
ALTER TABLE sandboxes ADD COLUMN token TEXT;
ALTER TABLE artifacts ADD COLUMN record TEXT;
