//! The regions that a search contacts: one set of cells for each dimension.

use std::ops::RangeInclusive;

use super::Region;
use super::cut::Cells;

/// A set of cells of one dimension, as ascending runs that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CellSet {
    runs: Vec<Cells>,
}

impl CellSet {
    pub fn all(bits: u8) -> CellSet {
        let last = ((1u32 << bits) - 1) as u16;
        CellSet::of([Cells { first: 0, last }])
    }

    /// Returns the union of these runs, in any order.
    pub fn of(runs: impl IntoIterator<Item = Cells>) -> CellSet {
        let mut sorted: Vec<Cells> = runs.into_iter().filter(|it| it.first <= it.last).collect();
        sorted.sort_unstable();
        let mut runs: Vec<Cells> = Vec::with_capacity(sorted.len());
        for run in sorted {
            match runs.last_mut() {
                Some(before) if u32::from(run.first) <= u32::from(before.last) + 1 => {
                    before.last = before.last.max(run.last);
                }
                _ => runs.push(run),
            }
        }
        CellSet { runs }
    }

    pub fn runs(&self) -> &[Cells] {
        &self.runs
    }

    pub fn count(&self) -> u32 {
        self.runs.iter().map(|run| run.count()).sum()
    }

    pub fn contains(&self, cell: u16) -> bool {
        let after = self.runs.partition_point(|run| run.first <= cell);
        after > 0 && cell <= self.runs[after - 1].last
    }

    /// Returns the cell at this index, which must be below `count`.
    fn nth(&self, mut index: u32) -> u16 {
        for run in &self.runs {
            if index < run.count() {
                return run.first + index as u16;
            }
            index -= run.count();
        }
        unreachable!("the index is below the count");
    }
}

/// The regions whose cells are in the sets of all dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contacts {
    /// The bits and the cells of each dimension, outermost first.
    sets: Vec<(u8, CellSet)>,
}

impl Contacts {
    pub fn new(sets: Vec<(u8, CellSet)>) -> Contacts {
        Contacts { sets }
    }

    /// Returns the bits and the cells of each dimension, outermost first.
    pub fn sets(&self) -> &[(u8, CellSet)] {
        &self.sets
    }

    pub fn count(&self) -> u32 {
        self.sets.iter().map(|(_, set)| set.count()).product()
    }

    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    pub fn contains(&self, region: Region) -> bool {
        let mut rest = region.0;
        self.sets.iter().rev().all(|(bits, set)| {
            let cell = rest & ((1 << bits) - 1);
            rest >>= bits;
            set.contains(cell)
        })
    }

    /// Returns the regions as ascending runs that do not touch. The work for each run is proportional to the number of
    /// dimensions.
    pub fn runs(&self) -> Runs<'_> {
        // Trailing dimensions whose cells are all contacted do not split runs.
        let is_complete = |(bits, set): &(u8, CellSet)| set.count() == 1 << bits;
        let complete = self
            .sets
            .iter()
            .rev()
            .take_while(|set| is_complete(set))
            .count();
        let (some, complete) = self.sets.split_at(self.sets.len() - complete);
        let (outer, inner) = match some.split_last() {
            Some((inner, outer)) => (outer, Some(inner)),
            None => (&[][..], None),
        };
        Runs {
            outer,
            inner,
            whole_bits: complete.iter().map(|(bits, _)| bits).sum(),
            prefixes: outer.iter().map(|(_, set)| set.count()).product(),
            prefix: 0,
            run: 0,
            ready: None,
        }
    }

    /// Returns each region, in ascending order.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.runs().flatten().map(Region)
    }
}

/// See [`Contacts::runs`].
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    outer: &'a [(u8, CellSet)],
    /// The last dimension whose cells are not all contacted, if there is one.
    inner: Option<&'a (u8, CellSet)>,
    whole_bits: u8,
    prefixes: u32,
    prefix: u32,
    run: usize,
    /// A run that the next one may continue.
    ready: Option<(u16, u16)>,
}

impl Runs<'_> {
    fn next_piece(&mut self) -> Option<(u16, u16)> {
        let Some((bits, set)) = self.inner else {
            let is_first = self.prefix == 0;
            self.prefix = 1;
            return is_first.then(|| (0, ((1u32 << self.whole_bits) - 1) as u16));
        };
        if set.runs.is_empty() || self.prefix == self.prefixes {
            return None;
        }
        let mut index = self.prefix;
        let (mut base, mut shift) = (0, *bits);
        for (bits, set) in self.outer.iter().rev() {
            base |= u32::from(set.nth(index % set.count())) << shift;
            index /= set.count();
            shift += bits;
        }
        let run = set.runs[self.run];
        self.run += 1;
        if self.run == set.runs.len() {
            self.run = 0;
            self.prefix += 1;
        }
        let first = (base | u32::from(run.first)) << self.whole_bits;
        let end = (base | u32::from(run.last)) + 1;
        Some((first as u16, ((end << self.whole_bits) - 1) as u16))
    }
}

impl Iterator for Runs<'_> {
    type Item = RangeInclusive<u16>;

    fn next(&mut self) -> Option<RangeInclusive<u16>> {
        loop {
            let piece = self.next_piece();
            match (self.ready.take(), piece) {
                (None, None) => return None,
                (Some((first, last)), None) => return Some(first..=last),
                (None, piece) => self.ready = piece,
                (Some((first, last)), Some((next, end))) => {
                    if u32::from(next) == u32::from(last) + 1 {
                        self.ready = Some((first, end));
                    } else {
                        self.ready = Some((next, end));
                        return Some(first..=last);
                    }
                }
            }
        }
    }
}
