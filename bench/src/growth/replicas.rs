//! Replicas: cycles per second of engines that share one PostgreSQL. The tasks are divided among them.

use std::sync::Arc;

use anyhow::Result;

use super::{Options, TASKS, count, cpu_of_each, cycles, head, micros, quantile_ms};
use crate::{engine::start, table::thousands};

const SIZES: [usize; 3] = [1, 2, 4];

pub async fn rows(options: &Options, url: &str) -> Result<Vec<Vec<String>>> {
    let mut rows = vec![head([
        "replicas over one PostgreSQL",
        "cycles/s, 64 tasks in all",
        "p50 of an acquire, ms",
        "p99, ms",
        "CPU of the engines per cycle, µs",
    ])];
    for replicas in options.sizes(&SIZES) {
        eprintln!("{replicas} replicas ...");
        let mut engines = Vec::with_capacity(replicas);
        for _ in 0..replicas {
            engines.push(start(url, Arc::new(())).await?);
        }
        let round = cycles(&engines, TASKS, options.duration()).await?;
        rows.push(vec![
            count(replicas),
            thousands(round.rate()),
            quantile_ms(&round.latency_us, 0.5),
            quantile_ms(&round.latency_us, 0.99),
            micros(cpu_of_each(&round)),
        ]);
        for engine in engines {
            engine.stop().await;
        }
    }
    Ok(rows)
}
