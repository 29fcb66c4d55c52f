//! The difference between two maps.

use super::{Map, NodeId, Placement, SlotRange, Term};

/// The parts of a map that a node must examine when it replaces another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// Slots whose owner, in-sync replicas or fills differ, as maximal ranges in order.
    pub slots: Vec<SlotChange>,
    /// Members that are only in the newer map.
    pub added: Vec<NodeId>,
    /// Members that are only in the older map.
    pub gone: Vec<NodeId>,
    /// Members of both maps that differ in state, incarnation, address or any other property.
    pub updated: Vec<NodeId>,
    /// True if stores, tables, joins, spaces, outputs or settings differ.
    pub other: bool,
}

/// A range of slots with the same change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotChange {
    pub slots: SlotRange,
    /// The old and the new value.
    pub owner: (Option<NodeId>, Option<NodeId>),
    pub term: (Term, Term),
}

impl SlotChange {
    pub fn is_owner_new(&self) -> bool {
        self.owner.0 != self.owner.1
    }

    pub fn is_term_new(&self) -> bool {
        self.term.0 != self.term.1
    }
}

impl Difference {
    /// Computes the difference from `old` to `new`, which may be many changes later.
    pub fn between(old: &Map, new: &Map) -> Difference {
        let mut difference = Difference {
            other: old.settings != new.settings
                || old.stores != new.stores
                || old.tables != new.tables
                || old.joins != new.joins
                || old.spaces != new.spaces
                || old.outputs != new.outputs,
            ..Difference::default()
        };
        for member in new.members() {
            match old.member(member.id) {
                None => difference.added.push(member.id),
                Some(before) if before != member => difference.updated.push(member.id),
                Some(_) => {}
            }
        }
        let gone = old
            .members()
            .iter()
            .filter(|it| new.member(it.id).is_none());
        difference.gone = gone.map(|it| it.id).collect();
        difference.slots = slots(old, new);
        difference
    }
}

fn slots(old: &Map, new: &Map) -> Vec<SlotChange> {
    let mut moved: Vec<SlotChange> = Vec::new();
    for_each_common(old, new, |slots, was, is| {
        let differs = was.owner != is.owner
            || was.term != is.term
            || was.in_sync != is.in_sync
            || was.filling != is.filling;
        if !differs {
            return;
        }
        let one = SlotChange {
            slots,
            owner: (was.owner, is.owner),
            term: (was.term, is.term),
        };
        match moved.last_mut() {
            Some(last)
                if last.slots.to + 1 == slots.from
                    && last.owner == one.owner
                    && last.term == one.term =>
            {
                last.slots.to = slots.to;
            }
            _ => moved.push(one),
        }
    });
    moved
}

/// Returns the slots that differ in any way, including their target placement, as maximal ranges in order.
pub fn changed_slots(old: &Map, new: &Map) -> Vec<SlotRange> {
    let mut changed: Vec<SlotRange> = Vec::new();
    let stops =
        |owner: Option<NodeId>| owner.is_some_and(|it| old.is_stopping(it) != new.is_stopping(it));
    for_each_common(old, new, |slots, was, is| {
        if was == is && !stops(is.owner) {
            return;
        }
        match changed.last_mut() {
            Some(last) if last.to + 1 == slots.from => last.to = slots.to,
            _ => changed.push(slots),
        }
    });
    changed
}

/// Calls `each` for every range of slots that lies in one run of both maps, with its state in each map.
fn for_each_common(old: &Map, new: &Map, mut each: impl FnMut(SlotRange, &Placement, &Placement)) {
    let mut olds = old.slots().runs().iter().peekable();
    for run in new.slots().runs() {
        while let Some(before) = olds.peek() {
            if let Some(slots) = before.slots.intersection(run.slots) {
                each(slots, &before.placement, &run.placement);
            }
            if before.slots.to > run.slots.to {
                break;
            }
            olds.next();
        }
    }
}
