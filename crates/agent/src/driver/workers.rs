//! The workers as the driver starts them: their command line, environment and files, and how things stand for each.

use std::{fs, path::PathBuf, process, time::Duration};

use secrecy::ExposeSecret;
use solehold_client::{Policy, transport};
use solehold_clock::BootTime;

use super::{Driver, leases::shard_id, shard_config};
use crate::{
    config::Source,
    keep::{ExitHook, Job, LeaseTerm, kill_before},
    machine::WorkerId,
    worker::{Assignment, DesiredState, Host, Run, notify_path, socket_path},
};

/// A worker gets SIGTERM this part of the ttl before its deadline if no renewal came, and at most this long before it.
const WARN_PART: u32 = 6;
const WARN_MAX: Duration = Duration::from_secs(10);
/// Variables that are for the agent, or that an outer `run` or agent may have set. The watchdog of a worker is the
/// agent's: were `WATCHDOG_PID` that of another process, the worker would take it for none of its business.
const NOT_PASSED_ON: [&str; 8] = [
    "SOLEHOLD_API_KEY",
    "SOLEHOLD_API_KEY_FILE",
    "SOLEHOLD_HELD",
    "SOLEHOLD_HOLDER",
    "SOLEHOLD_LEASE_ID",
    "SOLEHOLD_LOCK",
    "SOLEHOLD_TOKEN",
    "WATCHDOG_PID",
];

impl Driver {
    pub(super) fn start(&mut self, id: WorkerId, run: u32, assignments: &[Assignment]) {
        let folder = self.folder.path().join(id.to_string());
        if let Err(error) = fs::create_dir_all(&folder) {
            tracing::error!(%error, "cannot create the worker's folder");
        }
        self.write_assignments(id, assignments);
        let name = self.name(id);
        let worker = &self.settings.worker;
        let resources: Vec<&str> = assignments.iter().map(|a| a.resource.as_str()).collect();
        tracing::info!(worker = name, run, resources = resources.join(" "), "starting worker");
        let desired = self.desired(id, None);
        let job = Job {
            command: worker.command.iter().map(|word| self.filled(word, id, assignments).into()).collect(),
            env: self.variables(id, &name, assignments),
            env_remove: NOT_PASSED_ON.map(str::to_owned).to_vec(),
            what: name,
            warn: warn(self.settings.lease.ttl),
            exit_hook: desired.exit_hook.clone(),
            folder: Some(self.folder.path().to_owned()),
        };
        let run = Run { id, run, job, folder, desired };
        self.hosts.insert(id, Host::start(&self.keepers, run, self.worker_news.0.clone()));
    }

    fn assignments_file(&self, id: WorkerId) -> PathBuf {
        self.folder.path().join(id.to_string()).join("assignments.json")
    }

    fn config_file(&self, id: WorkerId) -> PathBuf {
        self.folder.path().join(id.to_string()).join("config.json")
    }

    /// A word of the command line with its placeholders filled in.
    fn filled(&self, word: &str, id: WorkerId, assignments: &[Assignment]) -> String {
        let resource = assignments.first().map(|a| a.resource.clone()).unwrap_or_default();
        word.replace("{config}", &self.config_file(id).to_string_lossy())
            .replace("{runner_id}", &self.settings.runner.runner_id)
            .replace("{shard_id}", &shard_id(id))
            .replace("{manager_pid}", &process::id().to_string())
            .replace("{worker}", &self.name(id))
            .replace("{resource}", &resource)
    }

    /// What a worker is told that does not change while it runs.
    fn variables(&self, id: WorkerId, name: &str, assignments: &[Assignment]) -> Vec<(String, String)> {
        let folder = self.folder.path().join(id.to_string());
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let watchdog = self.settings.worker.bounds.watchdog.as_micros().to_string();
        let mut all = vec![
            ("SOLEHOLD_WORKER", name.to_owned()),
            ("SOLEHOLD_RUNNER_ID", self.settings.runner.runner_id.clone()),
            ("SOLEHOLD_WORKER_SOCKET", text(socket_path(&folder))),
            ("SOLEHOLD_ASSIGNMENTS_FILE", text(self.assignments_file(id))),
            ("NOTIFY_SOCKET", text(notify_path(&folder))),
            ("WATCHDOG_USEC", watchdog),
        ];
        if let [only] = assignments
            && self.settings.worker.per_worker == 1
        {
            all.push(("SOLEHOLD_RESOURCE", only.resource.clone()));
            all.push(("SOLEHOLD_TOKEN", only.token.to_string()));
            all.push(("SOLEHOLD_LEASE_ID", only.lease_id.to_string()));
        }
        let own = self.settings.worker.env.iter().map(|(name, value)| (name.clone(), value.clone()));
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own).collect()
    }

    /// How things stand for a worker.
    fn desired(&self, id: WorkerId, stop: Option<Duration>) -> DesiredState {
        let deadline = self.machine.term(id);
        let variables = vec![("SOLEHOLD_DEADLINE_BOOTTIME_MS".to_owned(), deadline.as_ms().to_string())];
        let term = LeaseTerm { stop_at_ms: self.stop_at(deadline).as_ms(), variables };
        let bound = self.machine.bound(id).map(|bound| self.stop_at(bound));
        DesiredState { term, bound, exit_hook: self.exit_hook(id), stop }
    }

    fn stop_at(&self, deadline: BootTime) -> BootTime {
        let lease = &self.settings.lease;
        let early = u64::try_from(kill_before(lease.ttl).as_nanos()).unwrap_or_default();
        let stop_at = BootTime::from_nanos(deadline.as_nanos().saturating_sub(early));
        match lease.policy {
            Policy::Grace(grace) => stop_at.plus(grace),
            Policy::Immediate | Policy::Deadline => stop_at,
        }
    }

    /// What a worker's keeper does once nothing of the worker is left, if this process is gone by then.
    fn exit_hook(&self, id: WorkerId) -> ExitHook {
        let mut commands = Vec::new();
        let leases = self.machine.lease_ids(id).into_iter().map(|lease| lease.to_string());
        let release: Vec<String> =
            ["lease", "release"].map(str::to_owned).into_iter().chain(leases).collect();
        let runner = self.settings.runner.runner_id.clone();
        // Otherwise the plan would give it all back to this runner for as long as its session lasts.
        if let (Source::Assigned, Some(session)) = (&self.settings.source, self.session.id()) {
            let words = ["runner", "drain", &runner, "--session", &session.to_string()];
            commands.push(words.map(str::to_owned).to_vec());
        }
        if release.len() > 2 {
            commands.push(release);
        }
        let server = &self.settings.server;
        let key = server.api_key.as_ref().map(|key| key.expose_secret().to_owned());
        let variables = [
            ("SOLEHOLD_API_KEY", key),
            ("SOLEHOLD_TENANT", server.tenant.clone()),
            (
                "SOLEHOLD_CA_CERT",
                self.settings.ca_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
            ),
        ];
        let env = variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        let servers = transport::server_urls(&server.servers).unwrap_or_default();
        let servers = servers.iter().map(ToString::to_string).collect();
        ExitHook { commands, servers, env: env.collect() }
    }

    /// Brings what workers and others see up to date with the machine.
    pub(super) fn sync(&mut self) {
        let ids: Vec<WorkerId> = self.hosts.keys().copied().collect();
        for id in ids {
            let assignments = self.machine.assignments(id);
            let is_written = self.written.get(&id).is_some_and(|written| is_same(written, &assignments));
            if !is_written {
                self.write_assignments(id, &assignments);
            }
            let Some(host) = self.hosts.get(&id) else { continue };
            let next = self.desired(id, host.desired.borrow().stop);
            host.desired.send_if_modified(|desired| {
                let is_new = *desired != next;
                *desired = next;
                is_new
            });
        }
        self.show();
    }

    fn write_assignments(&mut self, id: WorkerId, assignments: &[Assignment]) {
        let listed = serde_json::json!({
            "runner_id": self.settings.runner.runner_id,
            "worker": self.name(id),
            "assignments": assignments,
        });
        let config = shard_config::of(&self.settings, id, assignments);
        for (file, document) in [(self.assignments_file(id), listed), (self.config_file(id), config)] {
            // A reader sees the old document or the new one, never a part.
            let next = file.with_extension("next");
            let written = fs::write(&next, format!("{document}\n")).and_then(|()| fs::rename(&next, &file));
            if let Err(error) = written {
                tracing::error!(%error, file = %file.display(), "cannot write a file for the worker");
            }
        }
        self.written.insert(id, assignments.to_vec());
    }
}

/// How long before its deadline a worker is asked to end if no renewal came: less than half of the ttl, so that it is
/// not ended while renewals are on time.
pub(super) fn warn(ttl: Duration) -> Duration {
    (ttl / WARN_PART).min(WARN_MAX)
}

/// Whether a worker has the same work as before; its deadline is in another file.
fn is_same(before: &[Assignment], now: &[Assignment]) -> bool {
    let without = |a: &Assignment| Assignment { deadline_boottime_ms: 0, ..a.clone() };
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| without(a) == without(b))
}
