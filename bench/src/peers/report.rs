//! What the rounds showed, as tables.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::{system::System, work::Work};
use crate::{
    cycles::load,
    round::Round,
    table::{figure, table, thousands},
};

/// The rounds of one system at one work.
pub struct Row {
    pub system: System,
    /// Units per second of each round, from the least to the most.
    rates: Vec<f64>,
    latency_us: Histogram<u64>,
    /// Processor time per unit, of the servers and of this process.
    pub server_us: f64,
    pub client_us: f64,
}

impl Row {
    pub fn of(system: System, rounds: Vec<Round>) -> Result<Self> {
        let mut rates: Vec<f64> = rounds.iter().map(Round::rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.first().context("no rounds")?;
        let units = rounds.iter().map(|round| round.units).sum::<u64>().max(1) as f64;
        let per_unit = |spent: fn(&Round) -> f64| rounds.iter().map(spent).sum::<f64>() * 1e6 / units;
        let server_us = per_unit(|round| round.server.as_secs_f64());
        let client_us = per_unit(|round| round.client.as_secs_f64());
        let mut latency_us = load::latencies()?;
        for round in rounds {
            latency_us.add(round.latency_us).context("histograms of one shape")?;
        }
        Ok(Self { system, rates, latency_us, server_us, client_us })
    }

    pub fn median(&self) -> f64 {
        let middle = self.rates.len() / 2;
        if self.rates.len() % 2 == 1 {
            return self.rates[middle];
        }
        f64::midpoint(self.rates[middle - 1], self.rates[middle])
    }

    pub fn least(&self) -> f64 {
        self.rates[0]
    }

    pub fn most(&self) -> f64 {
        self.rates[self.rates.len() - 1]
    }

    /// In milliseconds.
    fn latency(&self, quantile: f64) -> f64 {
        self.latency_us.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// The rounds of one work with one number of tasks.
pub struct Group {
    pub work: Work,
    pub tasks: usize,
    pub rows: Vec<Row>,
}

impl Group {
    pub fn title(&self) -> String {
        self.work.title(self.tasks)
    }

    /// The figures of each system, then ours as multiples of the peers'.
    pub fn tables(&self) -> String {
        let unit = self.work.unit();
        let of = self.work.latency_of();
        let mut figures = vec![vec![
            self.title(),
            format!("{unit}s/s"),
            "least to most".to_owned(),
            format!("p50 of {of}, ms"),
            "p99, ms".to_owned(),
            format!("server CPU, µs/{unit}"),
            "client CPU".to_owned(),
        ]];
        figures.extend(self.rows.iter().map(|row| {
            vec![
                row.system.title().to_owned(),
                thousands(row.median()),
                format!("{} to {}", thousands(row.least()), thousands(row.most())),
                figure(row.latency(0.5)),
                figure(row.latency(0.99)),
                figure(row.server_us),
                figure(row.client_us),
            ]
        }));
        let rates = self.ratios(&format!("{unit}s/s as a multiple of"), Row::median);
        let mut tables = vec![Some(table(&figures)), rates];
        if self.work == Work::Cycle && self.tasks == 1 {
            tables.push(self.ratios("p50 of an acquire as a multiple of", |row| row.latency(0.5)));
        }
        let unit_of_core = format!("{unit}s per second of server CPU as a multiple of");
        tables.push(self.ratios(&unit_of_core, |row| 1.0 / row.server_us));
        tables.into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    /// Ours in rows, peers in columns; none if there is only one side.
    fn ratios(&self, what: &str, value: impl Fn(&Row) -> f64) -> Option<String> {
        let (ours, peers): (Vec<&Row>, Vec<&Row>) = self.rows.iter().partition(|row| row.system.is_ours());
        if ours.is_empty() || peers.is_empty() {
            return None;
        }
        let names = peers.iter().map(|peer| peer.system.name().to_owned());
        let mut cells = vec![std::iter::once(what.to_owned()).chain(names).collect::<Vec<_>>()];
        for row in ours {
            let ratios = peers.iter().map(|peer| figure(value(row) / value(peer)));
            cells.push(std::iter::once(row.system.title().to_owned()).chain(ratios).collect());
        }
        Some(table(&cells))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// A row of rounds with these cycles in a second each.
    pub fn row(system: System, cycles: &[u64]) -> Row {
        let round = |units: &u64| {
            let mut latency_us = load::latencies().expect("a histogram");
            latency_us.record(1_500).expect("in range");
            let server = Duration::from_millis(500);
            Round { units: *units, took: Duration::from_secs(1), latency_us, server, client: server / 2 }
        };
        Row::of(system, cycles.iter().map(round).collect()).expect("rounds")
    }

    #[test]
    fn tables_have_medians_and_ratios() {
        let rows =
            vec![row(System::Embedded, &[30_000, 10_000, 20_000]), row(System::Redis, &[50_000, 40_000])];
        let text = Group { work: Work::Cycle, tasks: 64, rows }.tables();
        for part in ["20,000", "10,000 to 30,000", "45,000", "40,000 to 50,000", "1.50", "25.0", "0.44"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let widths: Vec<usize> =
            text.split("\n\n").next().expect("a table").lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{widths:?}\n{text}");
    }
}
