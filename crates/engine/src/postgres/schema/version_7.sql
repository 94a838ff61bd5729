-- Version 7 of the schema: what a key opened or took belongs to it, and events name the key that asked for them. Those in
-- line know since when they wait.

ALTER TABLE solehold.sessions ADD COLUMN by_key text;
ALTER TABLE solehold.leases ADD COLUMN by_key text, ADD COLUMN held_back_by text;
ALTER TABLE solehold.waiters ADD COLUMN by_key text, ADD COLUMN since_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE solehold.lease_events ADD COLUMN by_key text;
