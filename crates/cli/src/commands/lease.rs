//! `solehold lease`: list, acquire, renew, release and revoke leases.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Number, json};
use solehold_api::{
    batch::{AcquireBatch, AcquireItem, Batch, BatchItem, BatchResults, ReleaseItem, RenewItem},
    leases::{Envelope, FlatFields, LeaseHistory, LeaseList, RevokeLease},
    paths,
    problem::{ErrorCode, Problem},
    resources::{AcquireResource, GrantBody, HeldLease, ResourceHistory, RevokeResource, RevokedLease},
};
use uuid::Uuid;

#[cfg(feature = "agent")]
use super::keep::KeepArgs;
use crate::{
    client::{Client, Method},
    commands::watch,
    error::{CommandError, CommandResult, Doing},
    global::GlobalArgs,
    human::duration_ms,
    output,
    target::{LeaseArg, ResourceArg},
    times,
    view::{GrantView, LeaseView},
};

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    #[command(flatten)]
    Request(LeaseRequest),
    /// Hold a lease from a script: prints the token, renews, and releases when stdin is closed
    #[cfg(feature = "agent")]
    #[command(after_help = super::keep::AFTER_HELP)]
    Keep(Box<KeepArgs>),
}

/// What is done by a request to a server.
#[derive(Debug, Subcommand)]
pub enum LeaseRequest {
    /// List the active leases
    #[command(after_help = examples!("lease ls", "lease ls --kind camera --site hall-2 --json"))]
    Ls {
        /// Only leases on resources of this kind
        #[arg(long)]
        kind: Option<String>,
        /// Only leases of this holder
        #[arg(long)]
        holder: Option<String>,
        /// Only leases on resources at this site
        #[arg(long)]
        site: Option<String>,
        /// At most N leases [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show a lease
    #[command(after_help = examples!("lease get job/nightly"))]
    Get {
        /// A lease id, or the resource that it is on as KIND/KEY
        lease: LeaseArg,
    },
    /// Acquire a free resource, or several: all of them, or none
    #[command(after_help = examples!(
        "lease acquire job/nightly --holder worker-1 --ttl 5m",
        "lease acquire gpu/pool --slots 4 --holder worker-1",
        "lease acquire account/17 account/42 --holder transfer-9",
    ))]
    Acquire(AcquireArgs),
    /// Renew a lease
    #[command(after_help = examples!("lease renew job/nightly --token 42"))]
    Renew {
        /// A lease id, or the resource that it is on as KIND/KEY
        lease: LeaseArg,
        #[command(flatten)]
        proof: ProofArgs,
        /// A new ttl, as in 30s or 5m [default: as before]
        #[arg(long, value_name = "TIME", value_parser = times::ttl)]
        ttl: Option<Duration>,
    },
    /// Release leases
    #[command(after_help = examples!("lease release job/nightly --token 42"))]
    Release {
        /// A lease id, or the resource that it is on as KIND/KEY
        #[arg(required = true, value_name = "LEASE")]
        leases: Vec<LeaseArg>,
        #[command(flatten)]
        proof: ProofArgs,
    },
    /// Revoke a lease; the resource is held back until the old deadline, run again with --fenced to free it now
    #[command(after_help = examples!(
        "lease revoke job/nightly --reason \"its machine is gone\"",
        "lease revoke job/nightly --token 42 --fenced",
    ))]
    Revoke {
        /// A lease id, or the resource that it is on as KIND/KEY
        lease: LeaseArg,
        /// Only if the lease has this token
        #[arg(long, value_name = "N")]
        token: Option<u64>,
        /// The old holder is known to be stopped or fenced off: do not hold the resource back
        #[arg(long)]
        fenced: bool,
        /// Reason to record in the history
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Show what happened to a lease, or to a resource and all leases on it
    #[command(after_help = examples!(
        "lease history job/nightly --limit 20",
        "lease history camera/lobby --follow",
    ))]
    History {
        /// A lease id, or a resource as KIND/KEY
        lease: LeaseArg,
        /// Only the newest N events [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Keep printing changes until interrupted
        #[arg(long)]
        follow: bool,
    },
}

#[derive(Debug, Args)]
pub struct AcquireArgs {
    /// The resource, as KIND/KEY; several are acquired all or none
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<ResourceArg>,
    /// Share it: up to N holders at once, each on a slot of its own [default: alone]
    #[arg(long, value_name = "N", value_parser = super::slots::parser())]
    slots: Option<u32>,
    /// The holder's name [default: the host name]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// How long the lease lasts without renewal, as in 30s or 5m; with --session the session's ttl counts
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::ttl)]
    ttl: Duration,
    /// The session that the lease is attached to
    #[arg(long, value_name = "ID")]
    session: Option<Uuid>,
    /// Id of this request: a retry with the same id gets the same grant, never a second one
    #[arg(long, value_name = "NAME")]
    request_id: Option<String>,
}

/// Proof of which grant is meant. A lease id needs no further proof.
#[derive(Debug, Args)]
pub struct ProofArgs {
    /// The token of the grant
    #[arg(long, value_name = "N")]
    token: Option<u64>,
    /// The session that the lease is attached to
    #[arg(long, value_name = "ID")]
    session: Option<Uuid>,
    /// Holder of the lease; alone a weaker proof, since a restarted holder has the same name
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
}

impl ProofArgs {
    fn check(&self, lease: &LeaseArg) -> CommandResult {
        let given = self.token.is_some() || self.session.is_some() || self.holder.is_some();
        if given || matches!(lease, LeaseArg::Id(_)) {
            return Ok(());
        }
        let message = format!("{lease} alone does not say which grant is meant");
        Err(CommandError::new(ErrorCode::NoProof, message)
            .hint("add --token, --session or --holder, or give the lease id"))
    }
}

pub async fn run(command: LeaseRequest, client: &Client, global: &GlobalArgs) -> CommandResult {
    match command {
        LeaseRequest::Ls { kind, holder, site, limit } => {
            let query = [("kind", kind), ("holder", holder), ("site", site)];
            let leases = client.list::<LeaseList>(&paths::leases(), &query, limit).await;
            let leases = leases.doing("list the leases")?;
            let leases: Vec<LeaseView> = leases.into_iter().map(Into::into).collect();
            if leases.is_empty() {
                client.check_tenant().await.doing("list the leases")?;
            }
            output::list(global, "leases", &leases, "no leases are held", LeaseView::table)
        }
        LeaseRequest::Get { lease } => {
            let found = find(client, &lease).await.doing(format!("show {lease}"))?;
            output::show(global, &found, || format!("{}\n{}", found.resource(), found.facts()))
        }
        LeaseRequest::Acquire(args) => acquire(args, client, global).await,
        LeaseRequest::Renew { lease, proof, ttl } => {
            proof.check(&lease)?;
            let (kind, key, lease_id) = named(&lease);
            let ProofArgs { token, session, holder } = proof;
            let ttl_ms = ttl.map(millis);
            let item = RenewItem { token, session_id: session, holder, ttl_ms, ..RenewItem::default() };
            let item = RenewItem { kind, key, lease_id, ..item };
            let result = one(client, &paths::batch_renew(), item).await;
            match result.doing(format!("renew {lease}"))? {
                BatchItem::Renewed { lease } => show_grant("renewed", (*lease).into(), global),
                other => Err(odd(&other)),
            }
        }
        LeaseRequest::Release { leases, proof } => release(&leases, &proof, client, global).await,
        LeaseRequest::Revoke { lease, token, fenced, reason } => {
            let revoked = revoke(client, &lease, token, fenced, reason).await;
            let revoked = revoked.doing(format!("revoke {lease}"))?;
            output::show(global, &revoked, || match (revoked.lease_id, revoked.held_back_ms) {
                (None, _) => format!("{lease} is not held back any longer: it is free"),
                (_, 0) => format!("revoked {lease}: it is free"),
                (_, ms) => format!(
                    "revoked {lease}: it is held back for {}, until the old deadline; once its holder has stopped, \
                     `solehold lease revoke {} --fenced` frees it",
                    duration_ms(ms),
                    lease.typed()
                ),
            })
        }
        LeaseRequest::History { lease, limit, follow } => history(lease, limit, follow, client, global).await,
    }
}

async fn history(
    lease: LeaseArg,
    limit: Option<usize>,
    follow: bool,
    client: &Client,
    global: &GlobalArgs,
) -> CommandResult {
    // The newest are wanted, and shown in the order in which they happened.
    let query = [("newest_first", Some("true".to_owned()))];
    let (mut named, events) = match &lease {
        LeaseArg::Id(id) => {
            let path = paths::lease_history(&id.to_string());
            (json!({ "lease_id": id }), client.list::<LeaseHistory>(&path, &query, limit).await)
        }
        LeaseArg::On(on) => {
            let path = paths::resource_history(&on.kind, &on.key);
            let named = json!({ "kind": on.kind, "key": on.key });
            (named, client.list::<ResourceHistory>(&path, &query, limit).await)
        }
    };
    let mut events = events.doing(format!("show the history of {lease}"))?;
    events.reverse();
    if follow {
        return watch::follow(lease, &events, client, global).await;
    }
    named["events"] = json!(events);
    output::show(global, &named, || watch::table(&events))
}

async fn acquire(args: AcquireArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let [resource] = args.resources.as_slice() else { return acquire_all(args, client, global).await };
    // Always with a name, so that an answer that was lost can be asked for.
    let request_id = args.request_id.unwrap_or_else(|| format!("cli-{}", Uuid::now_v7()));
    let body = AcquireResource {
        holder: args.holder.unwrap_or_else(solehold_process::name::host),
        ttl_ms: Some(millis(args.ttl)),
        session_id: args.session,
        request_id: Some(request_id.clone()),
        slots: args.slots.map(u64::from),
        ..AcquireResource::default()
    };
    let path = paths::resource_lease(&resource.kind, &resource.key);
    let grant = client.send::<GrantBody>(Method::POST, &path, &body).await.map_err(|failure| {
        let is_unknown = failure.problem.code == ErrorCode::UnknownOutcome;
        let failure = failure.doing(format!("acquire {resource}"));
        if !is_unknown {
            return failure;
        }
        failure.hint(format!("ask again with --holder {} --request-id {request_id} to find out", body.holder))
    })?;
    show_grant(if grant.repeated { "acquired before:" } else { "acquired" }, grant.into(), global)
}

/// Acquires several resources in one step.
async fn acquire_all(args: AcquireArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let request_id = args.request_id.unwrap_or_else(|| format!("cli-{}", Uuid::now_v7()));
    let holder = args.holder.unwrap_or_else(solehold_process::name::host);
    let item = |resource: &ResourceArg| AcquireItem {
        kind: resource.kind.clone(),
        key: resource.key.clone(),
        holder: holder.clone(),
        ttl_ms: Some(millis(args.ttl)),
        session_id: args.session,
        request_id: Some(request_id.clone()),
        slots: args.slots.map(u64::from),
        ..AcquireItem::default()
    };
    let batch = AcquireBatch { items: args.resources.iter().map(item).collect(), all_or_none: true };
    let answer = client.send::<BatchResults>(Method::POST, &paths::batch_acquire(), &batch).await;
    // The detail of a refusal names the one that is in the way.
    let answer =
        answer.map_err(|failure| CommandError { message: failure.problem.detail.clone(), ..failure });
    let named: Vec<_> = args.resources.iter().map(ToString::to_string).collect();
    let results = answer.doing(format!("acquire {}", named.join(", ")))?.results;
    let mut grants = Vec::new();
    for result in results {
        match result {
            BatchItem::Granted { lease } => grants.push(GrantView::from(*lease)),
            BatchItem::Refused { problem } | BatchItem::Failed { problem } => return Err((*problem).into()),
            other => return Err(CommandError::broken(format!("an unexpected answer: {other:?}"))),
        }
    }
    if global.json {
        return output::json(&grants);
    }
    grants.into_iter().try_for_each(|grant| show_grant("acquired", grant, global))
}

fn show_grant(what: &str, grant: GrantView, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(&grant);
    }
    let mut text = format!("{what} {}\n{}", grant.lease.resource(), grant.lease.facts());
    if let Some(state) = &grant.state {
        let document = serde_json::to_string(&state.document).unwrap_or_default();
        text += &output::facts(&[("state", Some(document))]);
    }
    output::print(&text)
}

async fn find(client: &Client, lease: &LeaseArg) -> CommandResult<LeaseView> {
    match lease {
        LeaseArg::Id(id) => {
            let answer = client.get::<Envelope>(&paths::lease(&id.to_string()), &[]).await?;
            match answer.flat {
                FlatFields::Lease(lease) => Ok((*lease).into()),
                FlatFields::Ended(ended) => Err(Problem::lost(ended, None).into()),
                FlatFields::Problem(problem) => Err((*problem).into()),
            }
        }
        LeaseArg::On(ResourceArg { kind, key }) => {
            Ok(client.get::<HeldLease>(&paths::resource_lease(kind, key), &[]).await?.into())
        }
    }
}

async fn revoke(
    client: &Client,
    lease: &LeaseArg,
    token: Option<u64>,
    fenced: bool,
    reason: Option<String>,
) -> CommandResult<RevokedLease> {
    match lease {
        LeaseArg::Id(id) => {
            let body = RevokeLease { token, fenced, reason, ..RevokeLease::default() };
            client.send(Method::POST, &paths::lease_revoke(&id.to_string()), &body).await
        }
        LeaseArg::On(ResourceArg { kind, key }) => {
            let body = RevokeResource { token, fenced, reason, ..RevokeResource::default() };
            client.send(Method::POST, &paths::resource_lease_revoke(kind, key), &body).await
        }
    }
}

/// Releases leases in one batch and prints the result of each. The first failure is the error of the command.
async fn release(
    leases: &[LeaseArg],
    proof: &ProofArgs,
    client: &Client,
    global: &GlobalArgs,
) -> CommandResult {
    let mut items = Vec::new();
    for lease in leases {
        proof.check(lease)?;
        let (kind, key, lease_id) = named(lease);
        items.push(ReleaseItem {
            kind,
            key,
            lease_id,
            token: proof.token,
            session_id: proof.session,
            holder: proof.holder.clone(),
            state: None,
        });
    }
    let results = client.send::<BatchResults>(Method::POST, &paths::batch_release(), &Batch { items }).await;
    let results = results.doing(format!("release {}", leases[0]))?.results;
    let mut failed = None;
    for (lease, result) in leases.iter().zip(results) {
        let error = match result {
            BatchItem::Released { lease_id } if global.json => {
                output::json(&json!({ "lease_id": lease_id }))?;
                continue;
            }
            BatchItem::Released { .. } => {
                output::line(format!("released {lease}"))?;
                continue;
            }
            BatchItem::Refused { problem } | BatchItem::Failed { problem } => (*problem).into(),
            other => odd(&other),
        };
        failed.get_or_insert(error.doing(format!("release {lease}")));
    }
    failed.map_or(Ok(()), Err)
}

/// Sends a batch of one, which accepts a lease id and a resource alike.
async fn one(client: &Client, path: &str, item: impl Serialize) -> CommandResult<BatchItem> {
    let batch = Batch { items: vec![item] };
    let BatchResults { results } = client.send(Method::POST, path, &batch).await?;
    match results.into_iter().next() {
        Some(BatchItem::Refused { problem } | BatchItem::Failed { problem }) => Err((*problem).into()),
        Some(item) => Ok(item),
        None => Err(CommandError::broken("the server answered a batch of one with nothing")),
    }
}

fn odd(item: &BatchItem) -> CommandError {
    CommandError::broken(format!("the server gave an unexpected answer: {item:?}"))
}

fn named(lease: &LeaseArg) -> (Option<String>, Option<String>, Option<Uuid>) {
    match lease {
        LeaseArg::Id(id) => (None, None, Some(*id)),
        LeaseArg::On(ResourceArg { kind, key }) => (Some(kind.clone()), Some(key.clone()), None),
    }
}

fn millis(time: Duration) -> Number {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}
