//! Rate limits of callers.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
};

use governor::{DefaultKeyedRateLimiter, Quota, clock::Clock};
use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::key::Name;

use crate::{error::ApiError, limits::ServerLimits};

/// What requests are counted by: a key, or the address of a caller without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RateLimitKey {
    Key(Name),
    Peer(IpAddr),
}

impl RateLimitKey {
    /// A caller at that address. An IPv6 network of /64, as one customer gets it, counts as one.
    pub fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self::Peer(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into()),
            v4 => Self::Peer(v4),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rates {
    limiter: Option<DefaultKeyedRateLimiter<RateLimitKey>>,
    per_second: u32,
}

impl Rates {
    pub fn new(limits: &ServerLimits) -> Self {
        let rate = NonZeroU32::new(limits.requests_per_second);
        let quota = rate.map(|rate| {
            let burst = NonZeroU32::new(limits.requests_burst).unwrap_or(rate);
            Quota::per_second(rate).allow_burst(burst)
        });
        Self { limiter: quota.map(DefaultKeyedRateLimiter::dashmap), per_second: limits.requests_per_second }
    }

    /// Rejects a caller that exceeds its rate.
    pub fn check(&self, who: &RateLimitKey) -> Result<(), ApiError> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(limiter.clock().now());
            let detail = format!("more than {} requests per second; slow down", self.per_second);
            let problem = Problem::new(ErrorCode::TooManyRequests, detail);
            let problem = problem.limit("requests_per_second", self.per_second.into());
            problem.retry_after_ms(wait.as_millis().max(1) as u64).into()
        })
    }

    /// Drops the rates of callers that have been idle for long.
    pub fn forget(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}
