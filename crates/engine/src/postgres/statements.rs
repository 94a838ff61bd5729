//! Every fixed statement. Each is prepared once per connection; sets of rows travel as arrays, never row by row.

use std::sync::LazyLock;

use solehold_core::{key::HolderKey, lease::Pending, request::SpentRequest};

use super::tables::{
    columns::*,
    part::{delete, insert, list, update, upsert},
    rows::*,
};

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// A statement that every connection has prepared.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Sql { $($(#[$doc])* $name,)* }

        /// The text of all, in the order of the variants.
        pub(crate) static ALL: LazyLock<Vec<String>> = LazyLock::new(|| vec![$($text.into(),)*]);
    };
}

/// The clock: its one row, which is locked often and written rarely; the newest batch, by its number; the newest mark,
/// by its time; the newest ceiling, by its claim and its time. All but the first are rows that were inserted and never
/// updated, found at the high end of an index, so however long an old snapshot keeps dead versions alive, none of them
/// is walked.
fn read_clock() -> String {
    format!(
        "SELECT {} FROM solehold.clock c \
         CROSS JOIN (SELECT number, revision FROM solehold.commits WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1) b \
         CROSS JOIN (SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1) m \
         CROSS JOIN (SELECT number, ceiling_ms, claimed_ms FROM solehold.ceilings \
            ORDER BY number DESC, ceiling_ms DESC LIMIT 1) h WHERE c.id = 1",
        list::<(ClockPart, CeilingPart)>()
    )
}

/// Store time in a read: by the transaction's own start, so that the whole of it has one time; `$1` is the latest time
/// that this process has given already.
macro_rules! read_now {
    () => {
        "(SELECT greatest((SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1), \
            (extract(epoch FROM now()) * 1000)::bigint + offset_ms, $1) FROM solehold.clock)"
    };
}
pub(crate) use read_now;

/// Resources by key with their slots (`$1..$3`), by a lease on them (`$4`, and its mark `$8`), by a session (`$5`) or
/// present session of a holder (`$6, $7`) that they are attached to, or by their holder (`$9, $10`).
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
            UNION SELECT l.resource_id FROM whole JOIN solehold.leases l ON l.pending_session_id = whole.id \
            UNION SELECT l.resource_id FROM unnest($9::text[], $10::text[]) AS k(tenant, name) \
                  JOIN solehold.leases l ON l.holder = k.name AND l.lease_id IS NOT NULL \
                  JOIN solehold.resources r ON r.id = l.resource_id AND r.tenant = k.tenant) "
    };
}

statements! {
    /// What is known of resources before any lock is taken.
    Resolve = format!("{}SELECT {} FROM wanted JOIN solehold.resources r USING (id) \
        JOIN solehold.leases l ON l.resource_id = r.id", wanted!(), list::<KnownResourceColumns>());
    /// The same of resources by key, with all of their slots.
    ResolveWhole = format!("SELECT {} FROM unnest($1::text[], $2::text[], $3::text[]) AS k(tenant, kind, key) \
        JOIN solehold.resources r USING (tenant, kind, key) JOIN solehold.leases l ON l.resource_id = r.id",
        list::<KnownResourceColumns>());
    /// The present sessions of holders (`$1, $2`).
    ResolveHolders = format!("SELECT {} FROM unnest($1::text[], $2::text[]) AS k(tenant, name) \
        JOIN solehold.holders h USING (tenant, name)", list::<PresentSessionColumns>());
    /// Whose sessions these are.
    ResolveSessions = format!("SELECT {} FROM solehold.sessions s WHERE s.id = ANY($1::uuid[])",
        list::<SessionOwnerPart>());

    LockSessions = format!("SELECT {} FROM solehold.sessions s WHERE s.id = ANY($1::uuid[]) ORDER BY s.id FOR UPDATE",
        list::<SessionColumns>());
    LockHolders = format!("SELECT {} FROM solehold.holders h \
         WHERE (h.tenant, h.name) IN (SELECT * FROM unnest($1::text[], $2::text[])) \
         ORDER BY h.tenant, h.name FOR UPDATE", list::<HolderColumns>());
    LockLeases = format!("SELECT {} FROM solehold.leases l WHERE l.resource_id = ANY($1::bigint[]) \
         ORDER BY l.resource_id FOR UPDATE", list::<LeaseColumns>());
    LockLeasesAndHanging = format!("SELECT {} FROM solehold.leases l \
         WHERE l.resource_id = ANY($1::bigint[]) OR (l.session_id = ANY($2::uuid[]) AND l.lease_id IS NOT NULL) \
            OR l.pending_session_id = ANY($2::uuid[]) ORDER BY l.resource_id FOR UPDATE", list::<LeaseColumns>());
    /// Makes no new version of the row. What it guards is read by a later statement, which sees every commit that this
    /// one has waited for; this one, whose snapshot is older than its lock, would not.
    LockClock = "SELECT id FROM solehold.clock WHERE id = 1 FOR UPDATE";
    ReadClock = read_clock();
    /// As [`Sql::ReadClock`], at the start of the transaction that it is in.
    SnapshotClock = read_clock().replace("clock_timestamp()", "now()");

    AnyResources = "SELECT 1 FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS k(tenant, kind, key, slot) \
        JOIN solehold.resources r USING (tenant, kind, key, slot) LIMIT 1";
    /// What holders (`$1, $2`) hold.
    Holdings = format!("SELECT {} FROM unnest($1::text[], $2::text[]) AS k(tenant, name) \
        JOIN solehold.leases l ON l.holder = k.name AND l.lease_id IS NOT NULL \
        JOIN solehold.resources r ON r.id = l.resource_id AND r.tenant = k.tenant", list::<LeaseKeyPart>());
    Requests = format!("SELECT {} \
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS k(tenant, kind, key, holder, request) \
        JOIN solehold.requests q USING (tenant, kind, key, holder, request)", list::<RequestColumns>());
    /// All cancelled requests of holders for resources (`$1..$4`).
    CancelledRequests = format!("SELECT {} \
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k(tenant, kind, key, holder) \
        JOIN solehold.requests q USING (tenant, kind, key, holder) WHERE q.cancelled", list::<RequestColumns>());
    Records = format!("SELECT {} FROM unnest($1::text[], $2::text[]) AS k(collection, id) \
        JOIN solehold.records d USING (collection, id)", list::<RecordColumns>());
    /// Of each tenant and kind (`$1, $2`).
    CountMoves = format!("SELECT {} FROM unnest($1::text[], $2::text[]) AS k(tenant, kind)", list::<MovesPart>());
    States = format!("SELECT {} FROM solehold.states t WHERE t.resource_id = ANY($1::bigint[])",
        list::<StateColumns>());

    /// What is known of resources by their numbers.
    ResolveIds = format!("SELECT {} FROM solehold.resources r JOIN solehold.leases l ON l.resource_id = r.id \
        WHERE r.id = ANY($1::bigint[])", list::<KnownResourceColumns>());
    /// Waiters: the first `$2` of each line (`$1`), by grant id (`$3`), by request (`$4..$6`), and those attached to
    /// sessions (`$7`, at most `$8`). Repetitions do no harm.
    Waiters = format!("SELECT {head} FROM unnest($1::bigint[], $2::bigint[]) AS k(id, most) \
        CROSS JOIN LATERAL (SELECT * FROM solehold.waiters w WHERE w.resource_id = k.id ORDER BY w.arrival \
            LIMIT k.most) w \
        UNION ALL SELECT {waiter}, false FROM solehold.waiters w WHERE w.lease_id = ANY($3::uuid[]) \
        UNION ALL SELECT {waiter}, false \
            FROM unnest($4::bigint[], $5::text[], $6::text[]) AS k(resource_id, holder, request) \
            JOIN solehold.waiters w ON w.resource_id = k.resource_id AND w.holder = k.holder AND w.request = k.request \
        UNION ALL (SELECT {waiter}, false FROM solehold.waiters w WHERE w.room_id = ANY($7::uuid[]) \
            ORDER BY w.resource_id, w.arrival LIMIT $8) \
        UNION ALL (SELECT {waiter}, false FROM solehold.waiters w WHERE w.session_id = ANY($7::uuid[]) \
            ORDER BY w.resource_id, w.arrival LIMIT $8)",
        head = list::<(WaiterKeyPart, WaiterPart, LinePart)>(), waiter = list::<WaiterColumns>());

    /// Who holds what.
    UpdateLeases = update::<LeaseKeyPart, (LeaseBoundsPart, HoldingPart)>(&[]);
    /// Rows that are free now. Their other columns keep what they said of the last lease, which means nothing.
    FreeLeases = update::<LeaseKeyPart, LeaseBoundsPart>(&[("lease_id", "NULL")]);
    /// The declaration or the state document beside the leases has changed.
    UpdateBeside = update::<LeaseKeyPart, BesidePart>(&[]);
    InsertLeases = insert::<(LeaseKeyPart, LeaseBoundsPart, HoldingPart)>(
        &[("version", "u.resource_id"), ("has_state", "false")]);
    UpsertWaiters = upsert::<WaiterKeyPart, WaiterPart>();
    DeleteWaiters = delete::<WaiterKeyPart>();
    UpdatePending = update::<LeaseKeyPart, Pending>(&[]);
    InsertResources = insert::<(ResourceColumns, ResourceMarkPart)>(&[]);
    UpdateResources = update::<ResourceIdPart, DeclarationPart>(&[]);
    DeleteResources = "WITH a AS (DELETE FROM solehold.leases WHERE resource_id = ANY($1::bigint[])), \
        b AS (DELETE FROM solehold.states WHERE resource_id = ANY($1::bigint[])) \
        DELETE FROM solehold.resources WHERE id = ANY($1::bigint[])";
    UpsertStates = upsert::<StateKeyPart, StatePart>();
    DeleteStates = "DELETE FROM solehold.states WHERE resource_id = ANY($1::bigint[])";

    InsertSessions = insert::<SessionColumns>(&[("due_ms", "u.deadline_ms")]);
    /// `metrics` is left alone where none are given: a large text is not written again with every heartbeat.
    UpdateSessions = update::<SessionKeyPart, SessionLifePart>(&[
        ("metrics", "coalesce(u.metrics, s.metrics)"),
        ("due_ms", "CASE WHEN u.lease_count = 0 THEN least(s.due_ms, u.deadline_ms) ELSE s.due_ms END"),
    ]);
    DeleteSessions = "DELETE FROM solehold.sessions WHERE id = ANY($1::uuid[])";

    UpsertHolders = upsert::<HolderKey, HolderPart>();
    DeleteHolders = delete::<HolderKey>();
    UpsertRequests = upsert::<RequestKeyPart, SpentRequest>();
    DeleteRequests = delete::<RequestKeyPart>();
    UpsertRecords = upsert::<RecordKeyPart, RecordPart>();
    DeleteRecords = delete::<RecordKeyPart>();
    InsertEvents = insert::<(EventPart, EventIndexPart)>(&[]);
    /// The clock goes on, and the batch leaves a row that says so. Numbers are unique: where the isolation is such that
    /// the clock was read in a snapshot from before its lock, this fails, and the batch is run again.
    LeaveWord = "INSERT INTO solehold.commits (batch_id, number, revision, at_ms, committed) VALUES ($1, $2, $3, $4, true)";

    /// Whether a batch was committed; if it was not, it never will be. Waits for one that is on its way. A row that was
    /// there is written again, so that this answer waits for a synchronous standby as the commit itself would have.
    SettleCommit = "INSERT INTO solehold.commits (batch_id, at_ms, committed) \
        VALUES ($1, (SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1), false) \
        ON CONFLICT (batch_id) DO UPDATE SET committed = commits.committed RETURNING committed";

    LoadResources = format!("{}SELECT {} FROM wanted JOIN solehold.resources r USING (id) \
         JOIN solehold.leases l ON l.resource_id = r.id LEFT JOIN solehold.states t ON t.resource_id = r.id",
        wanted!(), list::<WholeResourceColumns>());
    LoadSessions = format!("SELECT {} FROM solehold.sessions s WHERE s.id = ANY($1::uuid[])",
        list::<SessionColumns>());
    /// Holders by name (`$1, $2`) and those of sessions (`$3`).
    LoadHolders = format!("SELECT {} FROM solehold.holders h \
         WHERE (h.tenant, h.name) IN (SELECT * FROM unnest($1::text[], $2::text[]) \
            UNION SELECT s.tenant, s.holder FROM solehold.sessions s WHERE s.id = ANY($3::uuid[]))",
        list::<HolderColumns>());
    CollectionRecords = format!("SELECT {} FROM solehold.records d WHERE d.collection = $1 ORDER BY d.id",
        list::<RecordColumns>());
    Cursor = format!("SELECT {} FROM solehold.clock c WHERE c.id = 1", list::<CursorPart>());

    /// What may be due by `$1`, at most `$2` rows after the place `$3, $4`.
    DueLeases = format!("SELECT {} FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
        LEFT JOIN solehold.sessions s ON s.id = l.session_id AND l.lease_id IS NOT NULL \
        WHERE l.due_ms <= $1 AND (l.lease_id IS NOT NULL OR l.pending_lease_id IS NOT NULL OR l.queued > 0 \
                OR r.slot > 0 AND l.held_back_until_ms IS NOT NULL) \
            AND l.due_ms >= $3 AND (l.due_ms, l.resource_id) > ($3, $4) \
        ORDER BY l.due_ms, l.resource_id LIMIT $2", list::<DueLeasePart>());
    /// As [`Sql::DueLeases`].
    DueSessions = format!("SELECT {} FROM solehold.sessions s \
        WHERE s.due_ms <= $1 AND s.due_ms >= $3 AND (s.due_ms, s.id) > ($3, $4) \
        ORDER BY s.due_ms, s.id LIMIT $2", list::<DueSessionPart>());
    /// Resources that are attached to dead sessions (`$1`), and whether they can be judged: one with a pending lease is
    /// left alone until its lock-delay is over.
    DueOrphans = format!("SELECT {} FROM solehold.sessions s JOIN solehold.leases l ON l.session_id = s.id \
        JOIN solehold.resources r ON r.id = l.resource_id \
        WHERE s.id = ANY($1::uuid[]) AND s.deadline_ms <= $2 AND l.lease_id IS NOT NULL \
        ORDER BY is_ripe DESC, s.deadline_ms LIMIT $3", list::<OrphanPart>());
    /// Moves the sweeper's lower bounds up to when the rows can be judged, so that what is not ripe takes no place
    /// among what is. Rows that are locked are left for the next time. A lease on a session is found by the session.
    BumpLeases = concat!("UPDATE solehold.leases l SET due_ms = ", ripe_at!("l.deadline_ms"), " FROM solehold.resources r \
        WHERE r.id = l.resource_id AND l.resource_id IN (SELECT resource_id FROM solehold.leases \
            WHERE resource_id = ANY($1::bigint[]) ORDER BY resource_id FOR UPDATE SKIP LOCKED) \
        AND l.due_ms <= $2 AND (l.lease_id IS NOT NULL OR l.pending_lease_id IS NOT NULL OR l.queued > 0 \
            OR r.slot > 0 AND l.held_back_until_ms IS NOT NULL)");
    BumpSessions = "UPDATE solehold.sessions SET due_ms = deadline_ms \
        WHERE id IN (SELECT id FROM solehold.sessions WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED)";
    /// Dead sessions with no lease that is due: they are due when one is. A session that loses its last lease before
    /// is due at once ([`Sql::UpdateSessions`]).
    ParkSessions = "UPDATE solehold.sessions s SET due_ms = greatest(s.deadline_ms, least( \
            (SELECT min(s.deadline_ms + CASE WHEN l.pending_lease_id IS NULL THEN 0 ELSE r.lock_delay_ms END) \
                FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
                WHERE l.session_id = s.id AND l.lease_id IS NOT NULL), \
            (SELECT min(l.pending_deadline_ms) FROM solehold.leases l WHERE l.pending_session_id = s.id))) \
        WHERE s.id IN (SELECT id FROM solehold.sessions WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED)";

    /// Whose turn it is to sweep, and until when.
    LastTurn = format!("SELECT {} FROM solehold.turns t ORDER BY t.number DESC LIMIT 1", list::<TurnPart>());
    /// Takes the next turn, unless another replica was faster.
    TakeTurn = "INSERT INTO solehold.turns (number, keeper, until_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    /// Puts down the time when no batch does.
    Mark = "INSERT INTO solehold.commits (batch_id, at_ms, committed) VALUES ($1, $2, true)";
    /// Writes a ceiling down (rule 2).
    StateCeiling = "INSERT INTO solehold.ceilings (number, ceiling_ms, claimed_ms) VALUES ($1, $2, $3) \
        ON CONFLICT DO NOTHING";
    /// Ceilings of claims that are over, beginning at `$2`, where the last round ended.
    ForgetCeilings = "DELETE FROM solehold.ceilings WHERE number < $1 AND number >= $2";
    /// Removes what is over by `$1`, at most `$2` rows, beginning at `$3`, where the last round ended: what was removed
    /// below that may still be there for an old snapshot, and is not walked again. Returns how many, and where it
    /// ended.
    ForgetRequests = format!("WITH gone(place) AS (DELETE FROM solehold.requests WHERE (tenant, kind, key, holder, request) IN \
        (SELECT tenant, kind, key, holder, request FROM solehold.requests WHERE until_ms <= $1 AND until_ms >= $3 \
         ORDER BY until_ms LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING until_ms) \
        SELECT {} FROM gone", list::<RemovalPart>());
    /// Removes requests that leases of keys (`$5`) spent, of holders for resources (`$1..$4`), beyond the newest `$6`,
    /// at most `$7` of each. They are removed by the place of their row. A request that is spent again meanwhile has a
    /// new row in another place, and stays.
    ForgetSurplus = "DELETE FROM solehold.requests WHERE ctid = ANY(ARRAY(SELECT q.ctid \
         FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS k(tenant, kind, key, holder, by_key) \
         CROSS JOIN LATERAL (SELECT q.ctid FROM solehold.requests q \
            WHERE q.tenant = k.tenant AND q.kind = k.kind AND q.key = k.key AND q.holder = k.holder \
                AND q.by_key IS NOT DISTINCT FROM k.by_key AND NOT q.cancelled \
            ORDER BY q.until_ms DESC OFFSET $6 LIMIT $7) q))";
    /// Turns that are over, as [`Sql::ForgetRequests`].
    ForgetTurns = format!("WITH gone(place) AS (DELETE FROM solehold.turns WHERE number IN \
        (SELECT number FROM solehold.turns WHERE number < $1 AND number >= $3 ORDER BY number LIMIT $2) \
        RETURNING number) SELECT {} FROM gone", list::<RemovalPart>());
    /// As [`Sql::ForgetRequests`]. The newest batch stays: the history goes on from it.
    ForgetCommits = format!("WITH gone(place) AS (DELETE FROM solehold.commits WHERE batch_id IN \
        (SELECT batch_id FROM solehold.commits WHERE at_ms <= $1 AND at_ms >= $3 \
            AND number IS DISTINCT FROM (SELECT max(number) FROM solehold.commits WHERE number IS NOT NULL) \
         ORDER BY at_ms LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING at_ms) \
        SELECT {} FROM gone", list::<RemovalPart>());
    /// Rows that are due and free: those of resources with nothing left to keep go, the others are no longer due. The
    /// hold-back of a slot is ended by a decision first, since its resource counts it.
    /// Returns how many there were. Found by `due_ms` first: a plan that began with the resources, or in the order of a
    /// key, would read all of them.
    ForgetResources = "WITH due AS MATERIALIZED (SELECT resource_id, has_state FROM solehold.leases \
             WHERE due_ms <= $1 AND lease_id IS NULL AND pending_lease_id IS NULL AND queued = 0 AND taken = 0 \
                AND coalesce(held_back_until_ms, 0) <= $1 AND (slots = 0 OR held_back_until_ms IS NULL) LIMIT $2 FOR UPDATE SKIP LOCKED), \
        forgotten AS (DELETE FROM solehold.resources \
            WHERE id = ANY(ARRAY(SELECT resource_id FROM due WHERE NOT has_state)) AND NOT declared RETURNING id), \
        gone AS (DELETE FROM solehold.leases WHERE resource_id = ANY(ARRAY(SELECT id FROM forgotten))), \
        stay AS (UPDATE solehold.leases SET due_ms = NULL WHERE resource_id = ANY(ARRAY( \
            SELECT resource_id FROM due EXCEPT SELECT id FROM forgotten))) \
        SELECT count(*) FROM due";
    /// Ids from before version 3 whose leases have ended.
    ForgetOldIds = "DELETE FROM solehold.old_ids o WHERE NOT EXISTS (SELECT 1 FROM solehold.leases l \
        WHERE l.resource_id = o.resource_id AND o.lease_id IN (l.lease_id, l.pending_lease_id))";
    /// The last event that may go by age (`$1`), looked for among the oldest (`$2` of them) after `$3`, up to which all
    /// are gone.
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
    ForgetEvents = format!("WITH gone(place) AS (DELETE FROM solehold.lease_events WHERE revision IN \
        (SELECT revision FROM solehold.lease_events WHERE revision <= {} AND revision > $2 \
         ORDER BY revision LIMIT $1) RETURNING revision) SELECT {} FROM gone", floor!(), list::<RemovalPart>());
}
