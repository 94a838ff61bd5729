//! Sets of runners, by their position in the fleet.

/// A set of runners as a bit set: intersecting two of a thousand runners takes sixteen steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RunnerSet(Vec<u64>);

impl RunnerSet {
    /// No runners, with room for `count`.
    pub fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// Those of `count` runners that are meant.
    pub fn of(count: usize, is_meant: impl Fn(usize) -> bool) -> Self {
        let mut set = Self::none(count);
        (0..count).filter(|runner| is_meant(*runner)).for_each(|runner| set.insert(runner));
        set
    }

    pub fn insert(&mut self, runner: usize) {
        self.0[runner / 64] |= 1 << (runner % 64);
    }

    pub fn has(&self, runner: usize) -> bool {
        self.0.get(runner / 64).is_some_and(|word| word >> (runner % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn and(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
        self
    }

    /// The runners of both.
    pub fn or(self, other: &Self) -> Self {
        if self.0.is_empty() {
            return other.clone();
        }
        Self(self.0.iter().zip(&other.0).map(|(word, other)| word | other).collect())
    }

    pub fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// This set, or `other` if it is empty.
    pub fn or_if_empty(self, other: &Self) -> Self {
        if self.is_empty() { other.clone() } else { self }
    }

    /// Its runners, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_what_was_put_in() {
        let even = RunnerSet::of(130, |runner| runner % 2 == 0);
        let third = RunnerSet::of(130, |runner| runner % 3 == 0);
        assert_eq!(even.len(), 65);
        assert_eq!(even.clone().and(&third).iter().take(3).collect::<Vec<_>>(), [0, 6, 12]);
        assert_eq!(even.clone().without(&third).iter().last(), Some(128));
        assert!(even.has(128) && !even.has(129) && !even.has(1_000));
        assert!(RunnerSet::none(130).is_empty());
        assert_eq!(even.clone().or(&third).iter().take(5).collect::<Vec<_>>(), [0, 2, 3, 4, 6]);
        assert_eq!(RunnerSet::default().or(&third), third);
        assert_eq!(RunnerSet::none(130).or_if_empty(&even), even);
    }
}
