//! Every fixed statement. Each is prepared once a connection; sets of rows travel as arrays, never row by row.

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// A statement that every connection has prepared.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Sql { $($(#[$doc])* $name,)* }

        impl Sql {
            /// The text of all, in the order of the variants.
            pub(crate) const ALL: &[&str] = &[$($text,)*];
        }
    };
}

macro_rules! session_columns {
    () => {
        "s.id, s.tenant, s.holder, s.ttl_ms, s.opened_at_ms, s.renewed_at_ms, s.deadline_ms, s.standing, s.capacity, \
         s.lease_count, s.lease_revision, s.metrics, s.waiting"
    };
}
macro_rules! holder_columns {
    () => {
        "h.tenant, h.name, h.registered, h.session_id, h.status, h.registered_at_ms, h.heard_at_ms, h.site, \
         h.attributes, h.metrics"
    };
}
macro_rules! lease_columns {
    () => {
        "l.resource_id, l.version, l.last_token, l.held_back_until_ms, l.due_ms, l.lease_id, l.holder, l.session_id, \
         l.ttl_ms, l.deadline_ms, l.acquired_at_ms, l.renewed_at_ms, l.request, l.attributes, l.stats, l.has_state, \
         l.pending_lease_id, l.pending_session_id, l.pending_holder, l.pending_asked_at_ms, l.pending_deadline_ms, \
         l.pending_attributes, l.confirm_by_ms, l.queued"
    };
}
macro_rules! resource_columns {
    () => {
        "r.id, r.tenant, r.kind, r.key, r.version, r.declared, r.site, r.labels, r.attributes, r.lock_delay_ms, \
         r.created_at_ms"
    };
}
macro_rules! hanging_columns {
    () => {
        "l.lease_id, CASE WHEN l.lease_id IS NOT NULL THEN l.session_id END, l.pending_lease_id, l.pending_session_id, \
         l.has_state, l.queued"
    };
}
macro_rules! state_columns {
    () => {
        "t.resource_id, t.sequence, t.token, t.written_at_ms, t.document"
    };
}
macro_rules! waiter_columns {
    () => {
        "w.resource_id, w.arrival, w.room_id, w.session_id, w.lease_id, w.holder, w.ttl_ms, w.request, w.attributes, \
         w.undeclared, w.deadline_ms"
    };
}
/// The clock: its one row, which is locked often and written rarely; the newest batch, by its number; the newest mark, by
/// its time. The last two are rows that were inserted and never updated, found at the high end of an index, so however long
/// an old snapshot keeps dead versions alive, none of them is walked.
macro_rules! read_clock {
    ($wall:literal) => {
        concat!("SELECT c.epoch, b.number, b.revision, m.at_ms, c.offset_ms, c.moves, ", floor!(), ", \
            c.grants_barred_until_ms, c.retired_to, \
            (extract(epoch FROM ", $wall, ") * 1000)::bigint \
         FROM solehold.clock c \
         CROSS JOIN (SELECT number, revision FROM solehold.commits WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1) b \
         CROSS JOIN (SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1) m WHERE c.id = 1")
    };
}
/// Events up to this revision are gone.
macro_rules! floor {
    () => {
        "(SELECT revision FROM solehold.floors ORDER BY revision DESC LIMIT 1)"
    };
}
/// Store time in a read: by the transaction's own start, so that the whole of it has one time; `$1` is the latest time
/// that this process has given already.
macro_rules! read_now {
    () => {
        "(SELECT greatest((SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1), \
            (extract(epoch FROM now()) * 1000)::bigint + offset_ms, $1) FROM solehold.clock)"
    };
}
/// When a row of `leases` can be judged, its holder's time being over at `$end`: one that someone waits for is left alone
/// until its lock-delay is over.
macro_rules! ripe_at {
    ($end:literal) => {
        concat!(
            "least(CASE WHEN l.lease_id IS NOT NULL THEN least(",
            $end,
            ", l.confirm_by_ms) \
                + CASE WHEN l.pending_lease_id IS NULL THEN 0 ELSE r.lock_delay_ms END END, \
            CASE WHEN (l.pending_lease_id IS NOT NULL OR l.queued > 0) AND l.lease_id IS NULL \
                THEN coalesce(l.held_back_until_ms, 0) END, \
            l.pending_deadline_ms)"
        )
    };
}
pub(crate) use {floor, lease_columns, read_now, resource_columns, state_columns};

/// Resources by key (`$1..$3`), by a lease on them (`$4`, and its mark `$8`), or by a session (`$5`) or present session of a
/// holder (`$6, $7`) that something of theirs hangs on.
macro_rules! wanted {
    () => {
        "WITH whole AS (SELECT unnest($5::uuid[]) AS id \
            UNION SELECT h.session_id FROM unnest($6::text[], $7::text[]) AS k(tenant, name) \
                  JOIN solehold.holders h USING (tenant, name) WHERE h.session_id IS NOT NULL), \
         wanted AS (SELECT r.id FROM unnest($1::text[], $2::text[], $3::text[]) AS k(tenant, kind, key) \
                  JOIN solehold.resources r USING (tenant, kind, key) \
            UNION SELECT l.resource_id FROM unnest($4::uuid[], $8::int[]) AS k(id, mark) \
                  JOIN solehold.resources r USING (mark) JOIN solehold.leases l ON l.resource_id = r.id \
                  WHERE k.id IN (l.lease_id, l.pending_lease_id) \
            UNION SELECT l.resource_id FROM solehold.old_ids o JOIN solehold.leases l USING (resource_id) \
                  WHERE o.lease_id = ANY($4::uuid[]) AND o.lease_id IN (l.lease_id, l.pending_lease_id) \
            UNION SELECT l.resource_id FROM whole JOIN solehold.leases l ON l.session_id = whole.id \
                  WHERE l.lease_id IS NOT NULL \
            UNION SELECT l.resource_id FROM whole JOIN solehold.leases l ON l.pending_session_id = whole.id) "
    };
}

statements! {
    /// What is known of resources before any lock is taken.
    Resolve = concat!(wanted!(), "SELECT ", resource_columns!(), ", ", hanging_columns!(),
        " FROM wanted JOIN solehold.resources r USING (id) JOIN solehold.leases l ON l.resource_id = r.id");
    /// The present sessions of holders (`$1, $2`).
    ResolveHolders = "SELECT h.tenant, h.name, h.session_id FROM unnest($1::text[], $2::text[]) AS k(tenant, name) \
        JOIN solehold.holders h USING (tenant, name)";
    /// Whose sessions these are.
    ResolveSessions = "SELECT s.id, s.tenant, s.holder, s.waiting FROM solehold.sessions s WHERE s.id = ANY($1::uuid[])";

    LockSessions = concat!("SELECT ", session_columns!(),
        " FROM solehold.sessions s WHERE s.id = ANY($1::uuid[]) ORDER BY s.id FOR UPDATE");
    LockHolders = concat!("SELECT ", holder_columns!(), " FROM solehold.holders h \
         WHERE (h.tenant, h.name) IN (SELECT * FROM unnest($1::text[], $2::text[])) \
         ORDER BY h.tenant, h.name FOR UPDATE");
    LockLeases = concat!("SELECT ", lease_columns!(),
        " FROM solehold.leases l WHERE l.resource_id = ANY($1::bigint[]) ORDER BY l.resource_id FOR UPDATE");
    LockLeasesAndHanging = concat!("SELECT ", lease_columns!(), " FROM solehold.leases l \
         WHERE l.resource_id = ANY($1::bigint[]) OR (l.session_id = ANY($2::uuid[]) AND l.lease_id IS NOT NULL) \
            OR l.pending_session_id = ANY($2::uuid[]) ORDER BY l.resource_id FOR UPDATE");
    /// Makes no new version of the row. What it guards is read by a later statement, which sees every commit that this one
    /// has waited for; this one, whose snapshot is older than its lock, would not.
    LockClock = "SELECT id FROM solehold.clock WHERE id = 1 FOR UPDATE";
    ReadClock = read_clock!("clock_timestamp()");
    /// As [`Sql::ReadClock`], at the start of the transaction that it is in.
    SnapshotClock = read_clock!("now()");

    AnyResources = "SELECT 1 FROM unnest($1::text[], $2::text[], $3::text[]) AS k(tenant, kind, key) \
        JOIN solehold.resources r USING (tenant, kind, key) LIMIT 1";
    Requests = "SELECT q.tenant, q.kind, q.key, q.holder, q.request, q.until_ms \
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS k(tenant, kind, key, holder, request) \
        JOIN solehold.requests q USING (tenant, kind, key, holder, request)";
    Records = "SELECT d.collection, d.id, d.document FROM unnest($1::text[], $2::text[]) AS k(collection, id) \
        JOIN solehold.records d USING (collection, id)";
    States = concat!("SELECT ", state_columns!(),
        " FROM solehold.states t WHERE t.resource_id = ANY($1::bigint[])");

    /// What is known of resources by their numbers.
    ResolveIds = concat!("SELECT ", resource_columns!(), ", ", hanging_columns!(),
        " FROM solehold.resources r JOIN solehold.leases l ON l.resource_id = r.id WHERE r.id = ANY($1::bigint[])");
    /// Who waits: the first so many (`$2`) of each line (`$1`), by grant id (`$3`), by request (`$4..$6`), and those who hang
    /// on sessions (`$7`, at most `$8`). Repetitions do no harm.
    Waiters = concat!("SELECT ", waiter_columns!(), ", true FROM unnest($1::bigint[], $2::bigint[]) AS k(id, most) \
        CROSS JOIN LATERAL (SELECT * FROM solehold.waiters w WHERE w.resource_id = k.id ORDER BY w.arrival \
            LIMIT k.most) w \
        UNION ALL SELECT ", waiter_columns!(), ", false FROM solehold.waiters w WHERE w.lease_id = ANY($3::uuid[]) \
        UNION ALL SELECT ", waiter_columns!(), ", false \
            FROM unnest($4::bigint[], $5::text[], $6::text[]) AS k(resource_id, holder, request) \
            JOIN solehold.waiters w ON w.resource_id = k.resource_id AND w.holder = k.holder AND w.request = k.request \
        UNION ALL (SELECT ", waiter_columns!(), ", false FROM solehold.waiters w WHERE w.room_id = ANY($7::uuid[]) \
            ORDER BY w.resource_id, w.arrival LIMIT $8) \
        UNION ALL (SELECT ", waiter_columns!(), ", false FROM solehold.waiters w WHERE w.session_id = ANY($7::uuid[]) \
            ORDER BY w.resource_id, w.arrival LIMIT $8)");

    /// Who holds what.
    UpdateLeases = "UPDATE solehold.leases l SET last_token = u.last_token, held_back_until_ms = u.held_back_until_ms, \
        due_ms = u.due_ms, lease_id = u.lease_id, holder = u.holder, session_id = u.session_id, ttl_ms = u.ttl_ms, \
        deadline_ms = u.deadline_ms, acquired_at_ms = u.acquired_at_ms, renewed_at_ms = u.renewed_at_ms, \
        request = u.request, attributes = u.attributes, stats = u.stats, confirm_by_ms = u.confirm_by_ms, \
        queued = u.queued \
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::uuid[], $6::text[], $7::uuid[], \
            $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], \
            $15::bigint[], $16::bigint[]) \
        AS u(resource_id, last_token, held_back_until_ms, due_ms, lease_id, holder, session_id, ttl_ms, \
            deadline_ms, acquired_at_ms, renewed_at_ms, request, attributes, stats, confirm_by_ms, queued) \
        WHERE l.resource_id = u.resource_id";
    /// Nobody holds these now. What was said of the last lease stays, and means nothing.
    FreeLeases = "UPDATE solehold.leases l SET lease_id = NULL, last_token = u.last_token, \
        held_back_until_ms = u.held_back_until_ms, due_ms = u.due_ms, queued = u.queued \
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
        AS u(resource_id, last_token, held_back_until_ms, due_ms, queued) WHERE l.resource_id = u.resource_id";
    /// What is beside the leases has changed.
    MarkLeases = "UPDATE solehold.leases l SET version = u.version, has_state = u.has_state \
        FROM unnest($1::bigint[], $2::bigint[], $3::boolean[]) AS u(resource_id, version, has_state) \
        WHERE l.resource_id = u.resource_id";
    InsertLeases = "INSERT INTO solehold.leases (resource_id, last_token, held_back_until_ms, due_ms, lease_id, \
            holder, session_id, ttl_ms, deadline_ms, acquired_at_ms, renewed_at_ms, request, attributes, stats, \
            confirm_by_ms, queued, version, has_state) \
        SELECT *, resource_id, false FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::uuid[], \
            $6::text[], $7::uuid[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], \
            $14::text[], $15::bigint[], $16::bigint[]) AS u(resource_id)";
    UpsertWaiters = "INSERT INTO solehold.waiters (resource_id, arrival, lease_id, holder, session_id, ttl_ms, request, \
            attributes, undeclared, room_id, deadline_ms) \
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::uuid[], $6::bigint[], $7::text[], \
            $8::text[], $9::boolean[], $10::uuid[], $11::bigint[]) \
        ON CONFLICT (resource_id, arrival) DO UPDATE SET lease_id = excluded.lease_id, session_id = excluded.session_id, \
            ttl_ms = excluded.ttl_ms, attributes = excluded.attributes, undeclared = excluded.undeclared, \
            room_id = excluded.room_id, deadline_ms = excluded.deadline_ms";
    DeleteWaiters = "DELETE FROM solehold.waiters w USING unnest($1::bigint[], $2::bigint[]) AS u(resource_id, arrival) \
        WHERE w.resource_id = u.resource_id AND w.arrival = u.arrival";
    UpdatePending = "UPDATE solehold.leases l SET pending_lease_id = u.lease_id, pending_session_id = u.session_id, \
        pending_holder = u.holder, pending_asked_at_ms = u.asked_at_ms, pending_deadline_ms = u.deadline_ms, \
        pending_attributes = u.attributes \
        FROM unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::text[]) \
        AS u(resource_id, lease_id, session_id, holder, asked_at_ms, deadline_ms, attributes) \
        WHERE l.resource_id = u.resource_id";
    InsertResources = "INSERT INTO solehold.resources (id, tenant, kind, key, version, declared, site, labels, attributes, \
            lock_delay_ms, created_at_ms, mark) \
        SELECT id, tenant, kind, key, version, declared, site, labels::jsonb, attributes, lock_delay_ms, created_at_ms, mark \
        FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[], $7::text[], $8::text[], \
            $9::text[], $10::bigint[], $11::bigint[], $12::int[]) \
        AS u(id, tenant, kind, key, version, declared, site, labels, attributes, lock_delay_ms, created_at_ms, mark)";
    UpdateResources = "UPDATE solehold.resources r SET version = u.version, declared = u.declared, site = u.site, \
        labels = u.labels::jsonb, attributes = u.attributes, lock_delay_ms = u.lock_delay_ms, \
        created_at_ms = u.created_at_ms \
        FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[], $7::text[], $8::text[], \
            $9::text[], $10::bigint[], $11::bigint[], $12::int[]) \
        AS u(id, tenant, kind, key, version, declared, site, labels, attributes, lock_delay_ms, created_at_ms, mark) \
        WHERE r.id = u.id";
    DeleteResources = "WITH a AS (DELETE FROM solehold.leases WHERE resource_id = ANY($1::bigint[])), \
        b AS (DELETE FROM solehold.states WHERE resource_id = ANY($1::bigint[])) \
        DELETE FROM solehold.resources WHERE id = ANY($1::bigint[])";
    UpsertStates = "INSERT INTO solehold.states (resource_id, sequence, token, written_at_ms, document) \
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) \
        ON CONFLICT (resource_id) DO UPDATE SET sequence = excluded.sequence, token = excluded.token, \
            written_at_ms = excluded.written_at_ms, document = excluded.document";
    DeleteStates = "DELETE FROM solehold.states WHERE resource_id = ANY($1::bigint[])";

    InsertSessions = "INSERT INTO solehold.sessions (id, tenant, holder, ttl_ms, opened_at_ms, renewed_at_ms, deadline_ms, \
            due_ms, standing, capacity, lease_count, lease_revision, metrics, waiting) \
        SELECT id, tenant, holder, ttl_ms, opened_at_ms, renewed_at_ms, deadline_ms, deadline_ms, standing, capacity, \
            lease_count, lease_revision, metrics, waiting \
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], \
            $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[]) \
        AS u(id, tenant, holder, ttl_ms, opened_at_ms, renewed_at_ms, deadline_ms, standing, capacity, lease_count, \
            lease_revision, metrics, waiting)";
    /// `metrics` is left alone where none are given: a large text is not written again with every heartbeat.
    UpdateSessions = "UPDATE solehold.sessions s SET renewed_at_ms = u.renewed_at_ms, deadline_ms = u.deadline_ms, \
        standing = u.standing, lease_count = u.lease_count, lease_revision = u.lease_revision, \
        metrics = coalesce(u.metrics, s.metrics), waiting = u.waiting, \
        due_ms = CASE WHEN u.lease_count = 0 THEN least(s.due_ms, u.deadline_ms) ELSE s.due_ms END \
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], \
            $8::bigint[]) \
        AS u(id, renewed_at_ms, deadline_ms, standing, lease_count, lease_revision, metrics, waiting) WHERE s.id = u.id";
    DeleteSessions = "DELETE FROM solehold.sessions WHERE id = ANY($1::uuid[])";

    UpsertHolders = "INSERT INTO solehold.holders (tenant, name, registered, session_id, status, registered_at_ms, \
            heard_at_ms, site, attributes, metrics) \
        SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::uuid[], $5::text[], $6::bigint[], $7::bigint[], \
            $8::text[], $9::text[], $10::text[]) \
        ON CONFLICT (tenant, name) DO UPDATE SET registered = excluded.registered, session_id = excluded.session_id, \
            status = excluded.status, registered_at_ms = excluded.registered_at_ms, heard_at_ms = excluded.heard_at_ms, \
            site = excluded.site, attributes = excluded.attributes, metrics = excluded.metrics";
    DeleteHolders = "DELETE FROM solehold.holders h USING unnest($1::text[], $2::text[]) AS u(tenant, name) \
        WHERE h.tenant = u.tenant AND h.name = u.name";
    UpsertRequests = "INSERT INTO solehold.requests (tenant, kind, key, holder, request, until_ms) \
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]) \
        ON CONFLICT (tenant, kind, key, holder, request) DO UPDATE SET until_ms = excluded.until_ms";
    DeleteRequests = "DELETE FROM solehold.requests q \
        USING unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS u(tenant, kind, key, holder, request) \
        WHERE (q.tenant, q.kind, q.key, q.holder, q.request) = (u.tenant, u.kind, u.key, u.holder, u.request)";
    UpsertRecords = "INSERT INTO solehold.records (collection, id, document) \
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) \
        ON CONFLICT (collection, id) DO UPDATE SET document = excluded.document";
    DeleteRecords = "DELETE FROM solehold.records d USING unnest($1::text[], $2::text[]) AS u(collection, id) \
        WHERE d.collection = u.collection AND d.id = u.id";
    InsertEvents = "INSERT INTO solehold.lease_events (revision, at_ms, resource_hash, tenant, kind, key, event_type, \
            lease_id, holder, session_id, token, details) \
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], \
            $8::uuid[], $9::text[], $10::uuid[], $11::bigint[], $12::text[])";
    /// The clock goes on, and the batch leaves word that it did. Numbers are unique: where the isolation is such that the
    /// clock was read in a snapshot from before its lock, this fails, and the batch is run again.
    LeaveWord = "INSERT INTO solehold.commits (batch_id, number, revision, at_ms, committed) VALUES ($1, $2, $3, $4, true)";

    /// Whether a batch was committed; if it was not, it cannot be any more. Waits for one that is on its way. A row that was
    /// there is written again, so that this answer waits for a synchronous standby as the commit itself would have.
    SettleCommit = "INSERT INTO solehold.commits (batch_id, at_ms, committed) \
        VALUES ($1, (SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1), false) \
        ON CONFLICT (batch_id) DO UPDATE SET committed = commits.committed RETURNING committed";

    LoadResources = concat!(wanted!(), "SELECT ", resource_columns!(), ", ", lease_columns!(), ", ", state_columns!(),
        " FROM wanted JOIN solehold.resources r USING (id) JOIN solehold.leases l ON l.resource_id = r.id \
         LEFT JOIN solehold.states t ON t.resource_id = r.id");
    LoadSessions = concat!("SELECT ", session_columns!(), " FROM solehold.sessions s WHERE s.id = ANY($1::uuid[])");
    /// Holders by name (`$1, $2`) and those of sessions (`$3`).
    LoadHolders = concat!("SELECT ", holder_columns!(), " FROM solehold.holders h \
         WHERE (h.tenant, h.name) IN (SELECT * FROM unnest($1::text[], $2::text[]) \
            UNION SELECT s.tenant, s.holder FROM solehold.sessions s WHERE s.id = ANY($3::uuid[]))");
    CollectionRecords = "SELECT d.collection, d.id, d.document FROM solehold.records d WHERE d.collection = $1 \
        ORDER BY d.id";
    Cursor = "SELECT epoch, (SELECT revision FROM solehold.commits WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1), \
            (SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1) FROM solehold.clock WHERE id = 1";

    /// What may be due by `$1`, at most `$2` rows after the place `$3, $4`.
    DueLeases = concat!("SELECT l.resource_id, r.tenant, r.kind, r.key, ", ripe_at!("coalesce(s.deadline_ms, l.deadline_ms)"),
        ", l.due_ms FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
        LEFT JOIN solehold.sessions s ON s.id = l.session_id AND l.lease_id IS NOT NULL \
        WHERE l.due_ms <= $1 AND (l.lease_id IS NOT NULL OR l.pending_lease_id IS NOT NULL OR l.queued > 0) \
            AND l.due_ms >= $3 AND (l.due_ms, l.resource_id) > ($3, $4) \
        ORDER BY l.due_ms, l.resource_id LIMIT $2");
    /// As [`Sql::DueLeases`].
    DueSessions = "SELECT s.id, s.deadline_ms, \
            EXISTS (SELECT 1 FROM solehold.leases l WHERE l.session_id = s.id AND l.lease_id IS NOT NULL), \
            EXISTS (SELECT 1 FROM solehold.leases l WHERE l.pending_session_id = s.id), s.due_ms \
        FROM solehold.sessions s WHERE s.due_ms <= $1 AND s.due_ms >= $3 AND (s.due_ms, s.id) > ($3, $4) \
        ORDER BY s.due_ms, s.id LIMIT $2";
    /// Resources that hang on dead sessions (`$1`), and whether they can be judged: one that someone waits for is left alone
    /// until its lock-delay is over.
    DueHanging = "SELECT s.id, s.deadline_ms, r.tenant, r.kind, r.key, \
            l.pending_lease_id IS NULL OR s.deadline_ms + r.lock_delay_ms <= $2 \
        FROM solehold.sessions s JOIN solehold.leases l ON l.session_id = s.id \
        JOIN solehold.resources r ON r.id = l.resource_id \
        WHERE s.id = ANY($1::uuid[]) AND s.deadline_ms <= $2 AND l.lease_id IS NOT NULL \
        ORDER BY 6 DESC, s.deadline_ms LIMIT $3";
    /// Moves the sweeper's lower bounds up to when the rows can be judged, so that what is not ripe takes no place among what
    /// is. Whoever is busy is left for the next time. A lease on a session is found by the session.
    BumpLeases = concat!("UPDATE solehold.leases l SET due_ms = ", ripe_at!("l.deadline_ms"), " FROM solehold.resources r \
        WHERE r.id = l.resource_id AND l.resource_id IN (SELECT resource_id FROM solehold.leases \
            WHERE resource_id = ANY($1::bigint[]) ORDER BY resource_id FOR UPDATE SKIP LOCKED) \
        AND l.due_ms <= $2 AND (l.lease_id IS NOT NULL OR l.pending_lease_id IS NOT NULL OR l.queued > 0)");
    BumpSessions = "UPDATE solehold.sessions SET due_ms = deadline_ms \
        WHERE id IN (SELECT id FROM solehold.sessions WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED)";
    /// Dead sessions that nothing ripe hangs on: they are due when something is. A session that loses its last lease before
    /// is due at once ([`Sql::UpdateSessions`]).
    ParkSessions = "UPDATE solehold.sessions s SET due_ms = greatest(s.deadline_ms, least( \
            (SELECT min(s.deadline_ms + CASE WHEN l.pending_lease_id IS NULL THEN 0 ELSE r.lock_delay_ms END) \
                FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
                WHERE l.session_id = s.id AND l.lease_id IS NOT NULL), \
            (SELECT min(l.pending_deadline_ms) FROM solehold.leases l WHERE l.pending_session_id = s.id))) \
        WHERE s.id IN (SELECT id FROM solehold.sessions WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED)";

    /// Whose turn it is to sweep, and until when.
    LastTurn = "SELECT number, keeper, until_ms FROM solehold.turns ORDER BY number DESC LIMIT 1";
    /// Takes the next turn, unless another replica was faster.
    TakeTurn = "INSERT INTO solehold.turns (number, keeper, until_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    /// Puts down the time when no batch does.
    Mark = "INSERT INTO solehold.commits (batch_id, at_ms, committed) VALUES ($1, $2, true)";
    /// Removes what is over by `$1`, at most `$2` rows, beginning at `$3`, where the last round ended: what was removed below
    /// that may still be there for an old snapshot, and is not walked again. Tells how many, and where it ended.
    ForgetRequests = "WITH gone AS (DELETE FROM solehold.requests WHERE (tenant, kind, key, holder, request) IN \
        (SELECT tenant, kind, key, holder, request FROM solehold.requests WHERE until_ms <= $1 AND until_ms >= $3 \
         ORDER BY until_ms LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING until_ms) \
        SELECT count(*), max(until_ms) FROM gone";
    /// Removes requests of holders for resources (`$1..$4`) beyond the newest `$5`, at most `$6` of each. One that is spent
    /// anew meanwhile stays. Times are compared so that no index over them is taken: many requests may have the same.
    ForgetSurplus = "DELETE FROM solehold.requests d USING \
        (SELECT k.tenant, k.kind, k.key, k.holder, q.request, q.until_ms \
         FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k(tenant, kind, key, holder) \
         CROSS JOIN LATERAL (SELECT q.request, q.until_ms FROM solehold.requests q \
            WHERE q.tenant = k.tenant AND q.kind = k.kind AND q.key = k.key AND q.holder = k.holder \
            ORDER BY q.until_ms DESC OFFSET $5 LIMIT $6) q) o \
        WHERE (d.tenant, d.kind, d.key, d.holder, d.request) = (o.tenant, o.kind, o.key, o.holder, o.request) \
            AND d.until_ms IS NOT DISTINCT FROM o.until_ms";
    /// Turns that are over, as [`Sql::ForgetRequests`].
    ForgetTurns = "WITH gone AS (DELETE FROM solehold.turns WHERE number IN \
        (SELECT number FROM solehold.turns WHERE number < $1 AND number >= $3 ORDER BY number LIMIT $2) \
        RETURNING number) SELECT count(*), max(number) FROM gone";
    /// As [`Sql::ForgetRequests`]. The newest batch stays: the history goes on from it.
    ForgetCommits = "WITH gone AS (DELETE FROM solehold.commits WHERE batch_id IN \
        (SELECT batch_id FROM solehold.commits WHERE at_ms <= $1 AND at_ms >= $3 \
            AND number IS DISTINCT FROM (SELECT max(number) FROM solehold.commits WHERE number IS NOT NULL) \
         ORDER BY at_ms LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING at_ms) \
        SELECT count(*), max(at_ms) FROM gone";
    /// Rows that are due and nobody's: those of resources that say nothing any more go, the others are due no more. Tells how
    /// many. Found by `due_ms` first: a plan that began with the resources, or in the order of a key, would read all of them.
    ForgetResources = "WITH due AS MATERIALIZED (SELECT resource_id, has_state FROM solehold.leases \
             WHERE due_ms <= $1 AND lease_id IS NULL AND pending_lease_id IS NULL AND queued = 0 \
                AND coalesce(held_back_until_ms, 0) <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED), \
        forgotten AS (DELETE FROM solehold.resources \
            WHERE id = ANY(ARRAY(SELECT resource_id FROM due WHERE NOT has_state)) AND NOT declared RETURNING id), \
        gone AS (DELETE FROM solehold.leases WHERE resource_id = ANY(ARRAY(SELECT id FROM forgotten))), \
        stay AS (UPDATE solehold.leases SET due_ms = NULL WHERE resource_id = ANY(ARRAY( \
            SELECT resource_id FROM due EXCEPT SELECT id FROM forgotten))) \
        SELECT count(*) FROM due";
    /// Ids from before version 3 whose leases have ended.
    ForgetOldIds = "DELETE FROM solehold.old_ids o WHERE NOT EXISTS (SELECT 1 FROM solehold.leases l \
        WHERE l.resource_id = o.resource_id AND o.lease_id IN (l.lease_id, l.pending_lease_id))";
    /// The last event that may go by age (`$1`), looked for among the oldest (`$2` of them) after `$3`, up to which all are gone.
    FloorByAge = "SELECT max(revision) FROM \
        (SELECT revision, at_ms FROM solehold.lease_events WHERE revision > $3 AND \
            (SELECT at_ms FROM solehold.lease_events WHERE revision > $3 ORDER BY revision LIMIT 1) < $1 \
         ORDER BY revision LIMIT $2) e WHERE at_ms < $1";
    /// How many events there may be, by their revisions; all up to `$1` are gone.
    EventSpan = "SELECT (SELECT max(revision) FROM solehold.lease_events) \
        - (SELECT min(revision) FROM solehold.lease_events WHERE revision > $1) + 1";
    /// The last event that may go because `$1` newer ones are there.
    FloorByNumber = "SELECT revision FROM solehold.lease_events ORDER BY revision DESC OFFSET $1 LIMIT 1";
    RaiseFloor = "INSERT INTO solehold.floors (revision) VALUES ($1) ON CONFLICT DO NOTHING";
    ForgetFloors = concat!("DELETE FROM solehold.floors WHERE revision < ", floor!());
    /// As [`Sql::ForgetRequests`], up to the floor.
    ForgetEvents = concat!("WITH gone AS (DELETE FROM solehold.lease_events WHERE revision IN \
        (SELECT revision FROM solehold.lease_events WHERE revision <= ", floor!(), " AND revision > $2 \
         ORDER BY revision LIMIT $1) RETURNING revision) SELECT count(*), max(revision) FROM gone");
}
