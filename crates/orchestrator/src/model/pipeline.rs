//! The stages of a job, and what each waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    limits::{RETRIES_MAX, STAGE_NAME_BYTES_MAX, STAGES_MAX, TIMEOUT_MAX},
    path::Path,
    template::{ROOTS, Template},
};

/// How tasks of a stage reach workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchKind {
    /// A Celery task.
    Celery,
    /// A message to a topic.
    Kafka,
    /// A request to a service.
    Http,
}

impl DispatchKind {
    pub const ALL: [Self; 3] = [Self::Celery, Self::Kafka, Self::Http];

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
    pub name: String,
    /// The stages that must succeed before it begins.
    pub after: Vec<String>,
    /// The name of a Celery task, a topic, or a path.
    pub task: String,
    pub dispatch: DispatchKind,
    /// The queue of its tasks, if not the default of the dispatcher.
    pub queue: Option<String>,
    /// How long a task may wait for a worker, counted from the commit that sends it.
    pub queue_timeout: Duration,
    /// How long a worker may take.
    pub run_timeout: Duration,
    /// How many attempts may follow the first.
    pub retries: u32,
    /// The positional arguments of its Celery tasks, if not the input and the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Template>,
    /// The keyword arguments of its Celery tasks, if not the input and the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kwargs: Option<Template>,
}

impl StagePlan {
    pub fn has_arguments(&self) -> bool {
        self.args.is_some() || self.kwargs.is_some()
    }

    pub fn templates(&self) -> impl Iterator<Item = (&'static str, &Template)> {
        [("args", &self.args), ("kwargs", &self.kwargs)]
            .into_iter()
            .filter_map(|(name, template)| Some((name, template.as_ref()?)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PipelineError {
    pub stage: Option<String>,
    /// The key of the stage at fault.
    pub key: Option<&'static str>,
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the message has no {path}, which {argument} of stage {stage} needs")]
pub struct MissingInput {
    pub path: Path,
    /// The argument that needs it, such as `kwargs.video`.
    pub argument: String,
    pub stage: String,
}

/// Stages and what they wait for, without cycles. A job keeps the pipeline that it started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<StagePlan>", into = "Vec<StagePlan>")]
pub struct Pipeline {
    stages: Vec<StagePlan>,
}

impl Pipeline {
    /// Checks stages, and sorts each behind those that it waits for.
    pub fn new(stages: Vec<StagePlan>) -> Result<Self, PipelineError> {
        if stages.is_empty() || stages.len() > STAGES_MAX {
            let what = format!("there are {} stages; a pipeline has 1 to {STAGES_MAX}", stages.len());
            return Err(PipelineError { stage: None, key: None, what });
        }
        let names: BTreeSet<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        for stage in &stages {
            check(stage, &names)?;
            check_arguments(stage)?;
        }
        if names.len() < stages.len() {
            let what = "two stages have the same name".to_owned();
            return Err(PipelineError { stage: None, key: None, what });
        }
        Ok(Self { stages: in_order(stages)? })
    }

    /// The stages, each after those that it waits for.
    pub fn stages(&self) -> &[StagePlan] {
        &self.stages
    }

    /// Checks that a job's input has all values that the arguments of its tasks need.
    pub fn check_input(&self, input: &Value) -> Result<(), MissingInput> {
        for stage in &self.stages {
            for (name, template) in stage.templates() {
                for (at, path) in template.paths() {
                    if path.parts().first().is_some_and(|root| root == "input")
                        && path.below().find(input).is_none()
                    {
                        return Err(MissingInput {
                            path,
                            argument: format!("{name}{at}"),
                            stage: stage.name.clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

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

fn check(stage: &StagePlan, names: &BTreeSet<&str>) -> Result<(), PipelineError> {
    let invalid = |what| Err(PipelineError { stage: Some(stage.name.clone()), key: None, what });
    let name = &stage.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > STAGE_NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return invalid(format!(
            "{name:?} cannot be the name of a stage: use 1 to {STAGE_NAME_BYTES_MAX} letters, digits, `_`, `-` or `.`"
        ));
    }
    if stage.task.is_empty() {
        return invalid(format!("stage {name} has no task: name the task that its workers carry out"));
    }
    for before in &stage.after {
        if before == name {
            return invalid(format!("stage {name} waits for itself"));
        }
        if !names.contains(before.as_str()) {
            let known = names.iter().copied().collect::<Vec<_>>().join(", ");
            return invalid(format!(
                "stage {name} waits for {before}, and there is no such stage; there are {known}"
            ));
        }
    }
    for (what, time) in [("queue_timeout", stage.queue_timeout), ("run_timeout", stage.run_timeout)] {
        if time < Duration::from_millis(1) || time > TIMEOUT_MAX {
            let most = humantime::format_duration(TIMEOUT_MAX);
            return invalid(format!("{what} of stage {name} must be 1ms to {most}"));
        }
    }
    if stage.retries > RETRIES_MAX {
        return invalid(format!(
            "retries of stage {name} is {}; it must be 0 to {RETRIES_MAX}",
            stage.retries
        ));
    }
    Ok(())
}

/// Arguments may refer only to the job, or to results of stages that the stage waits for.
fn check_arguments(stage: &StagePlan) -> Result<(), PipelineError> {
    for (name, template) in stage.templates() {
        let error = |what: String| {
            let what = format!("{name} of stage {}: {what}", stage.name);
            PipelineError { stage: Some(stage.name.clone()), key: Some(name), what }
        };
        if stage.dispatch != DispatchKind::Celery {
            let what = format!(
                "only stages that are dispatched by celery have it, not by {}",
                stage.dispatch.name()
            );
            return Err(error(what));
        }
        match (name, template.written()) {
            ("args", Value::Array(_)) | ("kwargs", Value::Object(_)) => {}
            ("args", _) => return Err(error("write a list, each element an argument".to_owned())),
            _ => return Err(error("write keys with values, each key the name of an argument".to_owned())),
        }
        for (at, path) in template.paths() {
            if let Some(fault) = placeholder_fault(&path, stage) {
                return Err(error(format!("{name}{at} has {{{path}}}, {fault}")));
            }
        }
    }
    Ok(())
}

fn placeholder_fault(path: &Path, stage: &StagePlan) -> Option<String> {
    match (path.parts().first().map(String::as_str), path.parts().get(1)) {
        (Some("input"), _) | (Some("results"), None) => None,
        (Some("labels"), _) if path.parts().len() <= 2 => None,
        (Some("job_id" | "key" | "stage" | "attempt"), None) => None,
        (Some("results"), Some(of)) if stage.after.contains(of) => None,
        (Some("results"), Some(of)) => Some(format!("and {} does not wait for a stage {of}", stage.name)),
        _ => Some(format!("and there is no such value; placeholders begin with {}", ROOTS.join(", "))),
    }
}

/// Sorts each stage behind those that it waits for; among stages that are free to start, by name.
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
            return PipelineError { stage: Some(name.to_owned()), key: None, what };
        }
        path.push(name);
        at = left[name].after.iter().map(String::as_str).find(|before| left.contains_key(*before));
    }
    PipelineError { stage: None, key: None, what: "stages wait for each other".to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            args: None,
            kwargs: None,
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

    fn with(after: &[&str], args: Value, kwargs: Value) -> Result<Pipeline, PipelineError> {
        let template = |value: Value| Some(Template::try_from(value).expect("a template"));
        let after = StagePlan { args: template(args), kwargs: template(kwargs), ..stage("b", after) };
        Pipeline::new(vec![stage("a", &[]), after])
    }

    #[test]
    fn arguments_are_made_of_what_a_job_has() {
        let good = json!({"x": "{input.x}-{attempt}", "y": ["{results.a.y}", "{labels.z}", "{key}"], "z": "{results}"});
        let pipeline = with(&["a"], json!(["{input}", 1]), good).expect("a pipeline");
        let kept = serde_json::to_value(&pipeline).expect("JSON");
        assert_eq!(serde_json::from_value::<Pipeline>(kept).expect("the same"), pipeline);
        assert_eq!(pipeline.check_input(&json!({"x": null})), Ok(()));
        let missing = pipeline.check_input(&json!({"y": 1})).expect_err("no x");
        assert_eq!(missing.to_string(), "the message has no input.x, which kwargs.x of stage b needs");
        // Digests of pipelines without them are what they were.
        let plain = serde_json::to_string(&stage("a", &[])).expect("JSON");
        assert!(!plain.contains("args"), "{plain}");

        let told = |args, kwargs| with(&[], args, kwargs).expect_err("it is wrong");
        let error = told(json!({}), json!({}));
        assert_eq!((error.stage.as_deref(), error.key), (Some("b"), Some("args")));
        assert_eq!(error.what, "args of stage b: write a list, each element an argument");
        assert!(told(json!([]), json!([])).what.contains("write keys with values"));
        assert_eq!(
            told(json!([]), json!({"x": ["{results.a}"]})).what,
            "kwargs of stage b: kwargs.x.0 has {results.a}, and b does not wait for a stage a"
        );
        for odd in ["{inputs.x}", "{job_id.x}", "{labels.a.b}", "{.}"] {
            let what = told(json!([odd]), json!({})).what;
            let expected =
                format!("args of stage b: args.0 has {odd}, and there is no such value; placeholders begin");
            assert!(what.starts_with(&expected), "{what}");
        }
        let by_http = StagePlan {
            dispatch: DispatchKind::Http,
            ..with(&[], json!([]), json!({})).expect("good").stages[1].clone()
        };
        assert!(told_of(by_http).contains("only stages that are dispatched by celery have it, not by http"));
    }

    fn told_of(stage: StagePlan) -> String {
        Pipeline::new(vec![stage]).expect_err("it is wrong").what
    }
}
