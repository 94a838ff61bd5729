//! The SQL statements, written once per table.

use crate::table::{ClaimTable, Dead};

/// Where a claim begins to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the lower end of both indexes.
    Beginning,
    /// The same; the floor is only compared with.
    BeginningKnowingTheFloor,
    Floor,
}

#[derive(Debug)]
pub(crate) struct Statements {
    claim: [String; 6],
    pub(crate) extend: String,
    pub(crate) release: String,
    pub(crate) defer_resetting: String,
    pub(crate) defer_counting: String,
    pub(crate) defer_restoring: String,
    pub(crate) bury: Option<String>,
    pub(crate) revive: Option<String>,
    /// `$1` the limit, `$2` a part of the reason or null.
    pub(crate) buried: Option<String>,
    /// `$1` the limit, `$2` ids.
    pub(crate) buried_among: Option<String>,
    /// `$1` ids, `$2` epochs, `$3` owners, `$4` the states that rows had to be in, `$5` whether that matters.
    pub(crate) explain: String,
}

impl Statements {
    pub(crate) fn new(table: &ClaimTable) -> Self {
        let starts = [Start::Beginning, Start::BeginningKnowingTheFloor, Start::Floor];
        let claims: Vec<String> = starts
            .iter()
            .flat_map(|start| [claim(table, *start, false), claim(table, *start, true)])
            .collect();
        Self {
            claim: claims.try_into().expect("three starts, two lanes first"),
            extend: held(table, &prolonged(table), "ms"),
            release: held(table, &ended(table, "NULL", Some(BEFORE_THE_CLAIM)), ""),
            defer_resetting: held(table, &ended(table, LATER, Some("0")), "ms"),
            defer_counting: held(table, &ended(table, LATER, None), "ms"),
            defer_restoring: held(table, &ended(table, LATER, Some(BEFORE_THE_CLAIM)), "ms"),
            bury: table.dead.as_ref().map(|dead| {
                let buried = format!("{} = clock_timestamp(), {} = asked.reason", dead.at, dead.reason);
                held(table, &format!("{}, {buried}", ended(table, "NULL", None)), "reason")
            }),
            revive: table.dead.as_ref().map(|Dead { at, reason }| {
                let ClaimTable { quoted, id, .. } = table;
                let reset = ended(table, "NULL", Some("0"));
                format!(
                    "UPDATE {quoted} AS t SET {reset}, {at} = NULL, {reason} = NULL \
                     WHERE t.{id} = ANY($1) AND t.{at} IS NOT NULL RETURNING t.{id}"
                )
            }),
            buried: buried(table, "($2::text IS NULL OR position($2 in {reason}) > 0)"),
            buried_among: buried(table, "{id} = ANY($2)"),
            explain: explain(table),
        }
    }

    /// `$1` limit, `$2` owner, `$3` the lease in milliseconds; then, from the floor, `$4` the due floor; then the fresh
    /// floor's key.
    pub(crate) fn claim(&self, start: Start, due_first: bool) -> &str {
        let lane = usize::from(due_first);
        match start {
            Start::Beginning => &self.claim[lane],
            Start::BeginningKnowingTheFloor => &self.claim[2 + lane],
            Start::Floor => &self.claim[4 + lane],
        }
    }
}

const BEFORE_THE_CLAIM: &str = "GREATEST(t.$attempts - 1, 0)";
const LATER: &str = "clock_timestamp() + asked.ms * interval '1 millisecond'";

/// A compare-and-set on claimed rows that ends the lease, and sets `columns` (quoted) from the rows of a JSON array.
///
/// `$1` ids, `$2` epochs, `$3` owners, `$4` from, `$5` to, `$6` the JSON array, if there are columns to set.
pub(crate) fn transition(table: &ClaimTable, columns: &[String]) -> String {
    let set: String = columns.iter().map(|column| format!(", {column} = s.{column}")).collect();
    transition_setting(table, (!columns.is_empty()).then_some(set.as_str()))
}

/// The same, with what sets the columns: `, "note" = s."note"` and so on.
pub(crate) fn transition_setting(table: &ClaimTable, set: Option<&str>) -> String {
    let state = table.state.as_deref().unwrap_or(&table.id);
    let (join, on) = match set {
        None => (String::new(), String::new()),
        Some(_) => (
            format!(", jsonb_populate_recordset(NULL::{}, $6) AS s", table.quoted),
            format!(" AND s.{id} = t.{id}", id = table.id),
        ),
    };
    let set = set.unwrap_or_default();
    let touched = table.touched.as_ref().map(|at| format!(", {at} = clock_timestamp()")).unwrap_or_default();
    format!(
        "UPDATE {table} AS t SET {state} = asked.to_state::{kind}, {ended}{touched}{set} \
         FROM unnest($1, $2, $3, $4, $5) AS asked(id, epoch, owner, from_state, to_state){join} \
         WHERE {proof} AND t.{state}::text IS NOT DISTINCT FROM asked.from_state{on} RETURNING t.{id}",
        table = table.quoted,
        kind = table.state_type,
        ended = ended(table, "NULL", Some("0")),
        proof = proof(table),
        id = table.id,
    )
}

fn prolonged(ClaimTable { until, .. }: &ClaimTable) -> String {
    format!("{until} = GREATEST(t.{until}, clock_timestamp() + asked.ms * interval '1 millisecond')")
}

/// Why each claim of a batch was lost, in its order, and what its row is like now.
fn explain(table: &ClaimTable) -> String {
    let ClaimTable { quoted, id, owner, epoch, .. } = table;
    let state = state_text(table, "t.");
    format!(
        "SELECT asked.id, CASE WHEN t.{id} IS NULL THEN 'gone' \
             WHEN COALESCE(t.{epoch}, 0) <> asked.epoch THEN 'taken' \
             WHEN t.{owner} IS DISTINCT FROM asked.owner THEN 'ended' \
             WHEN $5 AND {state} IS DISTINCT FROM asked.from_state THEN 'state' ELSE 'expired' END AS why, \
             t.{owner} AS owner, COALESCE(t.{epoch}, 0)::bigint AS epoch, {state} AS state \
         FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS asked(id, epoch, owner, from_state, at) \
         LEFT JOIN {quoted} AS t ON t.{id} = ANY($1) AND t.{id} = asked.id ORDER BY asked.at"
    )
}

/// A change of claimed rows. `$1` ids, `$2` epochs, `$3` owners, `$4` what `more` names, if anything.
fn held(table: &ClaimTable, set: &str, more: &str) -> String {
    let ClaimTable { quoted, id, .. } = table;
    let proof = proof(table);
    let (parameter, name) = if more.is_empty() { ("", String::new()) } else { (", $4", format!(", {more}")) };
    format!(
        "UPDATE {quoted} AS t SET {set} FROM unnest($1, $2, $3{parameter}) AS asked(id, epoch, owner{name}) \
         WHERE {proof} RETURNING t.{id}"
    )
}

/// The proof of a claim. The array beside the join keeps the planner on the key's index, whatever it believes about the
/// join.
fn proof(ClaimTable { id, owner, until, epoch, .. }: &ClaimTable) -> String {
    format!(
        "t.{id} = ANY($1) AND t.{id} = asked.id AND t.{owner} = asked.owner AND t.{epoch} = asked.epoch \
         AND t.{until} > clock_timestamp()"
    )
}

/// The columns of a lease that ends. The epoch stays forever.
fn ended(table: &ClaimTable, not_before: &str, attempts: Option<&str>) -> String {
    let mut set = format!("{} = NULL", table.owner);
    match &table.next_attempt {
        Some(next) => set += &format!(", {} = NULL, {next} = {not_before}", table.until),
        None => set += &format!(", {} = {not_before}", table.until),
    }
    if let (Some(column), Some(value)) = (&table.attempts, attempts) {
        set += &format!(", {column} = {}", value.replace("$attempts", column));
    }
    set
}

/// Lists buried rows, the earliest first.
fn buried(table: &ClaimTable, condition: &str) -> Option<String> {
    let ClaimTable { quoted, id, .. } = table;
    let Dead { at, reason } = table.dead.as_ref()?;
    let attempts = table.attempts.as_deref().unwrap_or("0");
    let state = state_text(table, "");
    let condition = condition.replace("{reason}", reason).replace("{id}", id);
    Some(format!(
        "SELECT {id}, {at}, {reason}, COALESCE({attempts}, 0)::int, {state} FROM {quoted} \
         WHERE {at} IS NOT NULL AND {condition} ORDER BY {at}, {id} LIMIT $1"
    ))
}

fn state_text(table: &ClaimTable, of: &str) -> String {
    table.state.as_ref().map_or_else(|| "NULL::text".to_owned(), |state| format!("{of}{state}::text"))
}

/// One short statement: lock the ids of what is open and free, in order, skipping what others have locked; lease those;
/// return them.
///
/// Each lane has an inner limit that the planner knows, so that it does not sort what the index has in order; the outer
/// one is what the lane before left over. The first row always comes, with the time and the floors, even if nothing was
/// claimed.
fn claim(table: &ClaimTable, start: Start, due_first: bool) -> String {
    let (first, second) = if due_first { ("due", "fresh") } else { ("fresh", "due") };
    let lane = |name| if name == "due" { due_lane(table, start) } else { fresh_lane(table, start) };
    let key: Vec<&String> = table.key().collect();
    let floor_columns: String = (1..=key.len()).map(|i| format!(", floor.k{i} AS floor_{i}")).collect();
    let last: Vec<String> = (1..=key.len()).map(|i| format!("k{i} DESC")).collect();
    let ahead = match start {
        Start::Beginning | Start::Floor => "true".to_owned(),
        Start::BeginningKnowingTheFloor => {
            let mine: Vec<String> = (1..=key.len()).map(|i| format!("floor.k{i}")).collect();
            format!("(({}) > ({}))", mine.join(", "), parameters(4, key.len()).join(", "))
        }
    };
    let order: Vec<String> = (1..=key.len()).map(|i| format!("claimed.claim_key_{i}")).collect();
    format!(
        "WITH {first} AS MATERIALIZED ({first_lane} LIMIT $1 FOR UPDATE SKIP LOCKED), \
         {second} AS MATERIALIZED (SELECT * FROM ({second_lane} LIMIT $1 FOR UPDATE SKIP LOCKED) AS lane \
             LIMIT $1 - (SELECT count(*) FROM {first})), \
         claimed AS (UPDATE {table} SET {set} WHERE {id} = ANY(ARRAY(\
             SELECT k{last_key} FROM fresh UNION ALL SELECT id FROM due)) RETURNING {returning}) \
         SELECT statement_timestamp() AS now, (SELECT count(*) FROM fresh) AS fresh_rows, \
             (SELECT count(*) FROM due) AS due_rows, (SELECT max(due_at) FROM due) AS last_due, \
             {ahead} AS ahead{floor_columns}, claimed.* \
         FROM (SELECT 1) AS one LEFT JOIN (SELECT * FROM fresh ORDER BY {last} LIMIT 1) AS floor ON true \
         LEFT JOIN claimed ON true ORDER BY {order}",
        first_lane = lane(first),
        second_lane = lane(second),
        table = table.quoted,
        set = leased(table),
        id = table.id,
        last_key = key.len(),
        returning = returning(table),
        last = last.join(", "),
        order = order.join(", "),
    )
}

/// Rows that have not been claimed since they were inserted or released, in the order of the table.
fn fresh_lane(table: &ClaimTable, start: Start) -> String {
    let key: Vec<&str> = table.key().map(String::as_str).collect();
    let named: Vec<String> = (1..).zip(&key).map(|(i, column)| format!("{column} AS k{i}")).collect();
    let from = match start {
        Start::Floor => format!(" AND ({}) > ({})", key.join(", "), parameters(5, key.len()).join(", ")),
        _ => String::new(),
    };
    format!(
        "SELECT {} FROM {} WHERE {} AND {} IS NULL{from} ORDER BY {}",
        named.join(", "),
        table.quoted,
        table.open(),
        table.due(),
        key.join(", "),
    )
}

/// Rows whose lease or pause has run out, the longest ago first.
fn due_lane(table: &ClaimTable, start: Start) -> String {
    let due = table.due();
    let from = match start {
        Start::Floor => format!(" AND {due} >= COALESCE($4, '-infinity')"),
        _ => String::new(),
    };
    let ClaimTable { quoted, id, .. } = table;
    let open = table.open();
    format!(
        "SELECT {id} AS id, {due} AS due_at FROM {quoted} \
         WHERE {open} AND {due} IS NOT NULL AND {due} <= statement_timestamp(){from} ORDER BY {due}, {id}"
    )
}

/// What a claim sets. By the clock at that moment: the lease's time does not run while the statement waits.
fn leased(table: &ClaimTable) -> String {
    let ClaimTable { owner, until, epoch, .. } = table;
    let mut set = format!(
        "{owner} = $2, {until} = clock_timestamp() + $3 * interval '1 millisecond', {epoch} = COALESCE({epoch}, 0) + 1"
    );
    if let Some(attempts) = &table.attempts {
        set += &format!(", {attempts} = COALESCE({attempts}, 0) + 1");
    }
    if let Some(next) = &table.next_attempt {
        set += &format!(", {next} = NULL");
    }
    set
}

fn returning(table: &ClaimTable) -> String {
    let attempts = table.attempts.as_deref().unwrap_or("0");
    let mut columns = vec![
        format!("{} AS claim_id", table.id),
        format!("{}::bigint AS claim_epoch", table.epoch),
        format!("{attempts}::int AS claim_attempts"),
        format!("{} AS claim_state", state_text(table, "")),
    ];
    columns.extend((1..).zip(table.key()).map(|(i, column)| format!("{column} AS claim_key_{i}")));
    columns.extend(table.payload.iter().cloned());
    columns.join(", ")
}

fn parameters(first: usize, count: usize) -> Vec<String> {
    (first..first + count).map(|i| format!("${i}")).collect()
}
