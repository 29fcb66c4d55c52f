//! The interface of a cost model: the cost of each query in each subspace, the cost of a subspace for writes, and a
//! prediction for a configuration.

use serde::{Deserialize, Serialize};

use super::configuration::{Configuration, Layout};

/// A cost model. The costs of queries and modifications are weighted by their share of the mix, so their sum is the
/// mean cost of an operation. The unit is the model's own.
pub trait CostModel {
    fn queries(&self) -> usize;

    /// Returns the cost of a query without a subspace.
    fn without(&self, query: usize) -> f64;

    /// Returns the cost of a query through a subspace.
    fn with(&self, query: usize, layout: &Layout) -> f64;

    /// Returns the cost of a subspace for modifications, and for the queries that do not use it.
    fn upkeep(&self, layout: &Layout) -> f64;

    /// Returns the cost that does not depend on the subspaces.
    fn fixed(&self) -> f64;

    /// Returns the maximum number of subspaces that the storage allows.
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

/// The parts of an operation's time, in processor microseconds on all servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CostParts {
    pub gets: f64,
    pub queries: f64,
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub results: f64,
    pub stages: f64,
    pub moves: f64,
    pub index_entries: f64,
    /// The additional cost of searches during concurrent writes.
    #[serde(default)]
    pub contention: f64,
    /// Not work, but the wait of all servers for the busiest one: its work above the mean, multiplied by the number of
    /// servers.
    pub skew: f64,
}

impl CostParts {
    pub fn work(&self) -> f64 {
        let queries = self.queries + self.servers + self.regions + self.candidates + self.results;
        let writes = self.stages + self.moves + self.index_entries;
        self.gets + queries + writes + self.contention
    }

    pub fn with_skew(&self) -> f64 {
        self.work() + self.skew
    }

    pub fn add(&mut self, other: &CostParts, weight: f64) {
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

/// The prediction for one class of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassPrediction {
    pub name: String,
    pub kind: ClassKind,
    /// The share of all operations.
    pub share: f64,
    /// The subspace that a query uses. `None`: the key subspace.
    pub subspace: Option<String>,
    /// The attribute whose local index the query uses.
    pub index: Option<String>,
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub results: f64,
    /// The number of servers that a write passes, with repetitions.
    pub chain: f64,
    pub parts: CostParts,
    /// From request to reply, on idle servers and with the deployment's clients.
    pub latency_idle_us: f64,
    pub latency_us: f64,
}

impl ClassPrediction {
    /// Creates the prediction for a class without any work.
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
            parts: CostParts::default(),
            latency_idle_us: 0.0,
            latency_us: 0.0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// As clauses of FT.CREATE.
    pub configuration: String,
    pub subspaces: Vec<String>,
    /// The attributes with local indexes.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// Operations per second with the deployment's clients.
    pub throughput: f64,
    /// Operations per second with as many clients as saturate the busiest server.
    pub capacity: f64,
    /// The capacity if all servers were equally loaded.
    pub capacity_even: f64,
    /// The parts of a mean operation.
    pub parts: CostParts,
    pub latency_idle_us: f64,
    pub latency_us: f64,
    /// The mean of the modifications.
    pub chain: f64,
    /// The mean of the queries.
    pub servers: f64,
    pub regions: f64,
    pub storage_bytes: f64,
    pub classes: Vec<ClassPrediction>,
}

/// Returns the weighted mean of a number over the classes of this kind, or 0 if there are none.
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
