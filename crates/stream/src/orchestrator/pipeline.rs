//! Which stages a job has, and what each waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::limits::{RETRIES_MAX, STAGE_NAME_BYTES_MAX, STAGES_MAX, TIMEOUT_MAX};

/// By which way tasks of a stage reach workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchKind {
    /// Workers of Celery.
    Celery,
    /// A topic.
    Kafka,
    /// Requests to a service.
    Http,
}

impl DispatchKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Celery, Self::Kafka, Self::Http];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Celery => "celery",
            Self::Kafka => "kafka",
            Self::Http => "http",
        }
    }
}

/// A stage as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagePlan {
    /// Its name.
    pub name: String,
    /// The stages that must succeed before it begins.
    pub after: Vec<String>,
    /// What its tasks are called: the name of a Celery task, a topic, or a path.
    pub task: String,
    /// How its tasks reach workers.
    pub dispatch: DispatchKind,
    /// Where its tasks are queued, if not where the dispatcher queues them by default.
    pub queue: Option<String>,
    /// How long a task may wait for a worker, counted from the commit that sends it.
    pub queue_timeout: Duration,
    /// How long a worker may take.
    pub run_timeout: Duration,
    /// How many attempts may follow the first.
    pub retries: u32,
}

/// Why stages are not a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PipelineError {
    /// The stage at fault.
    pub stage: Option<String>,
    /// What is wrong.
    pub what: String,
}

/// Stages and what they wait for, without cycles. A job keeps the pipeline that it started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<StagePlan>", into = "Vec<StagePlan>")]
pub struct Pipeline {
    stages: Vec<StagePlan>,
}

impl Pipeline {
    /// Checks stages, and puts each behind those that it waits for.
    pub fn new(stages: Vec<StagePlan>) -> Result<Self, PipelineError> {
        if stages.is_empty() || stages.len() > STAGES_MAX {
            let what = format!("there are {} stages; a pipeline has 1 to {STAGES_MAX}", stages.len());
            return Err(PipelineError { stage: None, what });
        }
        let names: BTreeSet<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        for stage in &stages {
            check(stage, &names).map_err(|what| PipelineError { stage: Some(stage.name.clone()), what })?;
        }
        if names.len() < stages.len() {
            return Err(PipelineError { stage: None, what: "two stages have the same name".to_owned() });
        }
        Ok(Self { stages: in_order(stages)? })
    }

    /// The stages, each after those that it waits for.
    pub fn stages(&self) -> &[StagePlan] {
        &self.stages
    }

    /// One stage.
    pub fn stage(&self, name: &str) -> Option<&StagePlan> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

impl TryFrom<Vec<StagePlan>> for Pipeline {
    type Error = PipelineError;
    fn try_from(stages: Vec<StagePlan>) -> Result<Self, PipelineError> {
        Self::new(stages)
    }
}

impl From<Pipeline> for Vec<StagePlan> {
    fn from(pipeline: Pipeline) -> Self {
        pipeline.stages
    }
}

fn check(stage: &StagePlan, names: &BTreeSet<&str>) -> Result<(), String> {
    let name = &stage.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > STAGE_NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(format!(
            "{name:?} cannot be the name of a stage: use 1 to {STAGE_NAME_BYTES_MAX} letters, digits, `_`, `-` or `.`"
        ));
    }
    if stage.task.is_empty() {
        return Err(format!("stage {name} has no task: name the task that its workers carry out"));
    }
    for before in &stage.after {
        if before == name {
            return Err(format!("stage {name} waits for itself"));
        }
        if !names.contains(before.as_str()) {
            let known = names.iter().copied().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "stage {name} waits for {before}, and there is no such stage; there are {known}"
            ));
        }
    }
    for (what, time) in [("queue_timeout", stage.queue_timeout), ("run_timeout", stage.run_timeout)] {
        if time < Duration::from_millis(1) || time > TIMEOUT_MAX {
            let most = humantime::format_duration(TIMEOUT_MAX);
            return Err(format!("{what} of stage {name} must be 1ms to {most}"));
        }
    }
    if stage.retries > RETRIES_MAX {
        return Err(format!("retries of stage {name} is {}; it must be 0 to {RETRIES_MAX}", stage.retries));
    }
    Ok(())
}

/// Each stage behind those that it waits for; among those that are free to go, by name.
fn in_order(stages: Vec<StagePlan>) -> Result<Vec<StagePlan>, PipelineError> {
    let mut left: BTreeMap<String, StagePlan> =
        stages.into_iter().map(|stage| (stage.name.clone(), stage)).collect();
    let mut ordered: Vec<StagePlan> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let free = left.values().find(|stage| !stage.after.iter().any(|before| left.contains_key(before)));
        let Some(name) = free.map(|stage| stage.name.clone()) else { return Err(cycle(&left)) };
        ordered.extend(left.remove(&name));
    }
    Ok(ordered)
}

/// Names a cycle: every stage that is left waits for another that is left.
fn cycle(left: &BTreeMap<String, StagePlan>) -> PipelineError {
    let mut path: Vec<&str> = Vec::new();
    let mut at = left.keys().next().map(String::as_str);
    while let Some(name) = at {
        if let Some(first) = path.iter().position(|seen| *seen == name) {
            let cycle = [&path[first..], &[name]].concat().join(" -> ");
            let what = format!("the stages {cycle} wait for each other");
            return PipelineError { stage: Some(name.to_owned()), what };
        }
        path.push(name);
        at = left[name].after.iter().map(String::as_str).find(|before| left.contains_key(*before));
    }
    PipelineError { stage: None, what: "stages wait for each other".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, after: &[&str]) -> StagePlan {
        StagePlan {
            name: name.to_owned(),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            task: format!("video.{name}"),
            dispatch: DispatchKind::Celery,
            queue: None,
            queue_timeout: Duration::from_secs(60),
            run_timeout: Duration::from_secs(60),
            retries: 0,
        }
    }

    fn told(stages: Vec<StagePlan>) -> String {
        Pipeline::new(stages).expect_err("it is wrong").what
    }

    #[test]
    fn each_stage_stands_behind_those_that_it_waits_for() {
        let stages = vec![stage("a", &["c"]), stage("b", &["a", "d"]), stage("c", &[]), stage("d", &["c"])];
        let pipeline = Pipeline::new(stages).expect("a pipeline");
        let names: Vec<&str> = pipeline.stages().iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "d", "b"]);
        let kept = serde_json::to_value(&pipeline).expect("JSON");
        assert_eq!(serde_json::from_value::<Pipeline>(kept).expect("the same"), pipeline);
    }

    #[test]
    fn cycles_and_unknown_stages_are_refused_by_name() {
        let cycle = vec![stage("a", &["x"]), stage("b", &["a"]), stage("c", &["b"]), stage("x", &["c"])];
        assert_eq!(told(cycle), "the stages a -> x -> c -> b -> a wait for each other");
        assert_eq!(told(vec![stage("a", &["a"])]), "stage a waits for itself");
        assert_eq!(
            told(vec![stage("a", &[]), stage("b", &["aa"])]),
            "stage b waits for aa, and there is no such stage; there are a, b"
        );
        assert_eq!(told(Vec::new()), "there are 0 stages; a pipeline has 1 to 64");
        assert_eq!(told(vec![stage("a", &[]), stage("a", &[])]), "two stages have the same name");
        assert!(told(vec![stage("a/b", &[])]).starts_with("\"a/b\" cannot be the name of a stage"));
    }
}
