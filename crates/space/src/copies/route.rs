//! Whom a search asks: all owners of objects, or the holders of the regions that it contacts in one subspace; whichever is the cheapest by the model of `plan`.
//!
//! Each way costs what its places cost to be asked, and what they look at. The second is known of the owners, about; a subspace has that share of it which
//! its places have of all, or more where the index leads by an attribute by which the places were chosen.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::regions::{Laid, Regions};
use crate::mapping::Contacts;
use crate::plan::Costs;
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};
use crate::search::regions::contacts;

/// A region more at the same place costs next to nothing: it decides where all else is alike.
const REGION_US: f64 = 0.01;

/// The regions of a query with more conditions are not computed, which takes as long for each subspace as there are conditions: all owners are asked.
const CONDITIONS_MAX: usize = 1024;

/// One request for each place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<P> {
    /// All who own objects, each for those that it owns.
    Owners,
    /// Holders, each for these regions of one subspace. Without any, nothing can be found.
    Regions {
        subspace: usize,
        requests: BTreeMap<P, Vec<RangeInclusive<u16>>>,
    },
}

/// A way to go about a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Way<P> {
    pub route: Route<P>,
    /// Processor time, as it is taken to be.
    pub cost_us: f64,
}

/// What all owners of objects together would look at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimate {
    pub candidates: f64,
    /// The attributes whose index leads to them.
    pub by: Vec<AttributeId>,
}

/// What is known of those who may be asked.
pub trait Places<P> {
    /// How many own objects.
    fn owners(&self) -> usize;

    /// Who holds the regions of a slot. `None`: nobody. That a place asked for regions has them is for itself to say.
    fn holder(&self, slot: u16) -> Option<P>;

    /// What it costs to ask these, or all owners; in microseconds.
    fn asking_us(&self, places: Option<&mut dyn Iterator<Item = &P>>) -> f64;

    /// Asked for only where there is a choice.
    fn estimate(&self) -> Estimate;
}

/// The cheapest way.
pub fn route<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn Places<P>,
) -> Route<P> {
    let mut found = by_regions(regions, predicate, definition, places);
    match found.len() {
        0 => return Route::Owners,
        // It asks no more of fewer.
        1 if found[0].asking_us <= places.asking_us(None) => return found.remove(0).route(),
        _ => {}
    }
    let ways = priced(found, places).into_iter();
    // Of ways that cost the same, the first.
    let best = ways.min_by(|one, other| one.cost_us.total_cmp(&other.cost_us));
    best.map_or(Route::Owners, |best| best.route)
}

/// All ways that there are, the cheapest first. The last resort, all owners, is among them.
pub fn ways<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn Places<P>,
) -> Vec<Way<P>> {
    let mut ways = priced(by_regions(regions, predicate, definition, places), places);
    ways.sort_by(|one, other| one.cost_us.total_cmp(&other.cost_us));
    ways
}

/// The holders of regions of one subspace.
struct Asked<P> {
    subspace: usize,
    requests: BTreeMap<P, Vec<RangeInclusive<u16>>>,
    asking_us: f64,
    /// By attribute of the subspace, the share of its cells.
    cells: Vec<(AttributeId, f64)>,
}

impl<P> Asked<P> {
    fn route(self) -> Route<P> {
        Route::Regions {
            subspace: self.subspace,
            requests: self.requests,
        }
    }

    /// Of what all owners would look at.
    fn share(&self, owners: f64, by: &[AttributeId]) -> f64 {
        let chosen = self.cells.iter().filter(|it| by.contains(&it.0));
        let chosen: f64 = chosen.map(|it| it.1).product();
        let of_all = self.requests.len() as f64 / owners;
        (of_all / chosen.max(1.0 / owners)).min(1.0)
    }
}

/// Subspaces in which fewer are asked than own objects.
fn by_regions<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn Places<P>,
) -> Vec<Asked<P>> {
    if predicate.tests() > CONDITIONS_MAX {
        return Vec::new();
    }
    let owners = places.owners();
    let asked = |(subspace, laid): (usize, &Laid)| {
        let contacts = contacts(&laid.subspace, predicate, definition);
        let is_all = contacts.count() == laid.subspace.regions();
        if is_all && laid.subspace.regions() as usize >= owners {
            return None;
        }
        let requests = laid
            .placement
            .requests(&contacts, owners, |slot| places.holder(slot))?;
        let held = requests.into_iter();
        let requests: BTreeMap<P, _> = held
            .map(|(place, runs)| Some((place?, runs)))
            .collect::<Option<_>>()?;
        Some(Asked {
            subspace,
            asking_us: places.asking_us(Some(&mut requests.keys()))
                + f64::from(contacts.count()) * REGION_US,
            requests,
            cells: cells(laid, &contacts),
        })
    };
    regions.searched().enumerate().filter_map(asked).collect()
}

fn cells(laid: &Laid, contacts: &Contacts) -> Vec<(AttributeId, f64)> {
    let dimensions = laid.subspace.dimensions().iter().zip(contacts.sets());
    let share = |(bits, set): &(u8, crate::mapping::CellSet)| {
        f64::from(set.count()) / f64::from(1u32 << bits)
    };
    dimensions
        .map(|(dimension, set)| (AttributeId(dimension.attribute.0), share(set)))
        .collect()
}

/// All owners last.
fn priced<P>(found: Vec<Asked<P>>, places: &dyn Places<P>) -> Vec<Way<P>> {
    let estimate = places.estimate();
    let looking_us = estimate.candidates * Costs::default().candidate_us;
    let owners = Way {
        route: Route::Owners,
        cost_us: places.asking_us(None) + looking_us,
    };
    let count = places.owners() as f64;
    let found = found.into_iter().map(|asked| Way {
        cost_us: asked.asking_us + looking_us * asked.share(count, &estimate.by),
        route: asked.route(),
    });
    found.chain([owners]).collect()
}
