//! The demo without a terminal: does one thing after the other, waits until it shows, and says what was measured.

use std::time::Duration;

use solehold_clock::{BootTime, wall_ms};

use super::{
    RESOURCES, TTL_SECONDS,
    incident::{Incident, IncidentCause},
    model::{Deed, DemoModel, RunnerState},
    play::Play,
};
use crate::{
    error::{CommandError, CommandResult},
    human::{count, duration_ms},
    output,
};

/// The whole tour, and one wait in it: more than a busy machine takes. A quiet one needs 20 s in all.
const TOUR_MAX: Duration = Duration::from_secs(300);
const WAIT_MAX: Duration = Duration::from_secs(90);
/// Refused writes that are shown.
const SHOWN_MAX: usize = 3;

struct Tour<'a> {
    play: &'a mut Play,
    began: BootTime,
    steps: usize,
}

pub async fn run(play: &mut Play) -> CommandResult {
    let mut tour = Tour { play, began: BootTime::now(), steps: 0 };
    output::line(format!(
        "solehold demo: a server, a gate and three runners with {RESOURCES} counters, in a temporary folder.\n\
         Each counter is a resource that one runner at a time may own. The owner writes to the counter twice per second,\n\
         with the fencing token of its lease, and the gate in front of the storage refuses writes with an old token."
    ))?;
    tour.everything_has_an_owner().await?;
    let killed = tour.a_runner_is_killed().await?;
    tour.a_runner_is_added(&killed).await?;
    let paused = tour.a_runner_is_paused().await?;
    tour.a_paused_writer_comes_back(&paused).await?;
    tour.the_control_plane_is_cut().await?;
    tour.a_runner_is_drained().await?;
    tour.summary()
}

impl Tour<'_> {
    fn model(&self) -> &DemoModel {
        &self.play.model
    }

    fn title(&mut self, text: &str) -> CommandResult {
        self.steps += 1;
        let seconds = BootTime::now().since(self.began).as_secs_f32();
        output::line(format!("\n{}. {text} [{seconds:.1}s]", self.steps))
    }

    fn say(&self, text: impl AsRef<str>) -> CommandResult {
        output::line(format!("   {}", text.as_ref()))
    }

    /// Waits until something shows. What never shows is a failure of the demo.
    async fn until(&mut self, what: &str, shows: impl Fn(&DemoModel) -> bool) -> CommandResult {
        let left = TOUR_MAX.saturating_sub(BootTime::now().since(self.began)).min(WAIT_MAX);
        let play = &mut *self.play;
        let wait = async {
            while !shows(&play.model) {
                play.step().await?;
            }
            CommandResult::Ok(())
        };
        let failed =
            |why: String| CommandError::broken(format!("the demo did not show what it should: {why}"));
        match tokio::time::timeout(left, wait).await {
            Ok(done) => done?,
            Err(_) => return Err(failed(format!("waited in vain for {}s until {what}", left.as_secs()))),
        }
        match self.play.model.violations.first() {
            Some(violation) => Err(failed(violation.clone())),
            None => Ok(()),
        }
    }

    /// The working runner that owns most.
    fn busiest(&self) -> CommandResult<String> {
        let loads = self.model().loads();
        let busiest = loads.into_iter().max_by_key(|(_, load)| *load).map(|(name, _)| name);
        busiest.ok_or_else(|| CommandError::broken("the demo has no runner left"))
    }

    fn loads(&self) -> String {
        let loads = self.model().loads().into_iter().map(|(name, load)| format!("{name} has {load}"));
        loads.collect::<Vec<_>>().join(", ")
    }

    fn incident(&self, cause: IncidentCause, runner: &str) -> CommandResult<&Incident> {
        let incident = self.model().incident(cause, runner);
        incident.ok_or_else(|| CommandError::broken(format!("the demo lost sight of {runner}")))
    }

    async fn everything_has_an_owner(&mut self) -> CommandResult {
        self.title("Three runners share the work.")?;
        self.play.start().await?;
        self.say(format!("The server's dashboard: {} (while the demo runs)", self.model().dashboard))?;
        self.until("every counter was written to by its owner", |model| {
            model.is_written() && model.loads().iter().all(|(_, load)| *load > 0)
        })
        .await?;
        self.say(format!("{RESOURCES} of {RESOURCES} counters have one owner each: {}.", self.loads()))?;
        self.say(format!(
            "The gate has let {} through, and refused none.",
            count_of(self.model().written, "write")
        ))
    }

    async fn a_runner_is_killed(&mut self) -> CommandResult<String> {
        let runner = self.busiest()?;
        self.title(&format!(
            "{runner} is killed: SIGKILL to all of its processes, like a machine that loses power."
        ))?;
        self.play.act(Deed::Kill(runner.clone())).await?;
        self.say(format!("Nobody else may touch its counters before its leases run out, {TTL_SECONDS}s after it was last heard."))?;
        let name = runner.clone();
        self.until("its counters were taken over", move |model| {
            model.incident(IncidentCause::Killed, &name).is_some_and(Incident::is_over) && model.is_written()
        })
        .await?;
        let incident = self.incident(IncidentCause::Killed, &runner)?;
        self.say(format!("{}.", incident.summary(wall_ms())))?;
        self.say(format!("Now {}.", self.loads()))?;
        Ok(runner)
    }

    async fn a_runner_is_added(&mut self, instead_of: &str) -> CommandResult {
        self.title(&format!("A new runner is added in place of {instead_of}."))?;
        self.play.act(Deed::Add).await?;
        let added = self.model().runners.last().map(|(name, _)| name.clone()).unwrap_or_default();
        let name = added.clone();
        self.until("the new runner had its share", move |model| {
            let loads = model.loads();
            let share = RESOURCES / loads.len().max(1);
            let has_share = loads.iter().any(|(runner, load)| *runner == name && *load * 2 >= share);
            has_share && model.is_written()
        })
        .await?;
        let arrivals = self.model().arrivals(&added);
        self.say(format!(
            "{} handed over to {added}; without an owner in between for {} at most.",
            count(arrivals.counters, "counter"),
            duration_ms(arrivals.gap_ms)
        ))?;
        self.say(format!("Now {}.", self.loads()))
    }

    async fn a_runner_is_paused(&mut self) -> CommandResult<String> {
        let runner = self.busiest()?;
        self.title(&format!(
            "{runner} is paused: SIGSTOP, like a machine that is suspended. It does not notice."
        ))?;
        self.play.act(Deed::Pause(runner.clone())).await?;
        let name = runner.clone();
        self.until("its counters were taken over", move |model| {
            model.incident(IncidentCause::Paused, &name).is_some_and(Incident::is_over) && model.is_written()
        })
        .await?;
        let incident = self.incident(IncidentCause::Paused, &runner)?;
        self.say(format!("{}.", incident.summary(wall_ms())))?;
        Ok(runner)
    }

    async fn a_paused_writer_comes_back(&mut self, runner: &str) -> CommandResult {
        self.title(&format!("{runner} comes back, and writes on as if it still owned its counters."))?;
        let before = self.model().refused.len();
        self.play.act(Deed::Resume(runner.to_owned())).await?;
        let name = runner.to_owned();
        self.until("the gate refused a write of the runner that came back", move |model| {
            model.refused[before..].iter().any(|refused| refused.writer == name)
        })
        .await?;
        let name = runner.to_owned();
        self.until("the runner that came back had work again", move |model| {
            let is_back = model.loads().iter().any(|(runner, load)| *runner == name && *load > 0);
            is_back && model.is_written()
        })
        .await?;
        let refused: Vec<_> =
            self.model().refused[before..].iter().filter(|refused| refused.writer == runner).collect();
        for write in refused.iter().take(SHOWN_MAX) {
            self.say(format!(
                "refused: a write to {} with token {}, because token {} has been given to another runner",
                write.resource, write.token, write.newest
            ))?;
        }
        self.say(format!(
            "The gate refused {} of {runner}. None took effect.",
            count(refused.len(), "late write")
        ))?;
        self.say(format!(
            "{runner} has noticed, registered again, and works with new tokens: {}.",
            self.loads()
        ))
    }

    async fn the_control_plane_is_cut(&mut self) -> CommandResult {
        self.title("The control plane is cut: the server is killed.")?;
        let tokens = self.model().tokens();
        self.play.act(Deed::Cut).await?;
        let cut_ms = wall_ms();
        self.until("the owners went on writing without a server", move |model| {
            !model.is_heard && model.written_since(cut_ms) == RESOURCES
        })
        .await?;
        self.say(format!(
            "Without a server, the owners of all {RESOURCES} counters go on writing through the gate."
        ))?;
        self.play.act(Deed::Restore).await?;
        let back_ms = wall_ms();
        self.until("everything went on with the server", move |model| {
            model.is_heard && model.is_written() && model.written_since(back_ms) == RESOURCES
        })
        .await?;
        let now = self.model().tokens();
        let kept = tokens.iter().filter(|(key, token)| now.get(*key) == Some(token)).count();
        self.say(format!(
            "The server was away for {}. {kept} of {RESOURCES} owners kept their leases and tokens.",
            duration_ms(back_ms.saturating_sub(cut_ms))
        ))
    }

    async fn a_runner_is_drained(&mut self) -> CommandResult {
        let runner = self.busiest()?;
        self.title(&format!("{runner} is drained (SIGTERM), as for an upgrade."))?;
        self.play.act(Deed::Drain(runner.clone())).await?;
        let name = runner.clone();
        self.until("everything was handed over", move |model| {
            model.incident(IncidentCause::Drained, &name).is_some_and(Incident::is_over)
                && model.state(&name) == Some(RunnerState::Ended)
                && model.is_written()
        })
        .await?;
        let incident = self.incident(IncidentCause::Drained, &runner)?;
        self.say(format!("{}.", incident.summary(wall_ms())))?;
        self.say(format!("Now {}.", self.loads()))
    }

    fn summary(&self) -> CommandResult {
        let model = self.model();
        let seconds = BootTime::now().since(self.began).as_secs_f32();
        output::line(format!(
            "\nIn {seconds:.1}s: {} let through, {} refused, and not one write took effect after a newer owner's.\n\
             Run `solehold demo` on a terminal to do all of this by hand. docs/quick-start.md comes next.",
            count_of(model.written, "write"),
            count(model.refused.len(), "late write"),
        ))
    }
}

fn count_of(number: u64, noun: &str) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), noun)
}
