-- Version 4 of the schema: what every batch writes is inserted, never updated, so that no old snapshot (a dump, an export)
-- makes anyone walk dead versions. The clock's row is locked often and written rarely.

-- Each batch with its number, one more than the last one's, the last revision that it gave, and its time. Where the history
-- stands is in the row with the highest number. Store time never goes below the highest time. Rows without a number are
-- marks, which replicas leave when no batch does, and words about commits that never happened.
ALTER TABLE solehold.commits
    ADD COLUMN number   bigint,
    ADD COLUMN revision bigint;
CREATE UNIQUE INDEX commits_number ON solehold.commits (number) WHERE number IS NOT NULL;
INSERT INTO solehold.commits (batch_id, at_ms, committed, number, revision)
SELECT '00000000-0000-0000-0000-000000000000', last_ms, true, 0, revision FROM solehold.clock;

-- Events up to the highest of these are gone.
CREATE TABLE solehold.floors (
    revision bigint PRIMARY KEY
);
INSERT INTO solehold.floors SELECT floor_revision FROM solehold.clock;

CREATE OR REPLACE VIEW solehold.live_leases AS
SELECT r.tenant, r.kind, r.key, r.site, l.holder, l.last_token AS token, l.lease_id, l.session_id,
       to_timestamp(l.acquired_at_ms / 1000.0) AS acquired_at,
       to_timestamp(least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) / 1000.0) AS deadline,
       least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) - t.now_ms AS left_ms,
       l.pending_holder
FROM solehold.leases l
JOIN solehold.resources r ON r.id = l.resource_id
LEFT JOIN solehold.sessions s ON s.id = l.session_id
CROSS JOIN (SELECT greatest((SELECT max(at_ms) FROM solehold.commits),
                            (extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms) AS now_ms
            FROM solehold.clock) t
WHERE l.lease_id IS NOT NULL AND least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) > t.now_ms;

-- A program of an older version that still runs must fail here, and not go on with a history of its own.
ALTER TABLE solehold.clock
    ADD COLUMN moves bigint NOT NULL DEFAULT 0,  -- how many times store time was moved on purpose: replicas follow
    DROP COLUMN revision,
    DROP COLUMN last_ms,
    DROP COLUMN floor_revision;
