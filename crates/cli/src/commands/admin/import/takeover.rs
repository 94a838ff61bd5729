//! Taking over the rows of an old lease table.
//!
//! A live row becomes a hold-back, not a lease in the name of the old holder: that holder works under its old token,
//! and would go on renewing a lease whose token it does not have. The old holder keeps the time that it was promised,
//! and the next holder has a larger token. The order is what makes it safe: tokens are raised first, then resources
//! are held back, then the old table is retired, and only then are the resources declared and can be acquired.

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use solehold_api::{
    admin::{RaiseToken, RaisedToken},
    paths,
    problem::{ErrorCode, Problem},
    resources::{AcquireResource, GrantBody, PutResource, ResourceBody, RevokeResource, RevokedLease},
};
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, Command, Target, Undeclared},
    key::{Document, LeaseId, Name, ResourceKey},
    lease::Declaration,
    limits::{REVISION_RAISE_MAX, TTL_MS_MIN},
    outcome::Answer,
    time::Revision,
};
use solehold_engine::Engine;
use uuid::Uuid;

use super::{
    Selection,
    table::{OldLease, OldRow, OldTable, Shape},
};
use crate::{
    client::{Client, Method, ServerArgs},
    commands::admin::Door,
    error::{CommandError, CommandResult, Doing},
    exit::Exit,
    global::GlobalArgs,
    human::{count, duration_ms},
    output,
    progress::Progress,
    store::{IfMissing, StoreChoice},
};

/// Requests to a server at a time.
const AT_ONCE: usize = 16;
/// How much shorter than an old lease its hold-back may be: two clocks have measured it.
const CLOCKS_DIFFER_MS: u64 = 1_000;
const DEFAULT_TENANT: &str = "default";

/// What to take over, and how.
#[derive(Debug)]
pub struct Takeover<'a> {
    pub url: &'a str,
    pub shape: Shape,
    pub time_zone: Option<&'a str>,
    pub selection: &'a Selection,
    pub options: Options,
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub dry_run: bool,
    pub retire: bool,
}

/// What was done, or would be.
#[derive(Debug, Default, Serialize)]
struct Report {
    table: String,
    dry_run: bool,
    /// Rows that were selected, one for each resource.
    rows: usize,
    /// Rows with a lease that has not run out.
    live: usize,
    /// The next token is above this one: the largest of the table, or a larger one of the store.
    tokens_above: u64,
    /// Resources that are held back now until their old lease has run out.
    held_back: usize,
    /// When the last of these is free.
    held_back_ms: u64,
    /// Live rows for which nothing had to be done.
    already_held_back: usize,
    declared: usize,
    already_declared: usize,
    /// Rows that the old table shows as held by solehold from now on.
    retired: usize,
}

pub async fn run(
    takeover: Takeover<'_>,
    store: Option<&StoreChoice>,
    server: &ServerArgs,
    global: &GlobalArgs,
) -> CommandResult {
    let Takeover { url, shape, time_zone, selection, options } = takeover;
    let tenant = server.tenant.as_deref().filter(|tenant| !tenant.is_empty()).unwrap_or(DEFAULT_TENANT);
    let tenant = Name::new(tenant).map_err(|error| CommandError::usage(format!("--tenant {error}")))?;
    let missing = if options.dry_run { IfMissing::Refuse } else { IfMissing::Create };
    let door = Door::open(store, missing, server).await?;
    let is_locked = options.retire && !options.dry_run;
    let done = async {
        let old = OldTable::read(url, shape, time_zone, selection, &tenant, is_locked).await?;
        take_over(old, options, &door, global).await
    };
    let done = done.await;
    door.close().await;
    let report = done?;
    output::show(global, &report, || report.text())?;
    if !options.retire && report.live > 0 {
        output::note(format!(
            "{} was not changed: workers that still renew or acquire there are not kept apart from those of solehold; \
             stop them within the time that is left, or use --retire",
            report.table
        ));
    }
    Ok(())
}

async fn take_over(
    old: OldTable,
    options: Options,
    door: &Door,
    global: &GlobalArgs,
) -> CommandResult<Report> {
    let progress = |what, of: usize| {
        let mut progress = Progress::new(what, Some(of as u64), global);
        move || progress.add(1, 1)
    };
    let table = old.shape().table.clone();
    let kind = Name::new(old.shape().kind()).map_err(|error| CommandError::broken(error.to_string()))?;
    let is_declared = old.shape().is_declared();
    let steps = stream::iter(old.rows.clone().into_iter().map(|row| plan(row, &kind, door)));
    let mut looked = progress("looked at", old.rows.len());
    let steps: Vec<Step> = steps.buffered(AT_ONCE).inspect_ok(|_| looked()).try_collect().await?;
    drop(looked);
    let faults: Vec<String> = steps.iter().filter_map(|step| step.judge().err()).collect();
    super::refuse_faults(ErrorCode::Conflict, &faults)?;
    let held_back: Vec<&Step> =
        steps.iter().filter(|step| matches!(step.judge(), Ok(Verdict::HoldBack { .. }))).collect();
    let undeclared: Vec<&Step> = steps.iter().filter(|step| is_declared && !step.seen.is_declared).collect();
    let live = steps.iter().filter(|step| matches!(step.row.lease, OldLease::Live { .. })).count();
    let mut report = Report {
        table: table.clone(),
        dry_run: options.dry_run,
        rows: steps.len(),
        live,
        tokens_above: old.highest_token,
        held_back: held_back.len(),
        held_back_ms: held_back.iter().filter_map(|step| step.left_ms()).max().unwrap_or(0),
        already_held_back: live - held_back.len(),
        declared: undeclared.len(),
        already_declared: steps.iter().filter(|step| is_declared && step.seen.is_declared).count(),
        retired: old.rows.iter().filter(|row| options.retire && row.lease != OldLease::Retired).count(),
    };
    if options.dry_run {
        old.leave().await?;
        return Ok(report);
    }
    report.tokens_above = raise_above(old.highest_token, door).await.doing("raise the tokens")?;
    let reason = format!("taken over from {table}");
    let mut held = progress("held back", held_back.len());
    let holding = stream::iter(held_back.into_iter().map(|step| step.hold_back(&reason, door)));
    holding.buffer_unordered(AT_ONCE).inspect_ok(|()| held()).try_collect::<()>().await?;
    drop(held);
    if options.retire {
        report.retired = old.retire().await?;
    } else {
        old.leave().await?;
    }
    let mut declared = progress("declared", undeclared.len());
    let declaring = stream::iter(undeclared.into_iter().map(|step| declare(&step.key, door)));
    declaring.buffer_unordered(AT_ONCE).inspect_ok(|()| declared()).try_collect::<()>().await?;
    Ok(report)
}

impl Report {
    fn text(&self) -> String {
        let would =
            |done: &str, planned: &str| if self.dry_run { planned.to_owned() } else { done.to_owned() };
        let mut text = format!("{}: {}, of which {} live\n", self.table, count(self.rows, "row"), self.live);
        let above = would("tokens go on from above", "tokens would go on from above");
        text += &format!("{above} {}\n", self.tokens_above);
        let held_back = would("held back", "would hold back");
        let until = match self.held_back {
            0 => String::new(),
            _ => format!(", the last for {}", duration_ms(self.held_back_ms)),
        };
        let already = match self.already_held_back {
            0 => String::new(),
            already => format!("; {already} more were held or held back already"),
        };
        text += &format!("{held_back} {}{until}{already}\n", count(self.held_back, "resource"));
        if self.declared + self.already_declared > 0 {
            let declared = would("declared", "would declare");
            let already = self.already_declared;
            text +=
                &format!("{declared} {}; {already} were declared before\n", count(self.declared, "resource"));
        }
        if self.retired > 0 {
            let retired = would("retired", "would retire");
            let whose = if self.retired == 1 { "its" } else { "their" };
            let is = would("is solehold now", "would be solehold");
            let rows = count(self.retired, "row");
            text += &format!("{retired} {rows}; {whose} holder in the old table {is}\n");
        }
        text
    }
}

/// What the store says about the resource of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    is_declared: bool,
    holder: Option<(String, u64)>,
    held_back_ms: u64,
}

#[derive(Debug)]
struct Step {
    key: ResourceKey,
    row: OldRow,
    seen: Seen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Its old lease has run out, or nothing more has to be done.
    Nothing,
    HoldBack {
        holder: Name,
        left_ms: u64,
    },
}

impl Step {
    fn left_ms(&self) -> Option<u64> {
        match self.row.lease {
            OldLease::Live { left_ms, .. } => Some(left_ms),
            _ => None,
        }
    }

    /// What to do about a row, or why it cannot be taken over.
    fn judge(&self) -> Result<Verdict, String> {
        let OldLease::Live { holder, left_ms } = &self.row.lease else { return Ok(Verdict::Nothing) };
        let at = format!("{}/{}", self.key.kind, self.key.key);
        let left = duration_ms(*left_ms);
        match &self.seen {
            // No other holder gets it: its own has moved already, or an earlier import was interrupted.
            Seen { holder: Some((name, _)), .. } if name == holder.as_str() => Ok(Verdict::Nothing),
            Seen { holder: Some((name, token)), .. } => Err(format!(
                "{at} is held by {name} with token {token}, and in the old table by {holder} for another {left}: \
                 end one of the two"
            )),
            Seen { held_back_ms: 0, .. } => {
                Ok(Verdict::HoldBack { holder: holder.clone(), left_ms: *left_ms })
            }
            Seen { held_back_ms, .. } if held_back_ms + CLOCKS_DIFFER_MS >= *left_ms => Ok(Verdict::Nothing),
            Seen { held_back_ms, .. } => Err(format!(
                "{at} is held back for {}, but {holder} has renewed it in the old table since, for another {left}: \
                 stop {holder}, or run this with --retire in {}",
                duration_ms(*held_back_ms),
                duration_ms(*held_back_ms)
            )),
        }
    }

    /// Acquires the resource in the name of its old holder for the time that is left, and revokes that at once: the
    /// resource is held back until the old deadline (rule 12). If this breaks off in between, the lease itself lasts
    /// as long.
    async fn hold_back(&self, reason: &str, door: &Door) -> CommandResult {
        let Ok(Verdict::HoldBack { holder, left_ms }) = self.judge() else { return Ok(()) };
        let ttl_ms = left_ms.max(TTL_MS_MIN);
        let held_back = match door {
            Door::Server(client) => hold_back_through(client, &self.key, &holder, ttl_ms, reason).await,
            Door::Store(engine) => hold_back_in(engine, &self.key, &holder, ttl_ms, reason).await,
        };
        let held_back = held_back.map_err(|failure| match failure.problem.code {
            ErrorCode::OutOfBounds => failure.hint(format!(
                "its old lease lasts for another {}: raise ttl_max (SOLEHOLD_TTL_MAX), check --time-zone, or wait",
                duration_ms(left_ms)
            )),
            _ => failure,
        });
        held_back.doing(format!("hold back {}/{}", self.key.kind, self.key.key))
    }
}

async fn plan(row: OldRow, kind: &Name, door: &Door) -> CommandResult<Step> {
    let key = ResourceKey::new(row.tenant.clone(), kind.clone(), row.key.clone());
    let seen = match door {
        Door::Server(client) => see_through(client, &key).await,
        Door::Store(engine) => see_in(engine, &key).await,
    };
    let seen = seen.doing(format!("look at {kind}/{}", key.key))?;
    Ok(Step { key, row, seen })
}

fn of_tenant(key: &ResourceKey) -> [(&'static str, Option<String>); 1] {
    [("tenant", Some(key.tenant.to_string()))]
}

async fn see_through(client: &Client, key: &ResourceKey) -> CommandResult<Seen> {
    let path = paths::resource(key.kind.as_str(), key.key.as_str());
    match client.get::<ResourceBody>(&path, &of_tenant(key)).await {
        Ok(found) => Ok(Seen {
            is_declared: found.declared,
            holder: found.lease.map(|lease| (lease.holder, lease.token)),
            held_back_ms: found.held_back_ms,
        }),
        Err(failure) if failure.exit == Exit::NotFound => Ok(Seen::default()),
        Err(failure) => Err(failure),
    }
}

async fn see_in(engine: &Engine, key: &ResourceKey) -> CommandResult<Seen> {
    let loaded = engine.resource(key).await?;
    let Some(resource) = loaded.state.resource(key) else { return Ok(Seen::default()) };
    let is_live = |lease: &&solehold_core::lease::Lease| {
        loaded.state.deadline_of(lease).is_ok_and(|deadline| loaded.now < deadline)
    };
    let lease = resource.lease.as_ref().filter(is_live);
    Ok(Seen {
        is_declared: resource.declared.is_some(),
        holder: lease.map(|lease| (lease.holder.to_string(), lease.token.0)),
        held_back_ms: resource.held_back_until.map_or(0, |until| until.ms_after(loaded.now)),
    })
}

/// Raises tokens above that of the table, in as many steps as the bound of one step needs. Returns what they are above.
async fn raise_above(token: u64, door: &Door) -> CommandResult<u64> {
    let mut above = raise_step(0, door).await?;
    while above < token {
        above = raise_step(token.min(above.saturating_add(REVISION_RAISE_MAX)), door).await?;
    }
    Ok(above)
}

async fn raise_step(above: u64, door: &Door) -> CommandResult<u64> {
    match door {
        Door::Server(client) => {
            let raised = client.send(Method::POST, &paths::raise_token(), &RaiseToken { above }).await;
            raised.map(|raised: RaisedToken| raised.above)
        }
        Door::Store(engine) => {
            match answer(engine, Command::RaiseRevision { above: Revision(above) }).await? {
                Answer::Raised(revision) => Ok(revision.0),
                other => Err(unexpected(&other)),
            }
        }
    }
}

async fn hold_back_through(
    client: &Client,
    key: &ResourceKey,
    holder: &Name,
    ttl_ms: u64,
    reason: &str,
) -> CommandResult {
    let kind = key.kind.as_str();
    let name = key.key.as_str();
    let ask =
        AcquireResource { holder: holder.to_string(), ttl_ms: Some(ttl_ms.into()), ..Default::default() };
    let path = paths::resource_lease(kind, name);
    let grant: GrantBody = client.call(Method::POST, &path, &of_tenant(key), Some(&ask)).await?;
    let revoke = RevokeResource {
        token: Some(grant.lease.token),
        reason: Some(reason.to_owned()),
        ..Default::default()
    };
    let path = paths::resource_lease_revoke(kind, name);
    client.call::<RevokedLease>(Method::POST, &path, &of_tenant(key), Some(&revoke)).await?;
    Ok(())
}

async fn hold_back_in(
    engine: &Engine,
    key: &ResourceKey,
    holder: &Name,
    ttl_ms: u64,
    reason: &str,
) -> CommandResult {
    let acquire = Command::Acquire(Acquire {
        key: key.clone(),
        lease: LeaseId::new(key, Uuid::new_v4()),
        holder: holder.clone(),
        tenure: AskedTenure::Own { ttl_ms },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    });
    let target = Target::Resource(key.clone());
    let claim = Claim { target, token: None, session: None, holder: Some(holder.clone()) };
    let revoke = Command::Revoke { claim, fenced: false, reason: Some(reason.to_owned()) };
    for outcome in engine.submit_all(vec![acquire, revoke]).await {
        outcome?.map_err(|refusal| CommandError::from(Problem::from(refusal)))?;
    }
    Ok(())
}

/// Declares a resource that was not declared; one that is by now stays as it is.
async fn declare(key: &ResourceKey, door: &Door) -> CommandResult {
    let declared = match door {
        Door::Server(client) => {
            let path = paths::resource(key.kind.as_str(), key.key.as_str());
            let body = PutResource::default();
            let declared =
                client.call::<ResourceBody>(Method::PUT, &path, &of_tenant(key), Some(&body)).await;
            declared.map(drop)
        }
        Door::Store(engine) => {
            let declaration = Declaration::default();
            let declare = Command::Declare { key: key.clone(), declaration, only_new: true };
            answer(engine, declare).await.map(drop)
        }
    };
    match declared {
        Err(failure) if failure.problem.code == ErrorCode::Conflict => Ok(()),
        declared => declared.doing(format!("declare {}/{}", key.kind, key.key)),
    }
}

async fn answer(engine: &Engine, command: Command) -> CommandResult<Answer> {
    let outcome = engine.submit(command).await?;
    outcome.map_err(|refusal| CommandError::from(Problem::from(refusal)))
}

fn unexpected(answer: &Answer) -> CommandError {
    CommandError::broken(format!("the engine answered {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn judged(lease: OldLease, seen: Seen) -> Result<Verdict, String> {
        let row = OldRow { tenant: name("t"), key: name("hall"), site: None, lease };
        let key = ResourceKey::new(name("t"), name("scene"), name("hall"));
        Step { key, row, seen }.judge()
    }

    #[test]
    fn a_live_row_is_held_back_once_and_never_beside_another_holder() {
        let live = || OldLease::Live { holder: name("old"), left_ms: 20_000 };
        let held = |who: &str| Seen { holder: Some((who.to_owned(), 7)), ..Seen::default() };
        let back = |held_back_ms| Seen { held_back_ms, ..Seen::default() };
        let hold = Verdict::HoldBack { holder: name("old"), left_ms: 20_000 };
        assert_eq!(judged(live(), Seen::default()), Ok(hold));
        assert_eq!(judged(live(), back(19_500)), Ok(Verdict::Nothing), "a second run");
        assert_eq!(judged(live(), held("old")), Ok(Verdict::Nothing), "it has come over");
        let both = judged(live(), held("new")).expect_err("two holders");
        assert!(
            both.contains("held by new with token 7, and in the old table by old for another 20s"),
            "{both}"
        );
        let renewed = judged(live(), back(3_000)).expect_err("too short");
        assert!(renewed.contains("held back for 3s, but old has renewed it"), "{renewed}");
        for dead in [OldLease::Free, OldLease::Retired] {
            assert_eq!(judged(dead, held("new")), Ok(Verdict::Nothing));
        }
    }
}
