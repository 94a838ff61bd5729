use std::io::Write;

use super::*;

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
    load(file.path(), |_| {}).map_err(|error| error.0.replace(&path, "o.yaml"))
}

fn told(text: &str) -> String {
    settings(text).expect_err("it is wrong")
}

#[test]
fn defaults_are_those_of_the_guide() {
    let settings = settings(LEAST).expect("good");
    let kafka = &settings.kafka;
    assert_eq!(
        (kafka.topic.as_str(), kafka.group.as_str()),
        ("polyvision.jobs.commands", "polyvision-orchestrator")
    );
    assert_eq!((kafka.partitions, kafka.session_timeout), (12, Duration::from_secs(10)));
    assert!(matches!(settings.ownership, Ownership::Group));
    assert_eq!(settings.postgres.schema, "orchestrator");
    assert_eq!(settings.http.listen.to_string(), "127.0.0.1:7073");
    assert!(settings.limits.inbox_retention > Duration::from_secs(7 * 24 * 60 * 60));
    assert_eq!(settings.limits.job_retention, Duration::from_secs(30 * 24 * 60 * 60));
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
    let long = settings(&with("inbox_retention: 60days")).expect("good").limits;
    assert_eq!(long.job_retention, long.inbox_retention);
    let equal = settings(&with("inbox_retention: 1h\n  job_retention: 1h")).expect("good").limits;
    assert_eq!(equal.job_retention, Duration::from_secs(3_600));
}

#[test]
fn what_others_can_reach_needs_a_key() {
    let open = format!("{LEAST}http: {{listen: '0.0.0.0:7073'}}\n");
    assert!(
        told(&open).contains("can be reached from other machines, and there is no key"),
        "{}",
        told(&open)
    );
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
    assert!(told(&unread).contains("sslrootcert /none.pem cannot be read"), "{}", told(&unread));
}
