//! Creates the nodes of an evaluation, and removes them with the rows computed from them.
//!
//! 1. A node, its entry in an updater list, its place in the parent's children and its pin on the source range are
//!    created and removed together.

use crate::base::key_range::{Flow, KeyRange};
use crate::base::pattern::{Binding, Element, ids};
use crate::engine::Engine;
use crate::join::combine::{apply_combination, row_matches};
use crate::join::node::{Children, Context, Inner, Leaf, NO_CONTEXT};
use crate::join::run::Run;
use crate::join::updater::Entry;
use crate::join::{Join, NO_NODE, TableId, pending_bytes};
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
        let (node, is_plain) = if is_last {
            let fixed = join.fills.get(fill).fixed;
            let derived = prefix_slots(join, level, elements);
            let needed = definition.shape.output.slots | source.pattern.slots;
            let context = binding.bound & needed & !fixed & !derived;
            let rest = output_slots_from(join, run.elements);
            let is_plain = context == 0
                && rest & !source.pattern.slots == 0
                && source.pattern.slots & fixed & !derived == 0;
            let mut packed = Vec::new();
            binding.pack(context, &definition.slots, &mut packed);
            let context = if context == 0 {
                NO_CONTEXT
            } else {
                join.heap_bytes += packed.len();
                join.contexts.insert(Context {
                    slots: context,
                    packed: packed.into(),
                })
            };
            (
                join.leaves.insert(Leaf {
                    list: u32::MAX,
                    position: 0,
                    context,
                }),
                is_plain,
            )
        } else {
            let mut packed = Vec::new();
            binding.pack(binding.bound, &definition.slots, &mut packed);
            let fresh = source.pattern.slots & !binding.bound;
            let children = Children::new(fresh, &definition.slots);
            join.heap_bytes += packed.len();
            let inner = Inner {
                fill,
                level: level as u8,
                list: u32::MAX,
                position: 0,
                bound: binding.bound,
                packed: packed.into(),
                children,
            };
            (join.inner.insert(inner), false)
        };
        let list = join.add_updater(
            level,
            &prefix,
            elements,
            Entry::new(fill, node, is_plain),
            self.time.ticks,
        );
        if is_last {
            join.leaves.get_mut(node).list = list;
        } else {
            join.inner.get_mut(node).list = list;
        }
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
            .and_then(|fill| join.take_unread(fill, level, node));
        if level == join.last_level() {
            let leaf = join.leaves.remove(node);
            if let Some(fill) = run.fill {
                join.fills.get_mut(fill).pulled.retain(|l| *l != node);
            }
            if leaf.context != NO_CONTEXT {
                join.heap_bytes -= join.contexts.remove(leaf.context).packed.len();
            }
            join.remove_updater(level, leaf.list, leaf.position);
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
            let inner = join.inner.remove(node);
            join.heap_bytes -= inner.packed.len() + inner.children.memory_bytes();
            join.remove_updater(level, inner.list, inner.position);
            drop_pending(join, inner.fill, node);
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
            for fill in join.status.overlapping(&range.lo, &range.hi) {
                join.pin(fill, change);
            }
        }
    }
}

fn drop_pending(join: &mut Join, fill: u32, node: u32) {
    let Some(unsettled) = &mut join.fills.get_mut(fill).unsettled else {
        return;
    };
    let from = (node, Box::default());
    let removed: Vec<_> = unsettled
        .pending
        .range(from..(node + 1, Box::default()))
        .map(|(k, _)| k.clone())
        .collect();
    for key in removed {
        unsettled.pending.remove(&key);
        join.heap_bytes -= pending_bytes(&key.1);
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
    let number = join.leaves.get(leaf).list;
    let list = join.updaters[join.last_level()].lists.get(number);
    list.is_pulled(list.queue.len())
}

pub(crate) fn add_child(join: &mut Join, node: u32, packed: &[u8], child: u32) {
    join.heap_bytes += join.inner.get_mut(node).children.insert(packed, child);
}
