//! The regions of all subspaces of a space, at one version of their cuts.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | version | 8 | increases with each partitioning, and with each added or removed subspace |
//! | subspaces | count (4), then for each: | |
//! | dimensions | count (4), then for each: | attribute (2), bits (1), intervals (count 4; from: bytes, first cell 2, last cell 2) |
//! | serving | 4 | the number of subspaces that serve searches, which come first; the others are being filled |
//! | numbers | for each subspace: | its number (2), 1 if it was partitioned by a sample (1), the change that added it (8) |
//! | orders | for each subspace: | the order in which its regions use its slots, counted from 0, as runs (count 4; first 2, length 2) |
//!
//! [`RegionFields`] determines which of the last three fields are present.

use larder_types::key_hash;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use crate::mapping::{
    Attribute, Cells, Cut, Dimension, Interval, Placement, Region, SlotRun, Subspace,
};
use crate::schema::{AttributeId, Shape};
use crate::search::regions::region;
use crate::value::Columns;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Regions {
    /// Increases with each change of the space. 0: as declared, partitioned by hash.
    pub version: u64,
    pub(super) placed: Vec<PlacedSubspace>,
    pub(super) serving: usize,
    /// See [`Regions::id`].
    ids: Vec<u64>,
}

/// The encoded fields of regions. Only the necessary ones are written, so that earlier versions can read what they
/// support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionFields {
    /// All subspaces are as declared, partitioned by samples, and their regions are in the order of the slots.
    Cuts,
    /// Subspaces were added or removed, or are still partitioned by hash.
    Numbers,
    /// Some regions are in another order than the slots. Includes the numbers.
    Orders,
}

/// A subspace and the placement of its regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacedSubspace {
    /// Determines the slots of the regions: each subspace of a space starts at another slot. Constant while the
    /// subspace exists.
    pub number: u16,
    /// The unique number of the change that added the subspace; 0 if it was declared with the space. A subspace that is
    /// removed and added again gets a new one.
    pub added_by: u64,
    /// The subspace is partitioned by a sample of the values. Until then it is partitioned by hash.
    pub is_cut: bool,
    pub subspace: Subspace,
    pub placement: Placement,
}

impl PlacedSubspace {
    pub fn shape(&self) -> Shape {
        let dimensions = self.subspace.dimensions().iter();
        let shape = dimensions.map(|it| (AttributeId(it.attribute.0), it.cut.bits()));
        shape.collect()
    }

    pub fn with_number(self, number: u16, came: u64) -> PlacedSubspace {
        PlacedSubspace {
            number,
            added_by: came,
            placement: Placement::even(self.subspace.regions(), number),
            ..self
        }
    }
}

/// The region of an object in one subspace before and after a change. `None`: the object does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionChange {
    pub before: Option<Region>,
    pub after: Option<Region>,
}

impl Regions {
    pub(super) fn of(version: u64, serving: usize, laid: Vec<PlacedSubspace>) -> Regions {
        Regions {
            version,
            serving,
            ids: vec![0; laid.len()],
            placed: laid,
        }
    }

    /// Returns the position of this subspace in `others`, if it has the same cuts and slots there.
    pub fn position_in(&self, others: &Regions, subspace: usize) -> Option<usize> {
        let own = self.placed.get(subspace)?;
        let name = |it: &PlacedSubspace| (it.number, it.added_by);
        let is_same = |it: &PlacedSubspace| {
            name(it) == name(own) && it.subspace == own.subspace && it.placement == own.placement
        };
        others.placed.iter().position(is_same)
    }

    /// Returns whether `others` has the same subspaces in the same order.
    pub fn is_same_as(&self, others: &Regions) -> bool {
        let all = 0..self.placed.len();
        self.placed.len() == others.placed.len()
            && all
                .into_iter()
                .all(|at| self.position_in(others, at) == Some(at))
    }

    /// Computes the ids of the subspaces. `definition` is a number of the definition.
    pub fn compute_ids(&mut self, definition: u64) {
        let ids = self.placed.iter().map(|laid| {
            let mut bytes = definition.to_le_bytes().to_vec();
            bytes.extend_from_slice(&u64::from(laid.number).to_le_bytes());
            bytes.extend_from_slice(&laid.added_by.to_le_bytes());
            put_subspace(&mut bytes, &laid.subspace);
            // Slots in their own order add nothing, because earlier versions computed the ids without an order.
            let order = laid.placement.runs();
            if !order.is_empty() {
                put_order(&mut bytes, &order);
            }
            key_hash(&bytes)
        });
        self.ids = ids.collect();
    }

    /// Returns the id of a subspace. It differs for every other subspace, definition and cut.
    pub fn id(&self, subspace: usize) -> u64 {
        self.ids.get(subspace).copied().unwrap_or_default()
    }

    /// Returns the position of the subspace with this id.
    pub fn position(&self, id: u64) -> Option<usize> {
        self.ids.iter().position(|own| *own == id)
    }

    /// Returns the number of subspaces, without the key subspace: first those that serve searches, then those being
    /// filled.
    pub fn count(&self) -> usize {
        self.placed.len()
    }

    /// Returns the number of subspaces that serve searches. They come first.
    pub fn serving(&self) -> usize {
        self.serving
    }

    pub fn subspace(&self, number: usize) -> Option<&Subspace> {
        self.placed.get(number).map(|laid| &laid.subspace)
    }

    /// Returns the number of a subspace, which determines its slots.
    pub fn number(&self, subspace: usize) -> u16 {
        self.placed[subspace].number
    }

    /// Returns whether a subspace was partitioned by a sample of the values.
    pub fn is_cut(&self, subspace: usize) -> bool {
        self.placed[subspace].is_cut
    }

    /// Returns the hash slot of a region. The owner of the slot holds the region.
    pub fn slot(&self, subspace: usize, region: Region) -> u16 {
        self.placed[subspace].placement.slot(region)
    }

    /// Returns the subspaces that serve searches.
    pub(super) fn searched(&self) -> impl Iterator<Item = &PlacedSubspace> {
        self.placed[..self.serving].iter()
    }

    /// Returns the regions of a subspace whose slots satisfy `is_held`, as runs.
    pub fn held_regions(
        &self,
        subspace: usize,
        is_held: impl Fn(u16) -> bool,
    ) -> Vec<std::ops::RangeInclusive<u16>> {
        let laid = &self.placed[subspace];
        let regions = (0..laid.subspace.regions()).map(|region| Region(region as u16));
        super::copy_request::runs(
            regions
                .filter(|region| is_held(laid.placement.slot(*region)))
                .map(|region| region.0),
        )
    }

    /// Returns the region of the object under this key in one subspace.
    pub fn region(&self, subspace: usize, key: &[u8], columns: &dyn Columns) -> Region {
        region(&self.placed[subspace].subspace, columns, key)
    }

    /// Returns which fields [`Regions::encode`] writes.
    pub fn required_fields(&self) -> RegionFields {
        let is_plain = |(number, laid): (u16, &PlacedSubspace)| {
            laid.number == number && laid.added_by == 0 && laid.is_cut
        };
        let is_declared =
            self.serving == self.placed.len() && (0..).zip(&self.placed).all(is_plain);
        if self.placed.iter().any(|it| !it.placement.runs().is_empty()) {
            RegionFields::Orders
        } else if is_declared {
            RegionFields::Cuts
        } else {
            RegionFields::Numbers
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let written = self.required_fields();
        out.extend_from_slice(&self.version.to_le_bytes());
        put_count(out, self.placed.len());
        for laid in &self.placed {
            put_subspace(out, &laid.subspace);
        }
        if written >= RegionFields::Numbers {
            put_count(out, self.serving);
            for laid in &self.placed {
                out.extend_from_slice(&laid.number.to_le_bytes());
                out.push(u8::from(laid.is_cut));
                out.extend_from_slice(&laid.added_by.to_le_bytes());
            }
        }
        if written >= RegionFields::Orders {
            for laid in &self.placed {
                put_order(out, &laid.placement.runs());
            }
        }
    }

    /// Decodes regions.
    ///
    /// # Errors
    /// The bytes are not encoded regions with the fields of `written`.
    pub fn decode(
        reader: &mut WireReader<'_>,
        written: RegionFields,
    ) -> Result<Regions, Malformed> {
        const BAD: Malformed = Malformed("the bytes are not cuts of subspaces");
        let version = reader.u64()?;
        let count = reader.count(4)?;
        let mut all = Vec::with_capacity(count);
        for number in 0..count {
            let number = u16::try_from(number).map_err(|_| BAD)?;
            let subspace = take_subspace(reader)?;
            all.push(PlacedSubspace {
                number,
                added_by: 0,
                is_cut: true,
                placement: Placement::even(subspace.regions(), number),
                subspace,
            });
        }
        let mut serving = count;
        if written >= RegionFields::Numbers {
            serving = reader.count(0)?;
            for at in 0..count {
                let (number, is_cut, added_in) = (reader.u16()?, reader.flag()?, reader.u64()?);
                let laid = all[at].clone().with_number(number, added_in);
                let is_taken = all[..at].iter().any(|it| it.number == number);
                if is_taken || serving > count {
                    return Err(BAD);
                }
                all[at] = PlacedSubspace { is_cut, ..laid };
            }
        }
        if written >= RegionFields::Orders {
            for laid in &mut all {
                let count = reader.count(4)?;
                let run = |_| Ok((reader.u16()?, reader.u16()?));
                let runs: Vec<SlotRun> = (0..count).map(run).collect::<Result<_, Malformed>>()?;
                let regions = laid.subspace.regions();
                let placement = Placement::of_runs(regions, laid.number, &runs);
                laid.placement = placement.ok_or(BAD)?;
            }
        }
        Ok(Regions::of(version, serving, all))
    }
}

fn put_order(out: &mut Vec<u8>, runs: &[SlotRun]) {
    put_count(out, runs.len());
    for (first, count) in runs {
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
}

fn take_subspace(reader: &mut WireReader<'_>) -> Result<Subspace, Malformed> {
    const BAD: Malformed = Malformed("the bytes are not a subspace");
    let count = reader.count(7)?;
    let mut dimensions = Vec::with_capacity(count);
    for _ in 0..count {
        let attribute = Attribute(reader.u16()?);
        let bits = reader.u8()?;
        let count = reader.count(8)?;
        let interval = |_| {
            Ok(Interval {
                from: reader.bytes()?.into(),
                cells: Cells {
                    first: reader.u16()?,
                    last: reader.u16()?,
                },
            })
        };
        let intervals = (0..count).map(interval).collect::<Result<_, Malformed>>()?;
        let cut = Cut::from_intervals(bits, intervals).map_err(|_| BAD)?;
        dimensions.push(Dimension { attribute, cut });
    }
    Subspace::new(dimensions).map_err(|_| BAD)
}

fn put_subspace(out: &mut Vec<u8>, subspace: &Subspace) {
    put_count(out, subspace.dimensions().len());
    for dimension in subspace.dimensions() {
        out.extend_from_slice(&dimension.attribute.0.to_le_bytes());
        out.push(dimension.cut.bits());
        put_count(out, dimension.cut.intervals().len());
        for interval in dimension.cut.intervals() {
            put_bytes(out, &interval.from);
            out.extend_from_slice(&interval.cells.first.to_le_bytes());
            out.extend_from_slice(&interval.cells.last.to_le_bytes());
        }
    }
}
