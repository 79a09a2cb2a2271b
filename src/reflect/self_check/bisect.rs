/// Finds where upstream's number of objects differs from a feed's, by requesting the number of objects after one of
/// ours. Each response halves the range.
#[derive(Debug)]
pub(super) struct Bisection {
    all: usize,
    /// The number of our objects that are known to precede the difference.
    low: usize,
    /// The difference is among the first `high` of our objects, or after all of them.
    high: usize,
}

impl Bisection {
    /// Starts a bisection over `all` objects of ours, a number that differs from upstream's.
    pub(super) fn of(all: usize) -> Self {
        Self { all, low: 0, high: all }
    }

    /// Returns how many of our objects precede those that upstream should count next; `None` if the difference is among
    /// the next `keys`.
    pub(super) fn next(&self, keys: usize) -> Option<usize> {
        (self.high - self.low > (keys / 2).max(1)).then(|| self.low.midpoint(self.high))
    }

    /// Records that upstream has `theirs` objects after the first `middle` of ours.
    pub(super) fn counted(&mut self, middle: usize, theirs: usize) {
        if theirs == self.all - middle {
            self.high = middle;
        } else {
            self.low = middle;
        }
    }

    /// Returns how many of our objects precede the difference.
    pub(super) fn found(&self) -> usize {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = 200;

    /// Our objects are the even numbers.
    #[test]
    fn bisection_finds_the_page_with_the_differing_key() {
        for keys in [1, 2, 8, 50, 500] {
            for differing in 0..2 * ALL {
                let is_theirs = |number: usize| number.is_multiple_of(2) != (number == differing);
                let behind = |count: usize| count.checked_sub(1).map_or(0, |last| 2 * last + 1);
                let (mut bisection, mut asked) = (Bisection::of(ALL), 0);
                while let Some(middle) = bisection.next(keys) {
                    asked += 1;
                    bisection.counted(middle, (behind(middle)..2 * ALL).filter(|number| is_theirs(*number)).count());
                }
                assert!(asked <= 8, "{asked} questions for {differing}");
                let from = behind(bisection.found());
                let last = (from..2 * ALL).filter(|number| is_theirs(*number)).nth(keys.max(2) - 1);
                let page = from..=last.unwrap_or(2 * ALL);
                assert!(page.contains(&differing), "{differing} is not among the {keys} in {page:?}");
            }
        }
    }
}
