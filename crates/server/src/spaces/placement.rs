//! The placement of the objects of a space that one core owns: the region of each in each subspace, and the number of objects per
//! region.
//!
//! Subspaces are added, removed and cut again, while there may be millions of objects. The placement of an object is therefore
//! stored with the *generation* of the subspaces by which it was computed. An earlier generation is read through the current
//! positions of its subspaces, and replaced when the object is placed again.

use std::collections::HashMap;
use std::sync::Arc;

use larder_space::copies::{RegionChange, Regions};
use larder_space::mapping::Region;
use larder_space::value::Columns;
use larder_types::object_row;

use super::DeclaredSpace;

type Bytes = Box<[u8]>;

pub struct Placement {
    pub regions: Arc<Regions>,
    /// For each object, its generation, followed by its region in each subspace of that generation.
    entries: HashMap<Bytes, Box<[u16]>>,
    /// The total bytes of all keys.
    key_bytes: usize,
    generation: u16,
    /// For earlier generations, the position that each current subspace had.
    earlier: Vec<(u16, Vec<Option<usize>>)>,
    /// The number of objects, by subspace and region.
    filled: Vec<Vec<u64>>,
    /// The number of objects added, removed or moved since the regions were last checked for drift.
    changed: u64,
}

/// The region of an object that is not placed by the current cuts yet.
const UNPLACED: Region = Region(u16::MAX);

impl Placement {
    pub fn new(declared: &DeclaredSpace) -> Option<Placement> {
        let regions = declared.regions.clone()?;
        Some(Placement {
            filled: (0..regions.count())
                .map(|at| zero_counts(&regions, at))
                .collect(),
            regions,
            entries: HashMap::new(),
            key_bytes: 0,
            generation: 0,
            earlier: Vec::new(),
            changed: 0,
        })
    }

    /// Applies the current subspaces. Returns whether objects must be placed: until then, they have no region in subspaces that
    /// are new or cut again.
    pub fn apply_regions(&mut self, regions: &Arc<Regions>) -> bool {
        let places = 0..regions.count();
        let from: Vec<Option<usize>> = places
            .map(|at| regions.position_in(&self.regions, at))
            .collect();
        let is_new = from.contains(&None);
        if !regions.is_same_as(&self.regions) {
            let mut before = std::mem::take(&mut self.filled);
            let filled = |(at, from): (usize, &Option<usize>)| match from {
                Some(from) => std::mem::take(&mut before[*from]),
                None => zero_counts(regions, at),
            };
            self.filled = from.iter().enumerate().map(filled).collect();
            for (_, places) in &mut self.earlier {
                *places = from.iter().map(|from| places[(*from)?]).collect();
            }
            self.earlier.push((self.generation, from));
            self.generation = self.generation.wrapping_add(1);
        }
        self.regions = regions.clone();
        is_new
    }

    /// Records that all objects were placed since the last [`Placement::follow`].
    pub fn finish_placing(&mut self) {
        self.earlier.clear();
    }

    /// Returns the entries one by one, for a caller that frees them in pieces.
    pub fn into_entries(self) -> impl Iterator<Item = (Bytes, Box<[u16]>)> {
        self.entries.into_iter()
    }

    /// The approximate memory of the placement.
    pub fn memory_bytes(&self) -> usize {
        let places = (1 + self.filled.len()) * size_of::<u16>();
        let entry = size_of::<(Bytes, Box<[u16]>)>() + places;
        self.key_bytes + self.entries.len() * entry
    }

    pub fn filled(&self) -> Vec<Vec<u64>> {
        self.filled.clone()
    }

    /// Returns whether a tenth of the objects was added, removed or moved to another region since [`Placement::reset_drift`].
    pub fn has_changed(&self) -> bool {
        self.changed * 10 > self.entries.len() as u64
    }

    pub fn reset_drift(&mut self) {
        self.changed = 0;
    }

    /// Returns the region in a subspace according to a stored placement.
    fn stored_region(&self, entry: &[u16], subspace: usize) -> Region {
        let (generation, of) = entry.split_first().expect("the generation comes first");
        let place = if *generation == self.generation {
            Some(subspace)
        } else {
            let earlier = self.earlier.iter().find(|it| it.0 == *generation);
            earlier.and_then(|(_, places)| *places.get(subspace)?)
        };
        let region = place.and_then(|place| of.get(place));
        region.map_or(UNPLACED, |region| Region(*region))
    }

    /// Returns the previous regions of an object with this stored placement.
    fn previous_regions<'a>(
        &'a self,
        entry: &'a [u16],
    ) -> impl Iterator<Item = Option<Region>> + 'a {
        let subspaces = 0..self.filled.len();
        subspaces.map(|subspace| known_region(self.stored_region(entry, subspace)))
    }

    /// Counts an object that was added or removed (`is_other`) or moved.
    fn update_counts(&mut self, mut is_other: bool, moved: &[RegionChange]) {
        for (filled, moved) in self.filled.iter_mut().zip(moved) {
            if moved.before == moved.after {
                continue;
            }
            // An object that is placed for the first time has not moved.
            is_other |= moved.before.is_some();
            if let Some(before) = moved.before {
                filled[usize::from(before.0)] -= 1;
            }
            if let Some(after) = moved.after {
                filled[usize::from(after.0)] += 1;
            }
        }
        self.changed += u64::from(is_other);
    }

    /// Places an object with these columns. Returns its old and its new region in each subspace.
    pub fn put(&mut self, key: &[u8], columns: &dyn Columns) -> Vec<RegionChange> {
        let moved = |subspace| RegionChange {
            before: None,
            after: Some(self.regions.region(subspace, key, columns)),
        };
        let mut moved: Vec<RegionChange> = (0..self.filled.len()).map(moved).collect();
        let regions = moved.iter().filter_map(|it| Some(it.after?.0));
        let entry: Box<[u16]> = [self.generation].into_iter().chain(regions).collect();
        let before = match self.entries.get_mut(key) {
            Some(of) => Some(std::mem::replace(of, entry)),
            None => {
                self.key_bytes += key.len();
                self.entries.insert(key.into(), entry)
            }
        };
        if let Some(before) = &before {
            let pairs = moved.iter_mut().zip(self.previous_regions(before));
            pairs.for_each(|(moved, before)| moved.before = before);
        }
        self.update_counts(before.is_none(), &moved);
        moved
    }

    pub fn remove(&mut self, key: &[u8]) -> Vec<RegionChange> {
        let Some(before) = self.entries.remove(key) else {
            return Vec::new();
        };
        self.key_bytes -= key.len();
        let after = None;
        let moved = self
            .previous_regions(&before)
            .map(|before| RegionChange { before, after });
        let moved: Vec<RegionChange> = moved.collect();
        self.update_counts(true, &moved);
        moved
    }

    /// Returns the region of an object in one subspace; `None` if it is not in the space.
    pub fn region(&self, key: &[u8], subspace: usize) -> Option<Region> {
        Some(self.stored_region(self.entries.get(key)?, subspace))
    }

    /// Returns the regions of an object of which only the expiry time changes.
    pub fn current_regions(&self, key: &[u8]) -> Vec<RegionChange> {
        let of = self.entries.get(key).into_iter();
        let stays = of
            .flat_map(|entry| self.previous_regions(entry))
            .map(|region| RegionChange {
                before: region,
                after: region,
            });
        stays.collect()
    }

    /// Removes the objects whose rows are from `lo` (inclusive) to `hi` (exclusive).
    pub fn remove_range(&mut self, lo: &[u8], hi: &[u8]) -> Vec<(Bytes, Vec<RegionChange>)> {
        let keys = self.entries.keys();
        let gone: Vec<Bytes> = keys
            .filter(|key| is_row_in_range(key, lo, hi))
            .cloned()
            .collect();
        let moved = gone.into_iter().map(|key| {
            let moved = self.remove(&key);
            (key, moved)
        });
        moved.collect()
    }
}

/// Returns whether an object's row is from `lo` (inclusive) to `hi` (exclusive).
pub fn is_row_in_range(key: &[u8], lo: &[u8], hi: &[u8]) -> bool {
    let row = object_row(key);
    lo <= row.as_slice() && row.as_slice() < hi
}

fn zero_counts(regions: &Regions, subspace: usize) -> Vec<u64> {
    let regions = regions.subspace(subspace).map_or(0, |it| it.regions());
    vec![0; regions as usize]
}

/// A region before a change, if it is known.
fn known_region(region: Region) -> Option<Region> {
    (region != UNPLACED).then_some(region)
}

#[cfg(test)]
mod tests {
    use larder_space::object::{Hash, Object};
    use larder_space::schema::{Alteration, Definition};
    use larder_space::value::Row;

    use super::super::record::{self, NameRecord};
    use super::*;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    fn declared(definition: &Definition, regions: Option<&Regions>) -> Arc<DeclaredSpace> {
        let record = record::encode_space(definition, 1, true, regions);
        match record::decode(&record) {
            Ok(NameRecord::Space(declared)) => declared,
            other => panic!("a space: {other:?}"),
        }
    }

    fn put(
        placed: &mut Placement,
        declared: &DeclaredSpace,
        key: &str,
        size: u64,
    ) -> Vec<RegionChange> {
        let mut hash = Hash::default();
        hash.set(b"size", size.to_string().into_bytes());
        hash.set(b"color", b"red");
        let (row, _) = Row::of(&declared.definition, &Object::Hash(hash));
        placed.put(key.as_bytes(), &row)
    }

    #[test]
    fn placements_survive_in_unchanged_subspaces_while_others_are_added_and_removed() {
        let line = "x SUBSPACES 2 size color REGIONS 16 SCHEMA size NUMERIC color TAG";
        let definition = Definition::parse_create(&words(line)).expect("it fits");
        let first = declared(&definition, None);
        let mut placed = Placement::new(&first).expect("it has subspaces");
        let at = put(&mut placed, &first, "a", 1);
        put(&mut placed, &first, "b", 2);
        let begin = definition.parse_subspaces(&words("SUBSPACES 2 size,color color"));
        let Ok(Alteration::Begin(filling)) = begin else {
            panic!("it begins");
        };
        let filling = definition.with_filling(Some(filling));
        let regions = |declared: &DeclaredSpace| declared.regions.clone().expect("subspaces");
        let cut = regions(&first)
            .with_definition(&filling, 5)
            .expect("it fits");
        let second = declared(&filling, Some(&cut));
        assert!(placed.apply_regions(&regions(&second)), "one is new");
        // One object is placed again; the other is not when the change is cancelled.
        let moved = put(&mut placed, &second, "b", 2);
        assert_eq!(moved.len(), 3);
        assert!(moved[0].before.is_some() && moved[2].before.is_none());
        assert_eq!(placed.region(b"a", 0), at[0].after);
        let switched = filling.with_filling_applied().expect("it is being filled");
        let cut = regions(&second)
            .with_definition(&switched, 0)
            .expect("it fits");
        let third = declared(&switched, Some(&cut));
        assert!(!placed.apply_regions(&regions(&third)), "none is new");
        // The new subspace is now the first, and the remaining one the second.
        assert_eq!(placed.region(b"b", 0), moved[2].after);
        assert_eq!(placed.region(b"a", 1), at[1].after);
        assert_eq!(placed.region(b"a", 0), Some(UNPLACED));
        let filled: Vec<u64> = placed.filled().iter().map(|it| it.iter().sum()).collect();
        assert_eq!(filled, [1, 2]);
        let gone = placed.remove(b"a");
        assert_eq!((gone[0].before, gone[1].before), (None, at[1].after));
        let filled: Vec<u64> = placed.filled().iter().map(|it| it.iter().sum()).collect();
        assert_eq!(filled, [1, 1]);
    }
}
