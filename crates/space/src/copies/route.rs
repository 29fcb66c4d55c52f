//! Whom a search asks: all owners of objects, or the holders of the regions that it contacts in one subspace.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::regions::Regions;
use crate::query::Predicate;
use crate::schema::Definition;
use crate::search::regions::contacts;

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

/// The subspace in which the fewest places are asked, if these are fewer than the `owners`; of several, the one that contacts the smallest share
/// of its regions.
///
/// `holder` says who holds the regions of a slot; None: nobody. That a place asked for regions has them is for itself to say.
pub fn route<P: Ord>(
    regions: &Regions,
    predicate: &Predicate,
    definition: &Definition,
    owners: usize,
    holder: impl Fn(u16) -> Option<P>,
) -> Route<P> {
    let mut best = (owners, f64::INFINITY, Route::Owners);
    for (number, laid) in regions.searched().enumerate() {
        let subspace = &laid.subspace;
        let contacts = contacts(subspace, predicate, definition);
        let asked = laid.placement.requests(&contacts, &holder);
        let share = f64::from(contacts.count()) / f64::from(subspace.regions());
        let count = asked.len();
        let is_better = (count, share) < (best.0, best.1) && count < owners;
        let held: Option<BTreeMap<P, _>> = asked
            .into_iter()
            .map(|(place, runs)| Some((place?, runs)))
            .collect();
        if is_better && let Some(requests) = held {
            let route = Route::Regions {
                subspace: number,
                requests,
            };
            best = (count, share, route);
        }
    }
    best.2
}
