//! Lists: did a read of a set (friends, requests, comments) return what the set was at one instant?
//!
//! A trace does not hold lists. It holds a [`Sketch`]: how many elements there were, and the exclusive or of a 128-bit
//! key of each, so a record has the same size whatever the list. At an instant each element is certainly in, certainly out,
//! or *free*: writes in flight decide. The read fits the instant if what its sketch holds beyond the certain
//! elements is the sketch of a subset of the free ones. That is a linear system over GF(2). As long as the free keys are linearly
//! independent (128 random ones nearly are, a few always) its solution is the one subset that the read saw.
//!
//! Each element is a register of its own, with *in* and *out* for content, so adding twice is adding once, and a write
//! of unknown outcome stays free until a later write of the same element ended. All elements are judged at one instant together: a list
//! whose elements are each right at different instants is *fractured*, and unacceptable.
//!
//! Invariants:
//!
//! 1. What is acceptable between two events is so at the event on either side, so reads are tested when they begin and
//!    whenever a write begins within them.
//! 2. An acceptable list is never called otherwise. A wrong one is let pass with a chance of about `2^(free - 128)`; a list with an
//!    element twice never passes, because its count is too large for its keys.
//! 3. The cost is O(n log n), and for each read and each write that begins within it O(free^2), which is one comparison when nothing is free.

use crate::{Span, Verdict};

/// Free elements at one instant beyond which the keys cannot be independent.
const FREE_MAX: usize = 128;

/// A set's elements, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
}

/// A key that looks random: two chains of SplitMix64's finalizer over the seed, the item and the element.
fn key(seed: u64, item: u64, element: u64) -> u128 {
    let chain = |start: u64| mix(mix(mix(seed ^ start) ^ item) ^ element);
    u128::from(chain(0x243f_6a88_85a3_08d3)) << 64 | u128::from(chain(0x1319_8a2e_0370_7344))
}

fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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

/// A verdict for each read of one set, in their order. `initial` names each element at the start once.
pub fn judge(
    seed: u64,
    item: u64,
    initial: &[u64],
    writes: &[Write],
    reads: &[Read],
) -> Vec<Verdict> {
    let mut events = Vec::with_capacity(writes.len() * 2 + reads.len());
    for (index, write) in writes.iter().enumerate() {
        events.push((write.span.start, Step::Begin, index));
        if write.span.end < u64::MAX {
            events.push((write.span.end, Step::End, index));
        }
    }
    for (index, read) in reads.iter().enumerate() {
        events.push((read.span.start, Step::Read, index));
    }
    events.sort_unstable();
    let mut state = State::new(seed, item, initial, writes);
    let mut verdicts = vec![Verdict::Unacceptable; reads.len()];
    let mut open: Vec<usize> = Vec::new();
    let mut rest = events.as_slice();
    while let Some(&(now, step, _)) = rest.first() {
        let size = rest
            .iter()
            .take_while(|event| (event.0, event.1) == (now, step))
            .count();
        let (these, later) = rest.split_at(size);
        rest = later;
        match step {
            Step::Begin => these.iter().for_each(|event| state.begin(&writes[event.2])),
            Step::Read => {}
            Step::End => {
                these.iter().for_each(|event| state.end(&writes[event.2]));
                continue;
            }
        }
        let unsettled = |index: &usize| {
            let read = reads[*index];
            if read.span.end < now {
                return false;
            }
            let verdict = state.holds(read.sketch);
            if verdict != Verdict::Unacceptable {
                verdicts[*index] = verdict;
            }
            verdict != Verdict::Acceptable
        };
        match step {
            Step::Read => open.extend(these.iter().map(|event| event.2).filter(unsettled)),
            _ => open.retain(unsettled),
        }
    }
    verdicts
}

/// Whether each element by itself may have been as the read has it, at an instant of its own: the level below [`judge`].
/// A list that passes here and fails there is fractured. O(n log n) for one read.
pub fn judge_apart(seed: u64, item: u64, initial: &[u64], writes: &[Write], read: Read) -> Verdict {
    let mut state = State::new(seed, item, initial, writes);
    // All that any instant of the read leaves possible: what began by its end, less what was replaced before it began.
    for write in writes
        .iter()
        .filter(|write| write.span.start <= read.span.end)
    {
        state.begin(write);
        if write.span.end < read.span.start {
            state.end(write);
        }
    }
    state.holds(read.sketch)
}

/// At one instant writes begin first and end last: calls that touch are concurrent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin,
    Read,
    End,
}

/// The set at an instant: what is certainly in it, and what is free.
struct State {
    /// The elements that any write names, ascending. All others are as they were at the start.
    names: Vec<u64>,
    elements: Vec<Element>,
    certain: Sketch,
    /// Elements that may be in or out.
    free: Vec<usize>,
}

struct Element {
    key: u128,
    initially: bool,
    /// Writes that began and that nothing certainly replaced.
    live: Vec<(Span, bool)>,
    /// The latest start of the writes that ended; None before the first.
    replaced: Option<u64>,
    known: Known,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    In,
    Out,
    Free,
}

impl State {
    fn new(seed: u64, item: u64, initial: &[u64], writes: &[Write]) -> State {
        let mut names: Vec<u64> = writes.iter().map(|write| write.element).collect();
        names.sort_unstable();
        names.dedup();
        let mut elements: Vec<Element> = names
            .iter()
            .map(|&name| Element {
                key: key(seed, item, name),
                initially: false,
                live: Vec::new(),
                replaced: None,
                known: Known::Out,
            })
            .collect();
        for name in initial {
            if let Ok(index) = names.binary_search(name) {
                elements[index].initially = true;
                elements[index].known = Known::In;
            }
        }
        let certain = Sketch::of(seed, item, initial.iter().copied());
        State {
            names,
            elements,
            certain,
            free: Vec::new(),
        }
    }

    fn begin(&mut self, write: &Write) {
        let index = self.index(write);
        self.elements[index].live.push((write.span, write.member));
        self.settle(index);
    }

    fn end(&mut self, write: &Write) {
        let index = self.index(write);
        let element = &mut self.elements[index];
        let replaced = element.replaced.unwrap_or(0).max(write.span.start);
        element.replaced = Some(replaced);
        // A write that ended may still be the last one, as long as none began after it and ended too.
        element.live.retain(|(span, _)| span.end >= replaced);
        self.settle(index);
    }

    fn index(&self, write: &Write) -> usize {
        self.names
            .binary_search(&write.element)
            .expect("every written element has a name")
    }

    fn settle(&mut self, index: usize) {
        let element = &mut self.elements[index];
        let may_be = |member| {
            element.replaced.is_none() && element.initially == member
                || element.live.iter().any(|(_, written)| *written == member)
        };
        let known = match (may_be(true), may_be(false)) {
            (true, true) => Known::Free,
            (true, false) => Known::In,
            _ => Known::Out,
        };
        let before = std::mem::replace(&mut element.known, known);
        if before == known {
            return;
        }
        match before {
            Known::In => {
                self.certain.count -= 1;
                self.certain.keys ^= element.key;
            }
            Known::Free => self.free.retain(|other| *other != index),
            Known::Out => {}
        }
        match known {
            Known::In => {
                self.certain.count += 1;
                self.certain.keys ^= element.key;
            }
            Known::Free => self.free.push(index),
            Known::Out => {}
        }
    }

    /// Whether a read of this instant could have this sketch.
    fn holds(&self, sketch: Sketch) -> Verdict {
        let Some(count) = sketch.count.checked_sub(self.certain.count) else {
            return Verdict::Unacceptable;
        };
        let keys = sketch.keys ^ self.certain.keys;
        match (self.free.len(), count as usize > self.free.len()) {
            (_, true) => Verdict::Unacceptable,
            (0, _) if keys == 0 => Verdict::Acceptable,
            (0, _) => Verdict::Unacceptable,
            _ => subset(
                self.free.iter().map(|index| self.elements[*index].key),
                keys,
                count,
            ),
        }
    }
}

/// Whether `count` of the keys come to `target`: Gaussian elimination, with beside each row the keys it is made of.
fn subset(keys: impl Iterator<Item = u128>, target: u128, count: u32) -> Verdict {
    // The row whose highest bit is the index.
    let mut rows = [(0u128, 0u128); 128];
    let mut dependent = false;
    for (index, key) in keys.enumerate() {
        if index >= FREE_MAX {
            return Verdict::Undecided;
        }
        let (left, made_of) = reduce(&rows, key, 1 << index);
        match left {
            0 => dependent = true,
            _ => rows[127 - left.leading_zeros() as usize] = (left, made_of),
        }
    }
    match reduce(&rows, target, 0) {
        (0, chosen) if chosen.count_ones() == count => Verdict::Acceptable,
        // Another subset with the same keys may have that many.
        (0, _) if dependent => Verdict::Undecided,
        _ => Verdict::Unacceptable,
    }
}

fn reduce(rows: &[(u128, u128); 128], mut left: u128, mut made_of: u128) -> (u128, u128) {
    while left != 0 {
        let bit = 127 - left.leading_zeros() as usize;
        let (row, parts) = rows[bit];
        if row == 0 {
            return (left, made_of);
        }
        left ^= row;
        made_of ^= parts;
    }
    (left, made_of)
}
