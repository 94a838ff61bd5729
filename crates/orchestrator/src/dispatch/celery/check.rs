//! Compares the settings of Celery's workers with what the stages need.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::dispatch::celery::{Broker, BrokerKind, CONSUMER_TIMEOUT, CeleryConfig};
use crate::dispatch::{DispatchError, Finding};
use crate::{config::Time, model::pipeline::StagePlan};

/// How long workers may take to reply.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// kombu's default for the time within which a worker acknowledges a task.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(3_600);
const TASK_ATTRIBUTES: [&str; 3] = ["acks_late", "ignore_result", "track_started"];

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Worker {
    /// Settings that differ from Celery's defaults.
    settings: Value,
    /// The attributes of each task, such as `acks_late` = `True`.
    tasks: BTreeMap<String, BTreeMap<String, String>>,
    queues: Vec<String>,
}

pub async fn query_workers(broker: &dyn Broker) -> Result<BTreeMap<String, Worker>, DispatchError> {
    let mut workers: BTreeMap<String, Worker> = BTreeMap::new();
    let mut each = |answers: Vec<Value>, keep: fn(&mut Worker, &Value)| {
        for answer in answers.iter().filter_map(Value::as_object) {
            for (name, said) in answer {
                keep(workers.entry(name.clone()).or_default(), said);
            }
        }
    };
    // Without the defaults: one of them is infinite, which JSON cannot express.
    let settings = broker.query("conf", json!({ "with_defaults": false }), ANSWER_WITHIN).await?;
    each(settings, |worker, said| worker.settings = said.clone());
    let attributes = json!({ "taskinfoitems": TASK_ATTRIBUTES });
    each(broker.query("registered", attributes, ANSWER_WITHIN).await?, |worker, said| {
        let lines = said.as_array().into_iter().flatten().filter_map(Value::as_str);
        worker.tasks = lines.map(task).collect();
    });
    each(broker.query("active_queues", json!({}), ANSWER_WITHIN).await?, |worker, said| {
        let names = said.as_array().into_iter().flatten().filter_map(|queue| queue["name"].as_str());
        worker.queues = names.map(str::to_owned).collect();
    });
    Ok(workers)
}

/// A line such as `video.detect [acks_late=True ignore_result=False]`.
fn task(line: &str) -> (String, BTreeMap<String, String>) {
    let (name, rest) = line.split_once(" [").unwrap_or((line, ""));
    let pairs = rest.trim_end_matches(']').split(' ').filter_map(|pair| pair.split_once('='));
    (name.to_owned(), pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

pub fn judge(
    workers: &BTreeMap<String, Worker>,
    kind: BrokerKind,
    config: &CeleryConfig,
    stages: &[StagePlan],
) -> Vec<Finding> {
    if workers.is_empty() {
        let text = "no Celery worker replied: their settings were not compared with the stages";
        return vec![Finding::warning(text)];
    }
    let mut findings: Vec<Finding> =
        workers.iter().flat_map(|(name, worker)| results(name, worker, kind)).collect();
    if kind == BrokerKind::RabbitMq {
        let source = match config.consumer_timeout {
            Some(Time(timeout)) => format!("{timeout:?}, as configured here"),
            None => format!("{CONSUMER_TIMEOUT:?}, its default"),
        };
        let text = format!("RabbitMQ's consumer_timeout cannot be queried: assuming {source}");
        findings.push(Finding::note(text));
    }
    for stage in stages {
        findings.extend(judge_stage(workers, kind, config, stage));
    }
    findings
}

/// Whether a worker's results come back.
fn results(name: &str, worker: &Worker, kind: BrokerKind) -> Vec<Finding> {
    let mut findings = Vec::new();
    let backend = worker.settings["result_backend"].as_str().unwrap_or("disabled://");
    if !backend.starts_with("rpc") {
        findings.push(Finding::problem(format!(
            "worker {name} has the result backend {:?}, so its results do not come back: \
             set result_backend = 'rpc://'",
            backend.split("://").next().unwrap_or_default()
        )));
    }
    if kind == BrokerKind::RabbitMq && worker.settings["result_persistent"] != json!(true) {
        findings.push(Finding::warning(format!(
            "worker {name} sends results that RabbitMQ forgets when it restarts, and the tasks run again: \
             set result_persistent = True"
        )));
    }
    findings
}

fn judge_stage(
    workers: &BTreeMap<String, Worker>,
    kind: BrokerKind,
    config: &CeleryConfig,
    stage: &StagePlan,
) -> Vec<Finding> {
    let queue = stage.queue.as_deref().unwrap_or(config.queue());
    let consumes = |worker: &&Worker| worker.queues.iter().any(|name| name == queue);
    let knows = |worker: &&Worker| worker.tasks.contains_key(&stage.task);
    let mut findings = Vec::new();
    if !workers.values().any(|worker| consumes(&worker)) {
        let text = format!("stage {}: no worker consumes the queue {queue:?}", stage.name);
        findings.push(Finding::problem(text));
    } else if let Some((name, _)) = workers.iter().find(|(_, worker)| consumes(worker) && !knows(worker)) {
        let text = format!(
            "stage {}: worker {name} consumes the queue {queue:?} and does not know the task {}: \
             it discards tasks of that name",
            stage.name, stage.task
        );
        findings.push(Finding::problem(text));
    }
    for (name, worker) in workers.iter().filter(|(_, worker)| consumes(worker) && knows(worker)) {
        findings.extend(judge_task(name, worker, kind, config, stage));
    }
    findings
}

fn judge_task(
    name: &str,
    worker: &Worker,
    kind: BrokerKind,
    config: &CeleryConfig,
    stage: &StagePlan,
) -> Vec<Finding> {
    let is = |attribute: &str| worker.tasks[&stage.task].get(attribute).is_some_and(|value| value == "True");
    let at = format!("stage {} at worker {name}", stage.name);
    let run = stage.run_timeout;
    let mut findings = Vec::new();
    if is("ignore_result") {
        findings
            .push(Finding::problem(format!("{at}: ignore_result is set, so its results do not come back")));
    }
    if !is("track_started") {
        findings.push(Finding::warning(format!(
            "{at}: track_started is off, so a task that runs looks as if it were queued, and queue_timeout \
             ({:?}) ends it: set task_track_started = True",
            stage.queue_timeout
        )));
    }
    if !is("acks_late") {
        findings.push(Finding::warning(format!(
            "{at}: acks_late is off: a task whose worker is killed is noticed only by its run_timeout ({run:?})"
        )));
        return findings;
    }
    let (what, timeout) = match kind {
        BrokerKind::Redis => ("visibility_timeout", visibility_timeout(worker)),
        BrokerKind::RabbitMq => {
            ("consumer_timeout", config.consumer_timeout.map_or(CONSUMER_TIMEOUT, |Time(time)| time))
        }
    };
    if timeout < run {
        findings.push(Finding::warning(format!(
            "{at}: {what} ({timeout:?}) is shorter than run_timeout ({run:?}): a task that takes longer is \
             delivered again while it runs. One result counts, but the work is done twice; make {what} longer"
        )));
    } else {
        findings
            .push(Finding::note(format!("{at}: acks_late is on, and {what} ({timeout:?}) is long enough")));
    }
    findings
}

fn visibility_timeout(worker: &Worker) -> Duration {
    let asked = worker.settings["broker_transport_options"]["visibility_timeout"].as_f64();
    asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(VISIBILITY_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dispatch::Weight, model::pipeline::DispatchKind};

    fn stage(seconds: u64) -> StagePlan {
        let timeout = Duration::from_secs(seconds);
        StagePlan {
            name: "detect".to_owned(),
            after: Vec::new(),
            task: "video.detect".to_owned(),
            dispatch: DispatchKind::Celery,
            queue: None,
            queue_timeout: timeout,
            run_timeout: timeout,
            retries: 0,
            args: None,
            kwargs: None,
        }
    }

    fn worker(settings: Value, line: &str, queue: &str) -> BTreeMap<String, Worker> {
        let worker =
            Worker { settings, tasks: [task(line)].into_iter().collect(), queues: vec![queue.to_owned()] };
        [("celery@a".to_owned(), worker)].into_iter().collect()
    }

    fn told(workers: &BTreeMap<String, Worker>, kind: BrokerKind, seconds: u64) -> Vec<(Weight, String)> {
        let config = CeleryConfig::new("redis://x");
        let findings = judge(workers, kind, &config, &[stage(seconds)]);
        findings.into_iter().map(|finding| (finding.weight, finding.text)).collect()
    }

    fn has(told: &[(Weight, String)], weight: Weight, part: &str) -> bool {
        told.iter().any(|(of, text)| *of == weight && text.contains(part))
    }

    const GOOD: &str = "video.detect [acks_late=True ignore_result=False track_started=True]";

    #[test]
    fn broker_timeouts_are_compared_with_the_stage() {
        let options = json!({ "visibility_timeout": 5 });
        let settings = json!({ "result_backend": "rpc://", "broker_transport_options": options });
        let short = worker(settings, GOOD, "celery");
        assert!(has(
            &told(&short, BrokerKind::Redis, 12),
            Weight::Warning,
            "visibility_timeout (5s) is shorter"
        ));
        assert!(has(&told(&short, BrokerKind::Redis, 4), Weight::Note, "long enough"));
        let rabbit = told(&short, BrokerKind::RabbitMq, 3_600);
        assert!(has(&rabbit, Weight::Warning, "consumer_timeout (1800s) is shorter"), "{rabbit:?}");
        assert!(has(&rabbit, Weight::Note, "cannot be queried"));
        assert!(has(&rabbit, Weight::Warning, "result_persistent"));
    }

    #[test]
    fn settings_that_lose_results_are_problems() {
        let of = |settings: Value, line: &str, queue: &str| {
            told(&worker(settings, line, queue), BrokerKind::Redis, 12)
        };
        let rpc = json!({ "result_backend": "rpc://" });
        assert!(has(&of(json!({}), GOOD, "celery"), Weight::Problem, "set result_backend = 'rpc://'"));
        let ignoring = "video.detect [acks_late=True ignore_result=True track_started=True]";
        assert!(has(&of(rpc.clone(), ignoring, "celery"), Weight::Problem, "ignore_result"));
        assert!(has(&of(rpc.clone(), "video.other", "celery"), Weight::Problem, "does not know the task"));
        assert!(has(&of(rpc.clone(), GOOD, "gpu"), Weight::Problem, "no worker consumes the queue"));
        let early = "video.detect [acks_late=False ignore_result=False track_started=False]";
        let early = of(rpc, early, "celery");
        assert!(has(&early, Weight::Warning, "acks_late is off"));
        assert!(has(&early, Weight::Warning, "track_started is off"));
        assert!(has(
            &told(&BTreeMap::new(), BrokerKind::Redis, 1),
            Weight::Warning,
            "no Celery worker replied"
        ));
    }
}
