//! The script of cases that the gate of every client is tested with: `clients/cases/gate.json`.

use serde::Deserialize;
use solehold_core::{
    fence::{Doubt, Fence, Mark, MarkLookup, MarkRecord, Rules, Tick, Verdict},
    key::{Name, ResourceKey, SessionId},
    time::{Revision, Token},
};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Case {
    name: String,
    rules: GivenRules,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenRules {
    cache_ttl: u64,
    fail_open: bool,
    strict: bool,
    remembers: bool,
    marks_max: usize,
}

/// A token, and the session that it was granted to.
type Granted = (u64, Option<SessionId>);

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Step {
    Snapshot {
        epoch: u64,
        revision: u64,
        asked: u64,
        marks: BTreeMap<String, Granted>,
        followed: bool,
    },
    Head {
        epoch: u64,
        revision: u64,
        asked: u64,
        followed: bool,
    },
    Learn {
        key: String,
        token: u64,
        session: Option<SessionId>,
    },
    Told {
        revision: u64,
    },
    Deleted {
        key: String,
    },
    Away {
        until: u64,
    },
    Denied,
    Hidden {
        key: String,
        token: u64,
        session: Option<SessionId>,
        at: u64,
        verdict: String,
    },
    Save,
    Restart,
    Judge {
        key: String,
        token: u64,
        session: Option<SessionId>,
        at: u64,
        verdict: String,
    },
    Ask {
        key: String,
        token: u64,
        session: Option<SessionId>,
        at: u64,
        epoch: u64,
        answer: Option<Granted>,
        verdict: String,
    },
}

/// A resource of the script: `lobby`, or `lobby#2` for a slot of it.
fn scene(key: &str) -> ResourceKey {
    let name = |text: &str| Name::new(text).expect("a name");
    let (key, slot) = key.split_once('#').unwrap_or((key, "0"));
    ResourceKey::new(name("default"), name("scene"), name(key)).of_slot(slot.parse().expect("a slot"))
}

fn mark((token, session): Granted) -> Mark {
    Mark { token: Token(token), session }
}

fn words(verdict: Verdict) -> String {
    match verdict {
        Verdict::Admit => "admit".to_owned(),
        Verdict::Stale { newest } => format!("stale {newest}"),
        Verdict::Undecidable(doubt) => match doubt {
            Doubt::Newer { known: token } | Doubt::NeverGiven { newest: token } => {
                format!("undecidable {} {token}", doubt.as_str())
            }
            _ => format!("undecidable {}", doubt.as_str()),
        },
    }
}

struct Run {
    rules: Rules,
    fence: Fence,
    disk: Vec<MarkRecord>,
}

impl Run {
    /// Takes a step; gives what came of it, and what should.
    fn take(&mut self, step: Step) -> (String, String) {
        let fence = &mut self.fence;
        let as_said = |followed: bool, said: bool| (followed.to_string(), said.to_string());
        match step {
            Step::Snapshot { epoch, revision, asked, marks, followed } => {
                let is_followed = fence.snapshot_begins(epoch);
                if is_followed {
                    marks.into_iter().for_each(|(key, granted)| fence.learn(&scene(&key), mark(granted)));
                    fence.snapshot_ends(Revision(revision), Tick(asked));
                }
                return as_said(is_followed, followed);
            }
            Step::Head { epoch, revision, asked, followed } => {
                return as_said(fence.head_was(epoch, Revision(revision), Tick(asked)), followed);
            }
            Step::Judge { key, token, session, at, verdict } => {
                return (words(fence.admit(&scene(&key), Token(token), session, Tick(at))), verdict);
            }
            Step::Ask { key, token, session, at, epoch, answer, verdict } => {
                let answer = answer.map_or(MarkLookup::Nothing, |granted| MarkLookup::Newest(mark(granted)));
                let message = (&scene(&key), Token(token), session);
                let came = fence.conclude(message, (answer, Some(epoch)), Tick(at), Tick(at));
                return (came.map_or_else(|| "not followed".to_owned(), words), verdict);
            }
            Step::Hidden { key, token, session, at, verdict } => {
                let message = (&scene(&key), Token(token), session);
                let came = fence.conclude(message, (MarkLookup::Hidden, None), Tick(at), Tick(at));
                return (came.map_or_else(|| "not followed".to_owned(), words), verdict);
            }
            Step::Learn { key, token, session } => fence.granted(&scene(&key), mark((token, session))),
            Step::Told { revision } => fence.told_up_to(Revision(revision)),
            Step::Deleted { key } => fence.deleted(&scene(&key)),
            Step::Away { until } => fence.store_is_away(Tick(until)),
            Step::Denied => fence.store_denies(),
            Step::Save => {
                let (records, number) = fence.unsaved();
                self.disk.extend(records);
                fence.saved_up_to(number);
            }
            Step::Restart => {
                self.fence = Fence::new(self.rules);
                self.disk.iter().cloned().for_each(|record| self.fence.restore(record));
            }
        }
        Default::default()
    }
}

#[test]
fn every_verdict_is_as_the_script_says() {
    let script = include_str!("../../../../clients/cases/gate.json");
    let cases: Vec<Case> = serde_json::from_str(script).expect("a script of cases");
    assert!(cases.len() > 10);
    for Case { name, rules, steps } in cases {
        let GivenRules { cache_ttl, fail_open, strict, remembers, marks_max } = rules;
        let rules = Rules { cache_ttl, fail_open, strict, remembers, marks_max };
        let mut run = Run { rules, fence: Fence::new(rules), disk: Vec::new() };
        for (number, step) in steps.into_iter().enumerate() {
            let shown = format!("{name}, step {}: {step:?}", number + 1);
            let (came, expected) = run.take(step);
            assert_eq!(came, expected, "{shown}");
        }
    }
}
