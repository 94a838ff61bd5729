use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::model::{pipeline::DispatchKind, task::ReportKind};

const QUEUE_MS: i64 = 1_000;
const RUN_MS: i64 = 5_000;

fn plan(name: &str, after: &[&str], retries: u32) -> StagePlan {
    StagePlan {
        name: name.to_owned(),
        after: after.iter().map(|name| (*name).to_owned()).collect(),
        task: format!("video.{name}"),
        dispatch: DispatchKind::Celery,
        queue: None,
        queue_timeout: Duration::from_millis(QUEUE_MS as u64),
        run_timeout: Duration::from_millis(RUN_MS as u64),
        retries,
        args: None,
        kwargs: None,
    }
}

/// decode, then detect and audio at the same time, then publish.
fn pipeline() -> Arc<Pipeline> {
    let stages = vec![
        plan("decode", &[], 1),
        plan("detect", &["decode"], 1),
        plan("audio", &["decode"], 0),
        plan("publish", &["detect", "audio"], 2),
    ];
    Arc::new(Pipeline::new(stages).expect("a pipeline"))
}

fn new_job(id: &str) -> NewJob {
    NewJob {
        id: id.to_owned(),
        key: "org:m1".to_owned(),
        labels: [("organization".to_owned(), "org".to_owned())].into(),
        input: Arc::new(json!({"video": "v"})),
        pipeline: pipeline(),
    }
}

fn report(stage: &str, attempt: u32, kind: ReportKind) -> Input {
    Input::Report { stage: stage.to_owned(), attempt, kind }
}

fn succeeded(stage: &str, attempt: u32) -> Input {
    report(stage, attempt, ReportKind::Succeeded { result: json!({ "of": stage }) })
}

fn failed(stage: &str, attempt: u32) -> Input {
    report(stage, attempt, ReportKind::Failed { reason: "no GPU".to_owned() })
}

/// A job, and everything that it has asked for.
struct Story {
    job: Option<Job>,
    effects: Vec<Effect>,
    now_ms: i64,
}

impl Story {
    fn begin() -> Self {
        let mut story = Self { job: None, effects: Vec::new(), now_ms: 1_000 };
        story.then(Input::Create(new_job("j1")));
        story
    }

    fn then(&mut self, input: Input) -> Vec<Effect> {
        let decided = decide(self.job.take(), &input, self.now_ms).expect("not refused");
        self.job = Some(decided.job);
        self.effects.extend(decided.effects.clone());
        decided.effects
    }

    fn job(&self) -> &Job {
        self.job.as_ref().expect("a job")
    }

    fn stage(&self, name: &str) -> &Stage {
        &self.job().stages[self.job().position(name).expect("a stage")]
    }

    fn sent(&self) -> Vec<String> {
        let sent = self.effects.iter().filter_map(|effect| match effect {
            Effect::Send { task, .. } => Some(format!("{} {}", task.stage, task.attempt)),
            _ => None,
        });
        sent.collect()
    }

    fn events(&self) -> Vec<EventKind> {
        let events = self.effects.iter().filter_map(|effect| match effect {
            Effect::Event(event) => Some(event.kind),
            _ => None,
        });
        events.collect()
    }
}

#[test]
fn stages_follow_their_dependencies_and_get_their_results() {
    let mut story = Story::begin();
    assert_eq!(story.sent(), ["decode 1"]);
    story.then(report("decode", 1, ReportKind::Started));
    story.then(succeeded("decode", 1));
    assert_eq!(story.sent()[1..], ["audio 1", "detect 1"]);
    story.then(succeeded("audio", 1));
    assert_eq!(story.sent().len(), 3);
    story.then(succeeded("detect", 1));
    assert_eq!(story.sent()[3], "publish 1");
    let task = story.job().task("publish", 1).expect("under way").expect("the task");
    let results = json!({"audio": {"of": "audio"}, "detect": {"of": "detect"}});
    assert_eq!(task.input, json!({"input": {"video": "v"}, "results": results}));
    assert_eq!((task.key.as_str(), story.job().progress()), ("org:m1", 0.75));
    story.then(succeeded("publish", 1));
    assert_eq!((story.job().state, story.job().progress()), (JobState::Succeeded, 1.0));
    assert_eq!(story.events().last(), Some(&EventKind::Succeeded));
}

#[test]
fn only_the_first_result_of_the_present_attempt_counts() {
    let mut story = Story::begin();
    story.then(failed("decode", 1));
    assert_eq!(
        (story.sent().last().map(String::as_str), story.stage("decode").attempt),
        (Some("decode 2"), 2)
    );
    for late in [succeeded("decode", 1), failed("decode", 1), report("decode", 1, ReportKind::Started)] {
        assert_eq!(story.then(late), []);
    }
    assert!(!story.then(succeeded("decode", 2)).is_empty());
    for twice in [succeeded("decode", 2), failed("decode", 2)] {
        assert_eq!(story.then(twice), []);
    }
    assert_eq!(story.stage("decode").state, StageState::Succeeded);
}

#[test]
fn queued_too_long_and_running_too_long_are_different() {
    let mut story = Story::begin();
    let timeout = |attempt| Input::Timeout { stage: "decode".to_owned(), attempt };
    story.now_ms += QUEUE_MS - 1;
    assert_eq!(story.then(timeout(1)), [], "its deadline has not come");
    story.now_ms += 1;
    let effects = story.then(timeout(1));
    assert!(matches!(&effects[0], Effect::Revoke { task, .. } if task.attempt == 1), "{effects:?}");
    assert_eq!(story.stage("decode").reason.as_deref(), Some("no worker started the task within 1s"));
    assert_eq!(story.then(timeout(1)), [], "the attempt is an old one");
    story.then(report("decode", 2, ReportKind::Started));
    story.now_ms += QUEUE_MS + 1;
    assert_eq!(story.then(timeout(2)), [], "it runs");
    story.now_ms += RUN_MS;
    story.then(timeout(2));
    let job = story.job();
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(job.reason.as_deref(), Some("stage decode: the worker took longer than 5s"));
}

#[test]
fn a_job_that_failed_goes_on_where_it_failed() {
    let mut story = Story::begin();
    story.then(succeeded("decode", 1));
    story.then(report("detect", 1, ReportKind::Progress { fraction: 0.5 }));
    let effects = story.then(failed("audio", 1));
    assert_eq!(story.job().state, JobState::Failed);
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Revoke { task, .. } if task.stage == "detect"))
    );
    assert_eq!(story.then(succeeded("detect", 1)), [], "a failed job stays failed");
    story.then(Input::Retry);
    assert_eq!(story.then(Input::Retry), []);
    assert_eq!(story.sent()[3..], ["audio 3", "detect 3"]);
    assert_eq!(story.then(succeeded("detect", 1)), [], "that was before the retry");
    for (stage, attempt) in [("detect", 3), ("audio", 3), ("publish", 1)] {
        story.then(succeeded(stage, attempt));
    }
    assert_eq!(story.job().state, JobState::Succeeded);
}

#[test]
fn a_cancelled_job_stays_so_until_it_is_retried() {
    let mut story = Story::begin();
    assert_eq!(story.then(Input::Retry), []);
    story.then(Input::Cancel);
    assert_eq!((story.job().state, story.stage("decode").attempt), (JobState::Cancelled, 2));
    assert_eq!(story.then(Input::Cancel), []);
    assert_eq!(story.then(succeeded("decode", 1)), []);
    assert_eq!(story.then(succeeded("decode", 2)), []);
    story.then(Input::Retry);
    assert_eq!((story.job().state, story.stage("decode").attempt), (JobState::Running, 3));
}

#[test]
fn inputs_that_can_never_take_effect_are_rejected() {
    for input in [Input::Cancel, Input::Retry, succeeded("decode", 1)] {
        assert_eq!(decide(None, &input, 1), Err(Rejection("there is no such job".to_owned())));
    }
    let story = Story::begin();
    let other = NewJob { key: "org:m2".to_owned(), ..new_job("j1") };
    let rejection = decide(story.job.clone(), &Input::Create(other), 1).expect_err("rejected");
    assert_eq!(rejection.0, "a job with this id already exists, with the key org:m1");
    let again = decide(story.job.clone(), &Input::Create(new_job("j1")), 9).expect("ignored");
    assert_eq!((Some(again.job), again.effects), (story.job, Vec::new()));
}

#[test]
fn results_and_reasons_have_bounds() {
    let mut story = Story::begin();
    let result = json!("x".repeat(300_000));
    story.then(report("decode", 1, ReportKind::Succeeded { result }));
    let reason = story.stage("decode").reason.clone().expect("a reason");
    assert!(reason.contains("more than 262144") && story.stage("decode").attempt == 2, "{reason}");
    story.then(report("decode", 2, ReportKind::Failed { reason: "ü\0".repeat(5_000) }));
    let reason = story.stage("decode").reason.clone().expect("a reason");
    assert!(reason.len() <= 2_000 && reason.ends_with("...") && !reason.contains('\0'), "{reason}");
}

fn any_input() -> impl Strategy<Value = Input> {
    let stage = prop::sample::select(vec!["decode", "detect", "audio", "publish", "nothing"]);
    let kind = prop_oneof![
        Just(ReportKind::Started),
        prop::num::f64::ANY.prop_map(|fraction| ReportKind::Progress { fraction }),
        (0.0..1.0f64).prop_map(|fraction| ReportKind::Progress { fraction }),
        Just(ReportKind::Succeeded { result: json!(1) }),
        Just(ReportKind::Succeeded { result: json!(2) }),
        Just(ReportKind::Failed { reason: "no".to_owned() }),
    ];
    prop_oneof![
        1 => Just(Input::Create(new_job("j1"))),
        1 => Just(Input::Cancel),
        2 => Just(Input::Retry),
        20 => (stage.clone(), 0..5u32, kind).prop_map(|(stage, attempt, kind)| report(stage, attempt, kind)),
        4 => (stage, 0..5u32)
            .prop_map(|(stage, attempt)| Input::Timeout { stage: stage.to_owned(), attempt }),
    ]
}

/// What must be true of a job whatever has happened to it.
fn check(before: &Job, after: &Job, effects: &[Effect], sent: &mut BTreeMap<(String, u32), u32>) {
    for (at, (plan, stage)) in after.each_stage().enumerate() {
        let was = &before.stages[at];
        assert!(stage.attempt >= was.attempt, "attempts go back");
        assert_eq!(
            stage.is_under_way(),
            stage.deadline_ms.is_some(),
            "what is under way has a deadline, and only that"
        );
        assert!((0.0..=1.0).contains(&stage.progress));
        assert_eq!(stage.state == StageState::Succeeded, stage.result.is_some());
        if was.state == StageState::Succeeded {
            assert_eq!(stage, was, "a stage that has succeeded stays as it is");
        }
        if stage.state != StageState::Waiting && stage.attempt > 0 && stage.state != StageState::Cancelled {
            let is_done = |name: &String| {
                after.stages[after.position(name).expect("known")].state == StageState::Succeeded
            };
            assert!(plan.after.iter().all(is_done), "{} began before what it waits for", plan.name);
        }
    }
    let all_done = after.stages.iter().all(|stage| stage.state == StageState::Succeeded);
    assert_eq!(after.state == JobState::Succeeded, all_done);
    assert_eq!(after.state == JobState::Running, after.finished_ms.is_none());
    if after.state == JobState::Running {
        assert!(after.stages.iter().any(Stage::is_under_way), "nothing would ever happen to it");
    } else {
        assert!(!after.stages.iter().any(Stage::is_under_way), "it has ended, and a stage goes on");
    }
    let mut revision = before.revision;
    for effect in effects {
        match effect {
            Effect::Send { task, .. } => {
                let times = sent.entry((task.stage.clone(), task.attempt)).or_default();
                *times += 1;
                assert_eq!(*times, 1, "an attempt is sent once");
                let stage = &after.stages[after.position(&task.stage).expect("known")];
                assert!(after.task(&task.stage, task.attempt).is_some() && stage.attempt == task.attempt);
            }
            Effect::Event(event) => {
                revision += 1;
                assert_eq!(event.revision, revision, "events have no gaps");
            }
            Effect::Revoke { .. } => {}
        }
    }
    assert_eq!(after.revision, revision);
}

proptest! {
    #[test]
    fn every_sequence_of_inputs_keeps_the_invariants(inputs in prop::collection::vec((any_input(), 0..2_000i64), 0..60)) {
        let mut job = decide(None, &Input::Create(new_job("j1")), 0).expect("created").job;
        let mut sent = BTreeMap::from([(("decode".to_owned(), 1), 1)]);
        let mut now_ms = 0;
        for (input, passes_ms) in inputs {
            now_ms += passes_ms;
            let decided = decide(Some(job.clone()), &input, now_ms).expect("not refused");
            check(&job, &decided.job, &decided.effects, &mut sent);
            if matches!(job.state, JobState::Succeeded) {
                prop_assert_eq!(&job, &decided.job, "a finished job stays finished");
            }
            if job.state != JobState::Running && !matches!(input, Input::Retry) {
                prop_assert_eq!(&job, &decided.job, "only a retry goes on with it");
            }
            if decided.effects.is_empty() {
                prop_assert_eq!(&job, &decided.job, "a change is always told");
            }
            // At least once: the same input again changes nothing.
            let again = decide(Some(decided.job.clone()), &input, now_ms).expect("not refused");
            prop_assert_eq!(&again.job, &decided.job, "it arrived twice");
            prop_assert_eq!(again.effects.len(), 0);
            job = decided.job;
        }
    }

    #[test]
    fn a_job_whose_workers_answer_comes_to_its_end(order in prop::collection::vec((0..4usize, 0..10u32), 40..200)) {
        let mut job = decide(None, &Input::Create(new_job("j1")), 0).expect("created").job;
        for (at, chance) in order {
            let plan = &job.pipeline.stages()[at];
            let stage = &job.stages[at];
            let input = match chance {
                0 => failed(&plan.name, stage.attempt),
                _ => succeeded(&plan.name, stage.attempt),
            };
            job = decide(Some(job), &input, 1).expect("not refused").job;
            job = decide(Some(job), &Input::Retry, 1).expect("not refused").job;
        }
        for at in (0..4).cycle().take(16) {
            let input = succeeded(&job.pipeline.stages()[at].name.clone(), job.stages[at].attempt);
            job = decide(Some(job), &input, 2).expect("not refused").job;
        }
        prop_assert_eq!(job.state, JobState::Succeeded);
    }
}
