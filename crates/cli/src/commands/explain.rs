//! `solehold explain`: the whole story of a resource: who holds it, since when and until when, who is next, what
//! happened before, and why it is placed where it is.

use clap::Args;
use serde::Serialize;
use solehold_api::{
    locks::LockWaiter,
    paths,
    placement::{Explanation, Penalty},
    resources::{HeldLease, PendingLease, ResourceBody, ResourceHistory},
    runners::Runner,
    sessions::SessionBody,
    time::Timestamp,
    watch::LeaseEvent,
};
use solehold_clock::wall_ms;
use solehold_core::session::Standing;

use super::watch;
use crate::{
    client::Client,
    error::{CommandResult, Doing},
    exit::Exit,
    global::GlobalArgs,
    human::{ago, count, duration_ms},
    output,
    target::ResourceArg,
    view::{LeaseView, shared_by},
};

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The resource, as KIND/KEY
    resource: ResourceArg,
    /// Show at most N of the last events
    #[arg(long, value_name = "N", default_value_t = 10)]
    events: usize,
}

/// All that is known of a resource. The placement's part keeps its names at the top, where programs know them.
#[derive(Debug, Serialize)]
struct Story {
    #[serde(flatten)]
    placement: Option<Explanation>,
    lease: Option<LeaseView>,
    session: Option<SessionFacts>,
    /// The machine of a holder that is a registered runner.
    host: Option<String>,
    pending: Option<PendingLease>,
    waiting: u32,
    /// The first in line, where the server names them.
    waiters: Vec<LockWaiter>,
    /// Those who share it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shared: Vec<HeldLease>,
    held_back_ms: u64,
    lock_delay_ms: u64,
    last_token: Option<u64>,
    /// The last ones, in the order in which they happened.
    events: Vec<LeaseEvent>,
}

/// The session that the lease is attached to.
#[derive(Debug, Serialize)]
struct SessionFacts {
    standing: Standing,
    opened_at: Timestamp,
    renewed_at: Timestamp,
    expires_at: Timestamp,
    ttl_ms: u64,
    full_ttl_ms: u64,
}

pub async fn run(args: ExplainArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let resource = &args.resource;
    let story = gather(&args, client).await.doing(format!("explain {resource}"))?;
    if global.json {
        return output::json(&story);
    }
    output::print(&story.text(resource))
}

/// What `solehold explain` prints of a resource, with its last events up to a number of them.
pub async fn text(resource: &ResourceArg, events: usize, client: &Client) -> CommandResult<String> {
    let args = ExplainArgs { resource: resource.clone(), events };
    let story = gather(&args, client).await.doing(format!("explain {resource}"))?;
    Ok(story.text(resource))
}

/// What is there, or nothing where the server knows nothing of it.
fn if_found<T>(found: CommandResult<T>) -> CommandResult<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.exit == Exit::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn gather(args: &ExplainArgs, client: &Client) -> CommandResult<Story> {
    let ResourceArg { kind, key } = &args.resource;
    let resource = client.get::<ResourceBody>(&paths::resource(kind, key), &[]).await;
    let placement = client.get::<Explanation>(&paths::resource_explain(kind, key), &[]).await;
    let query = [("newest_first", Some("true".to_owned()))];
    let path = paths::resource_history(kind, key);
    let events = client.list::<ResourceHistory>(&path, &query, Some(args.events)).await;
    let mut events = if_found(events)?.unwrap_or_default();
    events.reverse();
    let (missing, resource) = match resource {
        Err(failure) if failure.exit == Exit::NotFound => (Some(failure), None),
        found => (None, Some(found?)),
    };
    // Something that only exists while it is held has a history all the same.
    if let Some(missing) = missing.filter(|_| events.is_empty()) {
        return Err(missing);
    }
    let lease = resource.as_ref().and_then(|resource| resource.lease.clone());
    let session = match lease.as_ref().and_then(|lease| lease.session_id) {
        Some(id) => if_found(client.get::<SessionBody>(&paths::session(&id.to_string()), &[]).await)?,
        None => None,
    };
    let runner = match &lease {
        Some(lease) => if_found(client.get::<Runner>(&paths::runner(&lease.holder), &[]).await)?,
        None => None,
    };
    let of = resource.as_ref();
    Ok(Story {
        placement: if_found(placement)?,
        lease: lease.map(Into::into),
        session: session.map(SessionFacts::from),
        host: runner.and_then(|runner| runner.about.host),
        pending: of.and_then(|resource| resource.pending.clone()),
        waiting: of.map_or(0, |resource| resource.waiting),
        waiters: of.map(|resource| resource.waiters.clone()).unwrap_or_default(),
        shared: of.map(|resource| resource.shared.clone()).unwrap_or_default(),
        held_back_ms: of.map_or(0, |resource| resource.held_back_ms),
        lock_delay_ms: of.map_or(0, |resource| resource.lock_delay_ms),
        last_token: of.map(|resource| resource.last_token).filter(|token| *token > 0),
        events,
    })
}

impl From<SessionBody> for SessionFacts {
    fn from(session: SessionBody) -> Self {
        let SessionBody { standing, opened_at, renewed_at, expires_at, ttl_ms, full_ttl_ms, .. } = session;
        Self { standing, opened_at, renewed_at, expires_at, ttl_ms, full_ttl_ms }
    }
}

type Fact = (&'static str, Option<String>);

impl Story {
    fn text(&self, resource: &ResourceArg) -> String {
        let mut text = format!("{resource}\n{}", output::facts(&self.facts(resource)));
        if !self.events.is_empty() {
            text += &format!("\n{}", watch::table(&self.events));
        }
        text
    }

    fn facts(&self, resource: &ResourceArg) -> Vec<Fact> {
        let mut facts = self.lease_facts();
        facts.extend(self.line_facts());
        facts.push(("if it dies", self.if_holder_dies()));
        facts.extend(self.placement.iter().flat_map(|found| placement_facts(found, resource)));
        facts
    }

    fn lease_facts(&self) -> Vec<Fact> {
        let Some(lease) = &self.lease else {
            let held_back = Some(self.held_back_ms).filter(|ms| *ms > 0);
            return vec![
                ("held by", Some(shared_by(&self.shared).unwrap_or_else(|| "nobody".to_owned()))),
                ("held back", held_back.map(|ms| format!("for another {}", duration_ms(ms)))),
                ("last token", self.last_token.map(|token| token.to_string())),
            ];
        };
        let now_ms = lease.read_at_ms();
        let at = |time: Timestamp| format!("{} ({time})", ago(time, now_ms));
        let session = self.session.as_ref().zip(lease.session_id).map(|(session, id)| {
            let standing = super::node::word(session.standing);
            format!("{id}, {standing}, opened {}", at(session.opened_at))
        });
        let renews = match &self.session {
            Some(session) => {
                format!("each heartbeat of the session, for {}", duration_ms(session.full_ttl_ms))
            }
            None => "the lease alone".to_owned(),
        };
        let heard = lease.renewed_at.map_or_else(
            || "not renewed since it was granted".to_owned(),
            |renewed| format!("{}, by {renews}", at(renewed)),
        );
        let until = format!("{} ({}), by the store's clock", lease.left(), lease.expires_at);
        vec![
            ("held by", Some(lease.holder.clone())),
            ("host", self.host.clone()),
            ("token", lease.token.map(|token| token.to_string())),
            ("lease", Some(lease.lease_id.to_string())),
            ("session", session),
            ("since", Some(at(lease.acquired_at))),
            ("renewed", Some(heard)),
            ("expires", Some(until)),
        ]
    }

    fn line_facts(&self) -> Vec<Fact> {
        let pending = self.pending.as_ref().map(|pending| {
            format!("{}, by a hand-over that lapses at {}", pending.holder, pending.expires_at)
        });
        let names = self.waiters.iter().map(|waiter| format!("{} since {}", waiter.holder, waiter.since));
        let names = names.collect::<Vec<_>>().join(", ");
        let waiting = match (self.waiting, names.is_empty()) {
            (0, _) => None,
            (waiting, true) => Some(count(waiting as usize, "waiter")),
            (waiting, false) => Some(format!("{}: {names}", count(waiting as usize, "waiter"))),
        };
        vec![("next", pending), ("in line", waiting)]
    }

    /// What becomes of it if its holder does nothing any more.
    fn if_holder_dies(&self) -> Option<String> {
        let lease = self.lease.as_ref()?;
        let placed = self.placement.as_ref().and_then(|found| found.if_holder_dies.as_ref());
        if let Some(then) = placed {
            return Some(then.detail.clone());
        }
        let delay = match self.lock_delay_ms {
            0 => String::new(),
            ms => format!("it is held back for {}, then ", duration_ms(ms)),
        };
        let next = match (&self.pending, self.waiting) {
            (Some(pending), _) => format!("{} gets it", pending.holder),
            (None, 0) => "it is free".to_owned(),
            (None, _) => "the first in line gets it".to_owned(),
        };
        Some(format!("its lease expires {}; {delay}{next}", lease.left()))
    }
}

fn placement_facts(found: &Explanation, resource: &ResourceArg) -> Vec<Fact> {
    let failures = match (found.failures, found.quarantined) {
        (0, false) => None,
        (count, false) => Some(format!("{count}; at 5 it is in quarantine")),
        (count, true) => {
            Some(format!("{count}; it is in quarantine: `solehold resource clear {resource}` ends that"))
        }
    };
    let settling = found.settling.iter().map(|settling| {
        format!(
            "{} gets nothing for balance for another {}",
            settling.runner_id,
            duration_ms(settling.for_ms)
        )
    });
    let settling: Vec<String> = settling.collect();
    let settling = format!("{}; settle_ms is {}", settling.join(", "), found.settle_ms);
    let penalties: Vec<String> = found.penalties.iter().map(penalty).collect();
    let last_failure = found.last_failure.as_ref().map(|last| {
        let reason = last.reason.as_deref().unwrap_or("no reason was given");
        format!("on {}, {}: {reason}", last.runner_id, ago(last.at, wall_ms()))
    });
    vec![
        ("should be", found.target.clone().filter(|_| found.target != found.holder)),
        ("step", Some(found.step.clone()).filter(|_| found.placed)),
        ("why", Some(found.detail.clone())),
        ("failures", failures),
        ("last failure", last_failure),
        ("penalty", Some(penalties.join(", ")).filter(|text| !text.is_empty())),
        ("settling", Some(settling).filter(|_| !found.settling.is_empty())),
        ("plan", Some(format!("algorithm {}, revision {}", found.algorithm, found.plan_revision))),
    ]
}

fn penalty(penalty: &Penalty) -> String {
    let told = format!(
        "other runners than {} are preferred for another {}",
        penalty.runner_id,
        duration_ms(penalty.for_ms)
    );
    match &penalty.declines {
        Some(why) => format!("{told}, and it does not ask for it now ({why})"),
        None => told,
    }
}
