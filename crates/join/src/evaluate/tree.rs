//! Creates the nodes of an evaluation, and removes them with the rows computed from them.
//!
//! 1. A node, its entry in an updater list, its place in the parent's children and its pin on the source range are
//!    created and removed together.

use std::collections::BTreeMap;

use crate::base::key_range::{Flow, KeyRange};
use crate::base::pattern::{Binding, Element, ids};
use crate::engine::Engine;
use crate::join::combine::{apply_combination, row_matches};
use crate::join::fills::NO_NODE;
use crate::join::node::{Children, Context, Inner};
use crate::join::nodes::ListKey;
use crate::join::run::Run;
use crate::join::{Join, JoinId, TableId};
use crate::propagate::auto::bind_leaf;
use crate::tables::scan::View;

impl Engine {
    /// Creates a node and its updater entry for one level of a maintained evaluation.
    pub(crate) fn create_node(
        &mut self,
        join: &mut Join,
        run: &Run,
        level: usize,
        binding: &Binding,
        range: &KeyRange,
    ) -> u32 {
        let fill = run.fill.expect("invariant: nodes belong to fills");
        let definition = &join.definition;
        let source = join.source(level);
        let mut prefix = Vec::new();
        let elements = source.pattern.write_prefix(binding, &mut prefix);
        let is_last = level == join.last_level();
        let list = ListKey {
            prefix: &prefix,
            elements,
            now: self.time.ticks,
        };
        let mut packed = Vec::new();
        let node = if is_last {
            let fixed = join.fills.get(fill).fixed;
            let derived = prefix_slots(join, level, elements);
            let needed = definition.shape.output.slots | source.pattern.slots;
            let slots = binding.bound & needed & !fixed & !derived;
            let rest = output_slots_from(join, run.elements);
            let is_plain = slots == 0
                && rest & !source.pattern.slots == 0
                && source.pattern.slots & fixed & !derived == 0;
            binding.pack(slots, &definition.slots, &mut packed);
            let packed = packed.into();
            let context = (slots != 0).then_some(Context { slots, packed });
            join.nodes.add_leaf(fill, context, is_plain, &list)
        } else {
            binding.pack(binding.bound, &definition.slots, &mut packed);
            let fresh = source.pattern.slots & !binding.bound;
            let inner = Inner {
                fill,
                level: level as u8,
                list: u32::MAX,
                position: 0,
                bound: binding.bound,
                packed: packed.into(),
                children: Children::new(fresh, &definition.slots),
            };
            join.nodes.add_inner(inner, &list)
        };
        self.pin(join.tables[level], range, 1);
        node
    }

    /// Removes a node and its descendants from the lists; with `retracts`, also their rows from the output.
    pub(crate) fn drop_node(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        level: usize,
        node: u32,
        binding: &mut Binding,
        retracts: bool,
    ) {
        if node == NO_NODE {
            return;
        }
        let range = join
            .source(level)
            .pattern
            .range(binding, run.bounds.as_ref());
        let unread = run
            .fill
            .and_then(|fill| join.fills.take_unread(fill, level, node));
        if level == join.last_level() {
            if let Some(fill) = run.fill {
                join.fills.get_mut(fill).pulled.retain(|l| *l != node);
            }
            join.nodes.remove_leaf(node);
            if retracts {
                let view = View::default();
                let read = match unread {
                    Some(from) => KeyRange::new(&range.lo, range.hi.as_ref().min(&from)),
                    None => range.clone(),
                };
                self.scan(join.tables[level], &read, &view, &mut |key, value| {
                    let mark = binding.mark();
                    if row_matches(join, level, key, value, binding) {
                        apply_combination(join, run, binding, key, Some(value), -1);
                    }
                    binding.reset(mark);
                    Flow::Continue(())
                });
            }
        } else {
            let inner = join.nodes.remove_inner(node);
            join.fills.drop_pending(inner.fill, node);
            let fresh = join.source(level).pattern.slots & !binding.bound;
            let width = ids(fresh)
                .filter_map(|s| join.definition.slots[s as usize].width)
                .sum();
            inner.children.drain(width, |packed, child| {
                let mark = binding.mark();
                binding.unpack(fresh, &join.definition.slots, packed);
                self.drop_node(join, run, level + 1, child, binding, retracts);
                binding.reset(mark);
            });
        }
        self.pin(join.tables[level], &range, -1);
    }

    /// Changes the pin count of the filled or supplied ranges that a node was computed from.
    fn pin(&mut self, table: TableId, range: &KeyRange, change: i32) {
        let state = &mut self.tables[table];
        if let Some(supplied) = &mut state.supplied {
            supplied.pin(range, change);
        }
        if let (Some(replicas), Some(shard)) = (&mut state.replicas, &self.sharding.own) {
            replicas.pin(shard, range, change);
        }
        for at in 0..self.tables[table].makers.len() {
            let maker = self.tables[table].makers[at];
            let Some(join) = self.joins.get_mut(maker) else {
                continue;
            };
            for fill in join.fills.status().overlapping(&range.lo, &range.hi) {
                join.fills.pin(fill, change);
            }
        }
    }
}

impl Engine {
    /// Checks the invariants of all joins, which hold between operations, and that the pins of each fill are those of
    /// the nodes that were computed from it and of its subscriptions.
    ///
    /// # Panics
    /// An invariant is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let mut pins: BTreeMap<(JoinId, u32), u32> = BTreeMap::new();
        for join in self.joins.all() {
            join.check();
            for level in 0..=join.last_level() {
                let lists = join.nodes.lists(level);
                for entry in lists.flat_map(|(_, list)| &list.entries) {
                    let mut binding = Binding::default();
                    bind_node(join, level, entry.fill, entry.node(), &mut binding);
                    let bounds = join.fills.get(entry.fill).bounds.as_ref();
                    let range = join.source(level).pattern.range(&binding, bounds);
                    for &maker in &self.tables[join.tables[level]].makers {
                        let maker = self.joins.get(maker).expect("no join is checked out");
                        for fill in maker.fills.status().overlapping(&range.lo, &range.hi) {
                            *pins.entry((maker.id, fill)).or_default() += 1;
                        }
                    }
                }
            }
        }
        for pin in self.subscriptions.all.values().flat_map(|it| &it.pins) {
            if self.is_pin_valid(*pin) {
                *pins.entry((pin.join, pin.fill)).or_default() += 1;
            }
        }
        for join in self.joins.live() {
            for (number, fill) in join.fills.iter() {
                let expected = pins.get(&(join.id, number)).copied().unwrap_or(0);
                assert_eq!(
                    fill.pins(),
                    expected,
                    "pins of fill {number} of {}",
                    join.name
                );
            }
        }
    }
}

/// Restores the binding with which a node was reached.
pub(crate) fn bind_node(join: &Join, level: usize, fill: u32, node: u32, binding: &mut Binding) {
    if level == join.last_level() {
        bind_leaf(join, fill, node, binding);
    } else {
        let inner = join.nodes.inner(node);
        binding.unpack(inner.bound, &join.definition.slots, &inner.packed);
    }
}

/// The slots in the first elements of a source's pattern.
fn prefix_slots(join: &Join, level: usize, elements: usize) -> u32 {
    slots_of(&join.source(level).pattern.elements[..elements])
}

fn output_slots_from(join: &Join, elements: usize) -> u32 {
    let end = join
        .definition
        .shape
        .rank
        .map_or(join.definition.shape.output.elements.len(), |r| r.element);
    slots_of(&join.definition.shape.output.elements[elements.min(end)..end])
}

fn slots_of(elements: &[Element]) -> u32 {
    elements.iter().fold(0, |set, e| match e {
        Element::Slot(id) => set | 1 << id,
        Element::Text(_) => set,
    })
}

/// Returns whether a new leaf is in pull mode, where reads copy its rows. The leaf reflects all changes that are queued
/// in its list.
pub(crate) fn is_pulled(join: &Join, leaf: u32) -> bool {
    let number = join.nodes.leaf(leaf).list;
    let list = join.nodes.list(join.last_level(), number);
    list.is_pulled(list.queue.len())
}
