//! Solehold beside its peers: every server is started privately, and rounds of all systems alternate, so that a slow
//! moment of the machine affects all of them.
//!
//! ```text
//!   work (cycle, batch, ...) ── round(system) ──> Turn, repeated by each task ──> Round ──> Row, Group
//!   servers (processes: solehold, postgres, redis-server, etcd)      cpu: /proc        report: tables   plot: SVG
//! ```

mod batch;
mod cycle;
mod etcd;
mod hand_over;
mod keepalive;
mod ours;
mod plot;
mod report;
mod servers;
mod system;
mod watch;
mod work;

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum as _};

pub use self::servers::{HandWrittenOptions, serve_hand_written};
use self::{
    report::{Group, Row},
    servers::{Servers, Wanted},
    system::System,
    work::Work,
};
use crate::{cycles::load, machine, table::thousands};

/// The part of a round's length for which each system runs before its first round.
const WARM_UP: f64 = 0.2;

#[derive(Debug, Args)]
pub struct Options {
    /// Number of rounds of each system
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroUsize,
    /// Length of each round
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Numbers of tasks that run cycles side by side; each is one measurement
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,64,256")]
    tasks: Vec<NonZeroUsize>,
    /// Number of tasks that wait in line for a lock, and of watchers
    #[arg(long, value_name = "N", default_value = "1000")]
    crowd: NonZeroUsize,
    /// Systems to measure; all if not given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<System>,
    /// Works to measure; all if not given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    work: Vec<Work>,
    /// The solehold binary; the one beside this program if not given
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Where to write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse()?;
    ensure!((0.1..=600.0).contains(&seconds), "a round has 0.1 to 600 seconds");
    Ok(Duration::from_secs_f64(seconds))
}

impl Options {
    fn works(&self) -> Vec<Work> {
        let is_wanted = |work: &&Work| self.work.is_empty() || self.work.contains(work);
        Work::value_variants().iter().filter(is_wanted).copied().collect()
    }

    fn systems(&self) -> Vec<System> {
        let is_wanted = |system: &&System| self.only.is_empty() || self.only.contains(system);
        System::value_variants().iter().filter(is_wanted).copied().collect()
    }

    fn server(&self) -> Result<PathBuf> {
        let beside = || anyhow::Ok(std::env::current_exe()?.with_file_name("solehold"));
        let server = self.server.clone().map_or_else(beside, Ok)?;
        let name = server.display();
        ensure!(
            server.is_file(),
            "no server at {name}: build it (cargo build --release), or name it with --server"
        );
        // Each server runs in a folder of its own.
        std::path::absolute(&server).context("the path of the server")
    }
}

/// The names of the scenes of all tasks.
fn scenes(tasks: usize) -> Vec<String> {
    let of_task = |task| (0..load::SCENES_A_CONNECTION).map(move |index| load::scene(task, index));
    (0..tasks).flat_map(of_task).collect()
}

pub async fn run(options: Options) -> Result<()> {
    let tasks: Vec<usize> = options.tasks.iter().map(|tasks| tasks.get()).collect();
    let tasks_max = tasks.iter().copied().max().unwrap_or(1);
    let mut rows = scenes(tasks_max);
    rows.extend(batch::names());
    let server = options.server()?;
    let wanted = Wanted { systems: options.systems(), server: &server, tasks_max, scenes: &rows };
    let (servers, systems) = Servers::start(wanted).await?;
    let setting = setting(&options, &servers);
    println!("{setting}\n");
    let mut groups = Vec::new();
    for work in options.works() {
        for tasks in work.tasks(&tasks, options.crowd.get()) {
            let group = measure(&options, &servers, &systems, work, tasks).await?;
            if !group.rows.is_empty() {
                println!("{}", group.tables());
                groups.push(group);
            }
        }
    }
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(&groups, &caption(&options)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("plot: {}", path.display());
    }
    Ok(())
}

/// Rounds of all systems in turn. The order changes from round to round, so that none always follows the same one.
async fn measure(
    options: &Options,
    servers: &Servers,
    systems: &[System],
    work: Work,
    tasks: usize,
) -> Result<Group> {
    let mut systems: Vec<System> =
        work.systems().iter().copied().filter(|system| systems.contains(system)).collect();
    let mut rounds: Vec<_> = systems.iter().map(|system| (*system, Vec::new())).collect();
    let title = work.title(tasks);
    for number in 0..=options.rounds.get() {
        let duration = if number == 0 { options.seconds.mul_f64(WARM_UP) } else { options.seconds };
        for system in &systems {
            let round = work.round(servers, *system, tasks, duration).await;
            let round = round.with_context(|| format!("{title}: {}", system.title()))?;
            if number == 0 {
                continue;
            }
            eprintln!("{title}, round {number}: {} {}/s", system.title(), thousands(round.rate()));
            if let Some((_, rounds)) = rounds.iter_mut().find(|(of, _)| of == system) {
                rounds.push(round);
            }
        }
        if !systems.is_empty() {
            systems.rotate_left(1);
        }
    }
    let rows = rounds.into_iter().map(|(system, rounds)| Row::of(system, rounds)).collect::<Result<_>>()?;
    Ok(Group { work, tasks, rows })
}

/// What a reader of the figures must know.
fn setting(options: &Options, servers: &Servers) -> String {
    let mut lines = vec![caption(options)];
    lines.extend(servers.versions.iter().cloned());
    lines.extend(machine::notes(&std::env::temp_dir(), "set TMPDIR to a disk"));
    lines.join("\n")
}

fn caption(options: &Options) -> String {
    let cores = machine::cores();
    let rounds = options.rounds;
    format!(
        "solehold {}, rounds in turn ({rounds} of {:?}), medians, durable everywhere; clients and servers share {cores} cores",
        env!("CARGO_PKG_VERSION"),
        options.seconds
    )
}
