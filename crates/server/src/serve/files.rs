//! How many connections the operating system lets this process have: each is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files for everything else: the store and its connections, the log, certificates.
const KEPT_FREE: u64 = 128;

/// Raises the bound on open files, as far as this process may, until `connections_max` fit; returns how many
/// do. Further connections wait, so that files are left for the store.
pub fn seats(connections_max: usize) -> usize {
    let wanted = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(KEPT_FREE);
    let files = raise(wanted);
    let seats = seats_of(files).min(wanted - KEPT_FREE);
    let seats = usize::try_from(seats).unwrap_or(connections_max);
    if seats < connections_max {
        tracing::warn!(
            files,
            seats,
            connections_max,
            "open-file limit is too low for connections_max; accepting fewer connections (raise it with ulimit -n)"
        );
    }
    seats
}

/// The bound on open files, after it was raised to `wanted` or as near to it as is allowed.
fn raise(wanted: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let Some(soft) = now.current else { return u64::MAX };
    if soft >= wanted {
        return soft;
    }
    let higher = now.maximum.map_or(wanted, |hard| hard.min(wanted));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(higher), maximum: now.maximum }) {
        Ok(()) => higher,
        Err(_) => soft,
    }
}

fn seats_of(files: u64) -> u64 {
    // With next to none there are few for either, but some.
    files.saturating_sub(KEPT_FREE).max(files / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_kept_free() {
        assert_eq!(seats_of(1_024), 1_024 - KEPT_FREE);
        assert_eq!(seats_of(u64::MAX), u64::MAX - KEPT_FREE);
        assert_eq!(seats_of(64), 32);
    }

    #[test]
    fn no_more_seats_than_connections_are_allowed() {
        assert_eq!(seats(1), 1);
    }
}
