//! Copies of objects in the regions of subspaces: those that this core holds, and the readers that it notifies of changes of its
//! own objects.
//!
//! ```text
//!  own object changes ─► placement: its old and new regions ─► readers of these parts ─► exchange
//!  exchange ─► store_rows, apply_change ─► Holder: objects of other owners in the regions of own slots
//! ```
//!
//! The messages are the parts of `larder_join`; the copies are stored by `larder_space::copies`. Own objects in own regions take
//! the same path without the exchange.
//!
//! 1. Nothing is held for a space without subspaces, or if there is only one place.
//! 2. A part is supplied when the index of its space has caught up, so that the previous region is known for every later change.
//! 3. A reader that was supplied with a part receives its changes until the reader ends the part. This also holds if the space
//!    was altered, cut again or dropped here meanwhile, or no longer has subspaces: a holder that does not know this yet
//!    continues to serve searches, and misses no change.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use larder_join::{Engine, PartRows, Shard};
use larder_space::copies::{CopyRequest, CopyUpdate, Holder, RegionChange, Regions};
use larder_space::schema::Definition;
use larder_types::{SLOTS, object_key, object_row, row_slot};

use super::DeclaredSpace;
use super::placement::Placement;
use super::space::{LARGE, Space, free_in_background};
use super::subscribed_part::{SubscribedPart, find_subspace};
use super::walk::{sorted_table_names, table_end};

type Bytes = Box<[u8]>;

/// The number of copies that are sent or stored per step; client requests are served between two steps.
const CHUNK_COPIES: usize = 4;

/// Encodes an object for the exchange: its expiry time in milliseconds since 1970 (8 bytes, little-endian; 0: never), followed by
/// its bytes.
fn encode_copy(bytes: &[u8], expires_at: Option<u64>) -> Vec<u8> {
    [&expires_at.unwrap_or(0).to_le_bytes(), bytes].concat()
}

fn decode_copy(bytes: &[u8]) -> Option<(&[u8], Option<u64>)> {
    let (at, bytes) = bytes.split_first_chunk()?;
    let at = u64::from_le_bytes(*at);
    Some((bytes, (at > 0).then_some(at)))
}

/// The copies of one core.
#[derive(Default)]
pub struct Copies {
    held: Vec<SubspaceCopies>,
    /// The readers' parts, by reader and number.
    subscribed: BTreeMap<(u16, u32), SubscribedPart>,
    /// See [`Copies::has_stale_subscribers`].
    has_stale_subscribers: bool,
    /// Own objects in own regions that have not been stored yet.
    local_parts: VecDeque<LocalPart>,
    /// Missing parts must be looked for.
    is_stale: bool,
    number: u32,
    serial: u64,
    /// Copies stored since the last query.
    stored: usize,
    /// The number of this place, if there are several.
    own: u16,
    /// Changes whenever the held copies may lack something that they had.
    generation: u64,
}

/// The copies of one subspace.
struct SubspaceCopies {
    declared: Arc<DeclaredSpace>,
    holder: Holder,
}

/// A part that this core both owns and holds.
struct LocalPart {
    number: u32,
    part: CopyRequest,
    after: Option<Vec<u8>>,
}

/// A message to another engine.
#[derive(Debug)]
pub enum SubscriptionRequest {
    Subscribe {
        owner: u16,
        number: u32,
        part: Vec<u8>,
    },
    Unsubscribe(u32),
}

/// A change with the readers to notify: the reader, the number of its part, and whether the object is now in it.
#[derive(Debug)]
pub struct CopyChange {
    pub row: Vec<u8>,
    /// Encoded by [`encode_copy`].
    pub value: Option<Vec<u8>>,
    pub readers: Vec<(u16, u32, bool)>,
}

impl Copies {
    /// Returns whether a reader is still notified about a space that is dropped here, or that no longer has subspaces.
    pub fn has_stale_subscribers(&self) -> bool {
        self.has_stale_subscribers
    }

    pub fn is_active(&self) -> bool {
        !self.held.is_empty() || !self.subscribed.is_empty() || self.is_stale
    }

    /// The approximate memory of a space's copies.
    pub fn memory_bytes(&self, space: &str) -> usize {
        let held = self.held.iter();
        let of_space = held.filter(|held| held.declared.definition.name == space);
        of_space.map(|held| held.holder.memory_bytes()).sum()
    }

    /// Applies a new set of spaces: keeps and creates their holders.
    pub fn apply_spaces(&mut self, spaces: &BTreeMap<String, Space>) -> Vec<SubscriptionRequest> {
        let mut before = std::mem::take(&mut self.held);
        for space in spaces.values() {
            let declared = &space.declared;
            let Some(regions) = &declared.regions else {
                continue;
            };
            for subspace in 0..regions.count() {
                let same = |held: &mut SubspaceCopies| held.holder.id() == regions.id(subspace);
                let kept_copies = before.extract_if(.., same).next();
                let definition = &declared.definition;
                let new = || Holder::new(definition.clone(), regions.clone(), subspace);
                let kept_copies = kept_copies.map(|mut kept_copies| {
                    if kept_copies.declared.version != declared.version {
                        kept_copies.holder.alter(definition.clone());
                    }
                    kept_copies.holder
                });
                self.held.push(SubspaceCopies {
                    declared: declared.clone(),
                    holder: kept_copies.unwrap_or_else(new),
                });
            }
        }
        self.is_stale |= !self.held.is_empty();
        self.generation += 1;
        let ended: Vec<u32> = (before.iter())
            .flat_map(|held| held.holder.numbers())
            .collect();
        let ids: Vec<u64> = self.held.iter().map(|held| held.holder.id()).collect();
        self.local_parts
            .retain(|own| ids.contains(&own.part.version));
        let subscribed = self.subscribed.values_mut();
        subscribed.for_each(|it| it.apply_spaces(spaces));
        self.end(&ended);
        let mut subscribed = self.subscribed.values();
        self.has_stale_subscribers = subscribed.any(|it| it.is_stale(spaces));
        if before.iter().any(|held| held.holder.len() >= LARGE) {
            free_in_background(move |pieces| {
                while let Some(held) = before.last_mut() {
                    if held.holder.free_some(pieces) {
                        return true;
                    }
                    before.pop();
                }
                false
            });
        }
        ended
            .into_iter()
            .map(SubscriptionRequest::Unsubscribe)
            .collect()
    }

    /// Ends own parts with these numbers.
    fn end(&mut self, numbers: &[u32]) {
        let own = self.own;
        self.subscribed
            .retain(|(reader, number), _| *reader != own || !numbers.contains(number));
    }

    /// Discards the copies of slots whose owner has changed or was lost, to request them again. `all`: also repeats unanswered
    /// requests.
    pub fn discard_slots(&mut self, is_gone: impl Fn(u16) -> bool, all: bool) {
        let gone: Vec<bool> = (0..SLOTS).map(is_gone).collect();
        // Discarding examines every copy, so it is skipped if no slot is affected.
        let is_any_gone = gone.contains(&true);
        for held in &mut self.held {
            if all {
                held.holder.reset_requests();
            }
            if is_any_gone {
                held.holder.forget_slots(|slot| gone[usize::from(slot)]);
            }
        }
        if all {
            self.local_parts.clear();
        }
        self.generation += 1;
        self.is_stale |= !self.held.is_empty();
    }

    pub fn reader_lost(&mut self, reader: u16) {
        self.subscribed.retain(|(of, _), _| *of != reader);
    }

    /// Creates holders for the regions of own slots, and requests missing parts. `shard` maps slots to owners.
    pub fn plan_requests(&mut self, shard: &Shard) -> Vec<SubscriptionRequest> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        self.own = shard.index;
        self.generation += 1;
        let owner = |slot: u16| {
            let owner = shard.owner_of_slot(slot);
            (owner != larder_join::NO_OWNER).then_some(owner)
        };
        let is_alone = shard.owners().count() <= 1;
        let mut requests = Vec::new();
        for held in &mut self.held {
            self.number += 1;
            let owns = |slot: u16| !is_alone && owner(slot) == Some(shard.index);
            let ended = held.holder.assign_slots(self.number, owns);
            (self.subscribed)
                .retain(|(reader, number), _| *reader != shard.index || !ended.contains(number));
            requests.extend(ended.into_iter().map(SubscriptionRequest::Unsubscribe));
            for (owner, number, part) in held.holder.pending_fetches(owner, &mut self.serial) {
                if owner == shard.index {
                    let subscribed = SubscribedPart::new(part.clone(), &held.declared);
                    self.subscribed.insert((owner, number), subscribed);
                    let after = None;
                    self.local_parts.push_back(LocalPart {
                        number,
                        part,
                        after,
                    });
                    continue;
                }
                let part = part.encode();
                requests.push(SubscriptionRequest::Subscribe {
                    owner,
                    number,
                    part,
                });
            }
        }
        requests
    }

    /// Stores some own objects in own regions. Returns whether there are more.
    pub fn copy_local_step(
        &mut self,
        spaces: &BTreeMap<String, Space>,
        engine: &Engine,
        shard: &Shard,
        rows_max: usize,
    ) -> bool {
        let Some(mut own) = self.local_parts.pop_front() else {
            return false;
        };
        let Some(placed) = find_placement(spaces, &own.part) else {
            return !self.local_parts.is_empty();
        };
        let found = read_part_rows(placed, engine, &own.part, own.after.as_deref(), rows_max);
        let is_last = found.last.is_none();
        let (number, serial) = (own.number, own.part.serial);
        self.store_rows(shard, shard.index, number, serial, found.rows, is_last);
        if let Some(last) = found.last {
            own.after = Some(last.into());
            self.local_parts.push_front(own);
        }
        !self.local_parts.is_empty()
    }

    /// As the owner: returns the message for readers that a change of an object concerns. Holders on this core are updated
    /// immediately.
    pub fn notify(
        &mut self,
        declared: &DeclaredSpace,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
        moved: &[RegionChange],
    ) -> Option<CopyChange> {
        let bytes = object.map(|(bytes, _)| bytes);
        self.notify_matching(key, object, &|it| {
            it.plan_update(declared, key, bytes, moved)
        })
    }

    /// Like [`Copies::tell`], for spaces that are dropped here or no longer have subspaces.
    pub fn notify_stale_subscribers(
        &mut self,
        spaces: &BTreeMap<String, Space>,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
    ) -> Option<CopyChange> {
        if !self.has_stale_subscribers {
            return None;
        }
        let bytes = object.map(|(bytes, _)| bytes);
        self.notify_matching(key, object, &|it| {
            it.is_stale(spaces)
                .then(|| it.plan_stale_update(key, bytes))
                .flatten()
        })
    }

    fn notify_matching(
        &mut self,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
        plan: &dyn Fn(&SubscribedPart) -> Option<CopyUpdate>,
    ) -> Option<CopyChange> {
        let mut readers = Vec::new();
        for (&(reader, number), subscribed) in &self.subscribed {
            let Some(update) = plan(subscribed) else {
                continue;
            };
            let is_there = update == CopyUpdate::Upsert;
            if reader != self.own {
                readers.push((reader, number, is_there));
            } else if let Some(holder) = find_holder(&mut self.held, number) {
                holder.put(number, key, object.filter(|_| is_there));
            }
        }
        (!readers.is_empty()).then(|| CopyChange {
            row: object_row(key),
            value: object.map(|(bytes, at)| encode_copy(bytes, at)),
            readers,
        })
    }

    /// As the owner: adds or ends a reader's part.
    pub fn subscribe(
        &mut self,
        spaces: &BTreeMap<String, Space>,
        reader: u16,
        number: u32,
        part: Option<&[u8]>,
    ) {
        match part.map(CopyRequest::decode) {
            Some(Ok(part)) => {
                let subscribed = SubscribedPart::resolve(part, spaces);
                self.subscribed.insert((reader, number), subscribed);
            }
            Some(Err(error)) => tracing::error!(%error, "a requested part is malformed"),
            None => drop(self.subscribed.remove(&(reader, number))),
        }
    }

    /// As the owner; see [`larder_join::Parts::rows`].
    pub fn rows(
        &self,
        spaces: &BTreeMap<String, Space>,
        engine: &Engine,
        shard: &Shard,
        (part, after): (&[u8], Option<&[u8]>),
        rows_max: usize,
    ) -> Option<PartRows> {
        let part = CopyRequest::decode(part).ok()?;
        let placed = find_placement(spaces, &part)?;
        let mut slots = part.slots.iter().cloned().flatten();
        let is_here = slots.all(|slot| shard.owner_of_slot(slot) == shard.index);
        is_here.then(|| read_part_rows(placed, engine, &part, after, rows_max))
    }

    /// As the holder: stores rows of a requested part.
    pub fn receive_rows(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    ) {
        match CopyRequest::decode(part) {
            Ok(part) => self.store_rows(shard, owner, number, part.serial, rows, is_last),
            Err(error) => tracing::error!(%error, "a supplied part is malformed"),
        }
    }

    fn store_rows(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        serial: u64,
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    ) {
        let Some(holder) = find_holder(&mut self.held, number) else {
            return;
        };
        self.stored += rows.len();
        for (row, value) in rows {
            if let Some(key) = object_key(&row)
                && shard.owner_of(&row) == owner
            {
                holder.put(number, key, decode_copy(&value));
            }
        }
        if is_last {
            holder.mark_supplied(owner, number, serial);
        }
    }

    /// As the holder: applies a change of an object.
    pub fn apply_change(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        row: &[u8],
        value: Option<&[u8]>,
    ) {
        if let Some(key) = object_key(row)
            && shard.owner_of(row) == owner
            && let Some(holder) = find_holder(&mut self.held, number)
        {
            holder.put(number, key, value.and_then(decode_copy));
        }
    }

    /// Returns the copies in the subspace with this id (`Regions::id`) at this time.
    pub fn holder(&mut self, id: u64, now_ms: u64) -> Option<&Holder> {
        let of = |held: &&mut SubspaceCopies| held.holder.id() == id;
        let held = self.held.iter_mut().find(of)?;
        held.holder.expire(now_ms);
        Some(&held.holder)
    }

    /// The number of copies of a space's objects.
    pub fn count(&self, declared: &DeclaredSpace) -> u64 {
        let of = |held: &&SubspaceCopies| held.declared.version == declared.version;
        let held = self.held.iter().filter(of);
        held.map(|held| held.holder.len() as u64).sum()
    }

    /// The copies of each subspace of a space, with its position in these regions.
    pub fn holders<'a>(
        &'a self,
        regions: &'a Regions,
    ) -> impl Iterator<Item = (usize, &'a Holder)> {
        let held = self.held.iter().map(|held| &held.holder);
        held.filter_map(|holder| Some((regions.position(holder.id())?, holder)))
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Removes up to `copies_max` surplus copies. Returns whether there may be more. Missing parts are requested when all surplus
    /// copies have been removed.
    pub fn sweep_step(&mut self, copies_max: usize) -> bool {
        let mut holders = self.held.iter_mut().map(|held| &mut held.holder);
        let Some(holder) = holders.find(|it| it.is_sweeping()) else {
            return false;
        };
        self.is_stale |= !holder.sweep_some(copies_max);
        true
    }

    /// Adds up to `copies_max` copies of one subspace to indexes that are being built; `None` if there are none.
    pub fn build_step(&mut self, copies_max: usize) -> Option<()> {
        let mut holders = self.held.iter_mut().map(|held| &mut held.holder);
        let holder = holders.find(|it| it.index().building().is_some())?;
        holder.build_some(copies_max);
        Some(())
    }

    /// Like [`Space::building`], for the copies of a space.
    pub fn building(&self, declared: &DeclaredSpace) -> Option<(u64, u64)> {
        let of = |held: &&SubspaceCopies| held.declared.version == declared.version;
        let held = self.held.iter().filter(of);
        let building = held.filter_map(|held| held.holder.index().building());
        building.reduce(|sum, it| (sum.0 + it.0, sum.1 + it.1))
    }

    /// Returns whether copies are missing that searches would use here.
    pub fn lacks_searched(&self) -> bool {
        self.held.iter().any(|held| {
            let regions = held.declared.regions.as_ref();
            let is_searched = regions.is_some_and(|regions| {
                let place = regions.position(held.holder.id());
                place.is_some_and(|place| place < regions.serving())
            });
            is_searched && held.holder.is_incomplete()
        })
    }

    /// Returns the number of copies supplied since the last call.
    pub fn take_stored_count(&mut self) -> usize {
        std::mem::take(&mut self.stored)
    }
}

fn find_holder(held: &mut [SubspaceCopies], number: u32) -> Option<&mut Holder> {
    let mut holders = held.iter_mut().map(|held| &mut held.holder);
    holders.find(|holder| holder.numbers().any(|of| of == number))
}

/// Returns the definition and placement of a part's space, and the subspace of the part.
fn find_placement<'a>(
    spaces: &'a BTreeMap<String, Space>,
    part: &CopyRequest,
) -> Option<(&'a Definition, &'a Placement, usize)> {
    let space = spaces.get(&part.space)?;
    let subspace = find_subspace(&space.declared, part)?;
    Some((
        &space.declared.definition,
        space.placement.as_ref()?,
        subspace,
    ))
}

/// Returns some own objects of a part, starting after `after`.
fn read_part_rows(
    (definition, placed, subspace): (&Definition, &Placement, usize),
    engine: &Engine,
    part: &CopyRequest,
    after: Option<&[u8]>,
    rows_max: usize,
) -> PartRows {
    let mut found = PartRows::default();
    for table in sorted_table_names(engine, definition) {
        let end = table_end(&table);
        if after.is_some_and(|after| *end <= *after) {
            continue;
        }
        let lo = match after.filter(|after| **after >= *table) {
            Some(after) => [after, &[0]].concat(),
            None => table,
        };
        let mut is_full = false;
        engine.read_base_rows(&lo, &end, &mut |row, bytes, expires_at| {
            if found.visited == rows_max || found.rows.len() == CHUNK_COPIES {
                is_full = true;
                return ControlFlow::Break(());
            }
            found.visited += 1;
            found.last = Some(row.into());
            let region = object_key(row)
                .filter(|_| part.has_slot(row_slot(row)))
                .and_then(|key| placed.region(key, subspace));
            if region.is_some_and(|region| part.has_region(region)) {
                let value = encode_copy(bytes, expires_at).into();
                found.rows.push((row.into(), value));
            }
            ControlFlow::Continue(())
        });
        if is_full {
            return found;
        }
    }
    found.last = None;
    found
}
