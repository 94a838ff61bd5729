use std::io::Write;

use super::*;
use crate::model::command::CommandKind;

const LEAST: &str = "kafka: {brokers: 'localhost:9092'}
postgres: {url: 'postgres://me:hunter2@localhost/jobs'}
dispatchers:
  http: {url: 'http://localhost:8000'}
stages:
  decode: {task: /decode, dispatch: http}
";

fn settings(text: &str) -> Result<Settings, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let path = file.path().display().to_string();
    load(file.path(), |_| {}).map_err(|error| error.to_string().replace(&path, "o.yaml"))
}

fn told(text: &str) -> String {
    settings(text).expect_err("it is wrong")
}

#[test]
fn defaults_are_those_of_the_guide() {
    let settings = settings(LEAST).expect("good");
    let consumer = &settings.consumer;
    assert_eq!((consumer.topic.as_str(), consumer.group.as_str()), ("jobs.commands", "orchestrator"));
    assert_eq!((consumer.partitions, consumer.session_timeout), (12, Duration::from_secs(10)));
    assert!(consumer.partition_assignment == PartitionAssignment::Group && settings.leases.is_none());
    assert_eq!(settings.postgres.schema, "orchestrator");
    assert_eq!(settings.http.listen.to_string(), "127.0.0.1:7073");
    assert!(settings.inbox_retention > Duration::from_secs(7 * 24 * 60 * 60));
    assert_eq!(settings.job_retention, Duration::from_secs(30 * 24 * 60 * 60));
    assert_eq!(*settings.commands, Mapping::default());
    let stage = &settings.pipeline.stages()[0];
    assert_eq!((stage.retries, stage.run_timeout), (3, Duration::from_secs(3_600)));
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    assert_eq!(
        told(&format!("{LEAST}limts: {{}}\n")).split(',').next(),
        Some("o.yaml:7: unknown field `limts`")
    );
    let unknown = LEAST.replace("dispatch: http}", "dispatch: http, retry: 2}");
    assert!(told(&unknown).starts_with("o.yaml:6: unknown field `retry`"), "{}", told(&unknown));
    let cycle = format!(
        "{LEAST}  a: {{task: /a, dispatch: http, after: [b]}}\n  b: {{task: /b, dispatch: http, after: [a]}}\n"
    );
    assert_eq!(told(&cycle), "o.yaml:7: the stages a -> b -> a wait for each other");
    let unknown = format!("{LEAST}  a: {{task: /a, dispatch: http, after: [decod]}}\n");
    assert_eq!(
        told(&unknown),
        "o.yaml:7: stage a waits for decod, and there is no such stage; there are a, decode"
    );
    let missing = format!("{LEAST}  a: {{task: video.a, dispatch: celery}}\n");
    assert_eq!(
        told(&missing),
        "o.yaml:7: stage a is dispatched by celery, and dispatchers.celery is missing"
    );
    let time = LEAST.replace("dispatch: http}", "dispatch: http, run_timeout: 5 parsecs}");
    assert!(told(&time).contains("is not a time such as 90s"), "{}", told(&time));
    assert!(told(&LEAST.replace("brokers", "broker")).starts_with("o.yaml:1: unknown field `broker`"));
    assert!(told("stages: {}\n").contains("stages is missing"));
}

#[test]
fn jobs_are_kept_for_as_long_as_their_marks_at_least() {
    let with = |limits: &str| format!("{LEAST}limits:\n  {limits}\n");
    let short = with("job_retention: 7days");
    assert!(
        told(&short).starts_with("o.yaml:8: limits.job_retention is 7days, less than"),
        "{}",
        told(&short)
    );
    let long = settings(&with("inbox_retention: 60days")).expect("good");
    assert_eq!(long.job_retention, long.inbox_retention);
    let equal = settings(&with("inbox_retention: 1h\n  job_retention: 1h")).expect("good");
    assert_eq!(equal.job_retention, Duration::from_secs(3_600));
}

#[test]
fn what_others_can_reach_needs_a_key() {
    let open = format!("{LEAST}http: {{listen: '0.0.0.0:7073'}}\n");
    assert!(told(&open).contains("is reachable from other machines without an API key"), "{}", told(&open));
    let with_key = format!("{LEAST}http: {{listen: '0.0.0.0:7073', api_key: '0123456789abcdef'}}\n");
    assert!(settings(&with_key).is_ok());
    assert!(told(&with_key.replace("0123456789abcdef", "short")).contains("fewer than 16"));
    let bad = LEAST.replace("postgres://me:hunter2@localhost/jobs", "hunter2");
    assert!(
        told(&bad).starts_with("o.yaml: postgres.url, as in postgres://USER@HOST:PORT/DATABASE: "),
        "{}",
        told(&bad)
    );
    assert!(!told(&bad).contains("hunter2"), "{}", told(&bad));
    let unread = LEAST.replace("/jobs'", "/jobs?sslmode=verify-full&sslrootcert=/none.pem'");
    assert!(told(&unread).contains("cannot read sslrootcert /none.pem"), "{}", told(&unread));
}

const CELERY: &str = "kafka: {brokers: 'localhost:9092'}
postgres: {url: 'postgres://me@localhost/jobs'}
dispatchers:
  celery: {broker: 'amqp://localhost'}
stages:
  decode:
    task: video.decode
    dispatch: celery
";

#[test]
fn commands_are_mapped_as_the_file_says() {
    let text = "commands:
  job_id: meta.id
  command_id: meta.message
  type:
    path: meta.action
    default: CREATE
    values: {start: CREATE, stop: CANCEL}
  input: {path: payload, default: null}
  labels:
    organization_id: organization_id
    match_id: {path: match.id, default: none}
  key: '{labels.organization_id}:{labels.match_id}'
";
    let mapping = settings(&format!("{LEAST}{text}")).expect("good").commands;
    let command = |text: &str, key: &str| mapping.parse(Some(text.as_bytes()), Some(key.as_bytes()));
    let start = command(r#"{"meta": {"id": 7, "message": "m"}, "organization_id": "acme"}"#, "acme:none");
    let start = start.expect("good");
    assert_eq!((start.job_id.as_str(), start.id(), start.kind), ("7", "m", CommandKind::Create));
    assert_eq!((&start.input, start.labels["match_id"].as_str()), (&serde_json::Value::Null, "none"));
    let stop = r#"{"meta": {"id": 7, "action": "stop"}, "organization_id": "acme", "match": {"id": 4}}"#;
    assert_eq!(command(stop, "acme:4").expect("good").kind, CommandKind::Cancel);
    // A path without a default: every message must say it.
    let mapping = settings(&format!("{LEAST}commands: {{type: type, input: .}}\n")).expect("good").commands;
    let text = r#"{"job_id": "j", "type": "CREATE"}"#;
    let whole = mapping.parse(Some(text.as_bytes()), Some(b"k")).expect("good");
    assert_eq!(whole.input.to_string(), r#"{"job_id":"j","type":"CREATE"}"#);
    let error = mapping.parse(Some(br#"{"job_id": "j"}"#), Some(b"k")).expect_err("no type");
    assert_eq!(error.to_string(), "the message has no type (commands.type)");
}

#[test]
fn mistakes_in_commands_are_told_with_their_line() {
    let with = |text: &str| told(&format!("{LEAST}commands:\n  {text}\n"));
    for (text, told) in [
        ("job_id: a..b", "o.yaml:8: commands.job_id: \"a..b\" is not a path"),
        ("job_id: {path: a, default: b}", "o.yaml:8: job_id must be a string"),
        ("job: id", "o.yaml:8: unknown field `job`"),
        ("type: {path: type, default: STOP}", "o.yaml:8: unknown variant `STOP`"),
        ("type: {path: type, values: {stop: HALT}}", "o.yaml:8: unknown variant `HALT`"),
        ("input:\n    path: a b", "o.yaml:8: commands.input: \"a b\" is not a path"),
        ("input: {at: a}", "o.yaml:8: unknown field `at`"),
        ("input: [a]", "o.yaml:8: invalid type: sequence, expected a path, or `path` and `default`"),
        ("labels:\n    a.b: c", "o.yaml:9: \"a.b\" cannot be the name of a label"),
        (
            "labels:\n    of: {path: of, default: ''}",
            "o.yaml:9: the default of label of must be 1 to 255 bytes",
        ),
        ("key: '{match_id}'", "o.yaml:8: commands.key has {match_id}, which is not one of {job_id}"),
        (
            "key: '{labels.match_id}'",
            "o.yaml:8: commands.key has {labels.match_id}, which is not one of {job_id}",
        ),
        ("key: '{job_id'", "o.yaml:8: commands.key: \"{job_id\" has a single {"),
        ("key: jobs", "o.yaml:8: commands.key is the same for all jobs"),
    ] {
        assert!(with(text).starts_with(told), "{text}: {}", with(text));
    }
}

#[test]
fn arguments_of_celery_tasks_are_templates() {
    let text = "    args: ['{job_id}', 7]
    kwargs:
      path: '{input.video}'
      options: {fps: 25, name: 'job {job_id}'}
";
    let settings = settings(&format!("{CELERY}{text}")).expect("good");
    let stage = &settings.pipeline.stages()[0];
    let written: Vec<String> =
        stage.templates().map(|(_, template)| template.written().to_string()).collect();
    let kwargs = r#"{"options":{"fps":25,"name":"job {job_id}"},"path":"{input.video}"}"#;
    assert_eq!(written, [r#"["{job_id}",7]"#, kwargs]);
}

#[test]
fn mistakes_in_arguments_are_told_with_their_line() {
    let with = |text: &str| told(&format!("{CELERY}    {text}\n"));
    for (text, told) in [
        (
            "kwargs:\n      path: '{input.video'\n      fps: 25\n    retries: 1",
            "o.yaml:9: kwargs of stage decode: \"{input.video\" has a single {: write {{ for a brace",
        ),
        (
            "kwargs: {path: {input.video}}",
            "o.yaml:9: kwargs of stage decode: YAML takes {input.video} without quotes for a mapping",
        ),
        ("kwargs: ['{input}']", "o.yaml:9: kwargs of stage decode: write keys with values"),
        ("args: {a: 1}", "o.yaml:9: args of stage decode: write a list"),
        (
            "args: ['{inputs}']",
            "o.yaml:9: args of stage decode: args.0 has {inputs}, and there is no such value",
        ),
        (
            "kwargs: {a: '{results.decode}'}",
            "o.yaml:9: kwargs of stage decode: kwargs.a has {results.decode}, and decode does not wait for a stage decode",
        ),
        (
            "args: ['{labels.of}']",
            "o.yaml:9: stage decode: args.0 has {labels.of}, and commands.labels has no of",
        ),
    ] {
        assert!(with(text).starts_with(told), "{text}: {}", with(text));
    }
    let large = format!("args: ['{}']", "x".repeat(20_000));
    assert!(with(&large).contains("the template has 20004 bytes, more than 16384"), "{}", with(&large));
    // What is between braces stands on the line of its stage, whatever follows.
    let others = "  a: {task: a, dispatch: celery, kwargs: {b: '{results.x}'}}\n  b:\n    task: b\n    dispatch: celery\n    kwargs: {}";
    let between = told(&format!("{CELERY}{others}\n"));
    assert!(between.starts_with("o.yaml:9: kwargs of stage a: kwargs.b has {results.x}"), "{between}");
    let by_http = LEAST.replace("dispatch: http}", "dispatch: http, args: [1]}");
    assert_eq!(
        told(&by_http),
        "o.yaml:6: args of stage decode: only stages that are dispatched by celery have it, not by http"
    );
}

#[test]
fn the_guide_and_the_example_say_what_is_so() {
    let guide = include_str!("../../../../docs/guides/orchestrator.md");
    let block = guide.split("```yaml\ncommands:").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.expect("the commands of the guide");
    let commands = settings(&format!("{LEAST}commands:{block}")).expect("good").commands;
    let said = br#"{"meta": {"action": "start", "tenant": "acme"}, "id": "job-17", "payload": {"a": 1}}"#;
    let command = commands.parse(Some(said), Some(b"acme:job-17")).expect("good");
    assert_eq!((command.kind, command.input.to_string().as_str()), (CommandKind::Create, r#"{"a":1}"#));
    settings(include_str!("../../../../examples/orchestrator/orchestrator.yaml")).expect("good");
}
