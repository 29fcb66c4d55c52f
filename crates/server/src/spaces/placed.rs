//! Where the objects of a space lie that one core owns: the region of each in each subspace, and how many lie in each region.

use std::collections::HashMap;
use std::sync::Arc;

use larder_space::copies::{Moved, Regions};
use larder_space::mapping::Region;
use larder_space::value::Columns;
use larder_types::object_row;

use super::Declared;

type Bytes = Box<[u8]>;

/// Where the objects of a space lie that this core owns.
pub struct Placed {
    pub regions: Arc<Regions>,
    of: HashMap<Bytes, Box<[Region]>>,
    /// By subspace and region, how many lie there.
    filled: Vec<Vec<u64>>,
    /// How many have come, gone or moved since somebody looked whether regions have drifted.
    changed: u64,
}

impl Placed {
    pub fn new(declared: &Declared) -> Option<Placed> {
        let regions = declared.regions.clone()?;
        Some(Placed {
            filled: nothing_in(&regions),
            regions,
            of: HashMap::new(),
            changed: 0,
        })
    }

    /// Goes on with these cuts. Whether objects are to be placed by them: until they are, they lie nowhere in subspaces whose cut is another.
    pub fn cut_anew(&mut self, regions: &Arc<Regions>) -> bool {
        let others: Vec<usize> = (0..regions.count())
            .filter(|subspace| !regions.is_same(&self.regions, *subspace))
            .collect();
        for subspace in &others {
            self.filled[*subspace].fill(0);
            for of in self.of.values_mut() {
                of[*subspace] = UNPLACED;
            }
        }
        self.regions = regions.clone();
        !others.is_empty()
    }

    pub fn filled(&self) -> Vec<Vec<u64>> {
        self.filled.clone()
    }

    /// Whether a tenth of the objects has come, gone or moved to another region since [`Placed::note_look`].
    pub fn has_changed(&self) -> bool {
        self.changed * 10 > self.of.len() as u64
    }

    pub fn note_look(&mut self) {
        self.changed = 0;
    }

    fn move_to(&mut self, before: Option<&[Region]>, after: Option<&[Region]>) {
        let mut is_other = before.is_none() != after.is_none();
        for (subspace, filled) in self.filled.iter_mut().enumerate() {
            let before = before.map(|of| of[subspace]);
            let after = after.map(|of| of[subspace]);
            if before != after {
                // What is placed for the first time has not moved.
                is_other |= before != Some(UNPLACED);
                if let Some(before) = before.and_then(placed) {
                    filled[usize::from(before.0)] -= 1;
                }
                if let Some(after) = after {
                    filled[usize::from(after.0)] += 1;
                }
            }
        }
        self.changed += u64::from(is_other);
    }

    /// The object has these columns now; where it was and where it is, in each subspace.
    pub fn put(&mut self, key: &[u8], columns: &dyn Columns) -> Vec<Moved> {
        let numbers = 0..self.regions.count();
        let after: Box<[Region]> = numbers
            .map(|subspace| self.regions.region(subspace, key, columns))
            .collect();
        let before = match self.of.get_mut(key) {
            Some(of) => Some(std::mem::replace(of, after.clone())),
            None => self.of.insert(key.into(), after.clone()),
        };
        self.move_to(before.as_deref(), Some(&after));
        let moved = after.iter().enumerate().map(|(subspace, after)| Moved {
            before: before.as_ref().and_then(|before| placed(before[subspace])),
            after: Some(*after),
        });
        moved.collect()
    }

    pub fn remove(&mut self, key: &[u8]) -> Vec<Moved> {
        let Some(before) = self.of.remove(key) else {
            return Vec::new();
        };
        self.move_to(Some(&before), None);
        let moved = before.iter().map(|before| Moved {
            before: placed(*before),
            after: None,
        });
        moved.collect()
    }

    /// Where an object lies in one subspace. `None`: it is none of the space's.
    pub fn region(&self, key: &[u8], subspace: usize) -> Option<Region> {
        self.of.get(key)?.get(subspace).copied()
    }

    /// Where an object is that has only another time to go.
    pub fn stays(&self, key: &[u8]) -> Vec<Moved> {
        let of = self.of.get(key).map(|of| &**of).unwrap_or_default();
        let moved = of.iter().map(|region| Moved {
            before: placed(*region),
            after: placed(*region),
        });
        moved.collect()
    }

    /// The objects go whose rows are from `lo` up to `hi`.
    pub fn remove_range(&mut self, lo: &[u8], hi: &[u8]) -> Vec<(Bytes, Vec<Moved>)> {
        let is_gone = |key: &[u8]| {
            let row = object_row(key);
            lo <= row.as_slice() && row.as_slice() < hi
        };
        let gone: Vec<Bytes> = self.of.keys().filter(|key| is_gone(key)).cloned().collect();
        let moved = gone.into_iter().map(|key| {
            let moved = self.remove(&key);
            (key, moved)
        });
        moved.collect()
    }
}

fn nothing_in(regions: &Regions) -> Vec<Vec<u64>> {
    let subspaces = (0..regions.count()).filter_map(|subspace| regions.subspace(subspace));
    subspaces
        .map(|subspace| vec![0; subspace.regions() as usize])
        .collect()
}

/// A region before a change, if it is known.
fn placed(region: Region) -> Option<Region> {
    (region != UNPLACED).then_some(region)
}

/// Where an object lies that is not placed by the present cuts yet.
const UNPLACED: Region = Region(u16::MAX);
