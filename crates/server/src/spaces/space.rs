//! One space on one core: the index of the objects that the core owns, and their placement in its subspaces.

use std::sync::Arc;
use std::time::Duration;

use larder_join::Engine;
use larder_space::copies::{Moved, Regions};
use larder_space::index::SpaceIndex;
use larder_space::object::Object;
use larder_types::object_rows;

use super::Declared;
use super::local::Behind;
use super::placed::{Placed, lies_in};
use super::recording::Recording;
use super::walk::{Standing, Walk};

/// From this number of objects on, memory is freed on a separate thread, because that takes a while.
pub(super) const LARGE: usize = 4096;
/// Number of pieces that are freed per step.
const FREED_AT_ONCE: usize = 512;

pub struct Space {
    pub declared: Arc<Declared>,
    pub index: SpaceIndex,
    walk: Option<Walk>,
    /// Present if it has subspaces.
    pub(super) placed: Option<Placed>,
    /// The first row that is yet to be placed, after subspaces were added or cut again.
    placing: Option<u32>,
    /// Number of searches that were answered here from regions.
    pub region_answers: u64,
    /// Present while the workload is recorded.
    pub recording: Option<Box<Recording>>,
}

impl Space {
    pub fn new(declared: &Arc<Declared>, engine: &Engine, at_start: bool) -> Space {
        // After a start, it is unknown which objects were skipped when the space was declared.
        let walks = declared.scans || at_start;
        Space {
            index: SpaceIndex::new(declared.definition.clone()),
            walk: walks.then(|| Walk::of(&declared.definition, engine, at_start)),
            placed: Placed::new(declared),
            placing: None,
            region_answers: 0,
            recording: None,
            declared: declared.clone(),
        }
    }

    /// Returns the space with its current declaration; or the index of a dropped space if another one of the same name was
    /// declared.
    pub fn altered(
        mut self,
        declared: &Arc<Declared>,
        engine: &Engine,
    ) -> Result<Space, Box<SpaceIndex>> {
        if self.declared.created != declared.created {
            return Err(Box::new(self.index));
        }
        if self.declared.version != declared.version {
            self.index.alter(declared.definition.clone());
            let fits = |it: &mut Box<Recording>| it.fits(&declared.definition);
            self.recording = self.recording.take_if(fits);
            if declared.scans && self.declared.columns != declared.columns {
                let is_owed = self.walk.is_some_and(|walk| walk.is_of_start);
                self.walk = Some(Walk::of(&declared.definition, engine, is_owed));
            }
        }
        self.place_by(declared);
        self.declared = declared.clone();
        Ok(self)
    }

    /// Applies the current subspaces of the space.
    fn place_by(&mut self, declared: &Declared) {
        let is_new = match (&mut self.placed, &declared.regions) {
            (_, None) => {
                if let Some(placed) = self.placed.take() {
                    // The placement may have entries for very many objects.
                    let mut places = placed.into_places();
                    free(move |pieces| places.by_ref().take(pieces).count() == pieces);
                }
                self.placing = None;
                return;
            }
            (Some(placed), Some(regions)) => placed.follow(regions),
            (none @ None, Some(_)) => {
                *none = Placed::new(declared);
                true
            }
        };
        // Objects that were placed meanwhile have the previous placement as well.
        if is_new || self.placing.is_some() {
            self.placing = Some(0);
        }
    }

    /// Its objects whose rows are from `lo` (inclusive) to `hi` (exclusive).
    pub fn keys_in(&self, lo: &[u8], hi: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let keys = self.index.objects_from(0, 1).map(|(_, key, _)| key);
        keys.filter(|key| lies_in(key, lo, hi)).map(<[u8]>::to_vec)
    }

    /// Rows that may be objects of this space were removed: the remaining ones are walked again.
    pub fn begin_anew(&mut self, lo: &[u8], hi: &[u8], engine: &Engine) {
        let prefixes = &self.declared.definition.prefixes;
        let is_of_range = |prefix: &Vec<u8>| {
            object_rows(prefix).any(|prefix| {
                prefix.as_slice() < hi && (prefix.as_slice() >= lo || lo.starts_with(&prefix))
            })
        };
        if !prefixes.is_empty() && !prefixes.iter().any(is_of_range) {
            return;
        }
        let new = SpaceIndex::new(self.declared.definition.clone());
        give_back(std::mem::replace(&mut self.index, new));
        self.walk = Some(Walk::of(&self.declared.definition, engine, true));
    }

    pub fn standing(&self) -> Standing {
        self.walk.as_ref().map(Walk::standing).unwrap_or_default()
    }

    /// The progress of indexes under construction: processed objects, and all objects.
    pub fn building(&self) -> Option<(u64, u64)> {
        self.index.building()
    }

    pub fn behind(&self) -> Behind {
        match &self.walk {
            Some(walk) if walk.is_of_start => Behind::Owed,
            Some(_) => Behind::Walk,
            None if self.placing.is_some() => Behind::Placing,
            None => Behind::Nothing,
        }
    }

    pub fn is_unfinished(&self) -> bool {
        self.behind() != Behind::Nothing
    }

    /// The memory of its indexes and of the placement.
    pub fn memory_bytes(&self) -> usize {
        let placed = self.placed.as_ref().map_or(0, Placed::memory_bytes);
        self.index.memory_bytes() + placed
    }

    /// The number of objects in each region of each subspace; `None` while the placement is incomplete.
    pub fn filled(&self) -> Option<Vec<Vec<u64>>> {
        let is_whole = self.behind() == Behind::Nothing;
        self.placed
            .as_ref()
            .filter(|_| is_whole)
            .map(Placed::filled)
    }

    /// Returns whether enough objects have changed since [`Space::note_look`] that its regions may have drifted.
    pub fn may_have_drifted(&self) -> bool {
        let is_whole = self.behind() == Behind::Nothing;
        is_whole && self.placed.as_ref().is_some_and(Placed::has_changed)
    }

    pub fn note_look(&mut self) {
        if let Some(placed) = &mut self.placed {
            placed.note_look();
        }
    }

    /// The regions of its subspaces, if it has any.
    pub fn regions(&self) -> Option<&Arc<Regions>> {
        self.placed.as_ref().map(|placed| &placed.regions)
    }

    /// Updates the placement of an object that the index has added or removed. Returns its old and its new region in each
    /// subspace; `None` if there are no subspaces.
    pub fn place(&mut self, key: &[u8]) -> Option<Vec<Moved>> {
        let placed = self.placed.as_mut()?;
        Some(match self.index.columns(key) {
            Some(columns) => placed.put(key, &columns),
            None => placed.remove(key),
        })
    }

    /// Processes up to `objects_max` objects. Returns the unused part of `objects_max`.
    pub fn walk_on(&mut self, engine: &Engine, objects_max: usize, unread: &mut u64) -> usize {
        let Some(mut walk) = self.walk.take() else {
            return self.place_on(objects_max);
        };
        let definition = self.declared.definition.clone();
        let left =
            walk.step(
                &definition,
                engine,
                objects_max,
                &mut |key, bytes| match Object::decode(bytes) {
                    Ok(object) => {
                        self.index.put(key, &object);
                        self.place(key);
                    }
                    Err(_) => *unread += 1,
                },
            );
        if !walk.is_over() {
            self.walk = Some(walk);
        }
        left
    }

    /// Places up to `objects_max` objects by new cuts. Returns the unused part of `objects_max`.
    fn place_on(&mut self, objects_max: usize) -> usize {
        let (Some(from), Some(placed)) = (self.placing, &mut self.placed) else {
            return objects_max;
        };
        let (mut left, mut next) = (objects_max, None);
        for (row, key, columns) in self.index.objects_from(from, 1) {
            if left == 0 {
                next = Some(row);
                break;
            }
            left -= 1;
            placed.put(key, &columns);
        }
        self.placing = next;
        if next.is_none() {
            placed.note_all_placed();
        }
        left
    }
}

/// Frees a large structure on a separate thread. `some` frees the given number of pieces, and returns whether there are more.
/// Serving threads use the same allocator and wait while it is locked, so the thread pauses between steps.
pub(super) fn free(mut some: impl FnMut(usize) -> bool + Send + 'static) {
    let all = move || {
        while some(FREED_AT_ONCE) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let named = std::thread::Builder::new().name("larder-free".to_owned());
    if let Err(error) = named.spawn(all) {
        tracing::warn!(%error, "there is no thread that gives memory back, so a request waited for it");
    }
}

/// Frees an index.
pub fn give_back(mut index: SpaceIndex) {
    if index.len() >= LARGE as u64 {
        free(move |pieces| index.take_apart(pieces));
    }
}
