-- Version 2 of the schema: waiting in line (rule 15).

-- How many places in line hang on a session, as their room or as the session of who waits.
ALTER TABLE solehold.sessions ADD COLUMN waiting bigint NOT NULL DEFAULT 0;

ALTER TABLE solehold.leases
    ADD COLUMN confirm_by_ms bigint,                    -- a waited grant is dead from then on, unless it is renewed before
    ADD COLUMN queued        bigint NOT NULL DEFAULT 0; -- how many rows of `waiters` it has: mostly none, and nobody looks

-- Who waits for what, in order of arrival. Written only under the clock's lock, and so read without one of its own.
CREATE TABLE solehold.waiters (
    resource_id bigint NOT NULL,
    arrival     bigint NOT NULL,           -- a revision: who came earlier comes first
    lease_id    uuid NOT NULL,             -- the id that the grant will have
    holder      text COLLATE "C" NOT NULL,
    session_id  uuid,                      -- none: the lease will have a ttl of its own
    ttl_ms      bigint,
    request     text COLLATE "C",
    attributes  text,
    undeclared  boolean NOT NULL,          -- whether it takes a resource that is not declared
    room_id     uuid NOT NULL,             -- the session of the replica that its client is connected to
    deadline_ms bigint NOT NULL,
    PRIMARY KEY (resource_id, arrival)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX waiters_lease ON solehold.waiters (lease_id);
CREATE UNIQUE INDEX waiters_request ON solehold.waiters (resource_id, holder, request) WHERE request IS NOT NULL;
CREATE INDEX waiters_room ON solehold.waiters (room_id);
CREATE INDEX waiters_session ON solehold.waiters (session_id) WHERE session_id IS NOT NULL;

CREATE OR REPLACE VIEW solehold.live_leases AS
SELECT r.tenant, r.kind, r.key, r.site, l.holder, l.last_token AS token, l.lease_id, l.session_id,
       to_timestamp(l.acquired_at_ms / 1000.0) AS acquired_at,
       to_timestamp(least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) / 1000.0) AS deadline,
       least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) - t.now_ms AS left_ms,
       l.pending_holder
FROM solehold.leases l
JOIN solehold.resources r ON r.id = l.resource_id
LEFT JOIN solehold.sessions s ON s.id = l.session_id
CROSS JOIN (SELECT greatest(last_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms) AS now_ms
            FROM solehold.clock) t
WHERE l.lease_id IS NOT NULL AND least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) > t.now_ms;
