//! Tasks to a service over HTTP, and requests to drop tasks: what waits or hangs stops nothing else.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::{Value, json};
use solehold_kafka::Message;
use solehold_orchestrator::{
    config::HttpTasksConfig,
    dispatch::http::Http,
    model::{
        job::JobState,
        pipeline::{DispatchKind, Pipeline, StagePlan},
    },
    store::{Mail, MailBody},
};
use solehold_testkit::wait_for;
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

use crate::kit::{Kit, PATIENCE, stage};

/// A service whose `/busy` answers 503 until it is free, whose `/good` takes every task over, and whose `/huge` does
/// the task and answers with more than anyone reads.
#[derive(Default)]
struct Service {
    is_free: AtomicBool,
    /// The job and stage of each request, in order.
    asked: Mutex<Vec<(String, String)>>,
}

impl Service {
    async fn start() -> (Arc<Self>, String, JoinSet<()>) {
        let service = Arc::new(Self::default());
        let keep = |service: &Self, body: &str| {
            let task: Value = serde_json::from_str(body).unwrap();
            let part = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
            service.asked.lock().unwrap().push((part("job"), part("stage")));
        };
        let busy = move |State(service): State<Arc<Self>>, body: String| async move {
            keep(&service, &body);
            let is_free = service.is_free.load(Ordering::SeqCst);
            if is_free { StatusCode::ACCEPTED } else { StatusCode::SERVICE_UNAVAILABLE }
        };
        let good = move |State(service): State<Arc<Self>>, body: String| async move {
            keep(&service, &body);
            StatusCode::ACCEPTED
        };
        let huge = move |State(service): State<Arc<Self>>, body: String| async move {
            keep(&service, &body);
            json!({ "result": "x".repeat(1024 * 1024) }).to_string().into_response()
        };
        let routes = Router::new()
            .route("/busy", post(busy))
            .route("/good", post(good))
            .route("/huge", post(huge))
            .with_state(service.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        (service, url, serving)
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap().clone()
    }

    fn was_asked(&self, job: &str, stage: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(of, at)| of == job && at == stage).count()
    }

    /// How many jobs of this prefix have been asked for `times` times, or more often.
    fn jobs_asked(&self, prefix: &str, times: usize) -> usize {
        let mut jobs: BTreeMap<String, usize> = BTreeMap::new();
        self.asked().into_iter().for_each(|(job, _)| *jobs.entry(job).or_default() += 1);
        jobs.iter().filter(|(job, count)| job.starts_with(prefix) && **count >= times).count()
    }
}

fn over_http(name: &str) -> StagePlan {
    StagePlan { task: format!("/{name}"), dispatch: DispatchKind::Http, retries: 0, ..stage(name, &[]) }
}

/// The same orchestrator for jobs of these stages, with tasks to this service.
fn sending(kit: &Kit, url: &str, stages: &[&str]) -> Kit {
    kit.restarted(|mut parts| {
        let stages = stages.iter().map(|name| over_http(name)).collect();
        parts.pipeline = Arc::new(Pipeline::new(stages).unwrap());
        let url = url.to_owned();
        let config = HttpTasksConfig { url, headers: BTreeMap::new(), timeout: None, report_to: None };
        let http = Http::new(&config, parts.mailbox.clone()).unwrap();
        parts.dispatchers = vec![(DispatchKind::Http, Arc::new(http))];
        parts
    })
}

#[tokio::test]
async fn an_answer_that_is_too_large_fails_the_attempt_and_the_task_is_done_once() {
    let (service, url, _serving) = Service::start().await;
    let kit = sending(&Kit::new().await, &url, &["huge"]);
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    let reason = kit.state_when("a", JobState::Failed).await.reason.unwrap();
    assert!(reason.contains("more than 1048576 bytes"), "{reason}");
    kit.count_when("outbox", 0).await;
    assert_eq!(service.was_asked("a", "huge"), 1);
    attending.leave().await;
}

#[tokio::test]
async fn tasks_that_wait_for_their_service_do_not_stop_those_behind_them() {
    let (service, url, _serving) = Service::start().await;
    let waiting = sending(&Kit::new().await, &url, &["busy"]);
    let tenure = waiting.tenure(0).await;
    let create = |kit: &Kit, prefix: &str, count: u32| -> Vec<Message> {
        (0..count).map(|n| kit.command(&tenure, "CREATE", &format!("{prefix}{n}"))).collect()
    };
    waiting.take(&tenure, &create(&waiting, "waits", 1_200)).await;
    // What a job sends stays in order, whatever others do.
    let both = sending(&waiting, &url, &["busy", "good"]);
    both.take(&tenure, &create(&both, "both", 5)).await;
    let good = sending(&both, &url, &["good"]);
    good.take(&tenure, &create(&good, "good", 20)).await;
    let began = Instant::now();
    let attending = good.attend(&tenure);
    let all = async || service.jobs_asked("good", 1) == 20;
    wait_for("the tasks behind those that wait", PATIENCE, all).await.unwrap();
    // And those that come later.
    good.take(&tenure, &create(&good, "later", 20)).await;
    let all = async || service.jobs_asked("later", 1) == 20;
    wait_for("tasks that came later", PATIENCE, all).await.unwrap();
    let again = async || service.jobs_asked("waits", 2) == 1_200;
    wait_for("every task that waits to be sent again", PATIENCE, again).await.unwrap();
    assert!(
        (0..5).all(|n| service.was_asked(&format!("both{n}"), "good") == 0),
        "it overtook its job's first"
    );
    // At most 500 at a time, and a pause of half a second when none was taken.
    let most = service.asked().len();
    let took = began.elapsed();
    let bound = (took.as_millis() / 500 + 2) * 2 * 500;
    assert!((most as u128) < bound, "{most} requests in {took:?}");
    service.is_free.store(true, Ordering::SeqCst);
    good.count_when("outbox", 0).await;
    let asked = service.asked();
    for job in (0..5).map(|n| format!("both{n}")) {
        let last_busy = asked.iter().rposition(|of| *of == (job.clone(), "busy".to_owned())).unwrap();
        let first_good = asked.iter().position(|of| *of == (job.clone(), "good".to_owned())).unwrap();
        assert!(last_busy < first_good, "the tasks of {job} were out of order");
    }
    let good: HashSet<_> = asked.iter().filter(|(_, stage)| stage == "good").collect();
    assert_eq!(good.len(), asked.iter().filter(|(_, stage)| stage == "good").count(), "some were sent twice");
    attending.leave().await;
}

#[tokio::test]
async fn requests_to_drop_tasks_that_hang_do_not_hold_back_tasks() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let jobs: Vec<String> = (0..100).map(|n| format!("j{n}")).collect();
    let creates: Vec<Message> = jobs.iter().map(|job| kit.command(&tenure, "CREATE", job)).collect();
    kit.take(&tenure, &creates).await;
    let attending = kit.attend(&tenure);
    kit.count_when("outbox", 0).await;
    kit.workers.revokes_hang.send_replace(true);
    let cancel = jobs.iter().map(|job| Mail::to_job(job, MailBody::Cancel)).collect();
    kit.jobs.mailbox().deliver_mail(cancel).await.unwrap();
    kit.state_when("j99", JobState::Cancelled).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "other")]).await;
    kit.taken_when("other", "decode", 1).await;
    // The next task of a job waits for what comes before it.
    kit.jobs.mailbox().deliver_mail(vec![Mail::to_job("j5", MailBody::Retry)]).await.unwrap();
    kit.state_when("j5", JobState::Running).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "another")]).await;
    kit.taken_when("another", "decode", 1).await;
    assert_eq!(kit.workers.took("j5").len(), 1);
    kit.workers.revokes_hang.send_replace(false);
    kit.count_when("outbox", 0).await;
    let revoked: HashSet<_> =
        kit.workers.revoked.lock().unwrap().iter().map(|task| task.job.clone()).collect();
    assert_eq!(revoked.len(), 100);
    assert_eq!(kit.workers.took("j5").len(), 2);
    attending.leave().await;
}
