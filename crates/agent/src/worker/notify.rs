//! What programs tell a service manager by `NOTIFY_SOCKET`: those that were written for systemd report readiness to
//! the agent unmodified.

use std::time::Duration;

pub const DATAGRAM_BYTES_MAX: usize = 4 << 10;
/// The longest time by which a program may extend its own deadline at once.
const EXTENSION_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// `READY=1`: it has started.
    Ready,
    /// `WATCHDOG=1`: it is alive, and will say so again.
    Watchdog,
    /// `WATCHDOG=trigger`: it asks to be restarted.
    Trigger,
    /// `STOPPING=1`: it is about to end.
    Stopping,
    /// `EXTEND_TIMEOUT_USEC=N`: it needs this much time from now on.
    Extend(Duration),
}

/// Reads a datagram: one assignment per line. What is for other readers, such as `STATUS`, is skipped.
pub fn read(datagram: &[u8]) -> Vec<Notice> {
    let text = String::from_utf8_lossy(datagram);
    text.lines().filter_map(|line| notice(line.trim_end())).collect()
}

fn notice(line: &str) -> Option<Notice> {
    Some(match line {
        "READY=1" => Notice::Ready,
        "WATCHDOG=1" => Notice::Watchdog,
        "WATCHDOG=trigger" => Notice::Trigger,
        "STOPPING=1" => Notice::Stopping,
        _ => {
            let micros = line.strip_prefix("EXTEND_TIMEOUT_USEC=")?.parse().ok()?;
            Notice::Extend(Duration::from_micros(micros).min(EXTENSION_MAX))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_may_say_several_things() {
        let told = read(b"STATUS=loading\nREADY=1\nWATCHDOG=1\r\nMAINPID=12");
        assert_eq!(told, [Notice::Ready, Notice::Watchdog]);
        assert_eq!(read(b"EXTEND_TIMEOUT_USEC=5000000"), [Notice::Extend(Duration::from_secs(5))]);
        assert_eq!(read(b"EXTEND_TIMEOUT_USEC=99999999999999"), [Notice::Extend(EXTENSION_MAX)]);
        assert_eq!(read(b"STOPPING=1\nWATCHDOG=trigger"), [Notice::Stopping, Notice::Trigger]);
        for odd in [&b""[..], b"READY=0", b"EXTEND_TIMEOUT_USEC=-1", b"\xff\xff", b"EXTEND_TIMEOUT_USEC="] {
            assert_eq!(read(odd), [], "{odd:?}");
        }
    }
}
