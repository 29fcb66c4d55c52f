//! Reads of one list, judged by ascending start beside the log.

use super::history::{History, Known};
use super::subset::{KEYS_MAX, Subset, subset};
use super::{Read, Sketch};
use crate::count::Extent;
use crate::{Span, Verdict};

pub(crate) struct Cursor<'a> {
    pub(super) history: &'a History,
    /// When the last read ended.
    end: u64,
    /// The position of its start.
    pub(super) at: usize,
    /// The position of its end.
    pub(super) until: usize,
    /// The freedoms at `at`.
    active: Vec<u32>,
    /// All elements free at some position of the read; a few of them, if they are more than can be told apart.
    pub(super) open: Vec<Open>,
    pub(super) too_many: bool,
    keys: Vec<u128>,
    /// Of `open`, those that the read saw in; None if that cannot be told.
    decoded: Option<u128>,
}

/// An element that was free during a read.
pub(super) struct Open {
    pub element: u32,
    /// When the read began.
    pub known: Known,
    freedom: u32,
    /// Free once only.
    once: bool,
}

/// The write that decides whether a free element is in, if one does, and what it adds to the size.
pub(crate) type Swing = (Option<usize>, i64);

/// How many open elements were in; those that one write decides, and whether it puts; how many others there are.
pub(crate) type OpenAt = (i64, Vec<(usize, bool)>, i64);

/// What a read of a list may be called.
pub(crate) struct Answer {
    /// Whether lists of this size were possible.
    pub size: Verdict,
    /// Each element at an instant of its own.
    pub apart: Verdict,
    /// All at one instant.
    pub whole: Verdict,
}

impl<'a> Cursor<'a> {
    pub fn new(history: &'a History) -> Cursor<'a> {
        Cursor {
            history,
            end: 0,
            at: 0,
            until: 0,
            active: Vec::new(),
            open: Vec::new(),
            too_many: false,
            keys: Vec::new(),
            decoded: None,
        }
    }

    /// Reads must come by ascending start.
    pub fn judge(&mut self, read: Read) -> Answer {
        self.seek(read.span);
        self.decoded = None;
        if self.open.is_empty() && !self.too_many {
            let certain = self.history.certain(self.at);
            let whole = verdict(certain == read.sketch);
            return Answer {
                size: verdict(certain.count == read.sketch.count),
                apart: whole,
                whole,
            };
        }
        let size = verdict(self.size_holds(read.sketch.count.into()));
        let rest = self.rest();
        let found = match read.sketch.count.checked_sub(rest.count) {
            _ if self.too_many => Subset::Undecided,
            Some(count) => subset(&self.keys, read.sketch.keys ^ rest.keys, count),
            None => Subset::None,
        };
        let (apart, whole) = match found {
            Subset::Is(members) => {
                self.decoded = Some(members);
                (Verdict::Acceptable, verdict(self.agrees_somewhere(members)))
            }
            Subset::Undecided if size == Verdict::Acceptable => {
                (Verdict::Undecided, Verdict::Undecided)
            }
            Subset::Undecided => (Verdict::Undecided, Verdict::Unacceptable),
            Subset::None => (Verdict::Unacceptable, Verdict::Unacceptable),
        };
        Answer { size, apart, whole }
    }

    /// Whether the list may have had so many elements; reads as for [`Cursor::judge`].
    pub fn judge_size(&mut self, span: Span, size: i64) -> Verdict {
        self.seek(span);
        self.decoded = None;
        let holds = self.size_holds(size);
        // At either end of what may be, all that was free is decided.
        let least = i64::from(self.rest().count);
        let all = self.open.len();
        if holds && !self.too_many && all > 0 {
            self.decoded = match size - least {
                0 => Some(0),
                more if more == all as i64 => Some(u128::MAX >> (KEYS_MAX - all)),
                _ => None,
            };
        }
        verdict(holds)
    }

    /// Of the last read: the writes of which it shows whether they had taken effect.
    pub fn told(&self) -> impl Iterator<Item = (usize, bool)> {
        let members = self.decoded;
        let open = self.open.iter().enumerate();
        open.filter_map(move |(bit, open)| {
            let freedom = &self.history.freedoms[open.freedom as usize];
            let member = members? >> bit & 1 == 1;
            self.decides(open)
                .then_some((freedom.write as usize, member == freedom.member))
        })
    }

    /// Of the last read, which had this size: how many of the open elements were in, those that one write alone decides, with whether it puts,
    /// and how many others there are. None if they are too many.
    pub fn open_at(&self, size: i64) -> Option<OpenAt> {
        if self.too_many {
            return None;
        }
        let decided: Vec<(usize, bool)> = self
            .open
            .iter()
            .filter(|open| self.decides(open))
            .map(|open| {
                let freedom = &self.history.freedoms[open.freedom as usize];
                (freedom.write as usize, freedom.member)
            })
            .collect();
        let others = (self.open.len() - decided.len()) as i64;
        Some((size - i64::from(self.rest().count), decided, others))
    }

    /// Whether one write alone decides of an element throughout the read.
    fn decides(&self, open: &Open) -> bool {
        open.once && self.end < self.history.freedoms[open.freedom as usize].alone_until
    }

    /// Moves to a read: `at`, `until`, `open` and `keys` are then its own.
    fn seek(&mut self, span: Span) {
        let log = &self.history.log;
        self.end = span.end;
        while let Some(step) = log.get(self.at)
            && (step.time, step.ends) < (span.start, true)
        {
            if step.after == Known::Free {
                self.active.push(step.freedom);
            } else if step.before == Known::Free {
                self.active.retain(|freedom| *freedom != step.freedom);
            }
            self.at += 1;
        }
        self.until = self.at
            + log[self.at..].partition_point(|step| (step.time, step.ends) < (span.end, true));
        self.open.clear();
        self.keys.clear();
        self.too_many = self.active.len() > KEYS_MAX;
        if self.too_many {
            return;
        }
        for freedom in &self.active {
            let element = self.history.freedoms[*freedom as usize].element;
            self.keys.push(self.history.keys[element as usize]);
            self.open.push(Open {
                element,
                known: Known::Free,
                freedom: *freedom,
                once: true,
            });
        }
        for step in &log[self.at..self.until] {
            if step.after != Known::Free {
                continue;
            }
            if let Some(open) = self
                .open
                .iter_mut()
                .find(|open| open.element == step.element)
            {
                open.once = false;
                continue;
            }
            if self.open.len() == KEYS_MAX {
                self.too_many = true;
                return;
            }
            self.keys.push(self.history.keys[step.element as usize]);
            self.open.push(Open {
                element: step.element,
                known: step.before,
                freedom: step.freedom,
                once: true,
            });
        }
    }

    /// What is certain when the read begins and stays so until it ends.
    pub(super) fn rest(&self) -> Sketch {
        let mut rest = self.history.certain(self.at);
        for (open, key) in self.open.iter().zip(&self.keys) {
            if open.known == Known::In {
                rest = rest.without(*key);
            }
        }
        rest
    }

    /// Neighbouring positions share a size, so those of a read are all from the least to the greatest.
    fn size_holds(&self, size: i64) -> bool {
        self.sizes().holds(size)
    }

    /// The instants at which writes begin that change what may be during the last read.
    pub fn begins(&self) -> impl Iterator<Item = u64> {
        let steps = self.history.log[self.at..self.until].iter();
        steps.filter(|step| !step.ends).map(|step| step.time)
    }

    /// The size that is certain at an instant of the last read, and what each free element may add to it, with the write that decides if one
    /// does. None if that is too much.
    pub fn at(&self, instant: u64) -> Option<(i64, Vec<Swing>)> {
        if self.too_many {
            return None;
        }
        let mut known: Vec<Known> = self.open.iter().map(|open| open.known).collect();
        let until = self.history.position(instant).clamp(self.at, self.until);
        for step in &self.history.log[self.at..until] {
            let open = self
                .open
                .iter()
                .position(|open| open.element == step.element)?;
            known[open] = step.after;
        }
        let mut certain = i64::from(self.rest().count);
        let mut free = Vec::new();
        for (open, known) in self.open.iter().zip(known) {
            let freedom = &self.history.freedoms[open.freedom as usize];
            match known {
                Known::In => certain += 1,
                Known::Out => {}
                Known::Free if !self.decides(open) => free.push((None, 1)),
                Known::Free if freedom.member => free.push((Some(freedom.write as usize), 1)),
                Known::Free => {
                    certain += 1;
                    free.push((Some(freedom.write as usize), -1));
                }
            }
        }
        Some((certain, free))
    }

    /// Whether the last list's elements may each be so, at instants of their own.
    pub fn is_apart(&self) -> bool {
        self.decoded.is_some()
    }

    /// Whether nothing changed during the last read.
    pub fn is_quiet(&self) -> bool {
        self.open.is_empty() && !self.too_many
    }

    /// The sizes possible during the last read.
    pub fn sizes(&self) -> Extent {
        self.history.sizes(self.at..self.until + 1)
    }

    /// Whether at one position of the read every open element may be as decoded.
    fn agrees_somewhere(&self, members: u128) -> bool {
        let wanted = |bit: usize| members >> bit & 1 == 1;
        let open = self.open.iter().enumerate();
        let mut against = open
            .filter(|(bit, open)| !open.known.may_be(wanted(*bit)))
            .count();
        let mut steps = self.history.log[self.at..self.until].iter();
        while against > 0 {
            let Some(step) = steps.next() else {
                return false;
            };
            let bit = self
                .open
                .iter()
                .position(|open| open.element == step.element);
            let bit = bit.expect("what changes during a read is free at some position of it");
            against -= usize::from(!step.before.may_be(wanted(bit)));
            against += usize::from(!step.after.may_be(wanted(bit)));
        }
        true
    }
}

fn verdict(holds: bool) -> Verdict {
    if holds {
        Verdict::Acceptable
    } else {
        Verdict::Unacceptable
    }
}
