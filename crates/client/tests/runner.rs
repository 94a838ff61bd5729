//! Runners inside programs: they hold what the server places on them. With a ttl of 300 s, nothing here can be
//! explained by an expired lease.

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{PATIENCE, memory, serve};
use solehold_client::{Assignment, Http, Lost, Runner, RunnerConfig, SessionConfig};
use solehold_core::{
    event::EventName,
    key::{Name, ResourceKey},
};
use solehold_engine::store::EventQuery;
use solehold_server::Running;
use solehold_testkit::wait_for;
use tokio::{sync::oneshot, task::JoinHandle};

const TTL: Duration = Duration::from_secs(300);
const JOBS: usize = 12;

/// Which runner works on which job, and how often two did at once.
#[derive(Default)]
struct Board {
    at_work: BTreeMap<String, String>,
    doubles: usize,
}

type Shared = Arc<Mutex<Board>>;

struct Member {
    ending: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), Lost>>,
}

impl Member {
    async fn start(server: &Running, id: &str, board: &Shared) -> Self {
        let mut config = RunnerConfig::new(id, &["job"], JOBS as u32);
        config.session = SessionConfig { ttl: TTL, ..config.session };
        config.drain_within = PATIENCE;
        let runner = Runner::open(Http::to(server.url()).expect("a URL"), config).await.expect("registered");
        let (ending, ended) = oneshot::channel();
        let id = id.to_owned();
        let board = board.clone();
        let work = move |assignment| work(id.clone(), board.clone(), assignment);
        let task = tokio::spawn(runner.run(work, async {
            let _ = ended.await;
        }));
        Self { ending: Some(ending), task }
    }

    async fn end(mut self) {
        drop(self.ending.take());
        let ended = tokio::time::timeout(PATIENCE, self.task).await.expect("it does not wait for a ttl");
        ended.expect("no panic").expect("its name is its own");
    }
}

async fn work(id: String, board: Shared, assignment: Assignment) {
    let job = assignment.guard().resource().key.to_string();
    let before = board.lock().expect("a board").at_work.insert(job.clone(), id);
    board.lock().expect("a board").doubles += usize::from(before.is_some());
    let lost = assignment.guard().run(assignment.should_end()).await.is_err();
    board.lock().expect("a board").at_work.remove(&job);
    if !lost {
        assignment.into_guard().release().await.expect("released");
    }
}

fn loads(board: &Shared) -> BTreeMap<String, usize> {
    let mut loads = BTreeMap::new();
    for holder in board.lock().expect("a board").at_work.values() {
        *loads.entry(holder.clone()).or_default() += 1;
    }
    loads
}

/// Waits until these many runners have all jobs, each within one of its fair share.
async fn is_spread(board: &Shared, runners: usize) {
    let fair = JOBS / runners;
    wait_for("the jobs to be spread", PATIENCE, async || {
        let loads = loads(board);
        loads.len() == runners
            && loads.values().sum::<usize>() == JOBS
            && loads.values().all(|load| load.abs_diff(fair) <= 1)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:?}", loads(board)));
}

async fn declare_jobs(server: &Running) {
    let http = Http::to(server.url()).expect("a URL");
    for job in 0..JOBS {
        let declared = http.put(format!("/api/v1/resources/job/{job}"), &serde_json::json!({})).await;
        declared.expect("an answer").expect("declared");
    }
}

/// How often a job was free between two holders.
async fn gaps(server: &Running) -> usize {
    let of = |text: &str| Name::new(text).expect("a name");
    let mut gaps = 0;
    for job in 0..JOBS {
        let resource = ResourceKey::new(of("default"), of("job"), of(&job.to_string()));
        let query = EventQuery { resource: Some(resource), limit: 1_000, ..Default::default() };
        let events = server.engine().events(&query).await.expect("events").events;
        let names: Vec<(EventName, u64)> = events.iter().map(|event| (event.name(), event.at.0)).collect();
        let pairs = names.windows(2).filter(|pair| {
            pair[0].0 == EventName::LeaseReleased
                && pair[1].0 == EventName::LeaseAcquired
                && pair[1].1 > pair[0].1
        });
        gaps += pairs.count();
    }
    gaps
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_spread_over_runners_and_moves_without_a_gap() {
    let server = serve(memory()).await;
    declare_jobs(&server).await;
    let board = Shared::default();
    let one = Member::start(&server, "one", &board).await;
    is_spread(&board, 1).await;
    let two = Member::start(&server, "two", &board).await;
    is_spread(&board, 2).await;
    let three = Member::start(&server, "three", &board).await;
    is_spread(&board, 3).await;
    one.end().await;
    is_spread(&board, 2).await;
    assert_eq!(gaps(&server).await, 0, "a job was free between two runners");
    // The last one finds nobody to hand over to, and does not wait for it.
    two.end().await;
    three.end().await;
    assert_eq!(loads(&board).len(), 0);
    assert_eq!(board.lock().expect("a board").doubles, 0, "two runners worked on one job");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_name_was_taken_ends() {
    let server = serve(memory()).await;
    declare_jobs(&server).await;
    let board = Shared::default();
    let other = Shared::default();
    let first = Member::start(&server, "one", &board).await;
    is_spread(&board, 1).await;
    let _second = Member::start(&server, "one", &other).await;
    let ended = tokio::time::timeout(PATIENCE, first.task).await.expect("it ends").expect("no panic");
    println!("{ended:?}");
    assert!(ended.is_err());
}
