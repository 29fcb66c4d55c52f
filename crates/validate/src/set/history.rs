//! The writes of one list as a log of steps. A step is the start or the end of a write. After it, one element is
//! certainly in the list, certainly not in it, or *free* (either) while a write of it is in flight.

use std::cell::OnceCell;
use std::ops::Range;

use super::{InitialSet, Sketch, Write, key};
use crate::count::{Extent, ExtentTree};

/// Maximum number of positions to examine sequentially.
const FEW: usize = 64;

/// The state of an element at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    In,
    Out,
    Free,
}

impl Membership {
    pub fn may_be(self, member: bool) -> bool {
        match self {
            Membership::In => member,
            Membership::Out => !member,
            Membership::Free => true,
        }
    }
}

/// A change of one element's state. At equal instants, starts come before ends, because calls that touch are
/// concurrent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub time: u64,
    pub ends: bool,
    pub element: u32,
    pub before: Membership,
    pub after: Membership,
    /// The certain elements after the step, and the number of free ones.
    pub certain: Sketch,
    pub free: u32,
    /// The freedom that the step starts or ends.
    pub freedom: u32,
}

/// A period in which an element is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreePeriod {
    pub element: u32,
    /// The write that made it free.
    pub write: u32,
    /// True if the write adds the element.
    pub member: bool,
    /// For reads that end before this instant, only this write decides.
    pub alone_until: u64,
}

/// All writes of one list, prepared for validating its reads. *Position* p is the state after the first p steps.
pub(crate) struct History {
    pub seed: u64,
    pub item: u64,
    /// The elements that occur in writes, ascending. All others keep their initial state.
    pub names: Vec<u64>,
    pub keys: Vec<u128>,
    pub initially: Vec<bool>,
    /// Per element, true if any write adds it.
    pub put: Vec<bool>,
    pub start: Sketch,
    pub log: Vec<Step>,
    pub freedoms: Vec<FreePeriod>,
    sizes: OnceCell<ExtentTree>,
    by_certain: OnceCell<Vec<(Sketch, u32)>>,
}

struct Element {
    /// Writes that started and were not certainly replaced.
    live: Vec<u32>,
    /// The latest start of the ended writes; `None` before the first.
    replaced: Option<u64>,
    known: Membership,
    freedom: u32,
}

impl History {
    /// Builds the log in O(n log n), whatever is in flight.
    pub fn new(seed: u64, item: u64, before: &InitialSet<'_>, writes: &[Write]) -> History {
        let mut names: Vec<u64> = writes.iter().map(|write| write.element).collect();
        names.sort_unstable();
        names.dedup();
        let initially: Vec<bool> = names.iter().map(|name| (before.holds)(*name)).collect();
        let elements = initially
            .iter()
            .map(|member| Element {
                live: Vec::new(),
                replaced: None,
                known: if *member {
                    Membership::In
                } else {
                    Membership::Out
                },
                freedom: 0,
            })
            .collect();
        let history = History {
            seed,
            item,
            keys: names.iter().map(|name| key(seed, item, *name)).collect(),
            put: vec![false; names.len()],
            names,
            initially,
            start: before.certain,
            log: Vec::with_capacity(writes.len() * 2),
            freedoms: Vec::with_capacity(writes.len()),
            sizes: OnceCell::new(),
            by_certain: OnceCell::new(),
        };
        Builder {
            history,
            elements,
            writes,
            certain: before.certain,
            free: 0,
        }
        .build()
    }

    /// Returns the position at an instant: writes that start then have started, and writes that end then have not
    /// ended.
    pub fn position(&self, instant: u64) -> usize {
        self.log
            .partition_point(|step| (step.time, step.ends) < (instant, true))
    }

    pub fn certain(&self, position: usize) -> Sketch {
        position
            .checked_sub(1)
            .map_or(self.start, |last| self.log[last].certain)
    }

    /// Returns the minimum and the maximum size over these positions.
    pub fn sizes(&self, positions: Range<usize>) -> Extent {
        if positions.len() <= FEW {
            return positions
                .map(|position| self.size(position))
                .reduce(Extent::and)
                .expect("a read has a position");
        }
        self.sizes_tree().over(positions)
    }

    pub fn size(&self, position: usize) -> Extent {
        let least = i64::from(self.certain(position).count);
        let free = position
            .checked_sub(1)
            .map_or(0, |last| self.log[last].free);
        Extent {
            lo: least,
            hi: least + i64::from(free),
        }
    }

    /// Returns the sizes at all positions; built on first use.
    pub fn sizes_tree(&self) -> &ExtentTree {
        self.sizes
            .get_or_init(|| ExtentTree::new((0..=self.log.len()).map(|at| self.size(at)).collect()))
    }

    /// Returns the positions with exactly these certain elements, ascending. The index is built on first use.
    pub fn certain_positions(&self, sketch: Sketch, within: Range<usize>) -> &[(Sketch, u32)] {
        let index = self.by_certain.get_or_init(|| {
            let all = (0..=self.log.len()).map(|at| (self.certain(at), at as u32));
            let mut index: Vec<(Sketch, u32)> = all.collect();
            index.sort_unstable();
            index
        });
        let first = index.partition_point(|entry| *entry < (sketch, within.start as u32));
        let last = index.partition_point(|entry| *entry < (sketch, within.end as u32));
        &index[first..last.max(first)]
    }
}

struct Builder<'a> {
    history: History,
    elements: Vec<Element>,
    writes: &'a [Write],
    certain: Sketch,
    free: u32,
}

impl Builder<'_> {
    fn build(mut self) -> History {
        let mut events = Vec::with_capacity(self.writes.len() * 2);
        for (index, write) in self.writes.iter().enumerate() {
            events.push((write.span.start, false, index as u32));
            if write.span.end < u64::MAX {
                events.push((write.span.end, true, index as u32));
            }
        }
        events.sort_unstable();
        for (time, ends, index) in events {
            let write = &self.writes[index as usize];
            let element = self
                .history
                .names
                .binary_search(&write.element)
                .expect("every written element has a name");
            if ends {
                self.end(element, write, time);
            } else {
                self.begin(element, index, write, time);
            }
        }
        self.history
    }

    fn begin(&mut self, index: usize, number: u32, write: &Write, time: u64) {
        let writes = self.writes;
        let element = &mut self.elements[index];
        // If all other live writes have ended, this write comes after them.
        let alone = element
            .live
            .iter()
            .all(|other| writes[*other as usize].span.end < time);
        if element.known == Membership::Free {
            let freedom = &mut self.history.freedoms[element.freedom as usize];
            freedom.alone_until = freedom.alone_until.min(time);
        }
        element.live.push(number);
        self.history.put[index] |= write.member;
        self.settle(index, time, false, Some((number, alone)));
    }

    fn end(&mut self, index: usize, write: &Write, time: u64) {
        let writes = self.writes;
        let element = &mut self.elements[index];
        let replaced = element.replaced.unwrap_or(0).max(write.span.start);
        element.replaced = Some(replaced);
        // An ended write may still be the last one unless another one started after it and ended too.
        element
            .live
            .retain(|other| writes[*other as usize].span.end >= replaced);
        self.settle(index, time, true, None);
    }

    /// Computes the state that the live writes allow, and logs it if it changed. An element becomes free only when a
    /// write starts.
    fn settle(&mut self, index: usize, time: u64, ends: bool, begun: Option<(u32, bool)>) {
        let initially = self.history.initially[index];
        let writes = self.writes;
        let element = &mut self.elements[index];
        let may_be = |member| {
            element.replaced.is_none() && initially == member
                || element
                    .live
                    .iter()
                    .any(|live| writes[*live as usize].member == member)
        };
        let after = match (may_be(true), may_be(false)) {
            (true, true) => Membership::Free,
            (true, false) => Membership::In,
            _ => Membership::Out,
        };
        let before = std::mem::replace(&mut element.known, after);
        if before == after {
            return;
        }
        let key = self.history.keys[index];
        match before {
            Membership::In => self.certain = self.certain.without(key),
            Membership::Free => self.free -= 1,
            Membership::Out => {}
        }
        match after {
            Membership::In => self.certain = self.certain.with(key),
            Membership::Free => self.free += 1,
            Membership::Out => {}
        }
        if let (Membership::Free, Some((write, alone))) = (after, begun) {
            element.freedom = self.history.freedoms.len() as u32;
            self.history.freedoms.push(FreePeriod {
                element: index as u32,
                write,
                member: writes[write as usize].member,
                alone_until: if alone { u64::MAX } else { 0 },
            });
        }
        self.history.log.push(Step {
            time,
            ends,
            element: index as u32,
            before,
            after,
            certain: self.certain,
            free: self.free,
            freedom: element.freedom,
        });
    }
}
