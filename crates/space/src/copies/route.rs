//! Chooses a search's route: all owners, or the holders of one subspace's regions, whichever the cost model in `plan`
//! prices lower.
//!
//! The cost of a route is the cost of contacting its nodes or cores, plus the cost of the candidates they examine. The
//! candidates of all owners are estimated. A subspace gets the share of them that its contacted holders have among all
//! owners. Its share is larger if the index uses an attribute that also selected the regions.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::regions::{PlacedSubspace, Regions};
use crate::mapping::Contacts;
use crate::plan::Costs;
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};
use crate::search::regions::contacts;

/// The cost of another region at the same holder. It is almost zero, and only breaks ties.
const REGION_US: f64 = 0.01;

/// The regions of a query with more conditions are not computed, because that takes time proportional to the conditions
/// for each subspace. The search contacts all owners.
const CONDITIONS_MAX: usize = 1024;

/// The recipients of a search. Each receives one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<P> {
    /// All owners of objects. Each searches the objects that it owns.
    Owners,
    /// Holders, each with its regions of one subspace. If empty, the search has no matches.
    Regions {
        subspace: usize,
        requests: BTreeMap<P, Vec<RangeInclusive<u16>>>,
    },
}

/// A candidate route and its estimated cost.
#[derive(Debug, Clone, PartialEq)]
pub struct PricedRoute<P> {
    pub route: Route<P>,
    /// The estimated processor time, in microseconds.
    pub cost_us: f64,
}

/// The candidates that all owners together would examine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimate {
    pub candidates: f64,
    /// The attributes whose index yields the candidates.
    pub indexed_by: Vec<AttributeId>,
}

/// Information about the nodes or cores that a search can contact.
pub trait RouteTargets<P> {
    /// Returns the number of owners of objects.
    fn owners(&self) -> usize;

    /// Returns the holder of a slot's regions, or `None` if there is none. Only the holder itself knows whether its
    /// copies are complete.
    fn holder(&self, slot: u16) -> Option<P>;

    /// Returns the cost of contacting these nodes or cores, or all owners if `None`, in microseconds.
    fn contact_us(&self, places: Option<&mut dyn Iterator<Item = &P>>) -> f64;

    /// Returns the estimate for all owners. Called only if there is a choice between routes.
    fn estimate(&self) -> Estimate;
}

/// Returns the cheapest route.
pub fn route<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn RouteTargets<P>,
) -> Route<P> {
    let mut found = plan_subspace_routes(regions, predicate, definition, places);
    match found.len() {
        0 => return Route::Owners,
        // A single candidate that is cheaper to contact than all owners needs no estimate.
        1 if found[0].contact_us <= places.contact_us(None) => return found.remove(0).route(),
        _ => {}
    }
    let routes = price(found, places).into_iter();
    // The first of equally priced routes.
    let best = routes.min_by(|one, other| one.cost_us.total_cmp(&other.cost_us));
    best.map_or(Route::Owners, |best| best.route)
}

/// Returns all routes, cheapest first. They include the fallback, all owners.
pub fn price_routes<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn RouteTargets<P>,
) -> Vec<PricedRoute<P>> {
    let mut routes = price(
        plan_subspace_routes(regions, predicate, definition, places),
        places,
    );
    routes.sort_by(|one, other| one.cost_us.total_cmp(&other.cost_us));
    routes
}

/// The holders of one subspace that a search would contact.
struct SubspaceRoute<P> {
    subspace: usize,
    requests: BTreeMap<P, Vec<RangeInclusive<u16>>>,
    contact_us: f64,
    /// For each attribute of the subspace, the fraction of its cells that the search contacts.
    cells: Vec<(AttributeId, f64)>,
}

impl<P> SubspaceRoute<P> {
    fn route(self) -> Route<P> {
        Route::Regions {
            subspace: self.subspace,
            requests: self.requests,
        }
    }

    /// Returns the share of all owners' candidates that these holders examine.
    fn share(&self, owners: f64, by: &[AttributeId]) -> f64 {
        let chosen = self.cells.iter().filter(|it| by.contains(&it.0));
        let chosen: f64 = chosen.map(|it| it.1).product();
        let of_all = self.requests.len() as f64 / owners;
        (of_all / chosen.max(1.0 / owners)).min(1.0)
    }
}

/// Returns the candidate routes through subspaces, if they contact fewer nodes or cores than there are owners.
fn plan_subspace_routes<P: Ord + Clone>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    places: &dyn RouteTargets<P>,
) -> Vec<SubspaceRoute<P>> {
    if predicate.tests() > CONDITIONS_MAX {
        return Vec::new();
    }
    let owners = places.owners();
    let route_of = |(subspace, laid): (usize, &PlacedSubspace)| {
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
        Some(SubspaceRoute {
            subspace,
            contact_us: places.contact_us(Some(&mut requests.keys()))
                + f64::from(contacts.count()) * REGION_US,
            requests,
            cells: cells(laid, &contacts),
        })
    };
    regions
        .searched()
        .enumerate()
        .filter_map(route_of)
        .collect()
}

fn cells(laid: &PlacedSubspace, contacts: &Contacts) -> Vec<(AttributeId, f64)> {
    let dimensions = laid.subspace.dimensions().iter().zip(contacts.sets());
    let share = |(bits, set): &(u8, crate::mapping::CellSet)| {
        f64::from(set.count()) / f64::from(1u32 << bits)
    };
    dimensions
        .map(|(dimension, set)| (AttributeId(dimension.attribute.0), share(set)))
        .collect()
}

/// Prices the routes, with all owners as the last one.
fn price<P>(found: Vec<SubspaceRoute<P>>, places: &dyn RouteTargets<P>) -> Vec<PricedRoute<P>> {
    let estimate = places.estimate();
    let looking_us = estimate.candidates * Costs::default().candidate_us;
    let owners = PricedRoute {
        route: Route::Owners,
        cost_us: places.contact_us(None) + looking_us,
    };
    let count = places.owners() as f64;
    let found = found.into_iter().map(|candidate| PricedRoute {
        cost_us: candidate.contact_us + looking_us * candidate.share(count, &estimate.indexed_by),
        route: candidate.route(),
    });
    found.chain([owners]).collect()
}
