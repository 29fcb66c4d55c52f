//! Larder's own model.
//!
//! **A dimension of `d` cells** is cut so that cells are equally full, and a value that fills more has cells of its own (`mapping/quantiles`). So a value
//! that a share `s` of the objects has lies in `max(1, s d)` cells, and cells contacted are objects contacted, whatever the skew. In the mean
//! over the values asked for, `c`, that is:
//!
//! | constraint | cells contacted |
//! |---|---|
//! | equality | `c` |
//! | one of `n` | `d (1 - (1 - c/d)^n)` |
//! | range of a share `f` | `1 + f (d - 1)` |
//! | none | `d` |
//!
//! Objects that have several values of an attribute, or none, have a cell of their own; a search for a value of an attribute that may have several contacts that cell as well, with
//! whatever else it contacts, and so does every other one: it is the hottest.
//!
//! **Regions** contacted are their product. **Servers**: regions lie on servers in runs (`mapping/placement`), so an outer dimension that is fixed
//! leaves few of them.
//!
//! **Candidates**: a server keeps all of its regions of a subspace in one index. So what it looks at are its objects that the local index finds for the one
//! constraint that it finds the fewest for, in whichever of its regions they are; or all that it has, one after the other, where that is less work. The key
//! subspace has all objects on all servers. Those of a list are looked at where there are further constraints; without, they are what is asked for. Of values some of which many objects have the mean is taken
//! over values of what each costs, and not of the mean value.
//!
//! **Conditions**: each further constraint is looked up at each server that is contacted, whatever it finds. **Subspaces**: whom a search would ask is seen in each
//! that there is, which every search pays for.
//!
//! **Matches**: each is weighed, also those that are not sent. How many there are a recording says, and how far the numbers differ from search to search ([`found`]); else constraints are
//! taken not to depend on one another, and numbers to be distributed exponentially. Where that takes less, a server goes through its objects in order until it has what is sent: of `n` objects of which `m` match, through
//! `n/m` for each.
//!
//! **Results**: each server finds as many as are sent, if it has them, and they are merged. Of `m` objects that match, of which `r` are sent at most, `min(m, s r)` are found on `s` servers,
//! on `s (1 - (1 - 1/s)^m)` of them anything. Those have work with it however little it is. What is answered is no more than on one server.
//!
//! **Skew**: the busiest server is the one with the value asked for most often. What it works more than the mean counts for all servers, since the
//! throughput ends where the first server is full. The most asked for places of several classes are taken to be on one server, which they need
//! not be: the prediction errs to the low side, by at most that much. Fewer regions than servers leave servers without work, and regions that do not
//! divide evenly by servers leave some with a region more: that counts as skew, too.
//!
//! **A modification** passes the replicas of each subspace, and those of the server that the object leaves where it moves. It moves where an
//! attribute changes, unless the new value's region is on the same server by chance. Each copy keeps its local indexes. What the owner of the key does for a
//! write costs other than what the keeper of a copy does.
//!
//! **Contention**: of `c` clients, of whose operations a share `w` are writes, `u = c w / s` write at one of `s` servers at a time, if a write takes as long as a
//! search. They share a commit, so each bears `1 / max(1, u)` of it. A search waits for what is not committed at each server that it asks, of which `1 - exp(-u)` have
//! something, if writes come independently of one another.

mod found;
mod placed;
mod predict;
mod search;
mod values;
mod writes;

use self::found::Found;
use self::search::{Asks, Constraint, Query};
use self::values::Values;
use self::writes::Write;
use super::configuration::{AttributeSet, Configuration, Layout};
use super::deployment::Deployment;
use super::model::{CostModel, Prediction};
use super::workload::Workload;

/// Larder's model of a workload on a deployment, with one choice of local indexes.
#[derive(Debug, Clone)]
pub struct LarderModel<'a> {
    pub workload: &'a Workload,
    pub deployment: &'a Deployment,
    indexes: AttributeSet,
    queries: Vec<Query>,
    writes: Vec<Write>,
    get_share: f64,
    /// At one server, at a time.
    writes_under_way: f64,
}

impl<'a> LarderModel<'a> {
    /// # Errors
    /// The workload or the deployment cannot be; in words.
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
            let equal = class.equal.iter().map(|name| (name, Asks::Values(1.0)));
            let one_of = class
                .one_of
                .iter()
                .map(|(name, &count)| (name, Asks::Values(count)));
            let range = class
                .range
                .iter()
                .map(|(name, &share)| (name, Asks::Range(share)));
            let constraint = |(name, asks): (&String, Asks)| {
                let attribute = index_of(name);
                let own = match asks {
                    Asks::Range(share) => share,
                    Asks::Values(count) => {
                        let values = Values::of(&workload.attributes[attribute], workload.objects);
                        (count * values.selectivity()).min(1.0)
                    }
                };
                Constraint {
                    attribute,
                    asks,
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
                found: Found::of(class, matches, results),
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
            writes_under_way: f64::from(deployment.clients) * written
                / f64::from(deployment.servers),
            writes,
            get_share: workload.gets / total,
            workload,
            deployment,
        })
    }

    /// The attributes that some query constrains.
    pub fn searched(&self) -> AttributeSet {
        let constraints = self.queries.iter().flat_map(|it| &it.constraints);
        AttributeSet::of(constraints.map(|it| it.attribute))
    }

    /// How much it helps that an attribute is outermost: the share of operations that fix it, those that ask for a range counted half.
    pub(super) fn definedness(&self, attribute: usize) -> f64 {
        let of = |query: &Query| {
            let constraint = query
                .constraints
                .iter()
                .find(|it| it.attribute == attribute);
            match constraint.map(|it| it.asks) {
                None => 0.0,
                Some(Asks::Values(_)) => query.share,
                Some(Asks::Range(_)) => query.share / 2.0,
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

    /// How many times the mean of all servers the one has that has most of so many regions.
    fn unevenness(&self, regions: f64) -> f64 {
        self.servers() * (regions / self.servers()).ceil() / regions
    }

    /// The same model with other local indexes.
    pub fn with_indexes(&self, indexes: AttributeSet) -> LarderModel<'a> {
        LarderModel {
            indexes,
            ..self.clone()
        }
    }

    pub fn indexes(&self) -> AttributeSet {
        self.indexes
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
        self.predicted(configuration)
    }
}
