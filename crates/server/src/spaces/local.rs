//! The state of all spaces on one core: their definitions, and for each an index of the objects that the core owns.
//!
//! ```text
//!  an object changes ─► apply_changes ────────────────────► index: in the same turn
//!  a slot's rows arrive or leave ─► pending_keys ──────────┐
//!  a space is declared, or the server starts ─► walk ──────┴──► index: some in each turn
//!  further indexes are requested ─► built from the index: some in each turn ─► used by searches
//! ```
//!
//! 1. Without spaces, a change costs one check of a flag. Otherwise, it costs the work for the spaces that cover its key,
//!    regardless of their total number.
//! 2. A search first processes the keys that are behind, and the walk after a server start, because their writes were
//!    acknowledged before. It does not wait for the walk of a space that was just declared; FT.INFO shows the progress.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use larder_join::{Engine, LogEntry, Shard};
use larder_space::copies::Regions;
use larder_space::index::SpaceIndex;
use larder_space::object::Object;
use larder_space::query::Predicate;
use larder_types::{OBJECT_MARK, object_key, object_row};

use super::copies::{Copies, CopyChange, SubscriptionRequest};
use super::copy_exchange::CopyExchange;
use super::prefix_index::PrefixIndex;
use super::recording::Recording;
use super::space::{Space, free_index};
use super::{Catalog, DeclaredSpace};

/// The spaces of one core.
#[derive(Default)]
pub struct Spaces {
    is_any: Cell<bool>,
    is_recording: Cell<bool>,
    /// True if indexes may be under construction.
    is_building: Cell<bool>,
    memory_bytes: Cell<usize>,
    /// Maximum work of a search in one turn.
    work_max: Cell<u64>,
    all: RefCell<SpacesState>,
}

#[derive(Default)]
pub struct SpacesState {
    pub catalog: Arc<Catalog>,
    pub spaces: BTreeMap<String, Space>,
    covering: PrefixIndex,
    /// The spaces with objects left to index or to place: those whose [`Space::backlog`] is not [`Backlog::Empty`].
    unfinished: BTreeSet<String>,
    /// Keys of objects to check, because their rows arrived in the engine or left it.
    pending_keys: VecDeque<Vec<u8>>,
    /// Number of objects whose bytes could not be decoded.
    undecodable: u64,
    pub copies: Copies,
    /// Messages to other engines about copies, and about changes.
    outgoing: Vec<SubscriptionRequest>,
    pending_notifications: Vec<CopyChange>,
}

/// The work that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backlog {
    Empty,
    /// Placement by new cuts. The indexes are complete, so nothing waits for it.
    Placing,
    /// The walk of a space that was just declared.
    Walk,
    /// Work that a search must wait for.
    BlocksSearch,
}

/// The statistics of a space, at approximately one instant.
#[derive(Debug, Clone)]
pub struct SpaceStats {
    pub name: String,
    pub objects: u64,
    /// The memory of its indexes, of copies in regions, and of the placement of objects.
    pub memory_bytes: u64,
    /// Fields whose values did not match their types.
    pub failures: u64,
    /// Objects that have not been indexed yet.
    pub unindexed: u64,
}

/// Adds another core's statistics of the same spaces.
pub fn merge_stats(all: &mut Vec<SpaceStats>, others: &[SpaceStats]) {
    for other in others {
        let Some(own) = all.iter_mut().find(|own| own.name == other.name) else {
            all.push(other.clone());
            continue;
        };
        own.objects += other.objects;
        own.memory_bytes += other.memory_bytes;
        own.failures += other.failures;
        own.unindexed += other.unindexed;
    }
}

impl Spaces {
    pub fn stats(&self) -> Vec<SpaceStats> {
        let all = self.all.borrow();
        let figures = all.spaces.iter().map(|(name, space)| {
            let progress = space.walk_progress();
            SpaceStats {
                name: name.clone(),
                objects: space.index.len(),
                memory_bytes: (space.memory_bytes() + all.copies.memory_bytes(name)) as u64,
                failures: space.index.failures().count,
                unindexed: progress.total - progress.examined,
            }
        });
        let figures: Vec<_> = figures.collect();
        let bytes: u64 = figures.iter().map(|it| it.memory_bytes).sum();
        self.memory_bytes.set(bytes as usize);
        figures
    }

    /// Records the work of a search in one turn, in units of one examined object.
    pub fn record_work(&self, work: u64) {
        self.work_max.set(self.work_max.get().max(work));
    }

    /// The maximum work of a search in one turn since the server started.
    pub fn work_max(&self) -> u64 {
        self.work_max.get()
    }

    /// The memory of all spaces at the last call of [`Spaces::figures`].
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.get()
    }

    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.get()
    }

    pub fn read(&self) -> Ref<'_, SpacesState> {
        self.all.borrow()
    }

    /// Starts or stops the recording of a space's workload. Returns `false` if there is no such space, or its declaration
    /// differs.
    pub fn set_recording(
        &self,
        declared: &DeclaredSpace,
        begin: impl FnOnce(&SpaceIndex) -> Option<Recording>,
    ) -> bool {
        let all = &mut *self.all.borrow_mut();
        let space = all.spaces.get_mut(&declared.definition.name);
        let Some(space) = space.filter(|space| space.declared.version == declared.version) else {
            return false;
        };
        space.recording = begin(&space.index).map(Box::new);
        let is_any = all.spaces.values().any(|space| space.recording.is_some());
        self.is_recording.set(is_any);
        true
    }

    #[inline]
    pub fn is_recording(&self) -> bool {
        self.is_recording.get()
    }

    /// Records a read of an object by key.
    #[inline]
    pub fn record_get(&self, key: &[u8]) {
        if self.is_recording.get() {
            let all = &mut *self.all.borrow_mut();
            for name in all.covering.find_spaces(key) {
                let space = all.spaces.get_mut(&*name);
                if let Some(recording) = space.and_then(|space| space.recording.as_mut()) {
                    recording.record_get();
                }
            }
        }
    }

    /// Records a search, the number of objects that it found, if known, and the number that it returned.
    #[inline]
    pub fn record_query(
        &self,
        declared: &DeclaredSpace,
        predicate: &Predicate,
        found: Option<u64>,
        answered: u64,
        now_ms: u64,
    ) {
        if self.is_recording.get() {
            let all = &mut *self.all.borrow_mut();
            for space in all.spaces.values_mut() {
                space.recording.take_if(|it| it.is_expired(now_ms));
                if let Some(recording) = &mut space.recording
                    && space.declared.version == declared.version
                {
                    recording.record_query(predicate, &declared.definition, found, answered);
                }
            }
            let is_any = all.spaces.values().any(|space| space.recording.is_some());
            self.is_recording.set(is_any);
        }
    }

    /// Applies a new set of spaces. `at_start`: their objects existed before.
    pub fn apply_catalog(&self, catalog: &Arc<Catalog>, engine: &Engine, at_start: bool) {
        let all = &mut *self.all.borrow_mut();
        if Arc::ptr_eq(&all.catalog, catalog) {
            return;
        }
        all.catalog = catalog.clone();
        let mut before = std::mem::take(&mut all.spaces);
        for (name, declared) in catalog.spaces() {
            let kept = before
                .remove(name)
                .map(|space| space.altered(declared, engine));
            let space = match kept {
                Some(Ok(space)) => space,
                other => {
                    if let Some(Err(replaced)) = other {
                        free_index(*replaced);
                    }
                    Space::new(declared, engine, at_start)
                }
            };
            all.spaces.insert(name.to_owned(), space);
        }
        before
            .into_values()
            .for_each(|dropped| free_index(dropped.index));
        all.covering = PrefixIndex::new(&all.spaces);
        let unfinished = all.spaces.iter().filter(|(_, space)| space.is_unfinished());
        all.unfinished = unfinished.map(|(name, _)| name.clone()).collect();
        let requests = all.copies.apply_spaces(&all.spaces);
        all.outgoing.extend(requests);
        self.is_building.set(true);
        if all.spaces.is_empty() {
            all.pending_keys = VecDeque::new();
        }
        // Readers that do not know yet that the last space was dropped are still notified of changes.
        let is_any = !all.spaces.is_empty() || all.copies.has_stale_subscribers();
        self.is_any.set(is_any);
    }

    /// Applies changes of rows.
    pub fn apply_changes(&self, changes: &[LogEntry], engine: &Engine) {
        let all = &mut *self.all.borrow_mut();
        for change in changes {
            match change {
                LogEntry::Put { key: row, value } => {
                    if let Some(key) = object_key(row) {
                        let at = engine.base_row(row).and_then(|(_, at)| at);
                        all.put(key, value, Notify::Now(at));
                    }
                }
                LogEntry::Remove { key } => {
                    if let Some(key) = object_key(key) {
                        all.remove(key, true);
                    }
                }
                LogEntry::Expire { key: row, at } => {
                    if let (Some(key), Some((bytes, _))) = (object_key(row), engine.base_row(row)) {
                        all.update_expiry(key, bytes, *at);
                    }
                }
                LogEntry::RemoveRange { lo, hi } if covers_objects(lo, hi) => {
                    all.remove_range(lo, hi, engine);
                }
                _ => {}
            }
        }
    }

    /// Returns the changes to send to other engines.
    pub fn take_notifications(&self) -> Vec<CopyChange> {
        if self.is_any() {
            std::mem::take(&mut self.all.borrow_mut().pending_notifications)
        } else {
            Vec::new()
        }
    }

    /// Returns the messages about copies to other engines. `shard` maps slots to owners.
    pub fn drain_outgoing(&self, shard: &Shard) -> Vec<SubscriptionRequest> {
        let all = &mut *self.all.borrow_mut();
        all.outgoing.extend(all.copies.plan_requests(shard));
        std::mem::take(&mut all.outgoing)
    }

    /// The regions of a space's subspaces, if it has any.
    pub fn regions(&self, declared: &DeclaredSpace) -> Option<Arc<Regions>> {
        let all = self.all.borrow();
        let space = all.spaces.get(&declared.definition.name)?;
        let regions = space.regions()?;
        (space.declared.version == declared.version).then(|| regions.clone())
    }

    /// Returns whether copies require any work.
    pub fn has_copies(&self) -> bool {
        let all = self.all.borrow();
        all.copies.is_active() || !all.outgoing.is_empty()
    }

    /// Handles a change of slot owners.
    pub fn owners_changed(&self, before: &Shard, after: &Shard) {
        if self.has_copies() {
            let is_other = |slot| before.owner_of_slot(slot) != after.owner_of_slot(slot);
            self.all.borrow_mut().copies.discard_slots(is_other, true);
        }
    }

    /// Handles the end of updates from this owner.
    pub fn owner_lost(&self, owner: u16, shard: &Shard) {
        if self.has_copies() {
            let is_of = |slot| shard.owner_of_slot(slot) == owner;
            self.all.borrow_mut().copies.discard_slots(is_of, false);
        }
    }

    /// See [`super::copies::Copies::sweep_step`].
    pub fn sweep_step(&self, copies_max: usize) -> bool {
        self.all.borrow_mut().copies.sweep_step(copies_max)
    }

    /// Stores some own objects in own regions. Returns whether there are more.
    pub fn copy_local_step(&self, engine: &Engine, shard: &Shard, rows_max: usize) -> bool {
        let SpacesState { copies, spaces, .. } = &mut *self.all.borrow_mut();
        copies.copy_local_step(spaces, engine, shard, rows_max)
    }

    /// Returns the number of copies supplied since the last call.
    pub fn take_stored_count(&self) -> usize {
        self.all.borrow_mut().copies.take_stored_count()
    }

    /// The receiver of the engines' messages about copies.
    pub fn copy_exchange(&self) -> CopyExchange<'_> {
        CopyExchange(self)
    }

    pub fn write(&self) -> RefMut<'_, SpacesState> {
        self.all.borrow_mut()
    }

    /// Records that rows of objects arrived in the engine, or left it.
    pub fn queue_moved(&self, rows: impl Iterator<Item = Box<[u8]>>) {
        let keys = rows.filter_map(|row| object_key(&row).map(<[u8]>::to_vec));
        self.all.borrow_mut().pending_keys.extend(keys);
    }

    /// Returns whether indexes may be under construction.
    #[inline]
    pub fn is_building(&self) -> bool {
        self.is_building.get()
    }

    /// Adds up to `objects_max` objects or copies to indexes under construction. Returns whether there were any.
    pub fn build_step(&self, objects_max: usize) -> bool {
        let all = &mut *self.all.borrow_mut();
        let mut spaces = all.spaces.values_mut();
        let building = spaces.find(|space| space.building().is_some());
        let built = match building {
            Some(space) => {
                space.index.build_some(objects_max);
                true
            }
            None => all.copies.build_step(objects_max).is_some(),
        };
        self.is_building.set(built);
        built
    }

    /// Processes up to `objects_max` objects. Returns the work that is left.
    pub fn index_step(&self, engine: &Engine, objects_max: usize) -> Backlog {
        let all = &mut *self.all.borrow_mut();
        let mut left = objects_max;
        while left > 0
            && let Some(key) = all.pending_keys.pop_front()
        {
            left -= 1;
            match engine.base_row(&object_row(&key)) {
                Some((bytes, _)) => all.put(&key, bytes, Notify::Deferred),
                None => all.remove(&key, false),
            }
        }
        all.unfinished.retain(|name| {
            let Some(space) = all.spaces.get_mut(name) else {
                return false;
            };
            if left > 0 {
                left = space.index_step(engine, left, &mut all.undecodable);
            }
            space.is_unfinished()
        });
        all.backlog()
    }
}

impl SpacesState {
    pub fn backlog(&self) -> Backlog {
        if !self.pending_keys.is_empty() {
            return Backlog::BlocksSearch;
        }
        let names = self.unfinished.iter();
        let spaces = names.filter_map(|name| self.spaces.get(name));
        spaces.map(Space::backlog).max().unwrap_or(Backlog::Empty)
    }

    fn put(&mut self, key: &[u8], bytes: &[u8], notify: Notify) {
        let mut decoded = None;
        for name in self.covering.find_spaces(key) {
            let Some(space) = self.spaces.get_mut(&*name) else {
                continue;
            };
            let object = decoded.get_or_insert_with(|| Object::decode(bytes));
            match &object {
                Ok(object) => {
                    let changed = space.index.put(key, object);
                    if let (Some(recording), Some(changed), Notify::Now(_)) =
                        (&mut space.recording, changed, notify)
                    {
                        recording.record_put(changed);
                    }
                }
                Err(_) => {
                    self.undecodable += 1;
                    space.index.remove(key);
                }
            }
            let Some(moved) = space.place(key) else {
                continue;
            };
            if let Notify::Now(at) = notify {
                let object = Some((bytes, at));
                let change = self.copies.notify(&space.declared, key, object, &moved);
                self.pending_notifications.extend(change);
            }
        }
        if let Notify::Now(at) = notify {
            self.notify_stale_subscribers(key, Some((bytes, at)));
        }
    }

    fn notify_stale_subscribers(&mut self, key: &[u8], object: Option<(&[u8], Option<u64>)>) {
        let change = self
            .copies
            .notify_stale_subscribers(&self.spaces, key, object);
        self.pending_notifications.extend(change);
    }

    /// `notify`: the object is gone, not merely owned by another core.
    fn remove(&mut self, key: &[u8], notify: bool) {
        for name in self.covering.find_spaces(key) {
            let Some(space) = self.spaces.get_mut(&*name) else {
                continue;
            };
            if let Some(recording) = &mut space.recording
                && notify
                && space.index.contains(key)
            {
                recording.record_delete();
            }
            space.index.remove(key);
            if let Some(moved) = space.place(key).filter(|_| notify) {
                let change = self.copies.notify(&space.declared, key, None, &moved);
                self.pending_notifications.extend(change);
            }
        }
        if notify {
            self.notify_stale_subscribers(key, None);
        }
    }

    /// An object's expiry time has changed, but not the object.
    fn update_expiry(&mut self, key: &[u8], bytes: &[u8], at: Option<u64>) {
        for name in self.covering.find_spaces(key) {
            let Some(space) = self.spaces.get(&*name) else {
                continue;
            };
            let moved = space
                .placement
                .as_ref()
                .map(|placed| placed.current_regions(key));
            if let Some(moved) = moved {
                let object = Some((bytes, at));
                let change = self.copies.notify(&space.declared, key, object, &moved);
                self.pending_notifications.extend(change);
            }
        }
        self.notify_stale_subscribers(key, Some((bytes, at)));
    }

    fn remove_range(&mut self, lo: &[u8], hi: &[u8], engine: &Engine) {
        let mut gone = Vec::new();
        for (name, space) in &mut self.spaces {
            match &mut space.placement {
                Some(placed) => {
                    for (key, moved) in placed.remove_range(lo, hi) {
                        let change = self.copies.notify(&space.declared, &key, None, &moved);
                        self.pending_notifications.extend(change);
                    }
                }
                None if self.copies.has_stale_subscribers() => gone.extend(space.keys_in(lo, hi)),
                None => {}
            }
            space.restart_walk(lo, hi, engine);
            if space.is_unfinished() {
                self.unfinished.insert(name.clone());
            }
        }
        gone.iter()
            .for_each(|key| self.notify_stale_subscribers(key, None));
    }
}

/// The rule that determines whether holders of copies are notified of an object.
#[derive(Clone, Copy)]
enum Notify {
    /// It has changed, with this expiry time.
    Now(Option<u64>),
    /// It existed before: holders request it.
    Deferred,
}

fn covers_objects(lo: &[u8], hi: &[u8]) -> bool {
    lo.first().is_none_or(|first| *first == OBJECT_MARK) && hi > &[OBJECT_MARK][..]
}
