//! The comparison with peers, in its shortest form.

use std::process::Command;

const SYSTEMS: [&str; 3] =
    ["solehold embedded, own client", "solehold embedded, plain HTTP", "Redis, appendfsync always"];

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// A figure as it is printed; none if it is something else.
fn figure(cell: &str) -> Option<f64> {
    cell.replace(',', "").parse().ok()
}

#[test]
fn every_system_has_figures_for_every_work() {
    let plot = tempfile::NamedTempFile::new().expect("a file for the plot");
    let ran = Command::new(env!("CARGO_BIN_EXE_solehold-bench"))
        .args(["peers", "--only", "embedded,embedded-http,redis", "--rounds", "1", "--seconds", "0.2"])
        .args(["--tasks", "16", "--crowd", "20", "--plot"])
        .arg(plot.path())
        .output()
        .expect("started");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let stdout = String::from_utf8(ran.stdout).expect("text");
    let svg = std::fs::read_to_string(plot.path()).expect("the plot");

    let works: [(&str, &[&str]); 5] = [
        ("cycle (acquire and release), 16 tasks", &SYSTEMS),
        ("batch acquire of 1,000 leases, 1 task", &SYSTEMS[..1]),
        ("leases kept alive, 8 clients of 1,000 leases each", &SYSTEMS[..1]),
        ("hand-over of a lock, 20 tasks in line", &SYSTEMS[..1]),
        ("a change, 20 watchers", &SYSTEMS[..1]),
    ];
    for (work, systems) in works {
        assert!(svg.contains(work), "{work} is not in the plot");
        let mut lines = stdout.lines().skip_while(|line| cells(line)[0] != work).skip(2);
        for system in systems {
            let row = cells(lines.next().unwrap_or_else(|| panic!("{work}: no row for {system}\n{stdout}")));
            assert_eq!(row[0], *system, "{work}\n{stdout}");
            assert!(svg.contains(system), "{system} is not in the plot");
            let [rate, spread, p50, p99, server, client] = row[1..] else { panic!("{row:?}") };
            for part in [rate, p50, p99, client].into_iter().chain(spread.split(" to ")) {
                assert!(figure(part).is_some_and(|figure| figure > 0.0), "{part} in {row:?}");
            }
            // It is read in steps of 10 ms, and may be less than one in so short a round.
            assert!(figure(server).is_some(), "{row:?}");
        }
    }
    assert!(stdout.contains("cycles/s as a multiple of"), "{stdout}");
}
