//! larder's cost model.
//!
//! **A dimension of `d` cells** is divided so that cells are equally full, and a value that exceeds a cell has cells of
//! its own (`mapping/quantiles`). A value of a share `s` of the objects is therefore in `max(1, s d)` cells, and the
//! share of contacted cells is the share of contacted objects, whatever the skew. With the mean `c` of this number over
//! the requested values:
//!
//! | constraint | contacted cells |
//! |---|---|
//! | equality | `c` |
//! | one of `n` | `d (1 - (1 - c/d)^n)` |
//! | range of a share `f` | `1 + f (d - 1)` |
//! | none | `d` |
//!
//! Objects with several values of an attribute, or none, are in a cell of their own. A search for a value of an
//! attribute that may have several also contacts that cell. Since all such searches do, it is the most contacted one.
//!
//! **Regions**: the number of contacted regions is the product over the dimensions. **Servers**: adjacent regions are
//! on the same server (`mapping/placement`), so fixing an outer dimension leaves few servers.
//!
//! **Candidates**: a server has one index for all its regions of a subspace. It examines the objects that this index
//! yields for the most selective constraint, in whichever of its regions they are, or scans all its objects if that is
//! less work. The key subspace has all objects on all servers. Listed objects are examined individually only if there
//! are further constraints; without any, they are the matches. If the frequencies of values differ, the cost is the
//! mean of each value's cost, not the cost of the mean frequency.
//!
//! **Conditions**: each further constraint is looked up at each contacted server, whatever it matches. **Subspaces**:
//! every search estimates the route of each subspace, and pays for it.
//!
//! **Matches**: each match is examined, returned or not. A recording contains the numbers of matches, and their
//! distribution over the searches ([`match_distribution`]). Otherwise constraints are assumed to be independent, and
//! the numbers to be exponentially distributed. If it is less work, a server visits its objects in sort order until it
//! has enough rows: of `n` objects with `m` matches, it visits `n/m` for each row.
//!
//! **Results**: each server finds as many rows as are sent, if it has them, and they are merged. If `m` objects match
//! and at most `r` are sent, `s` servers together find `min(m, s r)`, and `s (1 - (1 - 1/s)^m)` of them find at least
//! one. A server that finds any has a fixed cost. The reply contains no more rows than with one server.
//!
//! **Skew**: the busiest server is the one with the most requested value. Its work above the mean counts for all
//! servers, because the throughput is limited by the first saturated server. The hottest cells of several classes are
//! assumed to be on one server. If they are not, the predicted throughput is too low, by at most that much. With fewer
//! regions than servers, some servers have no work. If the regions do not divide evenly by the servers, some servers
//! have one more. Both count as skew.
//!
//! **A modification** passes the replicas of each subspace, and those of the server that the object leaves if it moves.
//! It moves if an attribute changes, unless the new value's region happens to be on the same server. Each copy updates
//! its local indexes. The cost of a write at the owner of the key differs from that at the holder of a copy.
//!
//! **Contention**: there are `c` clients and `s` servers, and a share `w` of the operations are writes. If a write
//! takes as long as a search, `u = c w / s` clients write at each server at a time. Their writes have a common commit,
//! so each pays `1 / max(1, u)` of it. A search waits for uncommitted writes at each contacted server. If writes arrive
//! independently, a share `1 - exp(-u)` of the servers have some.

mod match_distribution;
mod predict;
mod query_placement;
mod search;
mod values;
mod writes;

use self::match_distribution::MatchDistribution;
use self::search::{Constraint, ConstraintKind, Query};
use self::values::Values;
use self::writes::Write;
use super::configuration::{AttributeSet, Configuration, Layout};
use super::deployment::{Deployment, DeploymentError};
use super::model::{CostModel, Prediction};
use super::workload::Workload;

/// larder's model of a workload on a deployment, with one set of local indexes.
#[derive(Debug, Clone)]
pub struct LarderModel<'a> {
    pub workload: &'a Workload,
    pub deployment: &'a Deployment,
    indexes: AttributeSet,
    queries: Vec<Query>,
    writes: Vec<Write>,
    get_share: f64,
    /// The mean number of concurrent writes at one server.
    concurrent_writes: f64,
}

impl<'a> LarderModel<'a> {
    /// Creates a model.
    ///
    /// # Errors
    /// A description of the invalid part of the workload or the deployment.
    pub fn new(
        workload: &'a Workload,
        deployment: &'a Deployment,
        indexes: AttributeSet,
    ) -> Result<LarderModel<'a>, String> {
        workload.check().map_err(|error| error.to_string())?;
        deployment.check().map_err(|error| error.to_string())?;
        let total = workload.frequency();
        let index_of = |name: &String| {
            let index = workload.attribute(name);
            index.expect("the workload is checked")
        };
        let queries = workload.queries.iter().map(|class| {
            let equal = class
                .equal
                .iter()
                .map(|name| (name, ConstraintKind::Values(1.0)));
            let one_of = class
                .one_of
                .iter()
                .map(|(name, &count)| (name, ConstraintKind::Values(count)));
            let range = class
                .range
                .iter()
                .map(|(name, &share)| (name, ConstraintKind::Range(share)));
            let constraint = |(name, asks): (&String, ConstraintKind)| {
                let attribute = index_of(name);
                let own = match asks {
                    ConstraintKind::Range(share) => share,
                    ConstraintKind::Values(count) => {
                        let values = Values::of(&workload.attributes[attribute], workload.objects);
                        (count * values.selectivity()).min(1.0)
                    }
                };
                Constraint {
                    attribute,
                    kind: asks,
                    selectivity: class.selectivity.get(name).copied().unwrap_or(own),
                }
            };
            let constraints: Vec<Constraint> =
                equal.chain(one_of).chain(range).map(constraint).collect();
            let pass: f64 = constraints.iter().map(|it| it.selectivity).product();
            let matches = class.matches.unwrap_or(pass * workload.objects as f64);
            let results = class.results.unwrap_or(matches);
            Query {
                share: class.frequency / total,
                constraints,
                matches,
                results,
                found: MatchDistribution::of(class, matches, results),
            }
        });
        let writes = workload.modifications.iter().map(|class| Write {
            share: class.frequency / total,
            kind: class.kind,
            changes: AttributeSet::of(class.changes.iter().map(index_of)),
        });
        let writes: Vec<Write> = writes.collect();
        let written: f64 = writes.iter().map(|it| it.share).sum();
        Ok(LarderModel {
            indexes,
            queries: queries.collect(),
            concurrent_writes: f64::from(deployment.clients) * written
                / f64::from(deployment.servers),
            writes,
            get_share: workload.gets / total,
            workload,
            deployment,
        })
    }

    /// Returns the attributes that queries constrain.
    pub fn searched(&self) -> AttributeSet {
        let constraints = self.queries.iter().flat_map(|it| &it.constraints);
        AttributeSet::of(constraints.map(|it| it.attribute))
    }

    /// Returns the benefit of making an attribute outermost: the share of operations that fix it, with range
    /// constraints counted half.
    pub(super) fn definedness(&self, attribute: usize) -> f64 {
        let of = |query: &Query| {
            let constraint = query
                .constraints
                .iter()
                .find(|it| it.attribute == attribute);
            match constraint.map(|it| it.kind) {
                None => 0.0,
                Some(ConstraintKind::Values(_)) => query.share,
                Some(ConstraintKind::Range(_)) => query.share / 2.0,
            }
        };
        self.queries.iter().map(of).sum()
    }

    pub(super) fn query_attributes(&self, query: usize) -> AttributeSet {
        let constraints = self.queries[query].constraints.iter();
        AttributeSet::of(constraints.map(|it| it.attribute))
    }

    fn values(&self, attribute: usize) -> Values<'_> {
        Values::of(&self.workload.attributes[attribute], self.workload.objects)
    }

    fn servers(&self) -> f64 {
        f64::from(self.deployment.servers)
    }

    /// Returns the load of the server with the most of `regions` regions, as a multiple of the mean.
    fn unevenness(&self, regions: f64) -> f64 {
        self.servers() * (regions / self.servers()).ceil() / regions
    }

    /// Returns the same model with other local indexes.
    pub fn with_indexes(&self, indexes: AttributeSet) -> LarderModel<'a> {
        LarderModel {
            indexes,
            ..self.clone()
        }
    }

    pub fn indexes(&self) -> AttributeSet {
        self.indexes
    }

    /// Checks that the objects fit `storage_bytes_max` without any subspace.
    ///
    /// # Errors
    /// They do not: with the least number of bytes that is enough.
    pub(super) fn ensure_fits(&self) -> Result<(), DeploymentError> {
        let least = self.storage(0).ceil() as u64;
        match self.deployment.storage_bytes_max {
            Some(most) if most < least => Err(DeploymentError {
                key: "storage_bytes_max".to_owned(),
                what: format!(
                    "{most} bytes are too few: {} objects of {} bytes, with {} copies of each and {} indexes, take {least} without any subspace; raise it to at least {least}",
                    self.workload.objects,
                    self.workload.object_bytes,
                    self.deployment.replicas,
                    self.indexes.count(),
                ),
            }),
            _ => Ok(()),
        }
    }

    fn storage(&self, subspaces: usize) -> f64 {
        let copies = (1 + subspaces) as f64 * f64::from(self.deployment.replicas);
        let entries = f64::from(self.indexes.count()) * self.deployment.index_entry_bytes as f64;
        let object = self.workload.object_bytes as f64 + entries;
        copies * self.workload.objects as f64 * object
    }
}

impl CostModel for LarderModel<'_> {
    fn queries(&self) -> usize {
        self.queries.len()
    }

    fn without(&self, query: usize) -> f64 {
        let query = &self.queries[query];
        query.share * self.estimate(query, None).parts.with_skew()
    }

    fn with(&self, query: usize, layout: &Layout) -> f64 {
        let query = &self.queries[query];
        query.share * self.estimate(query, Some(layout)).parts.with_skew()
    }

    fn upkeep(&self, layout: &Layout) -> f64 {
        let writes = self.writes.iter();
        let upkeep = writes.map(|it| it.share * self.write_parts(it, Some(layout)).1.with_skew());
        let searches: f64 = self.queries.iter().map(|it| it.share).sum();
        upkeep.sum::<f64>() + searches * self.deployment.costs.subspace_us
    }

    fn fixed(&self) -> f64 {
        let writes = self.writes.iter();
        let writes = writes.map(|it| it.share * self.write_parts(it, None).1.work());
        writes.sum::<f64>() + self.get_share * self.deployment.costs.get_us
    }

    fn subspaces_max(&self) -> usize {
        match self.deployment.storage_bytes_max {
            None => usize::MAX,
            Some(most) => (most as f64 / self.storage(0) - 1.0).max(0.0) as usize,
        }
    }

    fn predict(&self, configuration: &Configuration) -> Prediction {
        self.compute_prediction(configuration)
    }
}
