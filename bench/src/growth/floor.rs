//! The physical limits that no engine can go below: a sync of a small append, and a round trip over loopback.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

use super::head;
use crate::{
    cycles::load,
    engine::temporary_folder,
    table::{figure, thousands},
};

/// About what the journal appends for a small batch.
const APPEND_BYTES: usize = 1_024;
const APPENDS_MAX: usize = 2_000;
const ROUND_TRIPS_MAX: usize = 20_000;
/// Each of the two takes no longer than this.
const TIME_MAX: Duration = Duration::from_secs(5);

pub fn rows(parent: &Path) -> Result<Vec<Vec<String>>> {
    let row = |what: &str, latency_us: &Histogram<u64>| {
        let at = |quantile: f64| latency_us.value_at_quantile(quantile) as f64;
        let each_us = at(0.5).max(1.0);
        vec![what.to_owned(), figure(at(0.5)), figure(at(0.99)), thousands(1e6 / each_us)]
    };
    Ok(vec![
        head(["physical limit", "p50, µs", "p99, µs", "per second, one after the other"]),
        row("fsync of an append of 1 kB, same disk", &syncs(parent)?),
        row("round trip of one byte over loopback TCP", &round_trips()?),
    ])
}

fn syncs(parent: &Path) -> Result<Histogram<u64>> {
    let folder = temporary_folder(parent)?;
    let mut file = std::fs::File::create(folder.path().join("appended"))?;
    let bytes = [b'x'; APPEND_BYTES];
    repeat(APPENDS_MAX, || {
        file.write_all(&bytes)?;
        Ok(file.sync_all()?)
    })
}

fn round_trips() -> Result<Histogram<u64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut peer, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    peer.set_nodelay(true)?;
    // Ends when the other side is closed.
    let echo = thread::spawn(move || -> Result<()> {
        let mut byte = [0];
        while peer.read(&mut byte)? == 1 {
            peer.write_all(&byte)?;
        }
        Ok(())
    });
    let latency_us = repeat(ROUND_TRIPS_MAX, || {
        let mut byte = [b'x'];
        stream.write_all(&byte)?;
        Ok(stream.read_exact(&mut byte)?)
    })?;
    drop(stream);
    echo.join().map_err(|_| anyhow!("the echo ended badly"))??;
    Ok(latency_us)
}

fn repeat(most: usize, mut once: impl FnMut() -> Result<()>) -> Result<Histogram<u64>> {
    let mut latency_us = load::latencies()?;
    let until = Instant::now() + TIME_MAX;
    for _ in 0..most {
        let began = Instant::now();
        once()?;
        latency_us.saturating_record(began.elapsed().as_micros() as u64);
        if Instant::now() >= until {
            break;
        }
    }
    Ok(latency_us)
}
