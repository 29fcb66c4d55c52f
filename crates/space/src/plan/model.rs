//! What a model answers: the cost of each query with each subspace, what a subspace costs the writes, and a prediction of the whole.

use serde::{Deserialize, Serialize};

use super::configuration::{Configuration, Layout};

/// A model of costs. Those of queries and modifications are weighted by their share in the mix, so that sums are the cost of one operation in
/// the mean; the unit is the model's own.
pub trait CostModel {
    fn queries(&self) -> usize;

    /// The cost of a query that no subspace helps.
    fn without(&self, query: usize) -> f64;

    /// The cost of a query by a subspace.
    fn with(&self, query: usize, layout: &Layout) -> f64;

    /// What a subspace costs the modifications, and the queries that do not use it.
    fn upkeep(&self, layout: &Layout) -> f64;

    /// What is there whatever the subspaces are.
    fn fixed(&self) -> f64;

    /// The most subspaces there is room for.
    fn subspaces_max(&self) -> usize;

    fn predict(&self, configuration: &Configuration) -> Prediction;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassKind {
    Get,
    Query,
    Modification,
}

/// Where the time of an operation goes, in microseconds of a processor, on all servers together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    pub gets: f64,
    pub queries: f64,
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub results: f64,
    pub stages: f64,
    pub moves: f64,
    pub index_entries: f64,
    /// What searches take more since writes are under way.
    #[serde(default)]
    pub contention: f64,
    /// Not work, but what all servers wait for the busiest one: its work above the mean, times the servers.
    pub skew: f64,
}

impl Parts {
    pub fn work(&self) -> f64 {
        let queries = self.queries + self.servers + self.regions + self.candidates + self.results;
        let writes = self.stages + self.moves + self.index_entries;
        self.gets + queries + writes + self.contention
    }

    pub fn with_skew(&self) -> f64 {
        self.work() + self.skew
    }

    pub fn add(&mut self, other: &Parts, weight: f64) {
        let pairs = [
            (&mut self.gets, other.gets),
            (&mut self.queries, other.queries),
            (&mut self.servers, other.servers),
            (&mut self.regions, other.regions),
            (&mut self.candidates, other.candidates),
            (&mut self.results, other.results),
            (&mut self.stages, other.stages),
            (&mut self.moves, other.moves),
            (&mut self.index_entries, other.index_entries),
            (&mut self.contention, other.contention),
            (&mut self.skew, other.skew),
        ];
        for (sum, part) in pairs {
            *sum += part * weight;
        }
    }
}

/// What one class of operations does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassPrediction {
    pub name: String,
    pub kind: ClassKind,
    /// Of all operations.
    pub share: f64,
    /// The subspace that a query uses; none is the key subspace.
    pub subspace: Option<String>,
    /// The attribute whose local index it uses.
    pub index: Option<String>,
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub results: f64,
    /// Servers that a write passes, each as often as it does.
    pub chain: f64,
    pub parts: Parts,
    /// From the request to the reply, when nothing else runs, and with the deployment's clients.
    pub latency_idle_us: f64,
    pub latency_us: f64,
}

impl ClassPrediction {
    /// Of a class that does nothing yet.
    pub(super) fn of(name: &str, kind: ClassKind, share: f64) -> ClassPrediction {
        ClassPrediction {
            name: name.to_owned(),
            kind,
            share,
            subspace: None,
            index: None,
            servers: 0.0,
            regions: 0.0,
            candidates: 0.0,
            results: 0.0,
            chain: 0.0,
            parts: Parts::default(),
            latency_idle_us: 0.0,
            latency_us: 0.0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// As the clauses of FT.CREATE.
    pub configuration: String,
    pub subspaces: Vec<String>,
    /// The attributes that have local indexes.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// Operations a second with the deployment's clients.
    pub throughput: f64,
    /// With as many clients as it takes: the busiest server is never idle.
    pub capacity: f64,
    /// The same if all servers were as busy.
    pub capacity_even: f64,
    /// Of an operation in the mean, by where it goes.
    pub parts: Parts,
    pub latency_idle_us: f64,
    pub latency_us: f64,
    /// Of a modification in the mean.
    pub chain: f64,
    /// Of a query in the mean.
    pub servers: f64,
    pub regions: f64,
    pub storage_bytes: f64,
    pub classes: Vec<ClassPrediction>,
}

/// The mean of a number of some classes, by their shares; 0 without any.
pub(super) fn mean_of(
    classes: &[ClassPrediction],
    kind: ClassKind,
    number: impl Fn(&ClassPrediction) -> f64,
) -> f64 {
    let of_kind = classes.iter().filter(|it| it.kind == kind);
    let (sum, shares) = of_kind.fold((0.0, 0.0), |(sum, shares), it| {
        (sum + it.share * number(it), shares + it.share)
    });
    if shares > 0.0 { sum / shares } else { 0.0 }
}
