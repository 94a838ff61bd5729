//! Judgements per second of a gate on one core, by the CPU time that the shell's `time` shows.
//!
//! Messages for 10,000 resources are judged behind a lock, as in the gate of `solehold-client`. Of ten messages, one
//! carries an old token.

use std::sync::RwLock;

use anyhow::{Result, anyhow};
use clap::Args;
use solehold_core::{
    fence::{Fence, Mark, Rules, Tick, Verdict},
    key::{Name, ResourceKey},
    time::{Revision, Token},
};

const RESOURCES: usize = 10_000;

#[derive(Debug, Args)]
pub struct Options {
    /// Number of messages to judge
    #[arg(default_value_t = 50_000_000)]
    messages: usize,
}

pub fn run(&Options { messages }: &Options) -> Result<()> {
    let scene = |n: usize| -> Result<ResourceKey> {
        let key = Name::new(format!("scene-{n:06}"))?;
        Ok(ResourceKey::new(Name::new("default")?, Name::new("scene")?, key))
    };
    let keys: Vec<ResourceKey> = (0..RESOURCES).map(scene).collect::<Result<_>>()?;
    let mut fence = Fence::new(Rules::default());
    fence.snapshot_begins(1);
    keys.iter().for_each(|key| fence.granted(key, Mark { token: Token(1_000), session: None }));
    fence.snapshot_ends(Revision(1_000), Tick(0));
    let fence = RwLock::new(fence);
    let mut admitted = 0;
    for n in 0..messages {
        let token = Token(1_000 - u64::from(n % 10 == 0));
        let guard = fence.read().map_err(|_| anyhow!("a lock was poisoned"))?;
        let verdict = guard.judge(&keys[n.wrapping_mul(7_919) % RESOURCES], token, None, Tick(n as u64));
        admitted += usize::from(verdict == Some(Verdict::Admit));
    }
    println!("{admitted} of {messages} messages were admitted");
    Ok(())
}
