//! Judgements per second of a gate on one core: `cargo build --release -p solehold-core --example judgements`, then
//! `time target/release/examples/judgements`.
//!
//! It judges 50 million messages (or as many as the first argument says) for 10,000 resources behind a lock, as the
//! gate of `solehold-client` does, and prints how many were admitted. Of ten messages, one carries an old token.

use std::{error::Error, sync::RwLock};

use solehold_core::{
    fence::{Fence, Mark, Rules, Tick, Verdict},
    key::{Name, ResourceKey},
    time::{Revision, Token},
};

const RESOURCES: usize = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let messages: usize = std::env::args().nth(1).map_or(Ok(50_000_000), |count| count.parse())?;
    let scene = |n: usize| -> Result<ResourceKey, Box<dyn Error>> {
        let tenant = Name::new("default")?;
        let kind = Name::new("scene")?;
        Ok(ResourceKey { tenant, kind, key: Name::new(format!("scene-{n:06}"))? })
    };
    let keys: Vec<ResourceKey> = (0..RESOURCES).map(scene).collect::<Result<_, _>>()?;
    let mut fence = Fence::new(Rules::default());
    fence.snapshot_begins(1);
    keys.iter().for_each(|key| fence.learn(key, Mark { token: Token(1_000), session: None }));
    fence.snapshot_ends(Revision(1_000), Tick(0));
    let fence = RwLock::new(fence);
    let mut admitted = 0;
    for n in 0..messages {
        let token = Token(1_000 - u64::from(n % 10 == 0));
        let guard = fence.read().map_err(|_| "a lock was poisoned")?;
        let verdict = guard.judge(&keys[n.wrapping_mul(7_919) % RESOURCES], token, None, Tick(n as u64));
        admitted += usize::from(verdict == Some(Verdict::Admit));
    }
    println!("{admitted} of {messages} messages were admitted");
    Ok(())
}
