//! A holder: the copies that one core stores for some regions of one subspace.
//!
//! A holder requests copies by *claims*. A claim has a number and a set of regions, and records for each hash slot of
//! keys whether all objects of the slot in these regions have arrived. Regions that the holder gains later form a new
//! claim, so their updates are not confused with earlier ones. If a slot changes its owner, the holder requests the
//! slot again.
//!
//! Copies that the holder must not store any more are removed by a *sweep* in steps, because there may be millions.
//! Until the sweep is complete, the holder answers no search and sends no request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_types::{SLOTS, row_slot};

use super::copy_request::{CopyRequest, Run, contains, runs};
use super::copy_store::{Copies, Copy};
use super::regions::Regions;
use crate::index::{Objects, SpaceIndex};
use crate::mapping::Region;
use crate::object::Object;
use crate::query::Predicate;
use crate::schema::Definition;
use crate::search::regions::contacts;
use crate::value::{Columns, Row};

pub struct Holder {
    regions: Arc<Regions>,
    subspace: usize,
    claims: Vec<Claim>,
    copies: Copies,
    /// The rows of copies that expire, by their expiry.
    expiry_queue: BTreeSet<(u64, u32)>,
    index: SpaceIndex,
    /// The number of copies in each non-empty region.
    region_counts: BTreeMap<u16, u32>,
    sweep: Option<Sweep>,
}

/// The removal of copies in regions that are no longer held, and of slots that must be requested again.
struct Sweep {
    is_discarded: Box<[bool]>,
    /// The first row that the sweep has not examined yet.
    from: u32,
}

/// The number of copies that can be examined in the time of one removal.
const EXAMINED_PER_REMOVAL: usize = 16;

/// A set of regions that are requested together.
struct Claim {
    number: u32,
    /// The regions that are still held.
    regions: Vec<Run>,
    /// One flag per slot of keys: true if all its objects have arrived.
    slot_loaded: Box<[bool]>,
    /// The number of slots that have not arrived.
    missing_slots: usize,
    /// The unanswered request to each owner.
    pending: BTreeMap<u16, PendingRequest>,
}

impl Claim {
    /// Updates `lacking`. Every search reads it, and counting thousands of slots each time would be slow.
    fn count_missing(&mut self) {
        self.missing_slots = self.slot_loaded.iter().filter(|here| !**here).count();
    }
}

struct PendingRequest {
    serial: u64,
    slots: Vec<Run>,
}

impl Holder {
    pub fn new(definition: Arc<Definition>, regions: Arc<Regions>, subspace: usize) -> Holder {
        Holder {
            regions,
            subspace,
            claims: Vec::new(),
            copies: Copies::default(),
            expiry_queue: BTreeSet::new(),
            index: SpaceIndex::new(definition),
            region_counts: BTreeMap::new(),
            sweep: None,
        }
    }

    /// Makes the holder responsible for the regions of the slots that it owns. Copies in other regions are swept; new
    /// regions are claimed, with `number` if a claim is needed. Returns the numbers of the claims that ended.
    pub fn assign_slots(&mut self, number: u32, owns: impl Fn(u16) -> bool) -> Vec<u32> {
        let held = self.regions.held_regions(self.subspace, &owns);
        let mut is_less = false;
        for claim in &mut self.claims {
            let remaining = claim.regions.iter().cloned().flatten();
            let remaining = runs(remaining.filter(|region| contains(&held, *region)));
            is_less |= remaining != claim.regions;
            claim.regions = remaining;
        }
        let excess = |claim: &mut Claim| claim.regions.is_empty();
        let excess = self.claims.extract_if(.., excess).map(|claim| claim.number);
        let excess = excess.collect();
        if is_less {
            self.begin_sweep(|_| false);
        }
        let claimed = |region: &u16| {
            let mut claims = self.claims.iter();
            claims.any(|claim| contains(&claim.regions, *region))
        };
        let new = runs(held.into_iter().flatten().filter(|region| !claimed(region)));
        if !new.is_empty() {
            self.claims.push(Claim {
                number,
                regions: new,
                slot_loaded: vec![false; usize::from(SLOTS)].into(),
                missing_slots: usize::from(SLOTS),
                pending: BTreeMap::new(),
            });
        }
        excess
    }

    /// Returns the numbers of all claims.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.claims.iter().map(|claim| claim.number)
    }

    /// Returns the region of the object under this key.
    pub fn region(&self, key: &[u8], columns: &dyn Columns) -> Region {
        self.regions.region(self.subspace, key, columns)
    }

    /// Returns the requests to send, as owner, claim number and content: everything that is neither present nor
    /// requested. Increments `serial` for each request.
    pub fn pending_fetches(
        &mut self,
        owner: impl Fn(u16) -> Option<u16>,
        serial: &mut u64,
    ) -> Vec<(u16, u32, CopyRequest)> {
        let mut fetches = Vec::new();
        if self.is_sweeping() {
            return fetches;
        }
        for claim in &mut self.claims {
            let mut missing: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
            for slot in (0..SLOTS).filter(|slot| !claim.slot_loaded[usize::from(*slot)]) {
                if let Some(owner) = owner(slot) {
                    missing.entry(owner).or_default().push(slot);
                }
            }
            for (owner, slots) in missing {
                let slots = runs(slots.into_iter());
                let pending = claim.pending.get(&owner);
                if pending.is_some_and(|pending| pending.slots == slots) {
                    continue;
                }
                *serial += 1;
                let part = CopyRequest {
                    space: self.index.definition().name.clone(),
                    version: self.regions.id(self.subspace),
                    subspace: self.regions.number(self.subspace),
                    serial: *serial,
                    regions: claim.regions.clone(),
                    slots: slots.clone(),
                };
                let serial = *serial;
                claim
                    .pending
                    .insert(owner, PendingRequest { serial, slots });
                fetches.push((owner, claim.number, part));
            }
        }
        fetches
    }

    /// Forgets the unanswered requests, so that they are sent again.
    pub fn reset_requests(&mut self) {
        self.claims
            .iter_mut()
            .for_each(|claim| claim.pending.clear());
    }

    /// See [`Regions::id`].
    pub fn id(&self) -> u64 {
        self.regions.id(self.subspace)
    }

    /// Discards the objects of slots whose owner has changed, or no longer sends updates.
    pub fn forget_slots(&mut self, is_gone: impl Fn(u16) -> bool) {
        for claim in &mut self.claims {
            for (slot, is_here) in (0..).zip(&mut claim.slot_loaded) {
                *is_here &= !is_gone(slot);
            }
            claim.count_missing();
            let is_hit =
                |asked: &PendingRequest| asked.slots.iter().cloned().flatten().any(&is_gone);
            claim.pending.retain(|_, asked| !is_hit(asked));
        }
        self.begin_sweep(is_gone);
    }

    fn begin_sweep(&mut self, is_gone: impl Fn(u16) -> bool) {
        if self.is_empty() {
            return;
        }
        let none = || Sweep {
            is_discarded: vec![false; usize::from(SLOTS)].into(),
            from: 0,
        };
        let sweep = self.sweep.get_or_insert_with(none);
        for (slot, own) in (0..).zip(&mut sweep.is_discarded) {
            *own |= is_gone(slot);
        }
        sweep.from = 0;
    }

    /// Removes at most `copies_max` copies that the holder must not store any more. Returns whether there may be more.
    pub fn sweep_some(&mut self, copies_max: usize) -> bool {
        let Some(mut sweep) = self.sweep.take() else {
            return false;
        };
        let (mut removed, mut examined_left) = (0, EXAMINED_PER_REMOVAL * copies_max);
        for row in sweep.from..self.copies.end() {
            if examined_left == 0 || removed == copies_max {
                sweep.from = row;
                self.sweep = Some(sweep);
                break;
            }
            examined_left -= 1;
            let Some(copy) = self.copies.get(row) else {
                continue;
            };
            // The holder may have gained the region again since, by another claim.
            let is_claimed = |claim: &Claim| {
                claim.number == copy.number && contains(&claim.regions, copy.region.0)
            };
            let slot = row_slot(self.index.key(row));
            if sweep.is_discarded[usize::from(slot)] || !self.claims.iter().any(is_claimed) {
                self.remove(row);
                removed += 1;
            }
        }
        self.sweep.is_some()
    }

    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Stores the current state of an object, with its expiry, that its owner sent for a claim. `None`: the object is
    /// not in a region of the claim.
    pub fn put(&mut self, number: u32, key: &[u8], encoded: Option<(&[u8], Option<u64>)>) {
        let Some(claim) = self.claims.iter().find(|claim| claim.number == number) else {
            return;
        };
        let definition = self.index.definition();
        let object = encoded.and_then(|(bytes, at)| Some((bytes, at, Object::decode(bytes).ok()?)));
        let covered = object.filter(|(_, _, object)| definition.covers(key, object));
        if let Some((bytes, expires_at, object)) = covered {
            let (row, _) = Row::of(definition, &object);
            let region = self.region(key, &row);
            if contains(&claim.regions, region.0) {
                let changed = self.index.put_covered(key, &object);
                let copy = Copy {
                    region,
                    number,
                    bytes: bytes.into(),
                    expires_at,
                };
                self.expiry_queue
                    .extend(expires_at.map(|at| (at, changed.row)));
                if let Some(before) = self.copies.put(changed.row, copy) {
                    if let Some(at) = before.expires_at.filter(|at| Some(*at) != expires_at) {
                        self.expiry_queue.remove(&(at, changed.row));
                    }
                    self.uncount(before.region);
                }
                *self.region_counts.entry(region.0).or_default() += 1;
                return;
            }
        }
        // The object may have moved to a region of another claim meanwhile.
        if let Some(row) = self.index.row(key)
            && (self.copies.get(row)).is_some_and(|copy| copy.number == number)
        {
            self.remove(row);
        }
    }

    /// Records that an owner has sent all objects of this request, and will send every change of them.
    pub fn mark_supplied(&mut self, owner: u16, number: u32, serial: u64) {
        let claim = (self.claims.iter_mut()).find(|claim| claim.number == number);
        let Some(claim) = claim else { return };
        let is_answered = |pending: &PendingRequest| pending.serial == serial;
        if claim.pending.get(&owner).is_some_and(is_answered)
            && let Some(pending) = claim.pending.remove(&owner)
        {
            for slot in pending.slots.into_iter().flatten() {
                claim.slot_loaded[usize::from(slot)] = true;
            }
            claim.count_missing();
        }
    }

    /// Returns whether the holder can execute this search in these regions: all their copies are present, and it would
    /// find no copy of another region.
    pub fn is_ready(&self, predicate: &Predicate, regions: &[Run]) -> bool {
        let subspace = self.regions.subspace(self.subspace);
        let Some(subspace) = subspace.filter(|_| !self.is_sweeping()) else {
            return false;
        };
        let contacts = contacts(subspace, predicate, self.index.definition());
        // Usually a search contacts few of the regions that the holder has.
        let mut found: Vec<u16> = Vec::new();
        for Region(region) in contacts.regions() {
            let mut claims = self.claims.iter();
            match claims.find(|claim| contains(&claim.regions, region)) {
                Some(claim) if claim.missing_slots > 0 => return false,
                Some(_) => found.push(region),
                None => {}
            }
        }
        runs(found.into_iter()) == regions
    }

    fn remove(&mut self, row: u32) {
        if let Some(copy) = self.copies.remove(row) {
            self.index.remove_row(row);
            self.uncount(copy.region);
            if let Some(at) = copy.expires_at {
                self.expiry_queue.remove(&(at, row));
            }
        }
    }

    fn uncount(&mut self, region: Region) {
        if let Some(count) = self.region_counts.get_mut(&region.0) {
            *count -= 1;
            if *count == 0 {
                self.region_counts.remove(&region.0);
            }
        }
    }

    /// Returns the number of copies in each non-empty region.
    pub fn region_counts(&self) -> impl Iterator<Item = (Region, u32)> + '_ {
        let full = self.region_counts.iter();
        full.map(|(region, count)| (Region(*region), *count))
    }

    /// Returns how many slots of keys have arrived, and how many are expected, over all claims.
    pub fn fill_progress(&self) -> (u64, u64) {
        let slots = self.claims.iter().flat_map(|claim| &claim.slot_loaded);
        slots.fold((0, 0), |(here, all), is_here| {
            (here + u64::from(*is_here), all + 1)
        })
    }

    /// Returns the number of complete regions, whose copies have all arrived.
    pub fn complete_regions(&self) -> u64 {
        let complete = self.claims.iter().filter(|claim| claim.missing_slots == 0);
        let regions = complete.flat_map(|claim| &claim.regions);
        regions
            .map(|run| u64::from(run.end() - run.start()) + 1)
            .sum()
    }

    /// Returns whether any region is incomplete.
    pub fn is_incomplete(&self) -> bool {
        self.claims.iter().any(|claim| claim.missing_slots > 0)
    }

    /// Removes expired copies. Their owners will send the removal too.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((at, row)) = self.expiry_queue.first().copied()
            && at <= now_ms
        {
            self.remove(row);
        }
    }

    pub fn index(&self) -> &SpaceIndex {
        &self.index
    }

    /// Applies a definition with other indexes. Objects stay in the same regions.
    pub fn alter(&mut self, definition: Arc<Definition>) {
        self.index.alter(definition);
    }

    /// See [`SpaceIndex::build_some`].
    pub fn build_some(&mut self, copies_max: usize) -> bool {
        self.index.build_some(copies_max)
    }

    pub fn objects(&self) -> &dyn Objects {
        &self.copies
    }

    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Returns the approximate memory use of the copies and their index, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let claims = self.claims.len() * usize::from(SLOTS);
        self.copies.memory_bytes() + claims + self.index.memory_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.copies.len() == 0
    }

    /// Frees at most `pieces` allocations of a holder that is no longer in use. Returns whether there are more.
    pub fn free_some(&mut self, pieces: usize) -> bool {
        let given = self.copies.drop_last(pieces);
        given == pieces || self.index.free_some(pieces - given)
    }
}
