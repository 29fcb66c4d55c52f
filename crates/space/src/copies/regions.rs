//! The regions of all subspaces of a space, as they are cut at one time.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | version | 8 | it grows with each new cut |
//! | subspaces | count (4), then of each: | |
//! | dimensions | count (4), then of each: | attribute (2), bits (1), intervals (count 4; from: bytes, first cell 2, last cell 2) |

use larder_types::key_hash;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use crate::error::{Refusal, Result};
use crate::mapping::{
    Attribute, Cells, Cut, Dimension, Interval, Placement, Region, Subspace, allocate_bits,
};
use crate::schema::{AttributeId, Definition, Kind};
use crate::search::regions::region;
use crate::value::Columns;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regions {
    /// Of a space, it grows with each new cut. 0: as it was declared, by hash.
    pub version: u64,
    subspaces: Vec<(Subspace, Placement)>,
    /// See [`Regions::id`].
    ids: Vec<u64>,
}

/// Attributes of more bits stay cut by hash: a cell takes some bytes in what all nodes keep of a space.
const CUT_BITS_MAX: u8 = 10;
/// What all cuts of a space may take.
const CUTS_BYTES_MAX: usize = 64 << 10;

/// Where an object lies in one subspace before and after a change; None: there is no such object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub before: Option<Region>,
    pub after: Option<Region>,
}

impl Regions {
    /// As FT.CREATE declares the subspaces, cut by hash: nothing is known of the values yet.
    ///
    /// # Errors
    /// The clause asks for more regions than it allows.
    pub fn by_hash(definition: &Definition) -> Result<Regions> {
        Regions::cut(definition, 0, &mut |_, bits| {
            Cut::by_hash(bits).map_err(|error| Refusal::new(error.to_string()))
        })
    }

    /// As FT.CREATE declares the subspaces, cut by samples of the attributes' ordered values; by hash where there is none.
    ///
    /// # Errors
    /// As [`Regions::by_hash`].
    pub fn by_samples(
        definition: &Definition,
        version: u64,
        samples: &dyn Fn(AttributeId) -> Vec<Vec<u8>>,
    ) -> Result<Regions> {
        Regions::cut(definition, version, &mut |attribute, bits| {
            let sample = samples(attribute);
            Cut::by_quantiles(bits, sample.iter().map(Vec::as_slice))
                .map_err(|error| Refusal::new(error.to_string()))
        })
    }

    fn cut(
        definition: &Definition,
        version: u64,
        cut: &mut dyn FnMut(AttributeId, u8) -> Result<Cut>,
    ) -> Result<Regions> {
        let layout = &definition.layout;
        let mut subspaces = Vec::with_capacity(layout.subspaces.len());
        for cuts in &layout.subspaces {
            let asked: Vec<Option<u8>> = cuts.iter().map(|it| it.bits).collect();
            let values = |at: usize| match definition.get(cuts[at].attribute).kind {
                Kind::Boolean => Some(2),
                _ => None,
            };
            let bits = allocate_bits(layout.regions, &asked, values)
                .map_err(|error| Refusal::new(error.to_string()))?;
            let dimensions = cuts.iter().zip(bits).map(|(asked, bits)| {
                Ok(Dimension {
                    attribute: Attribute(asked.attribute.0),
                    cut: cut(asked.attribute, bits)?,
                })
            });
            let subspace = Subspace::new(dimensions.collect::<Result<_>>()?)
                .map_err(|error| Refusal::new(error.to_string()))?;
            subspaces.push(subspace);
        }
        Ok(Regions::of_subspaces(version, subspaces))
    }

    fn of_subspaces(version: u64, subspaces: Vec<Subspace>) -> Regions {
        let numbered = (0..).zip(subspaces);
        let placed = numbered.map(|(number, subspace)| {
            let placement = Placement::even(subspace.regions(), number);
            (subspace, placement)
        });
        let subspaces: Vec<_> = placed.collect();
        Regions {
            version,
            ids: vec![0; subspaces.len()],
            subspaces,
        }
    }

    /// These with some attributes of some subspaces (`anew` has those of each) cut anew. `sample` has values of an attribute as [`sampled`] has them, ascending,
    /// each once with its weight.
    ///
    /// [`sampled`]: crate::search::regions::sampled
    pub fn cut_anew(
        &self,
        anew: &[Vec<Attribute>],
        sample: &dyn Fn(AttributeId) -> Vec<(Vec<u8>, u64)>,
    ) -> Regions {
        let mut room = CUTS_BYTES_MAX;
        let mut subspaces = Vec::with_capacity(self.subspaces.len());
        for (number, (subspace, _)) in self.subspaces.iter().enumerate() {
            let is_anew = |attribute: &Attribute| {
                let of = anew.get(number);
                of.is_some_and(|anew| anew.contains(attribute))
            };
            let dimensions = subspace.dimensions().iter().map(|dimension| {
                let (attribute, bits) = (dimension.attribute, dimension.cut.bits());
                let mut cut = dimension.cut.clone();
                if is_anew(&attribute) && (1..=CUT_BITS_MAX).contains(&bits) {
                    let values = sample(AttributeId(attribute.0));
                    let weights: Vec<(&[u8], u64)> = values
                        .iter()
                        .map(|(value, weight)| (&value[..], *weight))
                        .collect();
                    cut = Cut::by_weights(bits, &weights).unwrap_or(cut);
                }
                let size: usize = cut.intervals().iter().map(|it| it.from.len() + 8).sum();
                if size > room {
                    cut = Cut::by_hash(bits).unwrap_or(cut);
                } else {
                    room -= size;
                }
                Dimension { attribute, cut }
            });
            let same = || subspace.clone();
            let cut = Subspace::new(dimensions.collect());
            subspaces.push(cut.unwrap_or_else(|_| same()));
        }
        Regions::of_subspaces(self.version + 1, subspaces)
    }

    /// Whether objects lie in the same regions of a subspace as by other cuts of it.
    pub fn is_same(&self, other: &Regions, subspace: usize) -> bool {
        self.subspace(subspace) == other.subspace(subspace)
    }

    /// Whether these are cuts of what a definition declares.
    pub fn fit(&self, definition: &Definition) -> bool {
        let shape = |regions: &Regions| -> Vec<Vec<(Attribute, u8)>> {
            let shape = |subspace: &Subspace| {
                let dimensions = subspace.dimensions().iter();
                dimensions.map(|it| (it.attribute, it.cut.bits())).collect()
            };
            regions.subspaces.iter().map(|(it, _)| shape(it)).collect()
        };
        Regions::by_hash(definition).is_ok_and(|declared| shape(&declared) == shape(self))
    }

    /// Numbers the subspaces, given a number of the definition.
    pub fn identify(&mut self, definition: u64) {
        let ids = self.subspaces.iter().zip(0_u64..).map(|(placed, number)| {
            let mut bytes = definition.to_le_bytes().to_vec();
            bytes.extend_from_slice(&number.to_le_bytes());
            put_subspace(&mut bytes, &placed.0);
            key_hash(&bytes)
        });
        self.ids = ids.collect();
    }

    /// A number that a subspace has, and no other, nor it by another definition or cut.
    pub fn id(&self, subspace: usize) -> u64 {
        self.ids.get(subspace).copied().unwrap_or_default()
    }

    /// How many subspaces there are, beside the key subspace.
    pub fn count(&self) -> usize {
        self.subspaces.len()
    }

    pub fn subspace(&self, number: usize) -> Option<&Subspace> {
        self.subspaces.get(number).map(|(subspace, _)| subspace)
    }

    /// The hash slot of a region: who owns it holds the region.
    pub fn slot(&self, subspace: usize, region: Region) -> u16 {
        self.subspaces[subspace].1.slot(region)
    }

    pub(super) fn subspaces(&self) -> impl Iterator<Item = &(Subspace, Placement)> {
        self.subspaces.iter()
    }

    /// Of each subspace, the regions whose slots are chosen by `is_held`, as runs.
    pub fn held(
        &self,
        subspace: usize,
        is_held: impl Fn(u16) -> bool,
    ) -> Vec<std::ops::RangeInclusive<u16>> {
        let (subspace, placement) = &self.subspaces[subspace];
        let regions = (0..subspace.regions()).map(|region| Region(region as u16));
        super::part::runs(
            regions
                .filter(|region| is_held(placement.slot(*region)))
                .map(|region| region.0),
        )
    }

    /// Where the object under this key lies in one subspace.
    pub fn region(&self, subspace: usize, key: &[u8], columns: &dyn Columns) -> Region {
        region(&self.subspaces[subspace].0, columns, key)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version.to_le_bytes());
        put_count(out, self.subspaces.len());
        for (subspace, _) in &self.subspaces {
            put_subspace(out, subspace);
        }
    }

    /// # Errors
    /// [`Regions::encode`] does not write such bytes.
    pub fn decode(reader: &mut WireReader<'_>) -> Result<Regions, Malformed> {
        const BAD: Malformed = Malformed("these bytes are no cuts of subspaces");
        let version = reader.u64()?;
        let count = reader.count(4)?;
        let mut subspaces = Vec::with_capacity(count);
        for _ in 0..count {
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
            subspaces.push(Subspace::new(dimensions).map_err(|_| BAD)?);
        }
        Ok(Regions::of_subspaces(version, subspaces))
    }
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
