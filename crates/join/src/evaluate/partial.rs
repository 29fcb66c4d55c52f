//! Partial fills: for a read with a limit, only the part of the range that the limit needs is filled, from either end.
//!
//! ```text
//!   RANGE t|ann| t|ann} REV LIMIT 20        t|ann| ............ cut ######### t|ann}
//!                                                  not filled          filled
//!   the next page, from the last row down   t|ann| .... cut ############      and so on: each continues where the last ended
//! ```
//!
//! 1. The cut is found by examining, in output order, the first source rows of each range that the join would read.
//!    Their order is the output order if the output's first slot without a fixed value is the last source's first such
//!    slot, and has a width. Otherwise, or if too many rows would be examined, the complete range is filled.
//! 2. The result determines only how far to fill. Rows are read after that part is filled and settled. If there are too
//!    few rows then (others precede them, or are invalid), more is filled.
//! 3. Each part is about as large as the filled part next to it, so a range that is read page by page is divided into
//!    few parts.

use std::collections::BTreeSet;

use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::pattern::{Binding, Element, SlotBounds};
use crate::engine::Engine;
use crate::join::combine::row_matches;
use crate::join::{Join, TableId};
use crate::tables::scan::Limits;
use crate::tables::scan::View;

/// The extent of a read's fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FillExtent {
    /// Also what the next read is likely to need (see `view::fillable`).
    #[default]
    Widened,
    /// Only the requested range.
    Exact,
}

impl FillExtent {
    /// Returns the extent for `part` of a requested range.
    pub fn of_part(part: &KeyRange, full_range: &KeyRange) -> FillExtent {
        if part == full_range {
            FillExtent::Widened
        } else {
            FillExtent::Exact
        }
    }
}

/// Maximum number of source rows examined, if reads have no other limit.
const PROBE_ROWS_MAX: usize = 65_536;

/// Maximum size of a part, as a multiple of the requested rows.
const GROWTH_MAX: u64 = 64;

/// The result of examining source rows.
enum CutPoint {
    /// The key at which to cut: an upper bound in ascending reads, a lower bound in descending ones.
    At(Box<[u8]>),
    /// The complete range is necessary.
    FullRange,
    /// A source range is missing.
    SourceMissing,
}

/// The first output keys of a range, in the order of the read.
struct Probe<'a> {
    range: &'a KeyRange,
    bounds: SlotBounds,
    /// Length of the key prefix that determines a key's order.
    prefix_len: usize,
    reverse: bool,
    keys_max: usize,
    keys: BTreeSet<Box<[u8]>>,
    left: usize,
    is_source_missing: bool,
}

impl Engine {
    /// Number of reads that were answered from a part of their range.
    pub fn partial_reads(&self) -> u64 {
        self.reads.partial_reads
    }

    /// Returns the part of an output range that must be prepared for `rows` rows from one end, or the complete range if
    /// that is unknown. Returns `None` if source ranges are missing; they are recorded.
    pub(crate) fn plan_part(
        &mut self,
        table: TableId,
        range: &KeyRange,
        rows: u64,
        reverse: bool,
    ) -> Option<KeyRange> {
        let mut part = range.clone();
        for at in 0..self.tables[table].makers.len() {
            let maker = self.tables[table].makers[at];
            let found = self.with_join(maker, |engine, join| {
                engine.find_cut(join, range, rows, reverse)
            });
            let found = found.expect("invariant: joins form no cycle");
            // Each cut leaves one join enough rows, and the nearest cut is enough for the merged result.
            match found {
                CutPoint::At(cut) if reverse => part.lo = part.lo.max(cut),
                CutPoint::At(cut) => part.hi = part.hi.min(cut),
                CutPoint::FullRange => {}
                CutPoint::SourceMissing => return None,
            }
        }
        Some(part)
    }

    /// Returns whether a prepared range has at least `rows` visible rows.
    pub(crate) fn has_visible_rows(
        &self,
        table: TableId,
        range: &KeyRange,
        view: &View,
        rows: u64,
    ) -> bool {
        let (mut shown, limits) = (0, Limits::first(rows));
        let _ = self.output_rows(table, range, view, limits, &mut |_, _| {
            shown += 1;
            Flow::Continue(())
        });
        shown >= rows
    }

    /// Determines how far a join must be filled to contribute `rows` rows.
    fn find_cut(&mut self, join: &Join, range: &KeyRange, rows: u64, reverse: bool) -> CutPoint {
        let edge = join.fills.status().edge(range, reverse);
        let (filled, rest) = if reverse {
            (
                KeyRange::new(&edge, &range.hi),
                KeyRange::new(&range.lo, &edge),
            )
        } else {
            (
                KeyRange::new(&range.lo, &edge),
                KeyRange::new(&edge, &range.hi),
            )
        };
        let stored = &join.output.rows;
        let mut cursor = stored.cursor(&filled.lo, &filled.hi, reverse);
        for row in 1..=rows {
            match cursor.next() {
                None => break,
                Some((key, _)) if row == rows && reverse => return CutPoint::At(key.into()),
                Some((key, _)) if row == rows => return CutPoint::At(KeyRange::point(key).hi),
                Some(_) => {}
            }
        }
        if rest.is_empty() {
            return CutPoint::FullRange;
        }
        let stored_rows = stored.count(&filled.lo, &filled.hi);
        // Invariant 3: the filled part beyond the start of the read counts too.
        let rows_outside = if reverse {
            KeyRange::new(&range.hi, &[0xff])
        } else {
            KeyRange::new(&[], &range.lo)
        };
        let edge = join.fills.status().edge(&rows_outside, !reverse);
        let rows_outside = if reverse {
            stored.count(&range.hi, &edge)
        } else {
            stored.count(&edge, &range.lo)
        };
        let least = (stored_rows + rows_outside).min(rows.saturating_mul(GROWTH_MAX));
        let keys_max = rows.saturating_sub(stored_rows).max(least);
        self.probe(
            join,
            &rest,
            usize::try_from(keys_max).unwrap_or(usize::MAX),
            reverse,
        )
    }

    fn probe(&mut self, join: &Join, range: &KeyRange, keys_max: usize, reverse: bool) -> CutPoint {
        let mut binding = Binding::default();
        let Some(mut look) = self.prepare_probe(join, range, keys_max, reverse, &mut binding)
        else {
            return CutPoint::FullRange;
        };
        let is_all = self.probe_level(join, &mut look, 0, &mut binding);
        if look.is_source_missing {
            return CutPoint::SourceMissing;
        }
        let last = if reverse {
            look.keys.first()
        } else {
            look.keys.last()
        };
        match last.filter(|_| is_all && look.keys.len() >= keys_max) {
            None => CutPoint::FullRange,
            Some(last) => {
                let prefix = &last[..look.prefix_len];
                CutPoint::At(if reverse {
                    prefix.into()
                } else {
                    successor(prefix).into()
                })
            }
        }
    }

    /// Prepares the examination if invariant 1 allows it.
    fn prepare_probe<'a>(
        &self,
        join: &Join,
        range: &'a KeyRange,
        wanted: usize,
        reverse: bool,
        binding: &mut Binding,
    ) -> Option<Probe<'a>> {
        let (definition, last) = (&join.definition, join.last_level());
        let bounds = definition
            .shape
            .output
            .constrain(range, &definition.slots, binding)?
            .bounds;
        let bounds = bounds.filter(|_| definition.shape.rank.is_none())?;
        let is_base = |table: &TableId| self.tables[*table].makers.is_empty();
        if !join.tables.iter().all(is_base) || wanted == 0 {
            return None;
        }
        let before = (0..last).map(|level| join.source(level).pattern.slots);
        let bound = before.fold(binding.bound, |bound, slots| bound | slots);
        let pattern = &join.source(last).pattern;
        let next = pattern.elements.get(pattern.elements_bound(bound))?;
        if *next != Element::Slot(bounds.slot) {
            return None;
        }
        let mut prefix = Vec::new();
        definition.shape.output.write_prefix(binding, &mut prefix);
        let width = definition.slots[bounds.slot as usize].width?;
        let rows = self
            .step_limits
            .read_rows
            .map_or(PROBE_ROWS_MAX, |rows| rows * 8);
        Some(Probe {
            range,
            prefix_len: prefix.len() + width,
            bounds,
            reverse,
            keys_max: wanted,
            keys: BTreeSet::new(),
            left: rows,
            is_source_missing: false,
        })
    }

    /// Examines the rows of one level's source. Returns `false` if it did not examine all rows that may be among the
    /// first.
    fn probe_level(
        &mut self,
        join: &Join,
        probe: &mut Probe<'_>,
        level: usize,
        binding: &mut Binding,
    ) -> bool {
        let table = join.tables[level];
        let range = join
            .source(level)
            .pattern
            .range(binding, Some(&probe.bounds));
        let has_all_rows = self.has_replicas(table, &range);
        let view = self
            .view(table, &range, self.time.now)
            .filter(|_| has_all_rows);
        let Some(view) = view else {
            probe.is_source_missing = true;
            return false;
        };
        if level == join.last_level() {
            return self.probe_last_level(join, probe, level, binding, &range);
        }
        let slots = &join.definition.slots;
        let fresh = join.source(level).pattern.slots & !binding.bound;
        let (mut found, mut ends, mut is_all) = (Vec::new(), Vec::new(), true);
        self.scan(table, &range, &view, &mut |key, value| {
            if probe.left == 0 {
                is_all = false;
                return Flow::Break(());
            }
            probe.left -= 1;
            let mark = binding.mark();
            if row_matches(join, level, key, value, binding) {
                binding.pack(fresh, slots, &mut found);
                ends.push(found.len());
            }
            binding.reset(mark);
            Flow::Continue(())
        });
        let mut start = 0;
        for end in ends {
            let mark = binding.mark();
            binding.unpack(fresh, slots, &found[start..end]);
            start = end;
            is_all = is_all && self.probe_level(join, probe, level + 1, binding);
            binding.reset(mark);
            if !is_all && !probe.is_source_missing {
                return false;
            }
            // Continue, so that all missing ranges are requested together.
            is_all |= probe.is_source_missing;
        }
        is_all
    }

    /// Examines the first rows of the last source's range.
    fn probe_last_level(
        &mut self,
        join: &Join,
        probe: &mut Probe<'_>,
        level: usize,
        binding: &mut Binding,
        range: &KeyRange,
    ) -> bool {
        let before = probe.left;
        let output = &join.definition.shape.output;
        let (mut is_all, mut text) = (true, Vec::new());
        let scanned = self.scan_base(
            join.tables[level],
            range,
            probe.reverse,
            &mut |key, value| {
                if probe.left == 0 {
                    is_all = false;
                    return Flow::Break(());
                }
                probe.left -= 1;
                let mark = binding.mark();
                let mut flow = Flow::Continue(());
                if row_matches(join, level, key, value, binding) {
                    text.clear();
                    output.write(binding, &mut text);
                    if probe.range.contains(&text) {
                        flow = probe.record(&text);
                    }
                }
                binding.reset(mark);
                flow
            },
        );
        self.reads.rows_read += (before - probe.left) as u64;
        is_all && scanned
    }

    /// Scans a base table in either direction. Returns `false` if its rows are not all present or cannot be read in
    /// that order.
    fn scan_base(
        &self,
        table: TableId,
        range: &KeyRange,
        reverse: bool,
        each: &mut dyn FnMut(&[u8], &crate::base::rows::Value) -> Flow,
    ) -> bool {
        let state = &self.tables[table];
        match (&state.replicas, &self.sharding.own) {
            (Some(replicas), Some(shard)) => {
                return replicas.scan_from(shard, &state.rows, range, reverse, each);
            }
            _ => _ = state.rows.scan(&range.lo, &range.hi, reverse, each),
        }
        true
    }
}

impl Probe<'_> {
    /// Records a row's key. Breaks if later rows of the same range cannot be among the first.
    fn record(&mut self, key: &[u8]) -> Flow {
        if self.keys.len() >= self.keys_max {
            let last = if self.reverse {
                self.keys.first()
            } else {
                self.keys.last()
            };
            let last = last.expect("there are some").clone();
            let (known, new) = (&last[..self.prefix_len], &key[..self.prefix_len]);
            let is_later = if self.reverse {
                new < known
            } else {
                new > known
            };
            if is_later {
                return Flow::Break(());
            }
            let is_better = if self.reverse {
                *key > *last
            } else {
                *key < *last
            };
            if is_better && self.keys.insert(key.into()) {
                self.keys.remove(&last);
            }
            return Flow::Continue(());
        }
        self.keys.insert(key.into());
        Flow::Continue(())
    }
}
