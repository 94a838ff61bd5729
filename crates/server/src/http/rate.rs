//! How often each may ask.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
};

use governor::{DefaultKeyedRateLimiter, Quota, clock::Clock};
use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::key::Name;

use super::Failure;
use crate::config::ServerLimits;

/// Who asks, for the purpose of counting: a key, or an address that shows none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// The key of that id.
    Key(Name),
    /// Someone at that address.
    Peer(IpAddr),
}

impl Who {
    /// Someone at that address. The networks of IPv6 that are given to one customer count as one.
    pub fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self::Peer(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into()),
            v4 => Self::Peer(v4),
        }
    }
}

/// How often each has asked.
#[derive(Debug)]
pub(crate) struct Rates {
    limiter: Option<DefaultKeyedRateLimiter<Who>>,
    per_second: u32,
}

impl Rates {
    /// Nobody has asked yet.
    pub fn new(limits: &ServerLimits) -> Self {
        let rate = NonZeroU32::new(limits.requests_per_second);
        let quota = rate.map(|rate| {
            let burst = NonZeroU32::new(limits.requests_burst).unwrap_or(rate);
            Quota::per_second(rate).allow_burst(burst)
        });
        Self { limiter: quota.map(DefaultKeyedRateLimiter::dashmap), per_second: limits.requests_per_second }
    }

    /// Refuses who asks too often.
    pub fn check(&self, who: &Who) -> Result<(), Failure> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(limiter.clock().now());
            let detail = format!("more than {} requests a second; ask less often", self.per_second);
            let problem = Problem::new(ErrorCode::TooManyRequests, detail);
            let problem = problem.limit("requests_per_second", self.per_second.into());
            problem.retry_after_ms(wait.as_millis().max(1) as u64).into()
        })
    }

    /// Forgets those who have not asked for long.
    pub fn forget(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}
