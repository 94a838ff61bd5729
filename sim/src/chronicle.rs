//! What has happened, in order: the log of a world, which the invariants read as it is written.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use solehold_client::ResourceName;
use solehold_core::{
    event::{Event, What},
    key::{Name, ResourceKey},
};
use solehold_orchestrator::model::{job::JobEvent, task::TaskId};
use tokio::time::Instant;

use crate::{
    broker::Published,
    invariants::{self, Invariant},
    wire::Kind,
};

/// Something that happened, when, and at which process.
#[derive(Debug, Clone)]
pub struct Record {
    /// Since the world began, by the store's clock.
    pub at: Duration,
    pub who: String,
    pub what: Happening,
}

#[derive(Debug, Clone)]
pub enum Happening {
    /// The plan, or the simulator itself, does something.
    Act(String),
    /// A request leaves its process.
    Sent(Kind, String),
    /// A server of an epoch has made a plan from the store at a revision, with these moves to be made now.
    Plans(u64, u64, Vec<PlannedMove>),
    /// A request was done by the store of an epoch, and this is what it said.
    Done(Kind, u64, String),
    /// An answer reaches the process that asked.
    Answered(Kind, String),
    /// The store of an epoch has committed an event.
    Committed(u64, Box<Event>),
    /// The store promises that a session lives for so long.
    Promised(String, Duration),
    /// The store of an epoch has cancelled a request.
    Cancelled(u64, String),
    /// A holder registers for so many leases.
    Registers(u32),
    /// A process has a lease from now on, and works.
    TookUp(ResourceName, u64, &'static str),
    /// A process stops to work under a lease by itself.
    LetGo(ResourceName, u64, &'static str),
    /// The gate was told of a token.
    Told(ResourceName, u64),
    /// The gate has let a write pass to the sink behind it.
    Admitted(ResourceName, u64),
    /// The gate has refused a write.
    Refused(ResourceName, u64, String),
    /// The sink without a gate has taken a write.
    Unfenced(ResourceName, u64),
    /// A watcher has seen the event of a revision.
    Saw(u64, u64),
    /// A process begins, and knows nothing yet.
    Starts,
    /// A gate for MQTT lets a message pass.
    LetPass(Published),
    /// The MQTT broker has taken a message that a gate let pass.
    Passed(Published),
    /// The MQTT broker will not deliver a message again.
    Acknowledged(Published),
    /// The Kafka group has given the partition to a member (0 for none), in a generation.
    Assigned(u64, u64),
    /// A member has raised the epoch of the partition.
    Raised(u64, i64),
    /// Messages, by offset and key, have taken effect under an epoch, and this is the position then.
    TookEffect { epoch: i64, messages: Vec<(i64, String)>, position: i64 },
    /// Something has happened to a job.
    Job(Box<JobEvent>),
    /// The report of a worker is read from the mailbox: that its task has succeeded, or anything else.
    Report(TaskId, bool),
    /// A task is sent to a worker.
    Task(TaskId),
    /// What of the partition's messages and jobs is left to do when the time to come right is over.
    Remaining(Option<String>),
    /// A worker was started or has ended, is told something, or says something.
    Worker(u32, String),
    /// A keeper is told by when to end a worker unless it hears more.
    Term(u32, Duration),
    /// The faults are over: from now on everything must come right.
    Calm,
    /// Who works on a resource when the time to come right is over.
    Outcome(ResourceName, Option<String>),
}

/// A resource that should move from its holder to a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMove {
    pub key: ResourceKey,
    pub from: Name,
    pub to: Name,
}

impl fmt::Display for PlannedMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} from {} to {}", self.key.kind, self.key.key, self.from, self.to)
    }
}

fn shown(event: &Event) -> String {
    let token = event.token().map(|token| format!(" token {token}")).unwrap_or_default();
    let holder = event.holder().map(|holder| format!(" {holder}")).unwrap_or_default();
    let why = match &event.what {
        What::Released(ended) | What::Expired(ended) | What::Revoked(ended) | What::Stolen(ended) => {
            ended.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
        }
        _ => String::new(),
    };
    format!("{}/{} {}{holder}{token}{why}", event.key.kind, event.key.key, event.name().as_str())
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Act(what) => write!(f, "** {what}"),
            Self::Sent(kind, what) => write!(f, "-> {kind:?} {what}"),
            Self::Plans(epoch, revision, moves) => {
                let moves: Vec<String> = moves.iter().map(ToString::to_string).collect();
                write!(f, "   plans by {epoch}.{revision}: {}", moves.join(", "))
            }
            Self::Done(kind, epoch, what) => write!(f, "   {kind:?} done in history {epoch}: {what}"),
            Self::Answered(kind, what) => write!(f, "<- {kind:?} {what}"),
            Self::Committed(epoch, event) => {
                write!(f, "   {} {epoch}.{}", shown(event), event.revision.0)
            }
            Self::Promised(session, left) => write!(f, "   session {session} lives for {left:?}"),
            Self::Cancelled(_, request) => write!(f, "   request {request} is spent"),
            Self::Registers(most) => write!(f, "   registers for {most} leases"),
            Self::TookUp(resource, token, how) => write!(f, "++ works on {resource}, token {token} ({how})"),
            Self::LetGo(resource, token, why) => {
                write!(f, "-- stops to work on {resource}, token {token} ({why})")
            }
            Self::Told(resource, token) => write!(f, "   is told of {resource}, token {token}"),
            Self::Admitted(resource, token) => write!(f, ">> {resource}, token {token}: passes the gate"),
            Self::Refused(resource, token, why) => {
                write!(f, ">| {resource}, token {token}: refused by the gate: {why}")
            }
            Self::Unfenced(resource, token) => {
                write!(f, "   {resource}, token {token}: written without a gate")
            }
            Self::Saw(epoch, revision) => write!(f, "   sees {epoch}.{revision}"),
            Self::Starts => write!(f, "   starts"),
            Self::LetPass(message) => write!(f, "   lets {message} pass"),
            Self::Passed(message) => write!(f, "   {message} is published"),
            Self::Acknowledged(message) => write!(f, "   {message} is acknowledged"),
            Self::Assigned(member, generation) => {
                write!(f, "   has the partition as member {member} of generation {generation}")
            }
            Self::Raised(member, epoch) => write!(f, "   raises the epoch to {epoch}, as member {member}"),
            Self::TookEffect { epoch, messages, position } => {
                let offsets: Vec<i64> = messages.iter().map(|(offset, _)| *offset).collect();
                write!(f, "   messages {offsets:?} take effect under epoch {epoch}, position {position}")
            }
            Self::Job(event) => {
                let stage = event.stage.as_ref().map(|stage| format!(" {stage}")).unwrap_or_default();
                let attempt = event.attempt.map(|attempt| format!(" {attempt}")).unwrap_or_default();
                write!(f, "   {} {:?}{stage}{attempt}", event.job_id, event.kind)
            }
            Self::Report(task, true) => write!(f, "   reads that task {task} has succeeded"),
            Self::Report(task, false) => write!(f, "   reads a report on task {task}"),
            Self::Task(task) => write!(f, "   sends task {task}"),
            Self::Remaining(what) => {
                write!(f, "** left to do: {}", what.as_deref().unwrap_or("nothing"))
            }
            Self::Worker(id, what) => write!(f, "   worker {id}: {what}"),
            Self::Term(id, until) => write!(f, "   worker {id} may run until {until:?}"),
            Self::Calm => write!(f, "** the faults are over"),
            Self::Outcome(resource, by) => {
                write!(f, "** {resource} is worked on by {}", by.as_deref().unwrap_or("nobody"))
            }
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} {:<10} {}", self.at.as_secs_f64(), self.who, self.what)
    }
}

/// Someone who may work on a resource now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Working {
    pub who: String,
    pub resource: ResourceName,
    pub token: u64,
}

/// How it is seen whether work goes on.
pub type Probe = Box<dyn Fn() -> bool + Send>;

#[derive(Debug, Clone)]
pub struct Violation {
    pub at: Duration,
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, at {:.3} s", self.invariant, self.what, self.at.as_secs_f64())
    }
}

struct Written {
    records: Vec<Record>,
    judges: Vec<Box<dyn Invariant>>,
    /// All work that was begun and not let go; who of them works now, the probe says.
    board: Vec<(Working, Probe)>,
    violation: Option<Violation>,
}

pub struct Chronicle {
    began: Instant,
    written: Mutex<Written>,
}

impl Chronicle {
    pub fn new() -> Self {
        let written =
            Written { records: Vec::new(), judges: invariants::all(), board: Vec::new(), violation: None };
        Self { began: Instant::now(), written: Mutex::new(written) }
    }

    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes down what happened, and lets every invariant look at it, and at who works now.
    pub fn note(&self, who: &str, what: Happening) {
        let record = Record { at: self.now(), who: who.to_owned(), what };
        let written = &mut *self.written.lock();
        // The story ends with what is wrong.
        if written.violation.is_some() {
            return;
        }
        let working = written.board.iter().filter(|(_, probe)| probe());
        let working: Vec<&Working> = working.map(|(working, _)| working).collect();
        for judge in &mut written.judges {
            let judged = judge.see(&record).and_then(|()| judge.look(record.at, &working));
            if let Err(what) = judged {
                let at = record.at;
                written.violation.get_or_insert(Violation { at, invariant: judge.name(), what });
            }
        }
        written.records.push(record);
    }

    /// Someone may work from now on.
    pub fn begins(&self, working: Working, how: &'static str, probe: Probe) {
        let resource = working.resource.clone();
        let who = working.who.clone();
        let token = working.token;
        self.written.lock().board.push((working, probe));
        self.note(&who, Happening::TookUp(resource, token, how));
    }

    /// Someone does not work any more.
    pub fn ends(&self, who: &str, resource: &ResourceName, token: u64, why: &'static str) {
        let is_it =
            |working: &Working| working.who == who && working.resource == *resource && working.token == token;
        self.written.lock().board.retain(|(working, _)| !is_it(working));
        self.note(who, Happening::LetGo(resource.clone(), token, why));
    }

    /// Who works on a resource now.
    pub fn worker_on(&self, resource: &ResourceName) -> Option<String> {
        let written = self.written.lock();
        let works = written.board.iter().find(|(working, probe)| working.resource == *resource && probe());
        works.map(|(working, _)| working.who.clone())
    }

    pub fn violation(&self) -> Option<Violation> {
        self.written.lock().violation.clone()
    }

    pub fn steps(&self) -> usize {
        self.written.lock().records.len()
    }

    pub fn log(&self) -> Vec<String> {
        self.written.lock().records.iter().map(ToString::to_string).collect()
    }
}

impl Default for Chronicle {
    fn default() -> Self {
        Self::new()
    }
}
