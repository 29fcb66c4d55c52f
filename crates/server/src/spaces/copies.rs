//! Copies of objects in the regions of subspaces: those that this core holds, and the readers that it notifies of changes of its
//! own objects.
//!
//! ```text
//!  own object changes ─► placed: its old and new regions ─► readers of these parts ─► exchange
//!  exchange ─► supplied, changed ─► Holder: objects of other owners in the regions of own slots
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
use larder_space::copies::{Holder, Moved, Part, Regions, Told};
use larder_space::schema::Definition;
use larder_types::{SLOTS, object_key, object_row, row_slot};

use super::Declared;
use super::placed::Placed;
use super::space::{LARGE, Space, free};
use super::subscribed::{Subscribed, subspace_of};
use super::walk::{end_of, tables_of};

type Bytes = Box<[u8]>;

/// The number of copies that are sent or stored per step; client requests are served between two steps.
const CHUNK_COPIES: usize = 4;

/// Encodes an object for the exchange: its expiry time in milliseconds since 1970 (8 bytes, little-endian; 0: never), followed by
/// its bytes.
fn travelling(bytes: &[u8], expires_at: Option<u64>) -> Vec<u8> {
    [&expires_at.unwrap_or(0).to_le_bytes(), bytes].concat()
}

fn arrived(bytes: &[u8]) -> Option<(&[u8], Option<u64>)> {
    let (at, bytes) = bytes.split_first_chunk()?;
    let at = u64::from_le_bytes(*at);
    Some((bytes, (at > 0).then_some(at)))
}

/// The copies of one core.
#[derive(Default)]
pub struct Copies {
    held: Vec<Held>,
    /// The readers' parts, by reader and number.
    subscribed: BTreeMap<(u16, u32), Subscribed>,
    /// See [`Copies::has_former`].
    has_former: bool,
    /// Own objects in own regions that have not been stored yet.
    own_parts: VecDeque<Own>,
    /// Missing parts must be looked for.
    is_stale: bool,
    number: u32,
    serial: u64,
    /// Copies stored since the last query.
    put: usize,
    /// The number of this place, if there are several.
    own: u16,
    /// Changes whenever the held copies may lack something that they had.
    generation: u64,
}

/// The copies of one subspace.
struct Held {
    declared: Arc<Declared>,
    holder: Holder,
}

/// A part that this core both owns and holds.
struct Own {
    number: u32,
    part: Part,
    after: Option<Vec<u8>>,
}

/// A message to another engine.
#[derive(Debug)]
pub enum Said {
    Ask {
        owner: u16,
        number: u32,
        part: Vec<u8>,
    },
    End(u32),
}

/// A change with the readers to notify: the reader, the number of its part, and whether the object is now in it.
#[derive(Debug)]
pub struct Change {
    pub row: Vec<u8>,
    /// Encoded by [`travelling`].
    pub value: Option<Vec<u8>>,
    pub readers: Vec<(u16, u32, bool)>,
}

impl Copies {
    /// Returns whether a reader is still notified about a space that is dropped here, or that no longer has subspaces.
    pub fn has_former(&self) -> bool {
        self.has_former
    }

    pub fn is_any(&self) -> bool {
        !self.held.is_empty() || !self.subscribed.is_empty() || self.is_stale
    }

    /// The approximate memory of a space's copies.
    pub fn memory_bytes(&self, space: &str) -> usize {
        let held = self.held.iter();
        let of_space = held.filter(|held| held.declared.definition.name == space);
        of_space.map(|held| held.holder.memory_bytes()).sum()
    }

    /// Applies a new set of spaces: keeps and creates their holders.
    pub fn follow(&mut self, spaces: &BTreeMap<String, Space>) -> Vec<Said> {
        let mut before = std::mem::take(&mut self.held);
        for space in spaces.values() {
            let declared = &space.declared;
            let Some(regions) = &declared.regions else {
                continue;
            };
            for subspace in 0..regions.count() {
                let same = |held: &mut Held| held.holder.id() == regions.id(subspace);
                let kept = before.extract_if(.., same).next();
                let definition = &declared.definition;
                let new = || Holder::new(definition.clone(), regions.clone(), subspace);
                let kept = kept.map(|mut kept| {
                    if kept.declared.version != declared.version {
                        kept.holder.alter(definition.clone());
                    }
                    kept.holder
                });
                self.held.push(Held {
                    declared: declared.clone(),
                    holder: kept.unwrap_or_else(new),
                });
            }
        }
        self.is_stale |= !self.held.is_empty();
        self.generation += 1;
        let over: Vec<u32> = (before.iter())
            .flat_map(|held| held.holder.numbers())
            .collect();
        let ids: Vec<u64> = self.held.iter().map(|held| held.holder.id()).collect();
        self.own_parts.retain(|own| ids.contains(&own.part.version));
        let subscribed = self.subscribed.values_mut();
        subscribed.for_each(|it| it.follow(spaces));
        self.end(&over);
        let mut subscribed = self.subscribed.values();
        self.has_former = subscribed.any(|it| it.is_of_former(spaces));
        if before.iter().any(|held| held.holder.len() >= LARGE) {
            free(move |pieces| {
                while let Some(held) = before.last_mut() {
                    if held.holder.take_apart(pieces) {
                        return true;
                    }
                    before.pop();
                }
                false
            });
        }
        over.into_iter().map(Said::End).collect()
    }

    /// Ends own parts with these numbers.
    fn end(&mut self, numbers: &[u32]) {
        let own = self.own;
        self.subscribed
            .retain(|(reader, number), _| *reader != own || !numbers.contains(number));
    }

    /// Discards the copies of slots whose owner has changed or was lost, to request them again. `all`: also repeats unanswered
    /// requests.
    pub fn forget(&mut self, is_gone: impl Fn(u16) -> bool, all: bool) {
        let gone: Vec<bool> = (0..SLOTS).map(is_gone).collect();
        // Discarding examines every copy, so it is skipped if no slot is affected.
        let is_any_gone = gone.contains(&true);
        for held in &mut self.held {
            if all {
                held.holder.ask_again();
            }
            if is_any_gone {
                held.holder.forget(|slot| gone[usize::from(slot)]);
            }
        }
        if all {
            self.own_parts.clear();
        }
        self.generation += 1;
        self.is_stale |= !self.held.is_empty();
    }

    pub fn reader_lost(&mut self, reader: u16) {
        self.subscribed.retain(|(of, _), _| *of != reader);
    }

    /// Creates holders for the regions of own slots, and requests missing parts. `shard` maps slots to owners.
    pub fn look(&mut self, shard: &Shard) -> Vec<Said> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        self.own = shard.index;
        self.generation += 1;
        let owner = |slot: u16| {
            let owner = shard.owner_of_slot(slot);
            (owner != larder_join::NOBODY).then_some(owner)
        };
        let is_alone = shard.owners().count() <= 1;
        let mut said = Vec::new();
        for held in &mut self.held {
            self.number += 1;
            let owns = |slot: u16| !is_alone && owner(slot) == Some(shard.index);
            let over = held.holder.hold(self.number, owns);
            (self.subscribed)
                .retain(|(reader, number), _| *reader != shard.index || !over.contains(number));
            said.extend(over.into_iter().map(Said::End));
            for (owner, number, part) in held.holder.questions(owner, &mut self.serial) {
                if owner == shard.index {
                    let subscribed = Subscribed::to(part.clone(), &held.declared);
                    self.subscribed.insert((owner, number), subscribed);
                    let after = None;
                    self.own_parts.push_back(Own {
                        number,
                        part,
                        after,
                    });
                    continue;
                }
                let part = part.encode();
                said.push(Said::Ask {
                    owner,
                    number,
                    part,
                });
            }
        }
        said
    }

    /// Stores some own objects in own regions. Returns whether there are more.
    pub fn supply_own(
        &mut self,
        spaces: &BTreeMap<String, Space>,
        engine: &Engine,
        shard: &Shard,
        rows_max: usize,
    ) -> bool {
        let Some(mut own) = self.own_parts.pop_front() else {
            return false;
        };
        let Some(placed) = placed_of(spaces, &own.part) else {
            return !self.own_parts.is_empty();
        };
        let found = rows_of(placed, engine, &own.part, own.after.as_deref(), rows_max);
        let is_last = found.last.is_none();
        let (number, serial) = (own.number, own.part.serial);
        self.supplied(shard, shard.index, number, serial, found.rows, is_last);
        if let Some(last) = found.last {
            own.after = Some(last.into());
            self.own_parts.push_front(own);
        }
        !self.own_parts.is_empty()
    }

    /// As the owner: returns the message for readers that a change of an object concerns. Holders on this core are updated
    /// immediately.
    pub fn tell(
        &mut self,
        declared: &Declared,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
        moved: &[Moved],
    ) -> Option<Change> {
        let bytes = object.map(|(bytes, _)| bytes);
        self.tell_those(key, object, &|it| it.told(declared, key, bytes, moved))
    }

    /// Like [`Copies::tell`], for spaces that are dropped here or no longer have subspaces.
    pub fn tell_of_former(
        &mut self,
        spaces: &BTreeMap<String, Space>,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
    ) -> Option<Change> {
        if !self.has_former {
            return None;
        }
        let bytes = object.map(|(bytes, _)| bytes);
        self.tell_those(key, object, &|it| {
            it.is_of_former(spaces)
                .then(|| it.told_of_former(key, bytes))
                .flatten()
        })
    }

    fn tell_those(
        &mut self,
        key: &[u8],
        object: Option<(&[u8], Option<u64>)>,
        told: &dyn Fn(&Subscribed) -> Option<Told>,
    ) -> Option<Change> {
        let mut readers = Vec::new();
        for (&(reader, number), subscribed) in &self.subscribed {
            let Some(told) = told(subscribed) else {
                continue;
            };
            let is_there = told == Told::Is;
            if reader != self.own {
                readers.push((reader, number, is_there));
            } else if let Some(holder) = holder_of(&mut self.held, number) {
                holder.put(number, key, object.filter(|_| is_there));
            }
        }
        (!readers.is_empty()).then(|| Change {
            row: object_row(key),
            value: object.map(|(bytes, at)| travelling(bytes, at)),
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
        match part.map(Part::decode) {
            Some(Ok(part)) => {
                let subscribed = Subscribed::of(part, spaces);
                self.subscribed.insert((reader, number), subscribed);
            }
            Some(Err(error)) => tracing::error!(%error, "a part that is asked for is malformed"),
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
        let part = Part::decode(part).ok()?;
        let placed = placed_of(spaces, &part)?;
        let mut slots = part.slots.iter().cloned().flatten();
        let is_here = slots.all(|slot| shard.owner_of_slot(slot) == shard.index);
        is_here.then(|| rows_of(placed, engine, &part, after, rows_max))
    }

    /// As the holder: stores rows of a requested part.
    pub fn arrive(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    ) {
        match Part::decode(part) {
            Ok(part) => self.supplied(shard, owner, number, part.serial, rows, is_last),
            Err(error) => tracing::error!(%error, "a part that was supplied is malformed"),
        }
    }

    fn supplied(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        serial: u64,
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    ) {
        let Some(holder) = holder_of(&mut self.held, number) else {
            return;
        };
        self.put += rows.len();
        for (row, value) in rows {
            if let Some(key) = object_key(&row)
                && shard.owner_of(&row) == owner
            {
                holder.put(number, key, arrived(&value));
            }
        }
        if is_last {
            holder.supplied(owner, number, serial);
        }
    }

    /// As the holder: applies a change of an object.
    pub fn changed(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        row: &[u8],
        value: Option<&[u8]>,
    ) {
        if let Some(key) = object_key(row)
            && shard.owner_of(row) == owner
            && let Some(holder) = holder_of(&mut self.held, number)
        {
            holder.put(number, key, value.and_then(arrived));
        }
    }

    /// Returns the copies in the subspace with this id (`Regions::id`) at this time.
    pub fn holder(&mut self, id: u64, now_ms: u64) -> Option<&Holder> {
        let of = |held: &&mut Held| held.holder.id() == id;
        let held = self.held.iter_mut().find(of)?;
        held.holder.expire(now_ms);
        Some(&held.holder)
    }

    /// The number of copies of a space's objects.
    pub fn count(&self, declared: &Declared) -> u64 {
        let of = |held: &&Held| held.declared.version == declared.version;
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
    pub fn sweep_some(&mut self, copies_max: usize) -> bool {
        let mut holders = self.held.iter_mut().map(|held| &mut held.holder);
        let Some(holder) = holders.find(|it| it.is_sweeping()) else {
            return false;
        };
        self.is_stale |= !holder.sweep_on(copies_max);
        true
    }

    /// Adds up to `copies_max` copies of one subspace to indexes that are being built; `None` if there are none.
    pub fn build_some(&mut self, copies_max: usize) -> Option<()> {
        let mut holders = self.held.iter_mut().map(|held| &mut held.holder);
        let holder = holders.find(|it| it.index().building().is_some())?;
        holder.build_on(copies_max);
        Some(())
    }

    /// Like [`Space::building`], for the copies of a space.
    pub fn building(&self, declared: &Declared) -> Option<(u64, u64)> {
        let of = |held: &&Held| held.declared.version == declared.version;
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
            is_searched && held.holder.is_lacking()
        })
    }

    /// Returns the number of copies supplied since the last call.
    pub fn take_put(&mut self) -> usize {
        std::mem::take(&mut self.put)
    }
}

fn holder_of(held: &mut [Held], number: u32) -> Option<&mut Holder> {
    let mut holders = held.iter_mut().map(|held| &mut held.holder);
    holders.find(|holder| holder.numbers().any(|of| of == number))
}

/// Returns the definition and placement of a part's space, and the subspace of the part.
fn placed_of<'a>(
    spaces: &'a BTreeMap<String, Space>,
    part: &Part,
) -> Option<(&'a Definition, &'a Placed, usize)> {
    let space = spaces.get(&part.space)?;
    let subspace = subspace_of(&space.declared, part)?;
    Some((&space.declared.definition, space.placed.as_ref()?, subspace))
}

/// Returns some own objects of a part, starting after `after`.
fn rows_of(
    (definition, placed, subspace): (&Definition, &Placed, usize),
    engine: &Engine,
    part: &Part,
    after: Option<&[u8]>,
    rows_max: usize,
) -> PartRows {
    let mut found = PartRows::default();
    for table in tables_of(engine, definition) {
        let end = end_of(&table);
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
                let value = travelling(bytes, expires_at).into();
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
