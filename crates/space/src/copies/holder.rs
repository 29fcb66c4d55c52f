//! A holder: the copies that one place keeps of the objects in some regions of one subspace.
//!
//! It asks owners by *claims*: some regions, under a number, and for each slot of keys whether all objects of it that lie in them are here. Regions
//! that it gets later are another claim, so that what is told of the one is not taken for the other; slots that change their owner are asked for anew.
//!
//! Copies that are not to be here any more are *swept*, some at a time, as there may be millions. Until all are gone no search is answered and nothing is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_types::{SLOTS, row_slot};

use super::kept::{Copies, Copy};
use super::part::{Part, Run, contains, runs};
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
    /// The rows of those that go at some time, by when.
    going: BTreeSet<(u64, u32)>,
    index: SpaceIndex,
    /// How many copies each region has, of those that have any.
    full: BTreeMap<u16, u32>,
    sweep: Option<Sweep>,
}

/// Copies in regions that are not held any more, and of slots that are to be asked for anew, go.
struct Sweep {
    is_gone: Box<[bool]>,
    /// It has looked at the copies of all rows before this one.
    from: u32,
}

/// So many copies are looked at in the time that one takes to be removed.
const LOOKED_AT: usize = 16;

/// Regions that are asked for together.
struct Claim {
    number: u32,
    /// Those that are still held.
    regions: Vec<Run>,
    /// By slot of keys: all objects are here.
    is_here: Box<[bool]>,
    /// Of how many slots they are not.
    lacking: usize,
    /// By owner, what it was asked and has yet to answer.
    asked: BTreeMap<u16, Asked>,
}

impl Claim {
    /// Searches ask whether all is here, and there are thousands of slots.
    fn count(&mut self) {
        self.lacking = self.is_here.iter().filter(|here| !**here).count();
    }
}

struct Asked {
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
            going: BTreeSet::new(),
            index: SpaceIndex::new(definition),
            full: BTreeMap::new(),
            sweep: None,
        }
    }

    /// From now on it holds the regions of the slots that it owns: copies in others are swept, and what is new is claimed, under `number` if that is
    /// needed. The numbers of claims that are over.
    pub fn hold(&mut self, number: u32, owns: impl Fn(u16) -> bool) -> Vec<u32> {
        let held = self.regions.held(self.subspace, &owns);
        let mut is_less = false;
        for claim in &mut self.claims {
            let kept = claim.regions.iter().cloned().flatten();
            let kept = runs(kept.filter(|region| contains(&held, *region)));
            is_less |= kept != claim.regions;
            claim.regions = kept;
        }
        let over = |claim: &mut Claim| claim.regions.is_empty();
        let over = self.claims.extract_if(.., over).map(|claim| claim.number);
        let over = over.collect();
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
                is_here: vec![false; usize::from(SLOTS)].into(),
                lacking: usize::from(SLOTS),
                asked: BTreeMap::new(),
            });
        }
        over
    }

    /// The numbers of all claims.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.claims.iter().map(|claim| claim.number)
    }

    /// Where the object under this key lies.
    pub fn region(&self, key: &[u8], columns: &dyn Columns) -> Region {
        self.regions.region(self.subspace, key, columns)
    }

    /// What is to be asked now of whom, and under which number: what is not here and was not asked for. `serial` grows with each question.
    pub fn questions(
        &mut self,
        owner: impl Fn(u16) -> Option<u16>,
        serial: &mut u64,
    ) -> Vec<(u16, u32, Part)> {
        let mut questions = Vec::new();
        if self.is_sweeping() {
            return questions;
        }
        for claim in &mut self.claims {
            let mut lacking: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
            for slot in (0..SLOTS).filter(|slot| !claim.is_here[usize::from(*slot)]) {
                if let Some(owner) = owner(slot) {
                    lacking.entry(owner).or_default().push(slot);
                }
            }
            for (owner, slots) in lacking {
                let slots = runs(slots.into_iter());
                let asked = claim.asked.get(&owner);
                if asked.is_some_and(|asked| asked.slots == slots) {
                    continue;
                }
                *serial += 1;
                let part = Part {
                    space: self.index.definition().name.clone(),
                    version: self.regions.id(self.subspace),
                    subspace: self.regions.number(self.subspace),
                    serial: *serial,
                    regions: claim.regions.clone(),
                    slots: slots.clone(),
                };
                let serial = *serial;
                claim.asked.insert(owner, Asked { serial, slots });
                questions.push((owner, claim.number, part));
            }
        }
        questions
    }

    /// What was asked and not answered yet counts as not asked.
    pub fn ask_again(&mut self) {
        self.claims.iter_mut().for_each(|claim| claim.asked.clear());
    }

    /// As [`Regions::id`].
    pub fn id(&self) -> u64 {
        self.regions.id(self.subspace)
    }

    /// Slots whose owner changed, or does not tell of its changes any more: their objects are not known.
    pub fn forget(&mut self, is_gone: impl Fn(u16) -> bool) {
        for claim in &mut self.claims {
            for (slot, is_here) in (0..).zip(&mut claim.is_here) {
                *is_here &= !is_gone(slot);
            }
            claim.count();
            let is_hit = |asked: &Asked| asked.slots.iter().cloned().flatten().any(&is_gone);
            claim.asked.retain(|_, asked| !is_hit(asked));
        }
        self.begin_sweep(is_gone);
    }

    fn begin_sweep(&mut self, is_gone: impl Fn(u16) -> bool) {
        if self.is_empty() {
            return;
        }
        let none = || Sweep {
            is_gone: vec![false; usize::from(SLOTS)].into(),
            from: 0,
        };
        let sweep = self.sweep.get_or_insert_with(none);
        for (slot, own) in (0..).zip(&mut sweep.is_gone) {
            *own |= is_gone(slot);
        }
        sweep.from = 0;
    }

    /// Removes so many copies at most that are not to be here any more; whether there may be more of them.
    pub fn sweep_on(&mut self, copies_max: usize) -> bool {
        let Some(mut sweep) = self.sweep.take() else {
            return false;
        };
        let (mut gone, mut looks) = (0, LOOKED_AT * copies_max);
        for row in sweep.from..self.copies.end() {
            if looks == 0 || gone == copies_max {
                sweep.from = row;
                self.sweep = Some(sweep);
                break;
            }
            looks -= 1;
            let Some(copy) = self.copies.get(row) else {
                continue;
            };
            // The region may have come back since, for another claim.
            let is_claimed = |claim: &Claim| {
                claim.number == copy.number && contains(&claim.regions, copy.region.0)
            };
            let slot = row_slot(self.index.key(row));
            if sweep.is_gone[usize::from(slot)] || !self.claims.iter().any(is_claimed) {
                self.remove(row);
                gone += 1;
            }
        }
        self.sweep.is_some()
    }

    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// An object as its owner supplies it for a claim, or says that it is now, with when it goes; None: it is in none of its regions.
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
                self.going.extend(expires_at.map(|at| (at, changed.row)));
                if let Some(before) = self.copies.put(changed.row, copy) {
                    if let Some(at) = before.expires_at.filter(|at| Some(*at) != expires_at) {
                        self.going.remove(&(at, changed.row));
                    }
                    self.leave(before.region);
                }
                *self.full.entry(region.0).or_default() += 1;
                return;
            }
        }
        // It may have come to a region of another claim in the meantime.
        if let Some(row) = self.index.row(key)
            && (self.copies.get(row)).is_some_and(|copy| copy.number == number)
        {
            self.remove(row);
        }
    }

    /// An owner has supplied all that this question asked for, and tells of every change.
    pub fn supplied(&mut self, owner: u16, number: u32, serial: u64) {
        let claim = (self.claims.iter_mut()).find(|claim| claim.number == number);
        let Some(claim) = claim else { return };
        let is_answered = |asked: &Asked| asked.serial == serial;
        if claim.asked.get(&owner).is_some_and(is_answered)
            && let Some(asked) = claim.asked.remove(&owner)
        {
            for slot in asked.slots.into_iter().flatten() {
                claim.is_here[usize::from(slot)] = true;
            }
            claim.count();
        }
    }

    /// Whether this search can be answered here for these regions: all that they have is here, and nothing else that it would find.
    pub fn is_ready(&self, predicate: &Predicate, asked: &[Run]) -> bool {
        let subspace = self.regions.subspace(self.subspace);
        let Some(subspace) = subspace.filter(|_| !self.is_sweeping()) else {
            return false;
        };
        let contacts = contacts(subspace, predicate, self.index.definition());
        // Mostly few are contacted, of many that are held.
        let mut found: Vec<u16> = Vec::new();
        for Region(region) in contacts.regions() {
            let mut claims = self.claims.iter();
            match claims.find(|claim| contains(&claim.regions, region)) {
                Some(claim) if claim.lacking > 0 => return false,
                Some(_) => found.push(region),
                None => {}
            }
        }
        runs(found.into_iter()) == asked
    }

    fn remove(&mut self, row: u32) {
        if let Some(copy) = self.copies.remove(row) {
            self.index.remove_row(row);
            self.leave(copy.region);
            if let Some(at) = copy.expires_at {
                self.going.remove(&(at, row));
            }
        }
    }

    fn leave(&mut self, region: Region) {
        if let Some(count) = self.full.get_mut(&region.0) {
            *count -= 1;
            if *count == 0 {
                self.full.remove(&region.0);
            }
        }
    }

    /// How many copies each region has, of those that have any.
    pub fn full(&self) -> impl Iterator<Item = (Region, u32)> + '_ {
        let full = self.full.iter();
        full.map(|(region, count)| (Region(*region), *count))
    }

    /// How many slots of keys are here, of how many, over all claims: what is left is on its way.
    pub fn filled(&self) -> (u64, u64) {
        let slots = self.claims.iter().flat_map(|claim| &claim.is_here);
        slots.fold((0, 0), |(here, all), is_here| {
            (here + u64::from(*is_here), all + 1)
        })
    }

    /// How many regions are whole: all objects that lie in them are here.
    pub fn whole(&self) -> u64 {
        let whole = self.claims.iter().filter(|claim| claim.lacking == 0);
        let regions = whole.flat_map(|claim| &claim.regions);
        regions
            .map(|run| u64::from(run.end() - run.start()) + 1)
            .sum()
    }

    /// Whether any region is not whole.
    pub fn is_lacking(&self) -> bool {
        self.claims.iter().any(|claim| claim.lacking > 0)
    }

    /// Copies whose time has come go; their owners will say so, too.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((at, row)) = self.going.first().copied()
            && at <= now_ms
        {
            self.remove(row);
        }
    }

    pub fn index(&self) -> &SpaceIndex {
        &self.index
    }

    /// Goes on with a definition by which its objects lie where they lay, and which has other indexes.
    pub fn alter(&mut self, definition: Arc<Definition>) {
        self.index.alter(definition);
    }

    /// See [`SpaceIndex::build_on`].
    pub fn build_on(&mut self, copies_max: usize) -> bool {
        self.index.build_on(copies_max)
    }

    pub fn objects(&self) -> &dyn Objects {
        &self.copies
    }

    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// What copies and their index take in memory, about.
    pub fn memory_bytes(&self) -> usize {
        let claims = self.claims.len() * usize::from(SLOTS);
        self.copies.memory_bytes() + claims + self.index.memory_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.copies.len() == 0
    }

    /// Gives so many pieces of memory back, of a holder that nobody asks any more; whether there are more.
    pub fn take_apart(&mut self, pieces: usize) -> bool {
        let given = self.copies.drop_last(pieces);
        given == pieces || self.index.take_apart(pieces - given)
    }
}
