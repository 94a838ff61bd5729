use std::path::PathBuf;

use super::{
    layer::{EventsLayer, LimitsLayer, QuotasLayer},
    *,
};
use crate::engine_url::EngineUrl;

fn variables(all: &[(&str, &str)]) -> Variables {
    all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn engine() -> EngineUrl {
    "postgres://u@db/o".parse().expect("a URL")
}

#[test]
fn the_defaults_are_the_server_s() {
    let settings = load(Layer::default(), None, &Variables::default()).expect("good");
    let server = ServerConfig::default();
    assert_eq!((settings.server.listen, settings.server.limits), (server.listen, server.limits));
    assert_eq!(settings.store, StoreChoice::Folder(DATA_DIR.into()));
    assert!(settings.warnings.is_empty());
}

#[test]
fn the_documented_file_has_the_defaults() {
    let layer =
        solehold_process::config::parse(include_str!("../../../../docs/solehold.yaml")).expect("good");
    let settings = settle(layer).expect("good");
    let server = ServerConfig::default();
    assert_eq!((settings.server.listen, settings.server.limits), (server.listen, server.limits));
    assert_eq!(settings.server.engine.retention, server.engine.retention);
    assert_eq!(settings.store, StoreChoice::Folder(DATA_DIR.into()));
}

/// The documented file with the examples that are commented out.
fn with_examples(file: &str) -> String {
    let is_key = |rest: &str| {
        let name = rest.trim_start_matches([' ', '-']).split_once(':').map(|(name, _)| name);
        name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
    };
    let line = |line: &str| match line.strip_prefix("# ").filter(|rest| is_key(rest)) {
        Some(example) => format!("{example}\n"),
        None => format!("{line}\n"),
    };
    file.lines().map(line).collect()
}

#[test]
fn the_documented_file_has_every_key() {
    let text = with_examples(include_str!("../../../../docs/solehold.yaml"));
    let layer: Layer = solehold_process::config::parse(&text).expect("good");
    // Without `..`, so that a new key is not forgotten here.
    let Layer {
        listen,
        data_dir,
        engine,
        node_id,
        ttl_max,
        failover,
        store_wait,
        guard_metrics,
        log,
        tls,
        limits,
        events,
        orchestrator,
        relays,
    } = &layer;
    let LogLayer { level, format } = log;
    let TlsLayer { cert, key, client_ca } = tls;
    let EventsLayer { keep, keep_max } = events;
    let OrchestratorLayer { url, key_file, ca_cert } = orchestrator;
    let LimitsLayer {
        requests_per_second,
        requests_burst,
        watches_max,
        connections_max,
        capacity_max,
        request_timeout,
        idle_timeout,
        shutdown_grace,
        quotas: QuotasLayer { resources, sessions, watches },
    } = limits;
    macro_rules! are_given {
        ($($key:ident),+ $(,)?) => { $(assert!($key.is_some(), "docs/solehold.yaml lacks {}", stringify!($key));)+ };
    }
    are_given!(
        listen,
        data_dir,
        engine,
        node_id,
        ttl_max,
        failover,
        store_wait,
        guard_metrics,
        level,
        format
    );
    are_given!(
        cert,
        key,
        client_ca,
        keep,
        keep_max,
        url,
        key_file,
        ca_cert,
        relays,
        requests_per_second,
        requests_burst,
        watches_max
    );
    are_given!(
        capacity_max,
        connections_max,
        request_timeout,
        idle_timeout,
        shutdown_grace,
        resources,
        sessions,
        watches
    );
}

#[test]
fn the_last_layer_that_chooses_a_store_overrides_both_parts() {
    let folder = || Layer { data_dir: Some(PathBuf::from("x")), ..Layer::default() };
    let url = || Layer { engine: Some(engine()), ..Layer::default() };
    let store = |layer: Layer| StoreChoice::given(layer.data_dir.as_deref(), layer.engine.as_ref());
    assert_eq!(store(folder().over(url()).expect("good")), Some(StoreChoice::Folder("x".into())));
    assert_eq!(store(url().over(folder()).expect("good")), Some(StoreChoice::Url(engine())));
    let both = Layer { engine: Some(engine()), ..folder() };
    assert!(both.over(Layer::default()).is_err());
}

#[test]
fn every_variable_of_a_layer_is_read() {
    for name in layer::VARIABLES {
        // A value that some reader refuses, or that changes what it read.
        let bad = Layer::from_variables(&variables(&[(name, "\u{7}")]));
        assert!(bad.map_or(true, |layer| layer != Layer::default()), "nobody reads {name}");
    }
}

#[test]
fn a_secret_may_be_in_a_file() {
    let folder = solehold_testkit::TempDir::new().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let url = write("engine", "postgres://u:hunter2@db/o\n");
    let key = write("key", "a first key of enough characters\r\n");
    let given = variables(&[("SOLEHOLD_ENGINE_FILE", &url), ("SOLEHOLD_BOOTSTRAP_KEY_FILE", &key)]);
    let settings = load(Layer::default(), None, &given).expect("good");
    assert_eq!(settings.store.to_string(), "engine postgres, db/o");
    assert_eq!(settings.warnings, [""; 0]);
    let bootstrap = settings.server.bootstrap_key.expect("a key");
    assert_eq!(secrecy::ExposeSecret::expose_secret(&bootstrap), "a first key of enough characters");
    // The variable itself goes first, and others have no file.
    let both = variables(&[("SOLEHOLD_ENGINE_FILE", "/none"), ("SOLEHOLD_ENGINE", "memory:")]);
    assert!(load(Layer::default(), None, &both).is_ok());
    let other = variables(&[("SOLEHOLD_LISTEN_FILE", &url)]);
    assert_eq!(load(Layer::default(), None, &other).expect("good").warnings.len(), 1);
    for (path, why) in [
        ("/none".to_owned(), "cannot be read: No such file"),
        (write("empty", "\n"), "is empty"),
        (write("odd", "mysql://hunter2@db"), "postgres://USER@HOST/DATABASE"),
    ] {
        let error = load(Layer::default(), None, &variables(&[("SOLEHOLD_ENGINE_FILE", &path)]));
        let error = error.expect_err(&path).message;
        assert!(error.starts_with(&format!("SOLEHOLD_ENGINE_FILE: the file {path} ")), "{error}");
        assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let settings = load(
        Layer::default(),
        None,
        &variables(&[
            ("SOLEHOLD_BOOTSTRAP_KEY", "hunter2"),
            ("SOLEHOLD_ENGINE", "postgres://u:hunter2@db/o"),
        ]),
    );
    assert!(!format!("{:?}", settings.expect("good")).contains("hunter2"));
}
