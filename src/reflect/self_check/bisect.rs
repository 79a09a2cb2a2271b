/// Finds where upstream has another number of objects than a feed, by asking how many are behind one of ours. Each
/// answer halves what is in question.
#[derive(Debug)]
pub(super) struct Bisection {
    all: usize,
    /// How many of ours are known to be in front of what differs.
    low: usize,
    /// It is among the first so many of ours, or behind all of them.
    high: usize,
}

impl Bisection {
    /// `all` is the number of our objects, which is not upstream's.
    pub(super) fn of(all: usize) -> Self {
        Self { all, low: 0, high: all }
    }

    /// Says how many of ours to leave in front of those that upstream is to count next; `None` if what differs is among
    /// the next `keys`.
    pub(super) fn next(&self, keys: usize) -> Option<usize> {
        (self.high - self.low > (keys / 2).max(1)).then(|| self.low.midpoint(self.high))
    }

    /// Notes that upstream has `theirs` behind the first `middle` of ours.
    pub(super) fn counted(&mut self, middle: usize, theirs: usize) {
        if theirs == self.all - middle {
            self.high = middle;
        } else {
            self.low = middle;
        }
    }

    /// Says how many of ours are in front of what differs.
    pub(super) fn found(&self) -> usize {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = 200;

    /// Ours are the even numbers.
    #[test]
    fn what_is_missing_on_either_side_is_within_the_keys_that_are_found() {
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
