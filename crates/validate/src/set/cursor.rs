//! Validates the reads of one list in ascending order of their starts, while advancing through the log.

use super::history::{History, Membership};
use super::subset::{KEYS_MAX, Subset, subset};
use super::{Read, Sketch};
use crate::count::Extent;
use crate::{Span, Verdict};

pub(crate) struct Cursor<'a> {
    pub(super) history: &'a History,
    /// The end of the last read.
    end: u64,
    /// The position of its start.
    pub(super) at: usize,
    /// The position of its end.
    pub(super) until: usize,
    /// The freedoms at `at`.
    active: Vec<u32>,
    /// All elements that are free at some position of the read; incomplete if there are too many to decode.
    pub(super) open: Vec<Open>,
    pub(super) too_many: bool,
    keys: Vec<u128>,
    /// The members of `open` that the read saw; `None` if they cannot be determined.
    decoded: Option<u128>,
}

/// An element that was free during a read.
pub(super) struct Open {
    pub element: u32,
    /// Its state at the read's start.
    pub known: Membership,
    freedom: u32,
    /// True if it became free only once.
    once: bool,
}

/// The write that decides the membership of a free element, if there is one, and its effect on the size.
pub(crate) type Swing = (Option<usize>, i64);

/// The number of open elements that were members; the elements that one write decides, and whether it adds them; the
/// number of other elements.
pub(crate) type OpenAt = (i64, Vec<(usize, bool)>, i64);

/// The verdicts on a read of a list.
pub(crate) struct ListVerdicts {
    /// The verdict on the size of the list.
    pub size: Verdict,
    /// The verdict on the elements, each at an instant of its own.
    pub apart: Verdict,
    /// The verdict on all elements together, at one instant.
    pub joint: Verdict,
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

    /// Validates a read. Reads must come in ascending order of their starts.
    pub fn judge(&mut self, read: Read) -> ListVerdicts {
        self.seek(read.span);
        self.decoded = None;
        if self.open.is_empty() && !self.too_many {
            let certain = self.history.certain(self.at);
            let joint = verdict(certain == read.sketch);
            return ListVerdicts {
                size: verdict(certain.count == read.sketch.count),
                apart: joint,
                joint,
            };
        }
        let size = verdict(self.size_holds(read.sketch.count.into()));
        let rest = self.rest();
        let found = match read.sketch.count.checked_sub(rest.count) {
            _ if self.too_many => Subset::Undecided,
            Some(count) => subset(&self.keys, read.sketch.keys ^ rest.keys, count),
            None => Subset::None,
        };
        let (apart, joint) = match found {
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
        ListVerdicts { size, apart, joint }
    }

    /// Validates a read of the list's size. The order of reads is as for [`Cursor::judge`].
    pub fn judge_size(&mut self, span: Span, size: i64) -> Verdict {
        self.seek(span);
        self.decoded = None;
        let holds = self.size_holds(size);
        // The minimum and the maximum size determine the state of all free elements.
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

    /// Returns the writes for which the last read reveals whether they had taken effect.
    pub fn revealed(&self) -> impl Iterator<Item = (usize, bool)> {
        let members = self.decoded;
        let open = self.open.iter().enumerate();
        open.filter_map(move |(bit, open)| {
            let freedom = &self.history.freedoms[open.freedom as usize];
            let member = members? >> bit & 1 == 1;
            self.decides(open)
                .then_some((freedom.write as usize, member == freedom.member))
        })
    }

    /// Returns, for the last read, which had this size: the number of open elements that were members, the elements
    /// that a single write decides with whether it adds them, and the number of other elements. `None` if there are
    /// too many.
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

    /// Returns whether a single write decides the membership of an element throughout the read.
    fn decides(&self, open: &Open) -> bool {
        open.once && self.end < self.history.freedoms[open.freedom as usize].alone_until
    }

    /// Moves to a read and updates `at`, `until`, `open` and `keys`.
    fn seek(&mut self, span: Span) {
        let log = &self.history.log;
        self.end = span.end;
        while let Some(step) = log.get(self.at)
            && (step.time, step.ends) < (span.start, true)
        {
            if step.after == Membership::Free {
                self.active.push(step.freedom);
            } else if step.before == Membership::Free {
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
                known: Membership::Free,
                freedom: *freedom,
                once: true,
            });
        }
        for step in &log[self.at..self.until] {
            if step.after != Membership::Free {
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

    /// Returns the elements that are certainly in the list throughout the read.
    pub(super) fn rest(&self) -> Sketch {
        let mut rest = self.history.certain(self.at);
        for (open, key) in self.open.iter().zip(&self.keys) {
            if open.known == Membership::In {
                rest = rest.without(*key);
            }
        }
        rest
    }

    /// Returns whether the size was possible. Adjacent positions have a size in common, so the sizes of a read are
    /// all those from the minimum to the maximum.
    fn size_holds(&self, size: i64) -> bool {
        self.sizes().holds(size)
    }

    /// Returns the start instants of writes that change the possible states during the last read.
    pub fn begins(&self) -> impl Iterator<Item = u64> {
        let steps = self.history.log[self.at..self.until].iter();
        steps.filter(|step| !step.ends).map(|step| step.time)
    }

    /// Returns the certain size at an instant of the last read, and the possible contribution of each free element,
    /// with the write that decides it, if there is one. `None` if there are too many.
    pub fn at(&self, instant: u64) -> Option<(i64, Vec<Swing>)> {
        if self.too_many {
            return None;
        }
        let mut known: Vec<Membership> = self.open.iter().map(|open| open.known).collect();
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
                Membership::In => certain += 1,
                Membership::Out => {}
                Membership::Free if !self.decides(open) => free.push((None, 1)),
                Membership::Free if freedom.member => free.push((Some(freedom.write as usize), 1)),
                Membership::Free => {
                    certain += 1;
                    free.push((Some(freedom.write as usize), -1));
                }
            }
        }
        Some((certain, free))
    }

    /// Returns whether the elements of the last list were each possible, at instants of their own.
    pub fn is_apart(&self) -> bool {
        self.decoded.is_some()
    }

    /// Returns whether nothing changed during the last read.
    pub fn is_quiet(&self) -> bool {
        self.open.is_empty() && !self.too_many
    }

    /// Returns the sizes that were possible during the last read.
    pub fn sizes(&self) -> Extent {
        self.history.sizes(self.at..self.until + 1)
    }

    /// Returns whether at one position of the read all open elements may have the decoded state.
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
            let bit =
                bit.expect("an element that changes during a read is free at some position of it");
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
