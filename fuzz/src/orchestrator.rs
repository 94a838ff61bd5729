//! The orchestrator: commands from Kafka, results from workers, paths and templates.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;
use solehold_orchestrator::{
    dispatch::celery,
    model::{
        command::{Mapping, Place},
        path::Path,
        task::{Report, TaskId},
        template::{Template, Text},
    },
};

/// A mapping that reads every part of a message.
static MAPPING: LazyLock<Mapping> = LazyLock::new(|| {
    let path = |text: &str| text.parse::<Path>().expect("a path");
    Mapping {
        input: Some(Place { path: path("payload.input"), default: Some(Value::Null) }),
        labels: BTreeMap::from([("tenant".to_owned(), Place { path: path("meta.tenant"), default: None })]),
        ..Mapping::default()
    }
});

/// The bytes are the payload; every second input also has them as its key.
pub fn command(bytes: &[u8]) {
    let key = bytes.len().is_multiple_of(2).then_some(bytes);
    let _ = Mapping::default().parse(Some(bytes), key);
    let _ = MAPPING.parse(Some(bytes), key);
}

/// The body of a Celery result message.
pub fn celery_result(bytes: &[u8]) {
    let _ = celery::report(None, bytes);
    let _ = celery::report(Some("job-17:detect:1"), bytes);
    let Some(id) = super::text(bytes).and_then(|text| text.parse::<TaskId>().ok()) else { return };
    assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
}

/// A worker's report over HTTP or Kafka. One that is accepted fits its bounds.
pub fn task_report(bytes: &[u8]) {
    let Ok(report) = serde_json::from_slice::<Report>(bytes) else { return };
    if report.fault().is_none() {
        let (bounded, _) = report.bounded();
        assert!(bounded.bounded().1.is_none(), "a report that was cut fits");
    }
}

/// Template, zero byte, document.
pub fn template(bytes: &[u8]) {
    let Some((written, document)) = super::two_texts(bytes) else { return };
    let document = serde_json::from_str::<Value>(document).unwrap_or_default();
    if let Ok(path) = written.parse::<Path>() {
        assert_eq!(path.find(&document), path.take_from(document.clone()).as_ref());
    }
    if let Ok(text) = written.parse::<Text>() {
        let _ = text.fill(|path| path.find(&document));
    }
    if let Ok(template) = serde_json::from_str::<Template>(written) {
        let _ = template.fill(|path| path.find(&document));
    }
}
