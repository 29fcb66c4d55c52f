//! Classifies a rejected list: finds when it was acceptable, and how it differs.
//!
//! The search walks the log from the read and gathers the elements that change, up to a limit. Decoding over them
//! yields the required state of each, and the walk ends where all have it. Beyond the limit only the certain states
//! are compared: a stale list is recognized there if it was the certain state at some time.

use super::cursor::Cursor;
use super::history::Membership;
use super::subset::{Subset, subset};
use super::{Read, Sketch, element_of};
use crate::Span;
use crate::report::{Class, Difference};

/// Maximum number of elements to gather, few enough that their keys are independent.
const GATHER_MAX: usize = 96;

/// Maximum numbers of steps to walk: first few, which usually suffices, then many.
const WALKS: [usize; 2] = [32, 4096];

/// Maximum number of elements of which every subset is tried together with one unknown element.
const TRIED_MAX: usize = 6;

/// An element and its state in the list.
struct ElementState {
    element: u32,
    /// At the position of the read's start.
    known: Membership,
    member: bool,
}

/// One element that explains a list alone.
enum UnknownElement {
    Extra(u64),
    Missing(u64),
}

impl Cursor<'_> {
    /// Classifies the last read, which was rejected. For a stale read, also returns the last instant at which it was
    /// acceptable. `holds` returns whether an element was in the list initially.
    pub fn class(&self, read: Read, holds: &dyn Fn(u64) -> bool) -> (Class, Option<u64>) {
        if let Some(last) = self.last_before(read.sketch) {
            let age_ns = read.span.start.saturating_sub(last);
            return (Class::Stale { age_ns, behind: 0 }, Some(last));
        }
        let class = if self.is_apart() {
            Class::Fractured
        } else if self.holds_later(read.sketch) {
            Class::Future
        } else {
            match self.find_unknown_element(read.sketch) {
                Some(UnknownElement::Extra(element)) if !self.was_ever_in(element, holds) => {
                    Class::Phantom
                }
                _ => Class::Never,
            }
        };
        (class, None)
    }

    /// Like [`Cursor::class`], for the last read of a size.
    pub fn size_class(&self, read: Span, size: i64) -> (Class, Option<u64>) {
        let tree = self.history.sizes_tree();
        if let Some(position) = tree.last_containing(0..self.at, size, |_| true) {
            let last = self.history.log[position].time;
            let age_ns = read.start.saturating_sub(last);
            return (Class::Stale { age_ns, behind: 0 }, Some(last));
        }
        let after = self.until + 1..self.history.log.len() + 1;
        match tree.first_containing(after, size, |_| true) {
            Some(_) => (Class::Future, None),
            None => (Class::Never, None),
        }
    }

    /// Returns the difference from the certain state of the list at the start of the last read.
    pub fn difference(&self, sketch: Sketch, holds: &dyn Fn(u64) -> bool) -> Option<Difference> {
        let mut difference = Difference::default();
        let name = |wanted: &ElementState| self.history.names[wanted.element as usize];
        let back = (0..self.at).rev().take(WALKS[1]);
        let steps = back.map(|step| (self.history.log[step].element, self.history.log[step].after));
        if let Some((wanted, _)) = self.gather(sketch, steps) {
            for wanted in wanted
                .iter()
                .filter(|wanted| !wanted.known.may_be(wanted.member))
            {
                let list = if wanted.member {
                    &mut difference.extra
                } else {
                    &mut difference.missing
                };
                list.push(name(wanted));
            }
            return Some(difference);
        }
        match self.find_unknown_element(sketch)? {
            UnknownElement::Missing(element) => difference.missing.push(element),
            UnknownElement::Extra(element) if self.is_in(element, holds) => {
                difference.duplicates.push(element)
            }
            UnknownElement::Extra(element) => difference.extra.push(element),
        }
        Some(difference)
    }

    /// Returns the last instant before the read at which the list had this state.
    fn last_before(&self, sketch: Sketch) -> Option<u64> {
        let log = &self.history.log;
        let walked = WALKS.into_iter().find_map(|most| {
            let back = (0..self.at).rev().take(most);
            let steps = back.map(|step| (log[step].element, log[step].after));
            let (wanted, walk) = self.gather(sketch, steps)?;
            let steps = (self.at - walk..self.at).rev();
            let found = find(&wanted, steps, |step| {
                (log[step].element, log[step].after, log[step].before)
            });
            found.map(|step| log[step].time)
        });
        walked.or_else(|| {
            let (_, position) = self.history.certain_positions(sketch, 0..self.at).last()?;
            Some(log[*position as usize].time)
        })
    }

    fn holds_later(&self, sketch: Sketch) -> bool {
        let log = &self.history.log;
        let walked = WALKS.into_iter().any(|most| {
            let steps = (self.at..log.len()).take(most);
            let steps = steps.map(|step| (log[step].element, log[step].before));
            self.gather(sketch, steps).is_some_and(|(wanted, walk)| {
                find(&wanted, self.at..self.at + walk, |step| {
                    (log[step].element, log[step].before, log[step].after)
                })
                .is_some()
            })
        });
        walked
            || !self
                .history
                .certain_positions(sketch, self.until + 1..log.len() + 1)
                .is_empty()
    }

    /// Returns the open elements and those of the steps, each with its state at the read's start and its state in the
    /// list; and the number of steps that they cover.
    fn gather(
        &self,
        sketch: Sketch,
        steps: impl Iterator<Item = (u32, Membership)>,
    ) -> Option<(Vec<ElementState>, usize)> {
        if self.too_many {
            return None;
        }
        let open = self.open.iter().map(|open| (open.element, open.known));
        let mut known: Vec<(u32, Membership)> = open.collect();
        let mut walk = 0;
        for step in steps {
            if !known.iter().any(|(element, _)| *element == step.0) {
                if known.len() >= GATHER_MAX {
                    break;
                }
                known.push(step);
            }
            walk += 1;
        }
        let mut rest = self.history.certain(self.at);
        let mut keys = Vec::with_capacity(known.len());
        for (element, known) in &known {
            let key = self.history.keys[*element as usize];
            keys.push(key);
            if *known == Membership::In {
                rest = rest.without(key);
            }
        }
        let count = sketch.count.checked_sub(rest.count)?;
        let Subset::Is(members) = subset(&keys, sketch.keys ^ rest.keys, count) else {
            return None;
        };
        let wanted = known.into_iter().enumerate();
        let wanted = wanted.map(|(bit, (element, known))| ElementState {
            element,
            known,
            member: members >> bit & 1 == 1,
        });
        Some((wanted.collect(), walk))
    }

    fn find_unknown_element(&self, sketch: Sketch) -> Option<UnknownElement> {
        if self.too_many || self.open.len() > TRIED_MAX {
            return None;
        }
        let (seed, item) = (self.history.seed, self.history.item);
        (0..1u32 << self.open.len()).find_map(|members| {
            let mut rest = self.rest();
            for (bit, open) in self.open.iter().enumerate() {
                if members >> bit & 1 == 1 {
                    rest = rest.with(self.history.keys[open.element as usize]);
                }
            }
            let element = element_of(seed, item, sketch.keys ^ rest.keys)?;
            match i64::from(sketch.count) - i64::from(rest.count) {
                1 => Some(UnknownElement::Extra(element)),
                -1 => Some(UnknownElement::Missing(element)),
                _ => None,
            }
        })
    }

    fn was_ever_in(&self, element: u64, holds: &dyn Fn(u64) -> bool) -> bool {
        match self.history.names.binary_search(&element) {
            Ok(index) => self.history.initially[index] || self.history.put[index],
            Err(_) => holds(element),
        }
    }

    fn is_in(&self, element: u64, holds: &dyn Fn(u64) -> bool) -> bool {
        let Ok(index) = self.history.names.binary_search(&element) else {
            return holds(element);
        };
        let mut back = self.history.log[..self.at].iter().rev();
        match back.find(|step| step.element as usize == index) {
            Some(step) => step.after != Membership::Out,
            None => self.history.initially[index],
        }
    }
}

/// Returns the first step after which all elements have the wanted state. A step yields an element, its state before,
/// and its state after.
fn find(
    wanted: &[ElementState],
    mut steps: impl Iterator<Item = usize>,
    step: impl Fn(usize) -> (u32, Membership, Membership),
) -> Option<usize> {
    let against = |wanted: &&ElementState| !wanted.known.may_be(wanted.member);
    let mut against = wanted.iter().filter(against).count();
    steps.find(|index| {
        let (element, before, after) = step(*index);
        let wanted = wanted.iter().find(|wanted| wanted.element == element);
        let member = wanted.expect("all of the walk is gathered").member;
        against -= usize::from(!before.may_be(member));
        against += usize::from(!after.may_be(member));
        against == 0
    })
}
