//! `solehold watch`: every change, in order, across restarts of the server.
//!
//! The cursor of the last change seen is kept. A connection that ends is made again from there, and what was seen
//! already is not shown again: no gaps and no duplicates. When the server has dropped what is needed it says so, and
//! the watch ends.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use solehold_api::{
    paths,
    problem::ErrorCode,
    sse::Decoder,
    time::Timestamp,
    watch::{Cursor, LeaseEvent, Ownership, WatchFrame},
};
use solehold_core::{event::EventName, time::StoreTime};

use super::ending_signals;
use crate::{
    client::{Client, Stream},
    error::{CommandError, CommandResult, Doing},
    exit::Exit,
    global::GlobalArgs,
    human::{count, duration_ms, one_line},
    output::{self, or_dash},
    target::LeaseArg,
};

/// The first wait before another try to connect, which doubles with each.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// What to watch.
#[derive(Debug, Clone, Default, Args)]
pub struct WatchArgs {
    /// Start after this cursor, as shown by an earlier watch [default: from now on]
    #[arg(long, value_name = "CURSOR")]
    from: Option<Cursor>,
    /// Only resources of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only changes of this holder
    #[arg(long)]
    holder: Option<String>,
    /// Also show renewals; they are not repeated after a lost connection
    #[arg(long)]
    renewals: bool,
    /// Show first who holds what
    #[arg(long, conflicts_with = "from")]
    snapshot: bool,
    /// Exit after N changes [default: never]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Runs it, and gives the code to end with: people end it by a signal, and that is no error.
pub async fn run(args: WatchArgs, client: &Client, global: &GlobalArgs) -> CommandResult<u8> {
    keep_watching(Watch::new(args, client, global)).await
}

/// Shows events of a lease, or of a resource and all leases on it, and goes on with those that come.
pub async fn follow(
    of: LeaseArg,
    events: &[LeaseEvent],
    client: &Client,
    global: &GlobalArgs,
) -> CommandResult {
    let kind = match &of {
        LeaseArg::On(resource) => Some(resource.kind.clone()),
        LeaseArg::Id(_) => None,
    };
    let args = WatchArgs { from: events.last().map(|event| event.cursor), kind, ..WatchArgs::default() };
    let mut watch = Watch { of: Some(of), ..Watch::new(args, client, global) };
    events.iter().try_for_each(|event| watch.show(event))?;
    keep_watching(watch).await.map(drop)
}

fn is_of(event: &LeaseEvent, followed: &LeaseArg) -> bool {
    match followed {
        LeaseArg::Id(id) => event.lease_id == Some(*id),
        LeaseArg::On(resource) => event.kind == resource.kind && event.key == resource.key,
    }
}

/// Watches until it ends or is interrupted, and says where another one goes on.
async fn keep_watching(mut watch: Watch<'_>) -> CommandResult<u8> {
    let mut signals = ending_signals()?;
    let ended = tokio::select! {
        ended = watch.run() => ended.map(|()| Exit::Done.code()),
        () = signals.next() => Ok(Exit::Interrupted.code()),
    };
    if let Some(cursor) = watch.cursor.filter(|_| watch.was_connected && watch.of.is_none()) {
        output::note(format!("solehold watch: ended at {cursor}; --from {cursor} goes on there"));
    }
    ended
}

struct Watch<'a> {
    args: WatchArgs,
    /// All that is shown, if not everything.
    of: Option<LeaseArg>,
    client: &'a Client,
    json: bool,
    /// Everything up to here has been shown.
    cursor: Option<Cursor>,
    /// The parts of a snapshot that is not whole yet.
    snapshot: Vec<Ownership>,
    /// A snapshot has been shown.
    is_begun: bool,
    /// A server has taken up the watch.
    was_connected: bool,
    left: u64,
}

enum End {
    Closed,
    /// All that was wanted has been shown.
    Enough,
}

impl<'a> Watch<'a> {
    fn new(args: WatchArgs, client: &'a Client, global: &GlobalArgs) -> Self {
        Self {
            cursor: args.from,
            left: args.limit.unwrap_or(u64::MAX),
            args,
            of: None,
            client,
            json: global.json,
            snapshot: Vec::new(),
            is_begun: false,
            was_connected: false,
        }
    }

    async fn run(&mut self) -> CommandResult {
        let mut stream = self.connect().await.doing("watch")?;
        self.was_connected = true;
        loop {
            let why = match self.follow(stream).await {
                Ok(End::Enough) => return Ok(()),
                Ok(End::Closed) => "the server closed the connection".to_owned(),
                Err(failure) if failure.exit == Exit::Unavailable => failure.message,
                Err(failure) => return Err(failure.doing("go on watching")),
            };
            let from = self.cursor.map_or_else(|| "the beginning".to_owned(), |cursor| cursor.to_string());
            output::note(format!("solehold watch: {why}; reconnecting from {from}"));
            stream = self.reconnect().await.doing("go on watching")?;
            output::note("solehold watch: connected again");
        }
    }

    async fn connect(&mut self) -> CommandResult<Stream> {
        self.snapshot.clear();
        let query = [
            ("from", self.cursor.map(|cursor| cursor.to_string())),
            ("kind", self.args.kind.clone()),
            ("holder", self.args.holder.clone()),
            ("renewals", self.args.renewals.then(|| "true".to_owned())),
        ];
        self.client.stream(&paths::watch(), &query).await
    }

    /// Connects again, however long it takes, unless the server says no.
    async fn reconnect(&mut self) -> CommandResult<Stream> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.connect().await {
                Err(failure) if failure.exit == Exit::Unavailable => {}
                result => return result,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    async fn follow(&mut self, mut stream: Stream) -> CommandResult<End> {
        if self.left == 0 {
            return Ok(End::Enough);
        }
        let broken =
            |why: &dyn std::fmt::Display| CommandError::broken(format!("the stream cannot be read: {why}"));
        let mut decoder = Decoder::default();
        loop {
            let piece = match stream.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(End::Closed),
                Err(_) => return Err(CommandError::new(ErrorCode::Unavailable, "the connection was lost")),
            };
            for frame in decoder.push(&piece).map_err(|error| broken(&error))? {
                let frame = WatchFrame::from_sse(&frame).map_err(|error| broken(&error))?;
                match frame {
                    Some(WatchFrame::Resync(_)) => return Ok(End::Closed),
                    Some(frame) => self.take(frame)?,
                    None => {}
                }
                if self.left == 0 {
                    return Ok(End::Enough);
                }
            }
        }
    }

    fn take(&mut self, frame: WatchFrame) -> CommandResult {
        match frame {
            WatchFrame::Snapshot(part) => {
                self.snapshot.extend(part.resources);
                if !part.more {
                    self.cursor = Some(part.cursor);
                    self.begin(part.cursor)?;
                }
            }
            WatchFrame::Event(event) if event.event_type == EventName::LeaseRenewed => self.show(&event)?,
            // Seen before the connection was lost.
            WatchFrame::Event(event) if self.cursor.is_some_and(|cursor| event.cursor <= cursor) => {}
            WatchFrame::Event(event) => {
                if self.of.as_ref().is_none_or(|followed| is_of(&event, followed)) {
                    self.show(&event)?;
                }
                self.cursor = Some(event.cursor);
            }
            WatchFrame::Progress(progress) => self.cursor = self.cursor.max(Some(progress.cursor)),
            WatchFrame::Compacted(compacted) => {
                let from = self.cursor.map_or_else(|| "the cursor".to_owned(), |cursor| cursor.to_string());
                let message = format!(
                    "what came after {from} is gone, and only what came after {} is kept",
                    compacted.floor
                );
                return Err(
                    CommandError::new(ErrorCode::Compacted, message).hint("begin again without --from")
                );
            }
            WatchFrame::Resync(_) => {}
        }
        Ok(())
    }

    /// The first snapshot is whole: shows it, if that is wanted.
    fn begin(&mut self, cursor: Cursor) -> CommandResult {
        let resources = std::mem::take(&mut self.snapshot);
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let held = resources.iter().filter(|resource| resource.holder.is_some()).count();
        if self.args.snapshot && self.json {
            return output::json_line(&json!({ "snapshot": { "cursor": cursor, "resources": resources } }));
        }
        if self.args.snapshot && held > 0 {
            output::print(&owners(&resources))?;
        }
        if !self.json {
            output::note(format!("watching from {cursor}, {} held; Ctrl-C ends", count(held, "lease")));
        }
        Ok(())
    }

    fn show(&mut self, event: &LeaseEvent) -> CommandResult {
        self.left = self.left.saturating_sub(1);
        if self.json {
            return output::json_line(event);
        }
        let resource = format!("{}/{}", event.kind, event.key);
        let token = event.token.map_or_else(String::new, |token| format!("token {token}  "));
        let holder = event.holder.as_ref().map_or_else(String::new, |holder| format!("{holder}  "));
        let line = format!(
            "{}  {:<17}  {resource:<24}  {token}{holder}{}",
            event.timestamp,
            event.event_type.as_str(),
            details(event)
        );
        output::line(one_line(&line).trim_end())
    }
}

fn owners(resources: &[Ownership]) -> String {
    let held = resources.iter().filter(|resource| resource.holder.is_some());
    let rows = held.map(|resource| {
        let left = format!("in {}", duration_ms(resource.ttl_ms));
        let name = format!("{}/{}", resource.kind, resource.key);
        [name, or_dash(resource.holder.as_ref()), resource.token.to_string(), left]
    });
    output::table(["RESOURCE", "HOLDER", "TOKEN", "EXPIRES"], &["TOKEN"], rows.collect())
}

/// Events below each other, with the time that passed between them.
pub fn table(events: &[LeaseEvent]) -> String {
    let mut before = None::<StoreTime>;
    let rows = events.iter().map(|event| {
        let at = StoreTime::from(event.timestamp);
        let after = before.replace(at).map(|before| format!("+{}", duration_ms(at.ms_after(before))));
        [
            event.timestamp.to_string(),
            or_dash(after),
            event.event_type.to_string(),
            or_dash(event.holder.as_ref()),
            or_dash(event.token),
            details(event),
        ]
    });
    output::table(
        ["TIME", "AFTER", "EVENT", "HOLDER", "TOKEN", "DETAILS"],
        &["AFTER", "TOKEN"],
        rows.collect(),
    )
}

/// What else there is to say of an event, for people.
pub fn details(event: &LeaseEvent) -> String {
    let text = |name: &str| event.details.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| event.details.get(name).and_then(Value::as_u64);
    let at = StoreTime::from(event.timestamp);
    let held_back = text("held_back_until").and_then(|until| until.parse::<Timestamp>().ok());
    let held_back = held_back.map(|until| StoreTime::from(until).ms_after(at)).filter(|ms| *ms > 0);
    let ttl = match event.event_type {
        EventName::LeaseRenewed => number("ttl_ms").map(|ms| format!("expires in {}", duration_ms(ms))),
        _ => number("ttl_ms").map(|ms| format!("ttl {}", duration_ms(ms))),
    };
    let labels = event.details.get("labels").and_then(Value::as_object).filter(|labels| !labels.is_empty());
    let labels = labels.map(|labels| {
        let labels =
            labels.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        labels.collect::<Vec<_>>().join(",")
    });
    let parts = [
        text("reason"),
        held_back.map(|ms| format!("held back for {}", duration_ms(ms))),
        ttl,
        event.session_id.map(|id| format!("session {id}")),
        event.by.as_ref().map(|key| format!("by key {key}")),
        number("sequence").map(|sequence| format!("sequence {sequence}")),
        text("site").map(|site| format!("site {site}")),
        labels,
    ];
    one_line(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}
