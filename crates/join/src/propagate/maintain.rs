//! Maintenance: applies the change of a source row to the outputs that were computed from it.
//!
//! ```text
//! changed ──► updaters of each reading join ──► fan_out ──► (immediately)    see
//!                                                  └─ queue ──► step ──────► see
//! see:  a row of the value's source    changes output rows immediately (Output::apply), and so on downstream
//!       a row of a checked source      leaves a pending entry, applied when the range is read (see settle)
//!       an unread row                  has no effect: it will be read in its current state (see unread)
//! ```
//!
//! A change that affects more entries than the budget allows waits in its list's queue. A read of a fill first applies
//! the queued changes to the fill's entries, so it is correct meanwhile.

use crate::base::pattern::Binding;
use crate::base::rows::Value;
use crate::engine::Engine;
use crate::join::combine::{is_recomputed_later, key_matches};
use crate::join::updater::{Change, Entry, Event};
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::operators::Combination;
use crate::operators::output::{Effects, OutputChange};

/// A change of a source row, at one level of a join.
pub(crate) struct SourceChange<'a> {
    pub level: usize,
    pub key: &'a [u8],
    pub old: Option<&'a Value>,
    pub new: Option<&'a Value>,
}

/// Reused buffers, so that a write allocates only memory for its rows.
#[derive(Default)]
pub(crate) struct Scratch {
    lists: Vec<u32>,
    common: Option<Box<SharedState>>,
}

/// State shared by consecutive entries.
#[derive(Default)]
struct SharedState {
    /// The slots that the source key binds.
    binding: Binding,
    /// The end of the output key, for plain entries whose fills fix `suffix_elements` elements.
    suffix: Vec<u8>,
    suffix_elements: Option<u8>,
    key: Vec<u8>,
    each: Binding,
}

impl Engine {
    /// Applies a change of a row, which the table already contains, to all joins that read the table.
    pub(crate) fn propagate_change(
        &mut self,
        table: TableId,
        key: &[u8],
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        if self.tables[table].subscriptions > 0 {
            self.record_row_change(table, key, new.is_some());
        }
        for at in 0..self.tables[table].readers.len() {
            let (reader, level) = self.tables[table].readers[at];
            // A join that is being filled is out of its place. It has no node on rows that its own fill changes
            // upstream.
            self.with_join(reader, |engine, join| {
                engine.apply_source_change(join, usize::from(level), key, old, new);
            });
        }
    }

    fn apply_source_change(
        &mut self,
        join: &mut Join,
        level: usize,
        key: &[u8],
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let source = join.source(level);
        let admitted = |v: &&Value| !source.bounds_values() || source.admits(v.as_bytes());
        let (old, new) = (old.filter(admitted), new.filter(admitted));
        let is_value = level == join.last_level();
        if (old.is_none() && new.is_none()) || (!is_value && old.is_some() == new.is_some()) {
            return;
        }
        let mut found = std::mem::take(&mut self.writes.scratch.lists);
        let slots = &join.definition.slots;
        join.nodes
            .lists_for(level, key, &source.pattern, slots, |list| found.push(list));
        for &list in &found {
            self.fan_out(
                join,
                list,
                &SourceChange {
                    level,
                    key,
                    old,
                    new,
                },
            );
        }
        found.clear();
        self.writes.scratch.lists = found;
    }

    fn fan_out(&mut self, join: &mut Join, number: u32, seen: &SourceChange<'_>) {
        let is_auto = join.definition.mode == JoinMode::Auto && seen.level == join.last_level();
        if is_auto {
            self.writes.to_review.push((join.id, number));
            if !self.count_write(join, number) {
                return;
            }
        }
        let list = join.nodes.list_mut(seen.level, number);
        let len = list.entries.len();
        if list.queue.is_empty() && len <= self.budget.left() {
            self.budget.spend(len);
            // The effects of a change never add or remove entries of the same join.
            let entries = std::mem::take(&mut list.entries);
            self.apply_change(join, &entries, seen);
            join.nodes.list_mut(seen.level, number).entries = entries;
            return;
        }
        let change = Change {
            key: seen.key.into(),
            old: seen.old.cloned(),
            new: seen.new.cloned(),
        };
        self.enqueue(join, seen.level, number, Event::Row(change));
    }

    /// Applies a change to entries of one list.
    pub(crate) fn apply_change(
        &mut self,
        join: &mut Join,
        entries: &[Entry],
        seen: &SourceChange<'_>,
    ) {
        // Nested changes may need these buffers meanwhile; they then allocate their own.
        let mut common = self.writes.scratch.common.take().unwrap_or_default();
        common.binding.clear();
        common.suffix_elements = None;
        if key_matches(join, seen.level, seen.key, &mut common.binding) {
            self.apply_change_shared(join, entries, seen, &mut common);
        }
        self.writes.scratch.common = Some(common);
    }

    fn apply_change_shared(
        &mut self,
        join: &mut Join,
        entries: &[Entry],
        seen: &SourceChange<'_>,
        common: &mut SharedState,
    ) {
        if seen.level < join.last_level() {
            entries
                .iter()
                .for_each(|e| record_pending_row(join, *e, seen, common));
            return;
        }
        let is_recorded = self.is_read(join.table) || !join.tracked.is_empty();
        let mut effects = Effects {
            is_recorded,
            ..Effects::default()
        };
        if join.definition.shape.copies_rows() && !is_recorded {
            copy_to_all(join, entries, seen, common);
        } else {
            for entry in entries {
                apply_to_one(join, *entry, seen, common, &mut effects);
            }
        }
        self.finish_effects(join, effects);
    }

    /// Updates the rows of changed groups, and propagates the effects to the joins that read this output.
    pub(crate) fn finish_effects(&mut self, join: &mut Join, mut effects: Effects) {
        for (fill, group) in std::mem::take(&mut effects.touched) {
            if is_recomputed_later(join, Some(fill), &group) {
                continue;
            }
            if join.output.is_drained(&group) {
                join.mark_unsettled(fill).drained.insert(group);
            } else {
                join.output
                    .update_group_rows(&join.definition.shape, &group, &mut effects);
            }
        }
        for change in effects.changes {
            join.tracked.mark_stale(&change.key);
            self.propagate_output_change(join.table, join.id, &change);
        }
    }

    /// Propagates the change of an output row, if it is visible among the rows of the table's other joins.
    pub(crate) fn propagate_output_change(
        &mut self,
        table: TableId,
        maker: JoinId,
        change: &OutputChange,
    ) {
        let makers = &self.tables[table].makers;
        let Some(at) = makers.iter().position(|m| *m == maker) else {
            // The join was dropped, and is kept only for writers that wait for it. Its rows are invisible.
            return;
        };
        let (mut old, mut new) = (change.old.clone(), change.new.clone());
        if makers.len() > 1 {
            let holds = |&m: &JoinId| {
                self.joins
                    .get(m)
                    .is_some_and(|j| j.output.rows.get(&change.key).is_some())
            };
            if makers[..at].iter().any(holds) {
                return;
            }
            if let Some(&hidden) = makers[at + 1..].iter().find(|m| holds(m)) {
                let value = self.visible_in(hidden, &change.key);
                old = old.or_else(|| value.clone());
                new = new.or(value);
            }
        }
        if old.is_some() || new.is_some() {
            self.propagate_change(table, &change.key, old.as_ref(), new.as_ref());
        }
    }
}

/// Records that a row of a checked source was added or removed. The two cancel each other.
fn record_pending_row(
    join: &mut Join,
    entry: Entry,
    seen: &SourceChange<'_>,
    common: &mut SharedState,
) {
    if join.is_unread(seen.level, entry, seen.key) {
        return;
    }
    let inner = join.nodes.inner(entry.node());
    common.each.clear();
    common
        .each
        .unpack(inner.bound, &join.definition.slots, &inner.packed);
    let fresh = join.source(seen.level).pattern.slots & !inner.bound;
    if !key_matches(join, seen.level, seen.key, &mut common.each) {
        return;
    }
    common.key.clear();
    common
        .each
        .pack(fresh, &join.definition.slots, &mut common.key);
    let is_added = seen.new.is_some();
    join.record_pending(entry.fill, entry.node(), &common.key, is_added);
}

/// The fast path: copies a row to many outputs whose keys have the same end.
fn copy_to_all(
    join: &mut Join,
    entries: &[Entry],
    seen: &SourceChange<'_>,
    common: &mut SharedState,
) {
    let mut effects = Effects::default();
    for (number, entry) in entries.iter().enumerate() {
        prefetch(join, &entries[number..]);
        if !entry.is_plain() {
            apply_to_one(join, *entry, seen, common, &mut effects);
            continue;
        }
        let target = *join.fills.target(entry.fill);
        if common.suffix_elements != Some(target.elements) {
            write_suffix(join, target.elements, common);
        }
        if target.unsettled && join.is_unread(seen.level, *entry, seen.key) {
            continue;
        }
        if let (Some(group), Some(value)) = (target.group, seen.new)
            && target.holds(&common.suffix)
            && join
                .output
                .rows
                .put_in(group, &common.suffix, value)
                .is_some()
        {
            continue;
        }
        copy_to_one(join, *entry, seen, common);
    }
}

/// Prefetches memory that later entries need, in the order of its dependencies.
fn prefetch(join: &Join, entries: &[Entry]) {
    let group = |ahead: usize| {
        entries
            .get(ahead)
            .and_then(|e| join.fills.target(e.fill).group)
    };
    if let Some(entry) = entries.get(32) {
        larder_types::prefetch(join.fills.target(entry.fill));
    }
    if let Some(group) = group(24) {
        join.output.rows.prefetch(group);
    }
    if let Some(group) = group(16) {
        join.output.rows.prefetch_leaf(group);
    }
    if let Some(group) = group(8) {
        join.output.rows.prefetch_end(group);
    }
}

/// Copies or removes one row if the fast path does not apply.
fn copy_to_one(join: &mut Join, entry: Entry, seen: &SourceChange<'_>, common: &mut SharedState) {
    let fill = join.fills.get(entry.fill);
    common.key.clear();
    common.key.extend_from_slice(&fill.prefix);
    common.key.extend_from_slice(&common.suffix);
    if !fill.contains(&common.key) {
        return;
    }
    match seen.new {
        None => {
            join.output.rows.remove(&common.key);
        }
        Some(value) => {
            join.output.rows.put(&common.key, value);
            join.update_target(entry.fill);
        }
    }
}

/// Writes the part of the output key that the source key determines.
fn write_suffix(join: &Join, elements: u8, common: &mut SharedState) {
    common.suffix.clear();
    for element in &join.definition.shape.output.elements[usize::from(elements)..] {
        match element {
            crate::base::pattern::Element::Text(text) => common.suffix.extend_from_slice(text),
            crate::base::pattern::Element::Slot(id) => {
                common.suffix.extend_from_slice(common.binding.get(*id))
            }
        }
    }
    common.suffix_elements = Some(elements);
}

/// Applies a change of the value's row to one leaf.
fn apply_to_one(
    join: &mut Join,
    entry: Entry,
    seen: &SourceChange<'_>,
    common: &mut SharedState,
    effects: &mut Effects,
) {
    if join.is_unread(seen.level, entry, seen.key) {
        return;
    }
    if entry.is_plain() && join.definition.shape.rank.is_none() {
        let elements = join.fills.target(entry.fill).elements;
        if common.suffix_elements != Some(elements) {
            write_suffix(join, elements, common);
        }
        common.key.clear();
        common
            .key
            .extend_from_slice(&join.fills.get(entry.fill).prefix);
        common.key.extend_from_slice(&common.suffix);
    } else if !write_key(join, entry, seen, common) {
        return;
    }
    let fill = join.fills.get(entry.fill);
    if !fill.contains(&common.key) || is_recomputed_later(join, Some(entry.fill), &common.key) {
        return;
    }
    let combination = Combination {
        key: &common.key,
        source_key: seen.key,
        binding: &common.each,
        fill: entry.fill,
    };
    join.output.apply(
        &join.definition.shape,
        combination,
        seen.old,
        seen.new,
        effects,
    );
}

/// Writes the output key of a leaf whose slots are not all in the source key. Returns `false` if the row does not
/// match.
fn write_key(join: &Join, entry: Entry, seen: &SourceChange<'_>, common: &mut SharedState) -> bool {
    let definition = &join.definition;
    let fill = join.fills.get(entry.fill);
    common.each.clear();
    common
        .each
        .unpack(fill.fixed, &definition.slots, &fill.packed);
    if let Some(context) = join.nodes.context(join.nodes.leaf(entry.node())) {
        common
            .each
            .unpack(context.slots, &definition.slots, &context.packed);
    }
    if !key_matches(join, seen.level, seen.key, &mut common.each) {
        return false;
    }
    common.key.clear();
    if definition.shape.rank.is_some() {
        definition
            .shape
            .output
            .write_prefix(&common.each, &mut common.key);
    } else {
        definition.shape.output.write(&common.each, &mut common.key);
    }
    true
}
