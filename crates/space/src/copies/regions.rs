//! The regions of all subspaces of a space, as they are cut at one time.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | version | 8 | it grows with each new cut, and when subspaces come or go |
//! | subspaces | count (4), then of each: | |
//! | dimensions | count (4), then of each: | attribute (2), bits (1), intervals (count 4; from: bytes, first cell 2, last cell 2) |
//! | serving | 4 | how many are searched: the first ones; the others are being filled |
//! | numbers | of each subspace: | its number (2), 1 if it was cut by a sample (1), when it came (8) |
//! | orders | of each subspace: | in which order its regions have its slots, which are counted from 0: runs (count 4; first 2, how many 2) |
//!
//! The last three are there as far as [`Written`] says.

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
    /// Of a space, it grows with each change. 0: as it was declared, by hash.
    pub version: u64,
    pub(super) laid: Vec<Laid>,
    pub(super) serving: usize,
    /// See [`Regions::id`].
    ids: Vec<u64>,
}

/// How much is written of regions: as much as it takes to have them back, so that earlier versions read what they know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Written {
    /// All subspaces are as declared, cut by samples, and their regions in the order of the slots.
    Cuts,
    /// Some have come or gone, or are still cut by hash.
    Numbers,
    /// The regions of some have another order than the slots; numbers are written, too.
    Orders,
}

/// A subspace, and where its regions lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Laid {
    /// It says which slots the regions have: of several subspaces each begins elsewhere. The same as long as the subspace is there.
    pub number: u16,
    /// A number of the change with which it came, and of no other; 0: it was declared with the space. So one that comes again is another one.
    pub came: u64,
    /// By a sample of what objects have; before that it is cut by hash.
    pub is_cut: bool,
    pub subspace: Subspace,
    pub placement: Placement,
}

impl Laid {
    pub fn shape(&self) -> Shape {
        let dimensions = self.subspace.dimensions().iter();
        let shape = dimensions.map(|it| (AttributeId(it.attribute.0), it.cut.bits()));
        shape.collect()
    }

    pub fn numbered(self, number: u16, came: u64) -> Laid {
        Laid {
            number,
            came,
            placement: Placement::even(self.subspace.regions(), number),
            ..self
        }
    }
}

/// Where an object lies in one subspace before and after a change; None: there is no such object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub before: Option<Region>,
    pub after: Option<Region>,
}

impl Regions {
    pub(super) fn of(version: u64, serving: usize, laid: Vec<Laid>) -> Regions {
        Regions {
            version,
            serving,
            ids: vec![0; laid.len()],
            laid,
        }
    }

    /// The place of this subspace in `others`, if it has the same cuts and the same slots there.
    pub fn same_in(&self, others: &Regions, subspace: usize) -> Option<usize> {
        let own = self.laid.get(subspace)?;
        let name = |it: &Laid| (it.number, it.came);
        let is_same = |it: &Laid| {
            name(it) == name(own) && it.subspace == own.subspace && it.placement == own.placement
        };
        others.laid.iter().position(is_same)
    }

    /// Whether all of these, in their order, are as others are.
    pub fn are_same(&self, others: &Regions) -> bool {
        let all = 0..self.laid.len();
        self.laid.len() == others.laid.len()
            && all
                .into_iter()
                .all(|at| self.same_in(others, at) == Some(at))
    }

    /// Numbers the subspaces, given a number of the definition.
    pub fn identify(&mut self, definition: u64) {
        let ids = self.laid.iter().map(|laid| {
            let mut bytes = definition.to_le_bytes().to_vec();
            bytes.extend_from_slice(&u64::from(laid.number).to_le_bytes());
            bytes.extend_from_slice(&laid.came.to_le_bytes());
            put_subspace(&mut bytes, &laid.subspace);
            // Nothing for the slots' own order: by earlier versions those have these ids.
            let order = laid.placement.runs();
            if !order.is_empty() {
                put_order(&mut bytes, &order);
            }
            key_hash(&bytes)
        });
        self.ids = ids.collect();
    }

    /// A number that a subspace has, and no other, nor it by another definition or cut.
    pub fn id(&self, subspace: usize) -> u64 {
        self.ids.get(subspace).copied().unwrap_or_default()
    }

    /// Which subspace has this id.
    pub fn position(&self, id: u64) -> Option<usize> {
        self.ids.iter().position(|own| *own == id)
    }

    /// How many subspaces there are, beside the key subspace: those that are searched, and then those that are being filled.
    pub fn count(&self) -> usize {
        self.laid.len()
    }

    /// How many are searched: the first ones.
    pub fn serving(&self) -> usize {
        self.serving
    }

    pub fn subspace(&self, number: usize) -> Option<&Subspace> {
        self.laid.get(number).map(|laid| &laid.subspace)
    }

    /// By which a subspace has its slots.
    pub fn number(&self, subspace: usize) -> u16 {
        self.laid[subspace].number
    }

    /// Whether a subspace was cut by a sample of what objects have.
    pub fn is_cut(&self, subspace: usize) -> bool {
        self.laid[subspace].is_cut
    }

    /// The hash slot of a region: who owns it holds the region.
    pub fn slot(&self, subspace: usize, region: Region) -> u16 {
        self.laid[subspace].placement.slot(region)
    }

    /// Those that are searched.
    pub(super) fn searched(&self) -> impl Iterator<Item = &Laid> {
        self.laid[..self.serving].iter()
    }

    /// Of each subspace, the regions whose slots are chosen by `is_held`, as runs.
    pub fn held(
        &self,
        subspace: usize,
        is_held: impl Fn(u16) -> bool,
    ) -> Vec<std::ops::RangeInclusive<u16>> {
        let laid = &self.laid[subspace];
        let regions = (0..laid.subspace.regions()).map(|region| Region(region as u16));
        super::part::runs(
            regions
                .filter(|region| is_held(laid.placement.slot(*region)))
                .map(|region| region.0),
        )
    }

    /// Where the object under this key lies in one subspace.
    pub fn region(&self, subspace: usize, key: &[u8], columns: &dyn Columns) -> Region {
        region(&self.laid[subspace].subspace, columns, key)
    }

    /// How much [`Regions::encode`] writes of these.
    pub fn written(&self) -> Written {
        let is_plain =
            |(number, laid): (u16, &Laid)| laid.number == number && laid.came == 0 && laid.is_cut;
        let is_declared = self.serving == self.laid.len() && (0..).zip(&self.laid).all(is_plain);
        if self.laid.iter().any(|it| !it.placement.runs().is_empty()) {
            Written::Orders
        } else if is_declared {
            Written::Cuts
        } else {
            Written::Numbers
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let written = self.written();
        out.extend_from_slice(&self.version.to_le_bytes());
        put_count(out, self.laid.len());
        for laid in &self.laid {
            put_subspace(out, &laid.subspace);
        }
        if written >= Written::Numbers {
            put_count(out, self.serving);
            for laid in &self.laid {
                out.extend_from_slice(&laid.number.to_le_bytes());
                out.push(u8::from(laid.is_cut));
                out.extend_from_slice(&laid.came.to_le_bytes());
            }
        }
        if written >= Written::Orders {
            for laid in &self.laid {
                put_order(out, &laid.placement.runs());
            }
        }
    }

    /// # Errors
    /// The bytes are not what [`Regions::encode`] writes of regions for which [`Regions::written`] says this.
    pub fn decode(reader: &mut WireReader<'_>, written: Written) -> Result<Regions, Malformed> {
        const BAD: Malformed = Malformed("these bytes are no cuts of subspaces");
        let version = reader.u64()?;
        let count = reader.count(4)?;
        let mut all = Vec::with_capacity(count);
        for number in 0..count {
            let number = u16::try_from(number).map_err(|_| BAD)?;
            let subspace = take_subspace(reader)?;
            all.push(Laid {
                number,
                came: 0,
                is_cut: true,
                placement: Placement::even(subspace.regions(), number),
                subspace,
            });
        }
        let mut serving = count;
        if written >= Written::Numbers {
            serving = reader.count(0)?;
            for at in 0..count {
                let (number, is_cut, came) = (reader.u16()?, reader.flag()?, reader.u64()?);
                let laid = all[at].clone().numbered(number, came);
                let is_taken = all[..at].iter().any(|it| it.number == number);
                if is_taken || serving > count {
                    return Err(BAD);
                }
                all[at] = Laid { is_cut, ..laid };
            }
        }
        if written >= Written::Orders {
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
    const BAD: Malformed = Malformed("these bytes are no subspace");
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
