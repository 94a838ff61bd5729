//! `solehold placement`: what is tuned about where resources are placed.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    time::Duration,
};

use clap::{Args, Subcommand};
use solehold_api::{
    paths,
    placement::{PlacementSettings, PutPlacement},
};
use solehold_core::placement::Policy;

use crate::{
    client::{Client, Method},
    error::{CommandError, CommandResult, Doing, ValueError},
    global::GlobalArgs,
    human::duration_ms,
    output,
};

/// What can be done with the settings.
#[derive(Debug, Subcommand)]
pub enum PlacementCommand {
    /// Show the settings
    #[command(after_help = examples!("placement show"))]
    Show,
    /// Change the settings that are given, and leave the others as they are; `default` sets one back
    #[command(after_help = examples!(
        "placement set --band-percent 20 --return-window 30s",
        "placement set --settle default",
    ))]
    Set(Box<SetArgs>),
}

/// The settings to change.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// How far a load may be from its fair share before something moves, in percent
    #[arg(long, value_name = "N|default")]
    band_percent: Option<Setting<u32>>,
    /// How many moves may be under way at once
    #[arg(long, value_name = "N|default")]
    moves_at_once: Option<Setting<u32>>,
    /// How long resources wait for a runner that has gone
    #[arg(long, value_name = "TIME|default")]
    return_window: Option<Setting<humantime::Duration>>,
    /// How long a runner that came back gets nothing for balance
    #[arg(long, value_name = "TIME|default")]
    settle: Option<Setting<humantime::Duration>>,
    /// Kinds that are not placed, with commas between
    #[arg(long, value_name = "KINDS|default")]
    unplaced_kinds: Option<Setting<Kinds>>,
    /// For each runner all that it should hold, as JSON: {"RUNNER": ["KIND/KEY"]}
    #[arg(long, value_name = "JSON|default")]
    static_lists: Option<Setting<StaticLists>>,
}

/// A value, or the word for none.
#[derive(Debug, Clone)]
struct Setting<T>(Option<T>);

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Setting<T> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "default" => Ok(Self(None)),
            text => {
                text.parse().map(|value| Self(Some(value))).map_err(|error: T::Err| error.to_string().into())
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Kinds(BTreeSet<String>);

impl FromStr for Kinds {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.split(',').map(|kind| kind.trim().to_owned()).collect()))
    }
}

#[derive(Debug, Clone)]
struct StaticLists(BTreeMap<String, BTreeSet<String>>);

impl FromStr for StaticLists {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let odd = |error| format!("{error}; write JSON, as in {{\"runner-1\": [\"job/nightly\"]}}").into();
        serde_json::from_str(text).map(Self).map_err(odd)
    }
}

impl SetArgs {
    fn change(self) -> CommandResult<PutPlacement> {
        let ms = |time: humantime::Duration| Duration::from(time).as_millis() as u64;
        let change = PutPlacement {
            band_percent: self.band_percent.map(|setting| setting.0),
            moves_at_once: self.moves_at_once.map(|setting| setting.0),
            return_window_ms: self.return_window.map(|setting| setting.0.map(ms)),
            settle_ms: self.settle.map(|setting| setting.0.map(ms)),
            unplaced_kinds: self.unplaced_kinds.map(|setting| setting.0.map(|kinds| kinds.0)),
            static_lists: self.static_lists.map(|setting| setting.0.map(|lists| lists.0)),
        };
        if change == PutPlacement::default() {
            let none = CommandError::usage("no setting is given to change");
            return Err(none.hint("as in: solehold placement set --settle 10s"));
        }
        Ok(change)
    }
}

pub async fn run(command: PlacementCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    let path = paths::placement();
    let settings = match command {
        PlacementCommand::Show => {
            client.get::<PlacementSettings>(&path, &[]).await.doing("show the placement settings")?
        }
        PlacementCommand::Set(args) => {
            let done = client.send::<PlacementSettings>(Method::PUT, &path, &args.change()?).await;
            done.doing("change the placement settings")?
        }
    };
    output::show(global, &settings, || shown(&settings))
}

fn shown(settings: &PlacementSettings) -> String {
    let default = Policy::default();
    let band = default.band.percent;
    let budget = default.move_budget;
    let or = |given: Option<String>, default: String| given.unwrap_or_else(|| format!("{default} (default)"));
    let percent = |percent: u32| format!("{percent} %");
    let moves = format!("{}, or {} % of the resources if that is more", budget.floor, budget.percent);
    let kinds: Vec<&str> = settings.unplaced_kinds.iter().map(String::as_str).collect();
    let list = |(runner, list): (&String, &BTreeSet<String>)| {
        let resources: Vec<&str> = list.iter().map(String::as_str).collect();
        format!("{runner}: {}", resources.join(" "))
    };
    let lists: Vec<String> = settings.static_lists.iter().map(list).collect();
    output::facts(&[
        ("band", Some(or(settings.band_percent.map(percent), percent(band)))),
        ("moves at once", Some(or(settings.moves_at_once.map(|moves| moves.to_string()), moves))),
        (
            "return window",
            Some(or(settings.return_window_ms.map(duration_ms), duration_ms(default.return_window_ms))),
        ),
        ("settle", Some(or(settings.settle_ms.map(duration_ms), duration_ms(default.settle_ms)))),
        ("unplaced kinds", Some(kinds.join(", ")).filter(|text| !text.is_empty())),
        ("static lists", Some(lists.join("; ")).filter(|text| !text.is_empty())),
    ])
}
