//! One space on one core: the index of the objects that the core owns, and their placement in its subspaces.

use std::sync::Arc;
use std::time::Duration;

use larder_join::Engine;
use larder_space::copies::{RegionChange, Regions};
use larder_space::index::SpaceIndex;
use larder_space::object::Object;
use larder_types::object_rows;

use super::DeclaredSpace;
use super::local::Backlog;
use super::placement::{Placement, is_row_in_range};
use super::recording::Recording;
use super::walk::{Walk, WalkProgress};

/// From this number of objects on, memory is freed on a separate thread, because that takes a while.
pub(super) const LARGE: usize = 4096;
/// Number of pieces that are freed per step.
const PIECES_FREED_PER_STEP: usize = 512;

pub struct Space {
    pub declared: Arc<DeclaredSpace>,
    pub index: SpaceIndex,
    walk: Option<Walk>,
    /// Present if it has subspaces.
    pub(super) placement: Option<Placement>,
    /// The first row that is yet to be placed, after subspaces were added or cut again.
    placing: Option<u32>,
    /// Number of searches that were answered here from regions.
    pub region_answers: u64,
    /// Present while the workload is recorded.
    pub recording: Option<Box<Recording>>,
}

impl Space {
    pub fn new(declared: &Arc<DeclaredSpace>, engine: &Engine, at_start: bool) -> Space {
        // After a start, it is unknown which objects were skipped when the space was declared.
        let walks = declared.scans || at_start;
        Space {
            index: SpaceIndex::new(declared.definition.clone()),
            walk: walks.then(|| Walk::new(&declared.definition, engine, at_start)),
            placement: Placement::new(declared),
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
        declared: &Arc<DeclaredSpace>,
        engine: &Engine,
    ) -> Result<Space, Box<SpaceIndex>> {
        if self.declared.created != declared.created {
            return Err(Box::new(self.index));
        }
        if self.declared.version != declared.version {
            self.index.alter(declared.definition.clone());
            let fits = |it: &mut Box<Recording>| it.is_compatible(&declared.definition);
            self.recording = self.recording.take_if(fits);
            if declared.scans && self.declared.columns != declared.columns {
                let is_owed = self.walk.is_some_and(|walk| walk.is_startup);
                self.walk = Some(Walk::new(&declared.definition, engine, is_owed));
            }
        }
        self.apply_regions(declared);
        self.declared = declared.clone();
        Ok(self)
    }

    /// Applies the current subspaces of the space.
    fn apply_regions(&mut self, declared: &DeclaredSpace) {
        let is_new = match (&mut self.placement, &declared.regions) {
            (_, None) => {
                if let Some(placed) = self.placement.take() {
                    // The placement may have entries for very many objects.
                    let mut places = placed.into_entries();
                    free_in_background(move |pieces| {
                        places.by_ref().take(pieces).count() == pieces
                    });
                }
                self.placing = None;
                return;
            }
            (Some(placed), Some(regions)) => placed.apply_regions(regions),
            (none @ None, Some(_)) => {
                *none = Placement::new(declared);
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
        keys.filter(|key| is_row_in_range(key, lo, hi))
            .map(<[u8]>::to_vec)
    }

    /// Rows that may be objects of this space were removed: the remaining ones are walked again.
    pub fn restart_walk(&mut self, lo: &[u8], hi: &[u8], engine: &Engine) {
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
        free_index(std::mem::replace(&mut self.index, new));
        self.walk = Some(Walk::new(&self.declared.definition, engine, true));
    }

    pub fn walk_progress(&self) -> WalkProgress {
        self.walk.as_ref().map(Walk::progress).unwrap_or_default()
    }

    /// The progress of indexes under construction: processed objects, and all objects.
    pub fn building(&self) -> Option<(u64, u64)> {
        self.index.building()
    }

    pub fn backlog(&self) -> Backlog {
        match &self.walk {
            Some(walk) if walk.is_startup => Backlog::BlocksSearch,
            Some(_) => Backlog::Walk,
            None if self.placing.is_some() => Backlog::Placing,
            None => Backlog::Empty,
        }
    }

    pub fn is_unfinished(&self) -> bool {
        self.backlog() != Backlog::Empty
    }

    /// The memory of its indexes and of the placement.
    pub fn memory_bytes(&self) -> usize {
        let placed = self.placement.as_ref().map_or(0, Placement::memory_bytes);
        self.index.memory_bytes() + placed
    }

    /// The number of objects in each region of each subspace; `None` while the placement is incomplete.
    pub fn filled(&self) -> Option<Vec<Vec<u64>>> {
        let is_whole = self.backlog() == Backlog::Empty;
        self.placement
            .as_ref()
            .filter(|_| is_whole)
            .map(Placement::filled)
    }

    /// Returns whether enough objects have changed since [`Space::reset_drift`] that its regions may have drifted.
    pub fn may_have_drifted(&self) -> bool {
        let is_whole = self.backlog() == Backlog::Empty;
        is_whole && self.placement.as_ref().is_some_and(Placement::has_changed)
    }

    pub fn reset_drift(&mut self) {
        if let Some(placed) = &mut self.placement {
            placed.reset_drift();
        }
    }

    /// The regions of its subspaces, if it has any.
    pub fn regions(&self) -> Option<&Arc<Regions>> {
        self.placement.as_ref().map(|placed| &placed.regions)
    }

    /// Updates the placement of an object that the index has added or removed. Returns its old and its new region in each
    /// subspace; `None` if there are no subspaces.
    pub fn place(&mut self, key: &[u8]) -> Option<Vec<RegionChange>> {
        let placed = self.placement.as_mut()?;
        Some(match self.index.columns(key) {
            Some(columns) => placed.put(key, &columns),
            None => placed.remove(key),
        })
    }

    /// Processes up to `objects_max` objects. Returns the unused part of `objects_max`.
    pub fn index_step(&mut self, engine: &Engine, objects_max: usize, unread: &mut u64) -> usize {
        let Some(mut walk) = self.walk.take() else {
            return self.place_step(objects_max);
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
        if !walk.is_done() {
            self.walk = Some(walk);
        }
        left
    }

    /// Places up to `objects_max` objects by new cuts. Returns the unused part of `objects_max`.
    fn place_step(&mut self, objects_max: usize) -> usize {
        let (Some(from), Some(placed)) = (self.placing, &mut self.placement) else {
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
            placed.finish_placing();
        }
        left
    }
}

/// Frees a large structure on a separate thread. `some` frees the given number of pieces, and returns whether there are more.
/// Serving threads use the same allocator and wait while it is locked, so the thread pauses between steps.
pub(super) fn free_in_background(mut some: impl FnMut(usize) -> bool + Send + 'static) {
    let all = move || {
        while some(PIECES_FREED_PER_STEP) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let named = std::thread::Builder::new().name("larder-free".to_owned());
    if let Err(error) = named.spawn(all) {
        tracing::warn!(%error, "no thread can be started to free memory, so a request waits for it");
    }
}

/// Frees an index.
pub fn free_index(mut index: SpaceIndex) {
    if index.len() >= LARGE as u64 {
        free_in_background(move |pieces| index.free_some(pieces));
    }
}
