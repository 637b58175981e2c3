//! Owns the judgement of groups of snapshots (S6): whether what was found of several volumes is of one moment.
//!
//! The world makes one step at a time, so the commits of all volumes are in one order. A moment of the call that made the
//! group is a place in that order.

use super::history::Intervals;

/// What was committed to the volumes of a group while it was being made.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Of each member, where its history stood when the group was asked for.
    starts: Vec<u64>,
    /// Since then: whose commit came next.
    order: Vec<usize>,
}

impl Moments {
    /// A group is asked for of volumes whose histories stand there.
    pub fn new(starts: Vec<u64>) -> Moments {
        Moments {
            starts,
            order: Vec::new(),
        }
    }

    /// A commit of this member took effect.
    pub fn note(&mut self, member: usize) {
        self.order.push(member);
    }

    /// The histories stand there at the end: what was not noted came last.
    pub fn end(&mut self, ends: &[u64]) {
        for (member, end) in ends.iter().enumerate() {
            let noted = self.order.iter().filter(|nth| **nth == member).count() as u64;
            let missing = end.saturating_sub(self.starts[member] + noted);
            self.order.extend((0..missing).map(|_| member));
        }
    }

    /// Whether members that were found at one of these positions each, may be of one moment.
    pub fn agree(&self, found: &[(usize, &Intervals)]) -> bool {
        let mut at = self.starts.clone();
        let fits = |at: &[u64]| {
            found.iter().all(|(member, intervals)| {
                let mut all = intervals.iter();
                all.any(|(low, high)| (*low..=*high).contains(&at[*member]))
            })
        };
        let mut is_one = fits(&at);
        for member in &self.order {
            at[*member] += 1;
            is_one |= fits(&at);
        }
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two volumes at 3 and 5; then a commit of the first, two of the second, one of the first.
    fn moments() -> Moments {
        let mut moments = Moments::new(vec![3, 5]);
        for member in [0, 1, 1] {
            moments.note(member);
        }
        moments.end(&[5, 7]);
        moments
    }

    #[test]
    fn members_of_one_moment_agree_and_of_two_do_not() {
        let moments = moments();
        for first in 2..=6 {
            for second in 4..=8 {
                let found = [vec![(first, first)], vec![(second, second)]];
                let agree = moments.agree(&[(0, &found[0]), (1, &found[1])]);
                let all = [(3, 5), (4, 5), (4, 6), (4, 7), (5, 7)];
                assert_eq!(agree, all.contains(&(first, second)), "{first} {second}");
            }
        }
    }

    #[test]
    fn what_may_be_of_several_positions_agrees_if_one_of_them_does() {
        let moments = moments();
        let (first, second) = (vec![(5, 5)], vec![(5, 5), (7, 9)]);
        assert!(moments.agree(&[(0, &first), (1, &second)]));
        assert!(!moments.agree(&[(0, &first), (1, &vec![(5, 6)])]));
    }
}
