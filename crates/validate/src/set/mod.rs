//! Lists: did a read of a set (friends, invitations, comments) return what the set was at one instant?
//!
//! A trace does not hold lists. It holds a [`Sketch`]: how many elements there were, and the exclusive or of a 128-bit
//! key of each, so a record has the same size whatever the list. At an instant each element is certainly in, certainly out,
//! or *free*: writes in flight decide. What a sketch holds beyond the certain elements must be the sketch of a subset of the
//! free ones. That is a linear system over GF(2). As long as the free keys are linearly independent (128 random ones nearly
//! are, a few always) its solution is the one subset that the read saw: the sketch is *decoded*.
//!
//! Each element is a register of its own, with *in* and *out* for content, so adding twice is adding once, and a write
//! of unknown outcome stays free until a later write of the same element ended.
//!
//! ```text
//!   writes ──► History: a log of what changed, element by element
//!   reads  ──► Cursor:  decode over all that was free during the read, then look for one instant that agrees
//! ```
//!
//! Invariants:
//!
//! 1. What is acceptable between two events is so at the event on either side: a step of the log that begins a write only widens
//!    what may be, one that ends a write only narrows it.
//! 2. An acceptable list is never called otherwise. A wrong one is let pass with a chance of about `2^(free - 128)`; a list with an
//!    element twice never passes, because its count is too large for its keys.
//! 3. The cost is O(n log n), and for each read O(free^2 + changes during the read), which is one comparison when nothing is free.
//! 4. More than 128 elements free during one read are undecided, unless the size alone is impossible.

mod cursor;
mod history;
mod search;
mod subset;

use larder_types::Random;

use crate::{Span, Verdict};
pub(crate) use cursor::{Answer, Cursor};
pub(crate) use history::History;

/// A set's elements, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sketch {
    pub count: u32,
    pub keys: u128,
}

impl Sketch {
    /// Counts an element in. Client and checker must agree on `seed` and `item`.
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

/// A key that looks random: two chains of SplitMix64's finalizer over the seed, the item and the element.
fn key(seed: u64, item: u64, element: u64) -> u128 {
    let chain = |start: u64| mix(mix(mix(seed ^ start) ^ item) ^ element);
    u128::from(chain(HIGH)) << 64 | u128::from(chain(LOW))
}

/// The element whose key this is, if it is one: the finalizer can be undone.
fn element_of(seed: u64, item: u64, wanted: u128) -> Option<u64> {
    let element = unmix(wanted as u64) ^ mix(mix(seed ^ LOW) ^ item);
    (key(seed, item, element) == wanted).then_some(element)
}

fn mix(value: u64) -> u64 {
    Random::new(value).word()
}

/// The value that [`mix`] makes this of: its steps undone, the last one first.
fn unmix(mixed: u64) -> u64 {
    let mut value = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    value = value.wrapping_mul(0x3196_42b2_d24d_8ec3);
    value ^= (value >> 27) ^ (value >> 54);
    value = value.wrapping_mul(0x96de_1b17_3f11_9089);
    value ^= (value >> 30) ^ (value >> 60);
    value.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// One element put in or taken out; [`Span::unanswered`] if the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub span: Span,
    pub element: u64,
    pub member: bool,
}

/// One read of the whole set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub span: Span,
    pub sketch: Sketch,
}

/// What a list was before the writes.
pub(crate) struct Before<'a> {
    pub certain: Sketch,
    pub holds: &'a dyn Fn(u64) -> bool,
}

/// A verdict for each read of one set, in their order: was it so at one instant? `initial` names each element at the start once.
pub fn judge(
    seed: u64,
    item: u64,
    initial: &[u64],
    writes: &[Write],
    reads: &[Read],
) -> Vec<Verdict> {
    answers(seed, item, initial, writes, reads)
        .into_iter()
        .map(|(_, whole)| whole)
        .collect()
}

/// Whether each element by itself may have been as the read has it, at an instant of its own: the level below [`judge`].
/// A list that passes here and fails there is fractured.
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
    let before = Before {
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
        answers[index] = (answer.apart, answer.whole);
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_element() {
        for element in (0..2000).chain([u64::MAX, 1 << 40]) {
            assert_eq!(unmix(mix(element)), element);
            assert_eq!(element_of(3, 7, key(3, 7, element)), Some(element));
            assert_eq!(element_of(3, 8, key(3, 7, element)), None);
        }
    }
}
