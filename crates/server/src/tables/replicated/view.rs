//! Applies a new map: the slots that this core owns, those that it replicates, and those that it gives up.

use std::rc::Rc;
use std::sync::Arc;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Acknowledge, Map, Member, NodeId, Placement, SlotRange, changed_slots};
use larder_cluster::replication::{Assignment, Place, Record, Replication, RowStore};
use larder_join::{Engine, NO_OWNER, SlotOwners};
use larder_types::{BySlot, SLOTS};

use super::{Replicated, ReplicationState, with_rows};
use crate::cluster::{View, core_of, slots_of};
use crate::tables::Tables;

impl Tables {
    /// Applies a view to this core's slots. Returns the owners of all slots, in which this core owns a slot of the view
    /// only if it has the slot's rows and does not give them away. The rows are moved after the engine knows the
    /// owners: [`Tables::move_rows`].
    pub(in crate::tables) fn assign_slots(
        &self,
        replicated: &Replicated,
        engine: &mut Engine,
        view: &Arc<View>,
    ) -> Arc<SlotOwners> {
        let mut state = replicated.state.borrow_mut();
        if state.apply_view(engine, view) {
            tracing::warn!(
                "this node was removed from the cluster while it was disconnected, and is a new member now: its previous rows are dropped"
            );
            // Other nodes know these connections as those of the removed member.
            self.end_links("this node has another member id now");
        }
        replicated.advance_progress();
        let own = view.places.number(state.place(view.me));
        let owner = state.replication.as_ref().map(|it| &it.owner);
        let is_owner = |slot: u16| owner.is_some_and(|it| it.is_owner(slot) && !it.is_moving(slot));
        let is_amiss = |slot: u16| Some(view.owners.owner_of(slot)) == own && !is_owner(slot);
        let own_slots = slots_of(state.core, state.cores);
        if !own_slots.is_some_and(|it| it.slots().any(is_amiss)) {
            return view.owners.clone();
        }
        let owner_of = |slot| {
            if is_amiss(slot) {
                NO_OWNER
            } else {
                view.owners.owner_of(slot)
            }
        };
        Arc::new(SlotOwners::new((0..SLOTS).map(owner_of).collect()))
    }

    /// Moves the rows of newly opened slots into the engine, and those of closed ones out of it.
    pub(in crate::tables) fn move_rows(&self, replicated: &Replicated, engine: &mut Engine) {
        let mut state = replicated.state.borrow_mut();
        // The outputs computed from them were dropped before.
        self.apply_events(replicated, &mut state, engine);
    }
}

impl ReplicationState {
    /// Applies a view. Returns whether this process was another member before.
    fn apply_view(&mut self, engine: &mut Engine, view: &Arc<View>) -> bool {
        let map = &view.map;
        self.waits_for_replicas = map.settings().acknowledge == Acknowledge::Replicas;
        let own = view.own().filter(|_| view.is_up());
        let life = view.life.as_ref();
        let is_present = own
            .zip(life)
            .is_some_and(|(own, life)| own.registration.incarnation == life.incarnation);
        if !is_present {
            self.lease = None;
            return false;
        }
        let me = self.place(view.me);
        let is_another = self.replication.as_ref().is_some_and(|it| it.me() != me);
        if is_another {
            with_rows!(self, &mut *engine, |replication, rows, out| {
                replication.restart_as(me, rows, out);
            });
            self.assigned = BySlot::default();
            self.applied_view = None;
        }
        if self.replication.is_none() {
            if life.is_some_and(|life| life.unproven.is_some()) {
                self.discard_recovered();
            }
            self.start_replication(view);
        }
        if let Some(replication) = &mut self.replication {
            let min_copies = map.settings().min_copies;
            replication.owner.set_min_copies(min_copies.into());
        }
        let members = map.members().iter();
        self.cores_of = members.map(|it| (it.id, it.registration.cores)).collect();
        self.begin_streams();
        self.assign_all(engine, view);
        // Not earlier: until now, the lease could have been that of another member.
        self.lease = life.map(|life| life.held.clone());
        self.refresh_lease();
        is_another
    }

    /// Discards the rows that were found on disk.
    fn discard_recovered(&mut self) {
        let recovered = std::mem::take(&mut self.recovered);
        if !recovered.is_empty() {
            tracing::warn!(
                slots = recovered.len(),
                "the rows of these slots on disk may lack writes; this node drops them, and their owners fill them again"
            );
        }
        for slot in recovered.into_keys() {
            self.copies.clear(slot);
            self.dropped.push(Record::Gone { slot });
        }
    }

    fn start_replication(&mut self, view: &View) {
        let recovered = std::mem::take(&mut self.recovered);
        let (me, limits) = (self.place(view.me), self.limits.clone());
        self.replication = Some(Replication::new(me, limits, recovered));
    }

    /// Visits only slots that the map has changed or that an owner has reported: the map changes many times while slots
    /// move.
    fn assign_all(&mut self, engine: &mut Engine, view: &Arc<View>) {
        let own = slots_of(self.core, self.cores);
        let is_in = |slots: SlotRange| own.and_then(|own| own.intersection(slots));
        self.replica_nodes.clear();
        for run in view.map.slots().runs() {
            if run.placement.owner == Some(view.me) && is_in(run.slots).is_some() {
                self.replica_nodes
                    .extend(run.placement.in_sync.iter().copied());
                let filling = run.placement.filling.iter();
                self.replica_nodes.extend(filling.map(|it| it.node));
            }
        }
        let changed = match self.applied_view.replace(view.clone()) {
            Some(before) if has_same_cores(&before.map, &view.map) => {
                changed_slots(&before.map, &view.map)
            }
            _ => vec![SlotRange::ALL],
        };
        let mut previous = Rc::new(Assignment::default());
        for slots in changed.into_iter().filter_map(is_in) {
            for slot in slots.slots() {
                self.assign(engine, view, slot, &mut previous);
            }
        }
        for slot in std::mem::take(&mut self.early_fills) {
            // The map may be older than the filling, or so much newer that the slot's entry is as before.
            self.assigned.remove(slot);
            self.assign(engine, view, slot, &mut previous);
            let replication = self.replication.as_ref();
            if replication.is_some_and(|it| it.replica.is_ahead_of(slot, view.map.epoch())) {
                self.early_fills.insert(slot);
            }
        }
        if let Some(replication) = &mut self.replication {
            replication.finish_assignment(view.map.epoch(), &mut self.out);
        }
    }

    /// `previous`: the assignment of the previous slot, which usually equals that of this one.
    fn assign(
        &mut self,
        engine: &mut Engine,
        view: &View,
        slot: u16,
        previous: &mut Rc<Assignment>,
    ) {
        let (placed, heir) = (view.lookup.placement(slot), view.lookup.next_owner(slot));
        let place = |node: NodeId| place_of(view, node, slot);
        if !matches_assignment(previous, placed, heir, &place) {
            *previous = Rc::new(Assignment::of(placed, heir, place));
        }
        let before = self.assigned.get(slot);
        if before.is_some_and(|before| before == previous) {
            return;
        }
        if before.is_none() && !placed.includes(view.me) && !self.has_slot(slot) {
            return;
        }
        self.assigned.insert(slot, previous.clone());
        let (epoch, now_ms) = (view.map.epoch(), boot_ms());
        with_rows!(self, &mut *engine, |replication, rows, out| {
            replication.assign(epoch, slot, previous, rows, now_ms, out);
        });
    }

    fn has_slot(&self, slot: u16) -> bool {
        let replication = self.replication.as_ref();
        replication.is_some_and(|it| it.replica.copy(slot).is_some() || it.owner.is_owner(slot))
    }
}

/// Returns whether every node in both maps has the same number of cores. If not, its slots are on other cores.
fn has_same_cores(before: &Map, now: &Map) -> bool {
    now.members().iter().all(|member| {
        let cores = |it: &Member| it.registration.cores;
        before
            .member(member.id)
            .is_none_or(|before| cores(before) == cores(member))
    })
}

/// Returns the place of a slot on a node.
fn place_of(view: &View, node: NodeId, slot: u16) -> Place {
    let cores = view.map.member(node).map_or(1, |it| it.registration.cores);
    let core = core_of(slot, cores.max(1));
    Place { node, core }
}

/// Returns whether an assignment agrees with the map's entry of a slot. Most slots have the assignment of the slot before them.
fn matches_assignment(
    previous: &Assignment,
    placed: &Placement,
    heir: Option<NodeId>,
    place: &impl Fn(NodeId) -> Place,
) -> bool {
    previous.term == placed.term
        && previous.owner == placed.owner.map(place)
        && previous.next_owner == heir.map(place)
        && previous
            .in_sync
            .iter()
            .copied()
            .eq(placed.in_sync.iter().map(|it| place(*it)))
        && previous
            .filling
            .iter()
            .copied()
            .eq(placed.filling.iter().map(|it| (place(it.node), it.began)))
}
