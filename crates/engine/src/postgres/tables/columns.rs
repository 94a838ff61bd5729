//! Each table described once: its columns by name and type, in the parts in which they are read and written.
//!
//! Select lists, the arrays that sets of rows travel as, and what is read back all come from here ([`super::part`]). A
//! new column is one line, and then the compiler asks for its value wherever a row is made. A test compares it all with
//! the schema that the migrations make (`schema/`).

use solehold_core::{
    event::EventName,
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
    lease::Pending,
    request::SpentRequest,
    session::{HolderStatus, Standing},
    time::{Revision, StoreTime, Token},
};
use uuid::Uuid;

use super::{
    part::{Cells, Column, Params, Part},
    value::{Labels, Required, Value},
};
use crate::postgres::fault::Fault;

/// Parts of tables: `struct Part in table as alias { column: type, }` makes a type, `impl` makes a row of core a part
/// of a table. A field whose column has another name has that behind it: `=> "column"`. A column with `= "sql"` is
/// computed by a query and is in no table.
macro_rules! parts {
    ($($(#[$doc:meta])* $made:ident $part:ident in $table:ident as $alias:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty $(=> $column:literal)? $(= $sql:expr)?,)*
    })*) => {
        $(
            parts!(@$made $(#[$doc])* $part { $($(#[$field_doc])* $field: $type,)* });

            impl Part for $part {
                const WIDTH: usize = [$(stringify!($field)),*].len();

                fn columns() -> Vec<Column> {
                    let table = stringify!($table);
                    let alias = stringify!($alias);
                    vec![$(Column::of::<$type>(table, alias, parts!(@name $field $($column)?), parts!(@sql $($sql)?)),)*]
                }

                fn read(cells: &mut Cells<'_>) -> Result<Self, Fault> {
                    Ok(Self { $($field: cells.next(parts!(@name $field $($column)?))?,)* })
                }

                fn send<'r>(rows: impl Iterator<Item = Option<&'r Self>> + Clone, arrays: &mut Params<'r>) {
                    $(
                        let column = rows.clone().map(|row| row.map(|row| row.$field.sent()));
                        arrays.push(Box::new(column.collect::<Vec<_>>()));
                    )*
                }
            }
        )*

        /// All that is described here.
        #[cfg(test)]
        pub(crate) fn all() -> Vec<Column> {
            [$($part::columns()),*].concat()
        }
    };
    (@struct $(#[$doc:meta])* $part:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(crate) struct $part { $($(#[$field_doc])* pub(crate) $field: $type,)* }
    };
    (@impl $($row:tt)*) => {};
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $column:literal) => { $column };
    (@sql) => { None };
    (@sql $sql:expr) => { Some($sql) };
}

/// Events up to this revision are gone.
macro_rules! floor {
    () => {
        "(SELECT revision FROM solehold.floors ORDER BY revision DESC LIMIT 1)"
    };
}
pub(crate) use floor;

/// When a row of `leases` can be judged, its holder's time being over at `$end`: one that someone waits for is left
/// alone until its lock-delay is over. Those who wait for a shared resource get it when a slot becomes free.
macro_rules! ripe_at {
    ($end:literal) => {
        concat!(
            "least(CASE WHEN l.lease_id IS NOT NULL THEN least(",
            $end,
            ", l.confirm_by_ms) \
                + CASE WHEN l.pending_lease_id IS NULL THEN 0 ELSE r.lock_delay_ms END END, \
            CASE WHEN (l.pending_lease_id IS NOT NULL OR l.queued > 0 AND l.taken = 0) AND l.lease_id IS NULL \
                THEN coalesce(l.held_back_until_ms, 0) END, \
            CASE WHEN r.slot > 0 AND l.lease_id IS NULL THEN l.held_back_until_ms END, \
            l.pending_deadline_ms)"
        )
    };
}
pub(crate) use ripe_at;

parts! {
    struct SessionKeyPart in sessions as s {
        id: SessionId,
    }
    /// What stays as long as the session does.
    struct SessionOpeningPart in sessions as s {
        tenant: Name,
        holder: Name,
        ttl_ms: u64,
        opened_at_ms: StoreTime,
        capacity: Option<u32>,
        by_key: Option<Name>,
    }
    /// What heartbeats, leases and waiters change.
    struct SessionLifePart in sessions as s {
        renewed_at_ms: StoreTime,
        deadline_ms: StoreTime,
        standing: Standing,
        lease_count: u32,
        lease_revision: Revision,
        /// None in an update leaves them as they are.
        metrics: Option<Required>,
        waiting: u32,
    }

    impl HolderKey in holders as h {
        tenant: Name,
        name: Name,
    }
    struct HolderPart in holders as h {
        registered: bool,
        session_id: Option<SessionId>,
        status: HolderStatus,
        registered_at_ms: StoreTime,
        heard_at_ms: StoreTime,
        site: Option<Name>,
        attributes: Document,
        metrics: Document,
    }

    struct ResourceIdPart in resources as r {
        id: i64,
    }
    impl ResourceKey in resources as r {
        tenant: Name,
        kind: Name,
        key: Name,
        slot: u32,
    }
    struct DeclarationPart in resources as r {
        version: i64,
        declared: bool,
        site: Option<Name>,
        labels: Labels,
        attributes: Document,
        lock_delay_ms: u64,
        created_at_ms: StoreTime,
    }
    /// What the ids of a resource's leases begin with.
    struct ResourceMarkPart in resources as r {
        mark: i32,
    }

    struct LeaseKeyPart in leases as l {
        resource_id: i64,
    }
    /// What is kept of a resource whether or not it is held.
    struct LeaseBoundsPart in leases as l {
        last_token: Token,
        held_back_until_ms: Option<StoreTime>,
        held_back_by: Option<Name>,
        due_ms: Option<i64>,
        queued: u32,
        taken: u32,
        slots: u32,
    }
    /// What is beside the lease, in other tables: the version of the declaration, and whether there is a state
    /// document.
    struct BesidePart in leases as l {
        version: i64,
        has_state: bool,
    }
    /// The lease, if `lease_id` is not NULL. The other columns keep what they said of the last lease.
    struct HoldingPart in leases as l {
        lease_id: LeaseId,
        holder: Name,
        session_id: Option<SessionId>,
        ttl_ms: Option<u64>,
        deadline_ms: Option<StoreTime>,
        acquired_at_ms: StoreTime,
        renewed_at_ms: Option<StoreTime>,
        request: Option<Name>,
        attributes: Document,
        stats: Document,
        confirm_by_ms: Option<StoreTime>,
        by_key: Option<Name>,
    }
    impl Pending in leases as l {
        id: LeaseId => "pending_lease_id",
        session: SessionId => "pending_session_id",
        holder: Name => "pending_holder",
        asked_at: StoreTime => "pending_asked_at_ms",
        deadline: StoreTime => "pending_deadline_ms",
        attributes: Document => "pending_attributes",
    }

    struct StateKeyPart in states as t {
        resource_id: i64,
    }
    struct StatePart in states as t {
        sequence: u64,
        token: Token,
        written_at_ms: StoreTime,
        document: Required,
    }

    struct WaiterKeyPart in waiters as w {
        resource_id: i64,
        arrival: Revision,
    }
    struct WaiterPart in waiters as w {
        room_id: SessionId,
        session_id: Option<SessionId>,
        lease_id: LeaseId,
        holder: Name,
        ttl_ms: Option<u64>,
        request: Option<Name>,
        attributes: Document,
        undeclared: bool,
        slots: Option<u32>,
        since_ms: StoreTime,
        deadline_ms: StoreTime,
        by_key: Option<Name>,
    }

    struct RequestKeyPart in requests as q {
        tenant: Name,
        kind: Name,
        key: Name,
        holder: Name,
        request: Name,
    }
    impl SpentRequest in requests as q {
        until: StoreTime => "until_ms",
        by: Option<Name> => "by_key",
        cancelled: bool,
    }

    struct RecordKeyPart in records as d {
        collection: Name,
        id: Name,
    }
    struct RecordPart in records as d {
        document: Required,
    }

    /// How many pending leases there are of a tenant and kind.
    struct MovesPart in leases as l {
        tenant: Name = "k.tenant",
        kind: Name = "k.kind",
        moves: u32 = "(SELECT count(*) FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
            WHERE l.pending_session_id IS NOT NULL AND r.tenant = k.tenant AND r.kind = k.kind)",
    }

    struct EventPart in lease_events as e {
        revision: Revision,
        at_ms: StoreTime,
        tenant: Name,
        kind: Name,
        key: Name,
        slot: u32,
        by_key: Option<Name>,
        holder_session_id: Option<SessionId>,
        /// All of it, as JSON.
        details: String,
    }
    /// What events are found by, and what people want to see of them.
    struct EventIndexPart in lease_events as e {
        resource_hash: i64,
        event_type: EventName,
        lease_id: Option<LeaseId>,
        holder: Option<Name>,
        session_id: Option<SessionId>,
        token: Option<Token>,
    }

    /// The last turn that a replica has taken.
    struct TurnPart in turns as t {
        number: i64,
        keeper: Uuid,
        until_ms: i64,
    }

    /// A ceiling of store time, and the claim that it belongs to.
    struct CeilingPart in ceilings as h {
        number: i64,
        ceiling_ms: i64,
        claimed_ms: i64,
    }
    /// The clock: its one row, the newest batch `b` and the newest mark `m`.
    struct ClockPart in clock as c {
        epoch: u64,
        number: i64 = "b.number",
        revision: Revision = "b.revision",
        last_ms: i64 = "m.at_ms",
        offset_ms: i64,
        moves: i64,
        floor: Revision = floor!(),
        grants_barred_until_ms: i64,
        retired_to: Option<String>,
        wall_ms: i64 = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    }
    /// Where the history stands.
    struct CursorPart in clock as c {
        epoch: u64,
        revision: Revision =
            "(SELECT revision FROM solehold.commits WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1)",
        last_ms: i64 = "(SELECT at_ms FROM solehold.commits ORDER BY at_ms DESC LIMIT 1)",
    }
    /// Which server the history was last seen on.
    struct ClockIdentityPart in clock as c {
        system_id: Option<String>,
        timeline: Option<String>,
        database_oid: Option<i64>,
        table_oid: Option<i64>,
    }

    /// Who holds a resource and who waits for it, before any lock is taken.
    struct AttachedPart in leases as l {
        lease_id: Option<LeaseId>,
        session_of_lease: Option<SessionId> = "CASE WHEN l.lease_id IS NOT NULL THEN l.session_id END",
        pending_lease_id: Option<LeaseId>,
        pending_session_id: Option<SessionId>,
        has_state: bool,
        queued: u32,
        taken: u32,
    }
    /// The present session of a holder.
    struct PresentSessionPart in holders as h {
        session_id: Option<SessionId>,
    }
    /// Whose session it is, and how many waiters are attached to it.
    struct SessionOwnerPart in sessions as s {
        tenant: Name,
        holder: Name,
        waiting: u32,
    }
    /// Whether a waiter was read as one of the first in line.
    struct LinePart in waiters as w {
        is_head: bool = "true",
    }

    /// How many rows a statement has removed, and the place of the last of them in the order in which they go.
    struct RemovalPart in gone as g {
        count: i64 = "count(*)",
        last: Option<i64> = "max(place)",
    }

    /// A row of `leases` that may be due.
    struct DueLeasePart in leases as l {
        resource_id: i64,
        tenant: Name = "r.tenant",
        kind: Name = "r.kind",
        key: Name = "r.key",
        slot: u32 = "r.slot",
        ripe_at_ms: Option<i64> = ripe_at!("coalesce(s.deadline_ms, l.deadline_ms)"),
        due_ms: i64,
    }
    /// A session that may be due.
    struct DueSessionPart in sessions as s {
        id: SessionId,
        deadline_ms: i64,
        has_leases: bool = "EXISTS (SELECT 1 FROM solehold.leases l WHERE l.session_id = s.id AND l.lease_id IS NOT NULL)",
        has_pending: bool = "EXISTS (SELECT 1 FROM solehold.leases l WHERE l.pending_session_id = s.id)",
        due_ms: i64,
    }
    /// A lease on a session that is over.
    struct OrphanPart in sessions as s {
        id: SessionId,
        deadline_ms: i64,
        tenant: Name = "r.tenant",
        kind: Name = "r.kind",
        key: Name = "r.key",
        slot: u32 = "r.slot",
        is_ripe: bool = "l.pending_lease_id IS NULL OR s.deadline_ms + r.lock_delay_ms <= $2",
    }
}
