-- Version 1 of the schema. Times are milliseconds on the store's clock (bigint, `_ms`); names compare by bytes.
-- Only Solehold writes here. Read as you like; `live_leases` and `history` are made for people.

-- The one clock (rules 1, 2, 23). Locked last, held to commit: commits with events are serialized by this row.
CREATE TABLE solehold.clock (
    id                     int PRIMARY KEY CHECK (id = 1),
    epoch                  bigint NOT NULL,
    revision               bigint NOT NULL,   -- the last one given
    last_ms                bigint NOT NULL,   -- the last time given: store time never goes below
    offset_ms              bigint NOT NULL,   -- store time = greatest(last_ms, clock_timestamp() + offset_ms)
    floor_revision         bigint NOT NULL,   -- events up to this one are gone
    grants_barred_until_ms bigint NOT NULL,   -- nothing is granted before, after a failover that may have lost grants
    synchronous            boolean NOT NULL,  -- whether the last commit waited for a synchronous standby
    system_id              text,              -- the cluster and timeline that the epoch stands for
    timeline               text
) WITH (fillfactor = 10);

-- One incarnation of a holder each. A heartbeat rewrites one of these rows and no index entry: `due_ms` is a lower
-- bound of `deadline_ms`, moved up by the sweeper when it comes by, and only `due_ms` is indexed.
CREATE TABLE solehold.sessions (
    id             uuid PRIMARY KEY,
    tenant         text COLLATE "C" NOT NULL,
    holder         text COLLATE "C" NOT NULL,
    ttl_ms         bigint NOT NULL,
    opened_at_ms   bigint NOT NULL,
    renewed_at_ms  bigint NOT NULL,
    deadline_ms    bigint NOT NULL,
    due_ms         bigint NOT NULL,
    standing       text NOT NULL,
    capacity       bigint,
    lease_count    bigint NOT NULL,
    lease_revision bigint NOT NULL,
    metrics        text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX sessions_due ON solehold.sessions (due_ms);

CREATE TABLE solehold.holders (
    tenant           text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    registered       boolean NOT NULL,
    session_id       uuid,
    status           text NOT NULL,
    registered_at_ms bigint NOT NULL,
    heard_at_ms      bigint NOT NULL,
    site             text COLLATE "C",
    attributes       text,
    metrics          text,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 80);

-- What a resource is. Rarely written; what changes with every grant is in `leases`, one row for each of these.
CREATE TABLE solehold.resources (
    id            bigint PRIMARY KEY,  -- the revision of the event that made the row: never used again
    tenant        text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    version       bigint NOT NULL,     -- the revision of the last declaration; `leases` has it too
    declared      boolean NOT NULL,
    site          text COLLATE "C",
    labels        jsonb NOT NULL,
    attributes    text,
    lock_delay_ms bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    UNIQUE (tenant, kind, key)
);

-- Everything about a resource that is judged under a lock, in one row: `SELECT ... FOR UPDATE` of a single table gives the
-- newest version after waiting, a join would not. A lease's token is `last_token` while `lease_id` is set.
CREATE TABLE solehold.leases (
    resource_id         bigint PRIMARY KEY,
    version             bigint NOT NULL,
    last_token          bigint NOT NULL,
    held_back_until_ms  bigint,
    due_ms              bigint,           -- the sweeper looks here from then on; a lower bound
    lease_id            uuid,
    holder              text COLLATE "C",
    session_id          uuid,             -- none: the lease has a ttl and a deadline of its own
    ttl_ms              bigint,
    deadline_ms         bigint,
    acquired_at_ms      bigint,
    renewed_at_ms       bigint,
    request             text COLLATE "C",
    attributes          text,
    stats               text,
    has_state           boolean NOT NULL,
    pending_lease_id    uuid,
    pending_session_id  uuid,
    pending_holder      text COLLATE "C",
    pending_asked_at_ms bigint,
    pending_deadline_ms bigint,
    pending_attributes  text
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX leases_id ON solehold.leases (lease_id) WHERE lease_id IS NOT NULL;
CREATE INDEX leases_holder ON solehold.leases (holder) WHERE holder IS NOT NULL;
CREATE INDEX leases_due ON solehold.leases (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX leases_session ON solehold.leases (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX leases_pending_id ON solehold.leases (pending_lease_id) WHERE pending_lease_id IS NOT NULL;
CREATE INDEX leases_pending_session ON solehold.leases (pending_session_id) WHERE pending_session_id IS NOT NULL;

-- Hand-over documents, apart from the leases, which would otherwise drag them along with every grant.
CREATE TABLE solehold.states (
    resource_id   bigint PRIMARY KEY,
    sequence      bigint NOT NULL,  -- unsigned 64 bits, kept as signed
    token         bigint NOT NULL,
    written_at_ms bigint NOT NULL,
    document      text NOT NULL
) WITH (fillfactor = 70);

-- Request ids that can get nothing any more (rule 7).
CREATE TABLE solehold.requests (
    tenant   text COLLATE "C" NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    holder   text COLLATE "C" NOT NULL,
    request  text COLLATE "C" NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (tenant, kind, key, holder, request)
);
CREATE INDEX requests_until ON solehold.requests (until_ms);

CREATE TABLE solehold.records (
    collection text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    document   text NOT NULL,
    PRIMARY KEY (collection, id)
);

-- The audit trail: every event in commit order. `details` is the whole of it, as JSON.
CREATE TABLE solehold.lease_events (
    revision      bigint PRIMARY KEY,
    at_ms         bigint NOT NULL,
    resource_hash bigint NOT NULL,  -- of tenant, kind and key: an index over those costs a grant twice as much
    tenant        text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    event_type    text NOT NULL,
    lease_id      uuid,
    holder        text COLLATE "C",
    session_id    uuid,
    token         bigint,
    details       text NOT NULL
);
CREATE INDEX lease_events_lease ON solehold.lease_events (lease_id, revision) WHERE lease_id IS NOT NULL;
CREATE INDEX lease_events_resource ON solehold.lease_events (resource_hash, revision);

-- One row for each commit of late, so that whoever lost the answer to a COMMIT can find out what became of it.
CREATE TABLE solehold.commits (
    batch_id  uuid PRIMARY KEY,
    at_ms     bigint NOT NULL,
    committed boolean NOT NULL  -- false: nobody had it, and now nobody can
);
CREATE INDEX commits_at ON solehold.commits (at_ms);

INSERT INTO solehold.clock VALUES
    (1, 1, 0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0, 0, 0, false, NULL, NULL);

CREATE VIEW solehold.live_leases AS
SELECT r.tenant, r.kind, r.key, r.site, l.holder, l.last_token AS token, l.lease_id, l.session_id,
       to_timestamp(l.acquired_at_ms / 1000.0) AS acquired_at,
       to_timestamp(coalesce(s.deadline_ms, l.deadline_ms) / 1000.0) AS deadline,
       coalesce(s.deadline_ms, l.deadline_ms) - t.now_ms AS left_ms,
       l.pending_holder
FROM solehold.leases l
JOIN solehold.resources r ON r.id = l.resource_id
LEFT JOIN solehold.sessions s ON s.id = l.session_id
CROSS JOIN (SELECT greatest(last_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms) AS now_ms
            FROM solehold.clock) t
WHERE l.lease_id IS NOT NULL AND coalesce(s.deadline_ms, l.deadline_ms) > t.now_ms;

CREATE VIEW solehold.history AS
SELECT revision, to_timestamp(at_ms / 1000.0) AS at, tenant, kind, key, event_type, holder, token, lease_id, session_id,
       details
FROM solehold.lease_events;
