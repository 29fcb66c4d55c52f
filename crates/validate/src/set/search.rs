//! Of a list that was not so: when it was, and how it differs.
//!
//! Walking from the read along the log, the elements that change are gathered, up to a limit; decoding over them tells how each must be, and the
//! walk ends where all are. Beyond the limit only what was certain at some position is compared: there a stale list is recognised if
//! it was the certain one at some time.

use super::cursor::Cursor;
use super::history::Known;
use super::subset::{Subset, subset};
use super::{Read, Sketch, element_of};
use crate::Span;
use crate::report::{Class, Difference};

/// Elements to gather: few enough that their keys are independent.
const GATHER_MAX: usize = 96;

/// Steps to walk: first few, which is enough for most, then many.
const WALKS: [usize; 2] = [32, 4096];

/// Elements of which every subset is tried beside a stranger.
const TRIED_MAX: usize = 6;

/// An element and how it must be to make up the list.
struct Wanted {
    element: u32,
    /// At the position of the read's start.
    known: Known,
    member: bool,
}

/// One element that explains a list by itself.
enum Stranger {
    Extra(u64),
    Missing(u64),
}

impl Cursor<'_> {
    /// Why the last read, which was judged unacceptable, may have been answered so, and until when it was acceptable if it is stale.
    /// `holds`: whether an element was in at the start.
    pub fn class(&self, read: Read, holds: &dyn Fn(u64) -> bool) -> (Class, Option<u64>) {
        if let Some(last) = self.last_before(read.sketch) {
            let age_ns = read.span.start.saturating_sub(last);
            return (Class::Stale { age_ns, behind: 0 }, Some(last));
        }
        let class = if self.is_apart() {
            Class::Fractured
        } else if self.is_so_after(read.sketch) {
            Class::Future
        } else {
            match self.stranger(read.sketch) {
                Some(Stranger::Extra(element)) if !self.was_ever_in(element, holds) => {
                    Class::Phantom
                }
                _ => Class::Never,
            }
        };
        (class, None)
    }

    /// As [`Cursor::class`], of the last read of a size.
    pub fn size_class(&self, read: Span, size: i64) -> (Class, Option<u64>) {
        let tree = self.history.sizes_tree();
        if let Some(position) = tree.last_holding(0..self.at, size, |_| true) {
            let last = self.history.log[position].time;
            let age_ns = read.start.saturating_sub(last);
            return (Class::Stale { age_ns, behind: 0 }, Some(last));
        }
        let after = self.until + 1..self.history.log.len() + 1;
        match tree.first_holding(after, size, |_| true) {
            Some(_) => (Class::Future, None),
            None => (Class::Never, None),
        }
    }

    /// Against what the list certainly was when the last read began.
    pub fn difference(&self, sketch: Sketch, holds: &dyn Fn(u64) -> bool) -> Option<Difference> {
        let mut difference = Difference::default();
        let name = |wanted: &Wanted| self.history.names[wanted.element as usize];
        let back = (0..self.at).rev().take(WALKS[1]);
        let steps = back.map(|step| (self.history.log[step].element, self.history.log[step].after));
        if let Some((wanted, _)) = self.gather(sketch, steps) {
            for wanted in wanted
                .iter()
                .filter(|wanted| !wanted.known.may_be(wanted.member))
            {
                let list = match wanted.member {
                    true => &mut difference.extra,
                    false => &mut difference.missing,
                };
                list.push(name(wanted));
            }
            return Some(difference);
        }
        match self.stranger(sketch)? {
            Stranger::Missing(element) => difference.missing.push(element),
            Stranger::Extra(element) if self.is_in(element, holds) => {
                difference.again.push(element)
            }
            Stranger::Extra(element) => difference.extra.push(element),
        }
        Some(difference)
    }

    /// The last instant before the read at which the list was so.
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

    fn is_so_after(&self, sketch: Sketch) -> bool {
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

    /// The open elements and those of the steps, each with what was known of it at the start, and how it must be; and how many steps they cover.
    fn gather(
        &self,
        sketch: Sketch,
        steps: impl Iterator<Item = (u32, Known)>,
    ) -> Option<(Vec<Wanted>, usize)> {
        if self.too_many {
            return None;
        }
        let open = self.open.iter().map(|open| (open.element, open.known));
        let mut known: Vec<(u32, Known)> = open.collect();
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
            if *known == Known::In {
                rest = rest.without(key);
            }
        }
        let count = sketch.count.checked_sub(rest.count)?;
        let Subset::Is(members) = subset(&keys, sketch.keys ^ rest.keys, count) else {
            return None;
        };
        let wanted = known.into_iter().enumerate();
        let wanted = wanted.map(|(bit, (element, known))| Wanted {
            element,
            known,
            member: members >> bit & 1 == 1,
        });
        Some((wanted.collect(), walk))
    }

    fn stranger(&self, sketch: Sketch) -> Option<Stranger> {
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
                1 => Some(Stranger::Extra(element)),
                -1 => Some(Stranger::Missing(element)),
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
            Some(step) => step.after != Known::Out,
            None => self.history.initially[index],
        }
    }
}

/// The first of the steps after which all is as wanted: each is an element, what was known of it, and what is known then.
fn find(
    wanted: &[Wanted],
    mut steps: impl Iterator<Item = usize>,
    step: impl Fn(usize) -> (u32, Known, Known),
) -> Option<usize> {
    let against = |wanted: &&Wanted| !wanted.known.may_be(wanted.member);
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
