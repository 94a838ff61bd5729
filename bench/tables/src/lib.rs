//! What every query reads over large tables, and what it returns for that.
//!
//! ```text
//!   fill (SQL) ──> the product's own functions ──> PostgreSQL with auto_explain ──> its log ──> judged here
//! ```
//!
//! No statement is written here a second time: whatever the product runs is found in the log, with its plan. One that
//! reads more than [`FACTOR_MAX`](plan::FACTOR_MAX) rows or pages for each row that it is about is excessive: it lacks
//! an index, or bounds one by something that PostgreSQL only knows row by row.

mod claims;
mod engine;
mod inbox;
mod orchestrator;
pub mod plan;
mod server;

use std::time::Duration;

use anyhow::Result;

use self::{plan::Ran, server::Server};

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Every statement that ran, with the name of the step that ran it.
    pub statements: Vec<(&'static str, Ran)>,
    /// How long PostgreSQL works at one cleaning of all partitions of an orchestrator that has nothing to delete.
    pub cleaning: Duration,
}

impl Findings {
    /// Those that read too much.
    pub fn excessive(&self) -> Vec<String> {
        let worst = self.worst();
        let excessive = worst.iter().filter(|(_, ran)| ran.is_excessive());
        excessive.map(|(step, ran)| format!("{}\n    {}", line(step, ran), ran.sql)).collect()
    }

    /// All of them.
    pub fn table(&self) -> String {
        let head =
            "| step | statement | rows | rows read | pages | ms | by |\n|---|---|---|---|---|---|---|\n";
        self.worst().iter().fold(head.to_owned(), |table, (step, ran)| table + &line(step, ran) + "\n")
    }

    /// Each statement of a step once: where it ran several times, the time that it read the most for what it was about.
    fn worst(&self) -> Vec<(&str, &Ran)> {
        let mut worst: Vec<(&str, &Ran)> = Vec::new();
        for (step, ran) in &self.statements {
            match worst.iter_mut().find(|(of, known)| of == step && known.sql == ran.sql) {
                Some((_, known)) if known.factor() < ran.factor() => *known = ran,
                Some(_) => {}
                None => worst.push((step, ran)),
            }
        }
        worst
    }
}

fn line(step: &str, ran: &Ran) -> String {
    let about = ran.returned().max(ran.changed());
    let read = ran.read();
    let buffers = ran.buffers();
    let path = ran.path();
    format!("| {step} | {} | {about:.0} | {read:.0} | {buffers:.0} | {:.2} | {path} |", ran.title(), ran.ms)
}

/// Runs each step and collects what it ran.
struct Watch {
    server: Server,
    findings: Findings,
}

impl Watch {
    /// Something that is about one row, or about those that it returns or changes.
    async fn step<T>(&mut self, name: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.step_for(name, 1, work).await
    }

    /// Something that asks for this many rows by their keys, which may not be there.
    async fn step_for<T>(
        &mut self,
        name: &'static str,
        asked: u32,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.server.plans().await?;
        let done = work.await?;
        let plans = self.server.plans().await?;
        anyhow::ensure!(!plans.is_empty(), "{name} ran no statement that was written down");
        let plans = plans.into_iter().map(|plan| (name, Ran { asked: asked.into(), ..plan }));
        self.findings.statements.extend(plans);
        Ok(done)
    }
}

/// Fills tables with this many rows each and runs everything over them.
pub async fn run(rows: i64, say: impl Fn(&str)) -> Result<Findings> {
    let mut watch = Watch { server: Server::start().await?, findings: Findings::default() };
    say("the orchestrator's tables");
    orchestrator::run(&mut watch, rows).await?;
    say("an inbox");
    inbox::run(&mut watch, rows).await?;
    say("a table of claims");
    claims::run(&mut watch, rows).await?;
    say("the lease engine's tables");
    engine::run(&mut watch, rows).await?;
    Ok(watch.findings)
}
