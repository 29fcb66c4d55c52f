//! The partitioning of a space's subspaces: initially by hash, later by samples of the values, and after changes of the
//! subspaces.

use super::regions::{PlacedSubspace, Regions};
use crate::error::{Refusal, Result};
use crate::mapping::{Attribute, Cut, Dimension, Placement, SlotOwner, Subspace};
use crate::schema::{AttributeId, Definition, Shape, SubspaceChange};

/// Attributes with more bits stay partitioned by hash, because each cell takes some bytes in the definition that all
/// nodes store.
const CUT_BITS_MAX: u8 = 10;
/// The maximum size of all cuts of a space.
const CUTS_BYTES_MAX: usize = 64 << 10;

impl Regions {
    /// Returns the declared subspaces, partitioned by hash because no values are known yet.
    ///
    /// # Errors
    /// A clause needs more regions than it allows.
    pub fn by_hash(definition: &Definition) -> Result<Regions> {
        let (serving, shapes) = shapes(definition)?;
        let laid = (0..).zip(&shapes).map(|(number, shape)| {
            let cut = |_, bits| Cut::by_hash(bits).map_err(|error| error.to_string());
            place_subspace(number, shape, &cut)
        });
        Ok(Regions::of(0, serving, laid.collect::<Result<_>>()?))
    }

    /// Returns the declared subspaces, partitioned by samples of the attributes' ordered values. An attribute with an
    /// empty sample is partitioned by hash.
    ///
    /// # Errors
    /// See [`Regions::by_hash`].
    pub fn by_samples(
        definition: &Definition,
        version: u64,
        samples: &dyn Fn(AttributeId) -> Vec<Vec<u8>>,
    ) -> Result<Regions> {
        let (serving, shapes) = shapes(definition)?;
        let laid = (0..).zip(&shapes).map(|(number, shape)| {
            let cut = |attribute, bits| {
                let sample = samples(attribute);
                Cut::by_quantiles(bits, sample.iter().map(Vec::as_slice))
                    .map_err(|error| error.to_string())
            };
            let laid = place_subspace(number, shape, &cut)?;
            Ok(PlacedSubspace {
                is_cut: true,
                ..laid
            })
        });
        Ok(Regions::of(version, serving, laid.collect::<Result<_>>()?))
    }

    /// Returns the regions of a new definition. Subspaces that are kept have the same cuts and slots as before; new
    /// ones are partitioned by hash. `change` must be unique among all changes.
    ///
    /// # Errors
    /// See [`Regions::by_hash`].
    pub fn with_definition(&self, definition: &Definition, change: u64) -> Result<Regions> {
        let by_hash = Regions::by_hash(definition)?;
        let mut before: Vec<&PlacedSubspace> = self.placed.iter().collect();
        let mut numbers = (0..).filter(|number| self.placed.iter().all(|it| it.number != *number));
        let laid = by_hash.placed.into_iter().map(|new| {
            let same = before.iter().position(|it| it.shape() == new.shape());
            match same {
                Some(at) => before.remove(at).clone(),
                None => new.with_number(numbers.next().unwrap_or(u16::MAX), change),
            }
        });
        let laid = laid.collect();
        Ok(Regions::of(self.version + 1, by_hash.serving, laid))
    }

    /// Partitions some attributes of each subspace again, those in `anew`. `sample` returns values in the form of
    /// [`sampled`], distinct and ascending, with their weights. `owner` returns the owner of a slot; subspaces that
    /// change are placed [along](Placement::along) these owners.
    ///
    /// [`sampled`]: crate::search::regions::sampled
    pub fn recut(
        &self,
        attributes: &[Vec<Attribute>],
        sample: &dyn Fn(AttributeId) -> Vec<(Vec<u8>, u64)>,
        owner: &dyn Fn(u16) -> SlotOwner,
    ) -> Regions {
        let mut room = CUTS_BYTES_MAX;
        let mut laid = Vec::with_capacity(self.placed.len());
        for (at, before) in self.placed.iter().enumerate() {
            let recut_attributes = attributes.get(at).map(Vec::as_slice).unwrap_or_default();
            let dimensions = before.subspace.dimensions().iter().map(|dimension| {
                let (attribute, bits) = (dimension.attribute, dimension.cut.bits());
                let mut cut = dimension.cut.clone();
                if recut_attributes.contains(&attribute) && (1..=CUT_BITS_MAX).contains(&bits) {
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
            let cut = Subspace::new(dimensions.collect());
            let mut new = before.clone();
            new.subspace = cut.unwrap_or(new.subspace);
            let is_first = !recut_attributes.is_empty() && !before.is_cut;
            new.is_cut |= is_first;
            if is_first || new.subspace != before.subspace {
                new.placement = new.placement.ordered_by_owner(owner);
            }
            laid.push(new);
        }
        Regions::of(self.version + 1, self.serving, laid)
    }

    /// Returns whether these are the regions of this definition.
    pub fn match_definition(&self, definition: &Definition) -> bool {
        let own = self.placed.iter().map(PlacedSubspace::shape);
        shapes(definition).is_ok_and(|(serving, shapes)| serving == self.serving && own.eq(shapes))
    }
}

/// Returns the number of subspaces that serve searches, and the shapes of these followed by the ones being filled.
fn shapes(definition: &Definition) -> Result<(usize, Vec<Shape>)> {
    let layout = &definition.layout;
    let mut shapes = definition.shapes(&layout.subspaces, layout.regions)?;
    let serving = shapes.len();
    if let Some(filling) = &layout.filling {
        let SubspaceChange { added: come, .. } = definition.plan_change(filling)?;
        shapes.extend(come);
    }
    Ok((serving, shapes))
}

fn place_subspace(
    number: u16,
    shape: &Shape,
    cut: &dyn Fn(AttributeId, u8) -> std::result::Result<Cut, String>,
) -> Result<PlacedSubspace> {
    let dimension = |&(attribute, bits): &(AttributeId, u8)| {
        Ok(Dimension {
            attribute: Attribute(attribute.0),
            cut: cut(attribute, bits).map_err(Refusal::new)?,
        })
    };
    let dimensions = shape.iter().map(dimension).collect::<Result<_>>()?;
    let subspace = Subspace::new(dimensions).map_err(|error| Refusal::new(error.to_string()))?;
    Ok(PlacedSubspace {
        number,
        added_by: 0,
        is_cut: false,
        placement: Placement::even(subspace.regions(), number),
        subspace,
    })
}
