//! Opens the dispatchers that the configuration has.

use std::{sync::Arc, time::Duration};

use super::{
    Dispatchers, InvalidDispatcher, Reports,
    celery::{Celery, CeleryConfig},
    http::{Http, HttpConfig},
    kafka::{Kafka, KafkaConfig},
};
use crate::{
    config::{CeleryFile, DispatchersFile, HttpTasksFile, KafkaSettings, KafkaTasksFile, Time},
    model::pipeline::DispatchKind,
};

const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// All dispatchers that the configuration has. Nothing is connected yet.
pub(crate) fn open(
    file: &DispatchersFile,
    kafka: &KafkaSettings,
    reports: &Arc<dyn Reports>,
) -> Result<Dispatchers, InvalidDispatcher> {
    let mut dispatchers = Dispatchers::new();
    if let Some(file) = &file.celery {
        let celery = Celery::new(&celery_config(file)).map_err(|error| error.at("dispatchers.celery"))?;
        dispatchers.push((DispatchKind::Celery, Arc::new(celery)));
    }
    if let Some(file) = &file.kafka {
        let topics = Kafka::new(&kafka_config(file, kafka)).map_err(|error| error.at("dispatchers.kafka"))?;
        dispatchers.push((DispatchKind::Kafka, Arc::new(topics)));
    }
    if let Some(file) = &file.http {
        let http = Http::new(&http_config(file), reports.clone());
        dispatchers.push((DispatchKind::Http, Arc::new(http.map_err(|error| error.at("dispatchers.http"))?)));
    }
    Ok(dispatchers)
}

fn celery_config(file: &CeleryFile) -> CeleryConfig {
    let defaults = CeleryConfig::new(&file.broker);
    CeleryConfig {
        queue: file.queue.clone().unwrap_or(defaults.queue),
        result_queue: file.result_queue.clone().unwrap_or(defaults.result_queue),
        terminate: file.terminate.unwrap_or(defaults.terminate),
        consumer_timeout: file.consumer_timeout.map(|Time(time)| time),
        ca_cert: file.ca_cert.clone(),
        broker: defaults.broker,
    }
}

fn kafka_config(file: &KafkaTasksFile, kafka: &KafkaSettings) -> KafkaConfig {
    KafkaConfig {
        brokers: kafka.brokers.clone(),
        reports_topic: file.reports_topic.clone(),
        group: file.group.clone().unwrap_or_else(|| format!("{}-reports", kafka.group)),
        session_timeout: kafka.session_timeout,
    }
}

fn http_config(file: &HttpTasksFile) -> HttpConfig {
    HttpConfig {
        url: file.url.clone(),
        headers: file.headers.clone(),
        timeout: file.timeout.map_or(HTTP_TIMEOUT, |Time(time)| time),
        report_to: file.report_to.clone(),
    }
}
