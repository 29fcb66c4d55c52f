//! Lists: validates that a read of a set (friends, invitations, comments) returned the set's state at one instant.
//!
//! A trace does not contain lists. It contains a [`Sketch`]: the number of elements, and the exclusive or of a
//! 128-bit key of each, so records have a fixed size. At an instant each element is certainly in, certainly out, or
//! *free*: writes in flight decide. The sketch of a read minus the certain elements must be the sketch of a subset of
//! the free ones, which is a linear system over GF(2). If the free keys are linearly independent (very probable for
//! 128 random keys, and practically certain for a few), its solution is the unique subset that the read saw: the
//! sketch is *decoded*.
//!
//! Each element is a register of its own with the contents *in* and *out*. Adding an element twice is the same as
//! adding it once, and a write of unknown outcome leaves the element free until a later write of it has ended.
//!
//! ```text
//!   writes ──► History: a log of what changed, element by element
//!   reads  ──► Cursor:  decode over all elements free during the read, then find one instant that matches
//! ```
//!
//! Invariants:
//!
//! 1. A list that is acceptable between two events is acceptable at the event on either side: the start of a write
//!    only extends the possible states, and the end of a write only reduces them.
//! 2. An acceptable list is never rejected. A wrong list is accepted with a probability of about `2^(free - 128)`. A
//!    list that contains an element twice is never accepted, because its count is too large for its keys.
//! 3. The cost is O(n log n), plus O(free^2 + changes during the read) per read, which is one comparison if no
//!    element is free.
//! 4. A read during which more than 128 elements are free is undecided, unless the size alone is impossible.

mod cursor;
mod history;
mod search;
mod subset;

use larder_types::Random;

use crate::{Span, Verdict};
pub(crate) use cursor::{Cursor, ListVerdicts};
pub(crate) use history::History;

/// A summary of a set's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sketch {
    pub count: u32,
    pub keys: u128,
}

impl Sketch {
    /// Adds an element. Client and checker must use the same `seed` and `item`.
    pub fn add(&mut self, seed: u64, item: u64, element: u64) {
        self.count = self.count.wrapping_add(1);
        self.keys ^= key(seed, item, element);
    }

    pub fn of(seed: u64, item: u64, elements: impl IntoIterator<Item = u64>) -> Sketch {
        let mut sketch = Sketch::default();
        elements
            .into_iter()
            .for_each(|element| sketch.add(seed, item, element));
        sketch
    }

    pub(crate) fn without(self, key: u128) -> Sketch {
        Sketch {
            count: self.count.wrapping_sub(1),
            keys: self.keys ^ key,
        }
    }

    pub(crate) fn with(self, key: u128) -> Sketch {
        Sketch {
            count: self.count.wrapping_add(1),
            keys: self.keys ^ key,
        }
    }
}

const HIGH: u64 = 0x243f_6a88_85a3_08d3;
const LOW: u64 = 0x1319_8a2e_0370_7344;

/// Returns a pseudorandom key: two chains of SplitMix64's finalizer over the seed, the item and the element.
fn key(seed: u64, item: u64, element: u64) -> u128 {
    let chain = |start: u64| mix(mix(mix(seed ^ start) ^ item) ^ element);
    u128::from(chain(HIGH)) << 64 | u128::from(chain(LOW))
}

/// Returns the element with this key, if there is one: the finalizer is invertible.
fn element_of(seed: u64, item: u64, wanted: u128) -> Option<u64> {
    let element = unmix(wanted as u64) ^ mix(mix(seed ^ LOW) ^ item);
    (key(seed, item, element) == wanted).then_some(element)
}

fn mix(value: u64) -> u64 {
    Random::new(value).word()
}

/// Inverts [`mix`]: undoes its steps in reverse order.
fn unmix(mixed: u64) -> u64 {
    let mut value = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    value = value.wrapping_mul(0x3196_42b2_d24d_8ec3);
    value ^= (value >> 27) ^ (value >> 54);
    value = value.wrapping_mul(0x96de_1b17_3f11_9089);
    value ^= (value >> 30) ^ (value >> 60);
    value.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// The addition or removal of one element; the span is [`Span::unanswered`] if the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub span: Span,
    pub element: u64,
    pub member: bool,
}

/// One read of the complete set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub span: Span,
    pub sketch: Sketch,
}

/// The state of a list before the writes.
pub(crate) struct InitialSet<'a> {
    pub certain: Sketch,
    pub holds: &'a dyn Fn(u64) -> bool,
}

/// Returns a verdict per read of one set, in order. A valid read returned the set's state at one instant. `initial` has each
/// initial element once.
pub fn judge(
    seed: u64,
    item: u64,
    initial: &[u64],
    writes: &[Write],
    reads: &[Read],
) -> Vec<Verdict> {
    answers(seed, item, initial, writes, reads)
        .into_iter()
        .map(|(_, joint)| joint)
        .collect()
}

/// Returns whether each element was possible at an instant of its own: the level below [`judge`]. A list that passes
/// here and fails there is fractured.
pub fn judge_apart(seed: u64, item: u64, initial: &[u64], writes: &[Write], read: Read) -> Verdict {
    answers(seed, item, initial, writes, &[read])[0].0
}

fn answers(
    seed: u64,
    item: u64,
    initial: &[u64],
    writes: &[Write],
    reads: &[Read],
) -> Vec<(Verdict, Verdict)> {
    let mut sorted = initial.to_vec();
    sorted.sort_unstable();
    let before = InitialSet {
        certain: Sketch::of(seed, item, initial.iter().copied()),
        holds: &|element| sorted.binary_search(&element).is_ok(),
    };
    let history = History::new(seed, item, &before, writes);
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by_key(|index| reads[*index].span.start);
    let mut answers = vec![(Verdict::Unacceptable, Verdict::Unacceptable); reads.len()];
    let mut cursor = Cursor::new(&history);
    for index in order {
        let answer = cursor.judge(reads[index]);
        answers[index] = (answer.apart, answer.joint);
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_contains_its_element() {
        for element in (0..2000).chain([u64::MAX, 1 << 40]) {
            assert_eq!(unmix(mix(element)), element);
            assert_eq!(element_of(3, 7, key(3, 7, element)), Some(element));
            assert_eq!(element_of(3, 8, key(3, 7, element)), None);
        }
    }
}
