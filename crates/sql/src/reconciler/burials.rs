//! The limit on burials: a fault that fails every row must not bury every row.

use solehold_clock::BootTime;

use crate::limits::BURIALS_WINDOW;

/// Rows that were buried since the window began. It decides, and reads no clock.
#[derive(Debug)]
pub(super) struct Burials {
    per_window: u32,
    began: BootTime,
    buried: u64,
    is_reported: bool,
}

impl Burials {
    pub(super) fn new(per_window: u32, now: BootTime) -> Self {
        Self { per_window, began: now, buried: 0, is_reported: false }
    }

    /// How many rows may be buried now.
    pub(super) fn left(&mut self, now: BootTime) -> usize {
        if now.since(self.began) >= BURIALS_WINDOW {
            *self = Self::new(self.per_window, now);
        }
        u64::from(self.per_window).saturating_sub(self.buried) as usize
    }

    /// Counts what was buried and what was not; whether that the limit was reached must be reported, which is so once
    /// in a window.
    pub(super) fn count(&mut self, buried: u64, unburied: u64) -> bool {
        self.buried += buried;
        let is_first = unburied > 0 && !self.is_reported;
        self.is_reported |= is_first;
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_its_limit_and_reports_it_once() {
        let start = BootTime::now();
        let mut burials = Burials::new(3, start);
        assert_eq!(burials.left(start), 3);
        assert!(!burials.count(2, 0));
        assert_eq!(burials.left(start), 1);
        assert!(burials.count(1, 4));
        assert_eq!(burials.left(start), 0);
        assert!(!burials.count(0, 4), "reported already");
        assert_eq!(burials.left(start.plus(BURIALS_WINDOW)), 3);
        assert!(burials.count(0, 1));
    }
}
