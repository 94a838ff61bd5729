use std::io::Write;

use super::*;

fn read(text: &str) -> Result<Settings, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let path = file.path().display().to_string();
    load(file.path(), |_| {}).map_err(|error| error.to_string().replace(&path, "agent.yaml"))
}

const LEAST: &str = "worker:\n  command: [sleep, '600']\n";

#[test]
fn the_defaults_are_those_that_are_documented() {
    let settings = read(LEAST).expect("good");
    let s = Duration::from_secs;
    assert_eq!((settings.worker.max, settings.worker.per_worker), (4, 16));
    assert_eq!((settings.lease.ttl, settings.lease.every, settings.lease.retry), (s(60), s(20), s(10)));
    let bounds = &settings.worker.bounds;
    assert_eq!((bounds.startup, bounds.watchdog, bounds.stop, bounds.burst), (s(30), s(60), s(20), 5));
    assert_eq!((settings.drain, settings.source.clone()), (s(25), Source::Assigned));
    assert_eq!(settings.runner.capacity, Some(64));
    assert!(settings.remarks().is_empty(), "{:?}", settings.remarks());
}

#[test]
fn the_fields_of_a_pipeline_are_understood() {
    let text = "
control_plane_url: http://127.0.0.1:8000
api_key: secret
runner_id: runner-abc123
manager_mode: true
max_workers: 2
max_cameras_per_worker: 8
lease_ttl_seconds: 45
heartbeat_interval_seconds: 10
lease_retry_interval_seconds: 5
database_url: postgres://somewhere
deployment_group: production
deployment_version: v1.2.3
tenant_id: tenant-1
site_id: site-1
worker:
  command: [python3, -m, pipeline.worker]
";
    let settings = read(text).expect("good");
    assert_eq!(settings.server.servers, ["http://127.0.0.1:8000"]);
    assert_eq!(settings.runner.deployment_version.as_deref(), Some("v1.2.3"));
    assert_eq!(settings.lease.every, Duration::from_secs(10));
    let line = settings.worker.command.join(" ");
    assert_eq!(
        line,
        "python3 -m pipeline.worker --config {config} --runner-id {runner_id} --shard-id {shard_id} --manager-pid {manager_pid}"
    );
    assert!(!format!("{settings:?}").contains("secret"));
    assert_eq!(settings.worker.per_worker, 8);
}

#[test]
fn what_a_worker_takes_is_told_in_the_words_of_the_file() {
    let told = |lines: &str| read(&format!("{LEAST}{lines}")).map(|_| ()).expect_err("wrong");
    for key in ["max_resources_per_worker", "max_cameras_per_worker"] {
        let one = read(&format!("{LEAST}{key}: 1\n")).expect("good");
        assert_eq!((one.worker.per_worker, one.remarks()), (1, Vec::new()));
        assert_eq!(told(&format!("{key}: 0\n")), format!("agent.yaml:3: {key} is 0; it must be 1 or more"));
        let capacity = told(&format!("{key}: 2\ncapacity: 9\n"));
        assert!(capacity.ends_with(&format!("that max_workers times {key} can take")), "{capacity}");
    }
    let both = told("max_resources_per_worker: 1\nmax_cameras_per_worker: 1\n");
    assert!(both.starts_with("agent.yaml:4: ") && both.ends_with("give one of them"), "{both}");
}

#[test]
fn a_mistake_is_told_with_its_line() {
    let told = |text: &str| read(text).expect_err("wrong");
    assert_eq!(
        told("max_wokers: 3\nworker: {command: [a]}").split(',').next(),
        Some("agent.yaml:1: unknown field `max_wokers`")
    );
    assert_eq!(
        told("# x\n\nmax_workers: many\n"),
        "agent.yaml:3: max_workers is not a whole number from 0 on"
    );
    assert_eq!(
        told(&format!("{LEAST}lease_ttl_seconds: 0.2\n")),
        "agent.yaml:3: lease_ttl_seconds is 200ms; it must be 1s to 1day"
    );
    assert_eq!(
        told(&format!("{LEAST}max_workers: 0\n")),
        "agent.yaml:3: max_workers is 0; it must be 1 or more"
    );
    assert_eq!(
        told(&format!("{LEAST}resources: [nightly]\n")),
        "agent.yaml:3: resources: \"nightly\" is not KIND/KEY, as in job/nightly"
    );
    assert!(told("").contains("worker.command is missing"));
    assert!(
        told("worker:\n  command: ['{nobody}']\n")
            .starts_with("agent.yaml:2: worker.command has {nobody}; the placeholders are {config}")
    );
    assert!(
        told(&format!("{LEAST}placement: static\n"))
            .starts_with("agent.yaml:3: placement is static and resources is empty")
    );
    assert!(told(&format!("{LEAST}server: ftp://x\n")).starts_with("agent.yaml:3: server: "));
    assert!(
        told(&format!("{LEAST}capacity: 90\n")).starts_with("agent.yaml:3: capacity is 90, more than the 64")
    );
    assert!(told(&format!("{LEAST}heartbeat_interval_seconds: 60\n")).contains("below lease_ttl_seconds"));
    assert!(told("worker: [a\nx: 1").contains("the [ is not closed"));
}

#[test]
fn some_things_cannot_change_while_it_runs() {
    let first = read(LEAST).expect("good");
    let change = |line: &str| first.fixed_change(&read(&format!("{LEAST}{line}\n")).expect("good"));
    assert_eq!(change("server: 10.0.0.1:7070"), None);
    assert_eq!(change("lease_ttl_seconds: 30\nheartbeat_interval_seconds: 9"), None);
    assert_eq!(change("runner_id: other"), Some("runner_id"));
    assert_eq!(change("labels: {a: b}"), Some("labels"));
    assert_eq!(change("resources: [job/a]"), Some("placement"));
}

#[test]
fn a_worker_has_time_to_stop_within_the_drain_budget() {
    let settings = |more: &str| read(&format!("{LEAST}{more}")).expect("good");
    assert!(settings("").worker.bounds.stop < settings("").drain);
    let short = settings("drain_budget_seconds: 6\n");
    assert_eq!((short.worker.bounds.stop, short.remarks().len()), (Duration::from_millis(4_800), 0));
    let told = settings("  stop_timeout_seconds: 30\n").remarks();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("worker.stop_timeout_seconds is 30s, but when the agent drains"), "{told:?}");
    assert!(settings("  stop_timeout_seconds: 22\n").remarks().is_empty());
}

#[test]
fn a_long_budget_is_remarked() {
    let settings = read(&format!("{LEAST}drain_budget_seconds: 40\n")).expect("good");
    assert!(settings.remarks().iter().any(|remark| remark.contains("terminationGracePeriodSeconds")));
}

#[test]
fn the_kinds_that_it_works_on_are_registered() {
    let settings = read(&format!("{LEAST}kinds: [job, report]\n")).expect("good");
    assert_eq!(settings.runner.kinds, ["job", "report"]);
    let other = read(&format!("{LEAST}kinds: [job]\n")).expect("good");
    assert_eq!(settings.fixed_change(&other), Some("kinds"));
    let told = read(&format!("{LEAST}kinds: [job, '']\n")).expect_err("no name");
    assert!(told.contains("kinds[1]"), "{told}");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let told = |command: &str, more: &str| {
        read(&format!("worker:\n  command: {command}\n{more}")).map(|_| ()).expect_err("wrong")
    };
    assert_eq!(
        told("[no-such-program-anywhere, x]", ""),
        "agent.yaml:2: worker.command: there is no program no-such-program-anywhere in PATH"
    );
    assert_eq!(
        told("[/no/such/worker]", ""),
        "agent.yaml:2: worker.command: /no/such/worker does not exist or cannot be executed"
    );
    let text = tempfile::NamedTempFile::new().expect("a file");
    let program = format!("[{:?}]", text.path());
    assert!(told(&program, "").ends_with("does not exist or cannot be executed"));
    // The worker's own PATH counts.
    assert!(told("[sh]", "  env: {PATH: /no/such/folder}\n").contains("no program sh in PATH"));
    assert!(read("worker:\n  command: ['{resource}', x]\n").is_ok(), "known only when a worker starts");
}

#[test]
fn a_capacity_beyond_the_bound_is_found() {
    let many = format!("{LEAST}max_workers: 1000\nmax_resources_per_worker: 1000\n");
    let settings = read(&many).expect("good");
    assert_eq!(settings.runner.capacity, Some(CAPACITY_MAX.into()));
    let told = settings.remarks();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("max_workers times max_resources_per_worker is 1000000, but a runner"),
        "{told:?}"
    );
    let told = read(&format!("{many}capacity: 1000000\n")).expect_err("too much");
    assert_eq!(told, format!("agent.yaml:5: capacity is 1000000; it must be 1 to {CAPACITY_MAX}"));
    // It was not reckoned with, and wrapped around.
    let told = read(&format!("{LEAST}max_workers: 4294967295\nmax_resources_per_worker: 4294967295\n"));
    assert_eq!(told.expect("good").runner.capacity, Some(CAPACITY_MAX.into()));
}

#[test]
fn a_template_of_the_workers_configuration_is_read_with_the_file() {
    let mut template = tempfile::NamedTempFile::new().expect("a file");
    let with = |template: &tempfile::NamedTempFile| {
        read(&format!("{LEAST}  config_template: {:?}\n", template.path()))
    };
    template.write_all(b"model: small\nrabbitmq: {host: mq}\n").expect("written");
    let settings = with(&template).expect("good");
    assert_eq!(
        Value::Object(settings.worker.template),
        serde_json::json!({"model": "small", "rabbitmq": {"host": "mq"}})
    );
    template.write_all(b"- not a field\n").expect("written");
    let told = with(&template).expect_err("wrong");
    assert!(told.starts_with("agent.yaml:3: config_template "), "{told}");
    let told = read(&format!("{LEAST}  config_template: /no/such/file\n")).expect_err("wrong");
    assert!(told.starts_with("agent.yaml:3: config_template /no/such/file: No such file"), "{told}");
}
