//! The thesis's model as its program computes it, which differs slightly from the text.
//!
//! - A search of a subspace of `s` attributes, of which the query leaves `e` free, contacts `round(R^(1/s)^e)` regions
//!   (equation 4.1) of `O / R` objects each, in whole numbers. Each object costs `beta` (4.2). Without a subspace, all
//!   objects are contacted. The cheapest subspace is used (4.6).
//! - A modification passes a chain of `K (N + 2 M)` servers, where `M` subspaces have a changed attribute and `N` have
//!   none, including the key subspace (4.3, 4.4). A server involved in a move costs `alpha` times as much (4.5). The
//!   request itself counts as one more server, although equation 4.3 omits it.
//! - The throughput is the reciprocal of the mean cost, weighted by the shares of the operations (4.7).
//!
//! Frequencies are not normalized to a sum of 1, because the thesis's own are not always.

use super::configuration::{AttributeSet, Configuration, Layout};
use super::model::{ClassKind, ClassPrediction, CostModel, CostParts, Prediction, mean_of};
use super::workload::{Workload, WorkloadError};

/// The constants of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thesis {
    /// `R`: the number of regions.
    pub regions: u32,
    /// `K`: the number of replicas.
    pub replicas: u32,
    /// Seconds per object of a contacted region.
    pub beta: f64,
    /// The cost of a subspace in which the object moves, in servers: `2 alpha`.
    pub moved: f64,
    /// Reads by key per second: the reciprocal of the cost of a server.
    pub throughput_max: f64,
}

impl Default for Thesis {
    /// The constants of the thesis's evaluation.
    fn default() -> Thesis {
        Thesis {
            regions: 256,
            replicas: 2,
            beta: 3.31e-7,
            moved: 5.3,
            throughput_max: 98_000.0,
        }
    }
}

impl Thesis {
    /// Returns the number of regions that a search contacts.
    pub fn regions_contacted(&self, attributes: AttributeSet, fixed: AttributeSet) -> f64 {
        let free = attributes.count() - attributes.common(fixed).count();
        let side = f64::from(self.regions).powf(1.0 / f64::from(attributes.count()));
        (side.powi(free as i32) + 0.5).floor()
    }

    pub fn query_seconds(&self, regions: f64, objects: u64) -> f64 {
        (regions * objects as f64 / f64::from(self.regions)).floor() * self.beta
    }

    /// Returns the cost of a modification with this many subspaces in which the object stays, including the key
    /// subspace, and in which it moves.
    pub fn modification_seconds(&self, stay: u32, moved: u32) -> f64 {
        let servers = f64::from(stay) + self.moved * f64::from(moved);
        (1.0 + f64::from(self.replicas) * servers) / self.throughput_max
    }

    /// Returns the `beta` that corresponds to a measured throughput of queries only.
    ///
    /// The thesis measured with 51 times 5,000 objects, and subspaces of three attributes had 7 x 7 x 6 regions.
    pub fn beta_of(throughput: f64, subspaces: &[AttributeSet], fixed: AttributeSet) -> f64 {
        1.0 / (throughput * Thesis::objects_contacted(subspaces, fixed))
    }

    /// Returns the number of objects in the contacted regions of those measurements.
    pub fn objects_contacted(subspaces: &[AttributeSet], fixed: AttributeSet) -> f64 {
        let contacted = |&attributes: &AttributeSet| {
            let count = attributes.count();
            let regions = if count == 3 { 294.0_f64 } else { 256.0 };
            let free = count - attributes.common(fixed).count();
            regions.powf(f64::from(free) / f64::from(count)) * (255_000.0 / regions).floor()
        };
        let none = 256.0 * (255_000.0_f64 / 256.0).floor();
        subspaces.iter().map(contacted).fold(none, f64::min)
    }

    /// Returns the `alpha` that corresponds to a measured throughput of modifications only, which move objects in
    /// `moved` subspaces and not in `stay`.
    pub fn alpha_of(&self, throughput: f64, replicas: u32, stay: u32, moved: u32) -> f64 {
        let servers = (self.throughput_max / throughput - 1.0) / f64::from(replicas);
        (servers - 1.0 - f64::from(stay)) / (2.0 * f64::from(moved))
    }
}

/// The thesis's model of a workload.
#[derive(Debug, Clone)]
pub struct ThesisModel<'a> {
    constants: Thesis,
    workload: &'a Workload,
    fixed: Vec<AttributeSet>,
    changes: Vec<AttributeSet>,
}

impl<'a> ThesisModel<'a> {
    /// Creates a model.
    ///
    /// # Errors
    /// See [`Workload::check`].
    pub fn new(
        workload: &'a Workload,
        constants: Thesis,
    ) -> Result<ThesisModel<'a>, WorkloadError> {
        workload.check()?;
        let set = |names: &mut dyn Iterator<Item = &String>| {
            AttributeSet::of(names.filter_map(|name| workload.attribute(name)))
        };
        let fixed = workload.queries.iter().map(|query| {
            // The model supports only equality.
            set(&mut query.equal.iter())
        });
        let changes = workload
            .modifications
            .iter()
            .map(|it| set(&mut it.changes.iter()));
        Ok(ThesisModel {
            constants,
            fixed: fixed.collect(),
            changes: changes.collect(),
            workload,
        })
    }

    fn regions(&self, query: usize, layout: Option<&Layout>) -> f64 {
        match layout {
            None => f64::from(self.constants.regions),
            Some(layout) => self
                .constants
                .regions_contacted(layout.attributes(), self.fixed[query]),
        }
    }

    fn query_seconds(&self, query: usize, layout: Option<&Layout>) -> f64 {
        let regions = self.regions(query, layout);
        self.constants.query_seconds(regions, self.workload.objects)
    }

    fn best<'l>(&self, query: usize, layouts: &'l [Layout]) -> Option<&'l Layout> {
        let seconds = |layout: &&Layout| self.query_seconds(query, Some(layout));
        let best = layouts
            .iter()
            .min_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        best.filter(|layout| seconds(layout) < self.query_seconds(query, None))
    }
}

impl CostModel for ThesisModel<'_> {
    fn queries(&self) -> usize {
        self.fixed.len()
    }

    fn without(&self, query: usize) -> f64 {
        self.workload.queries[query].frequency * self.query_seconds(query, None)
    }

    fn with(&self, query: usize, layout: &Layout) -> f64 {
        self.workload.queries[query].frequency * self.query_seconds(query, Some(layout))
    }

    fn upkeep(&self, layout: &Layout) -> f64 {
        let constants = &self.constants;
        let per = f64::from(constants.replicas) / constants.throughput_max;
        let changes = self.changes.iter().zip(&self.workload.modifications);
        let upkeep = changes.map(|(changes, modification)| {
            let moves = !changes.common(layout.attributes()).is_empty();
            modification.frequency * per * if moves { constants.moved } else { 1.0 }
        });
        upkeep.sum()
    }

    fn fixed(&self) -> f64 {
        let modifications = self.workload.modifications.iter();
        let frequency: f64 = modifications.map(|it| it.frequency).sum();
        frequency * self.constants.modification_seconds(1, 0)
            + self.workload.gets / self.constants.throughput_max
    }

    fn subspaces_max(&self) -> usize {
        usize::MAX
    }

    fn predict(&self, configuration: &Configuration) -> Prediction {
        let constants = &self.constants;
        let mut classes = Vec::new();
        for (query, class) in self.workload.queries.iter().enumerate() {
            let best = self.best(query, &configuration.subspaces);
            let regions = self.regions(query, best);
            let seconds = self.query_seconds(query, best);
            classes.push(ClassPrediction {
                subspace: best.map(|layout| layout.text(self.workload)),
                regions,
                candidates: seconds / constants.beta,
                parts: CostParts {
                    candidates: seconds * 1e6,
                    ..CostParts::default()
                },
                ..ClassPrediction::of(&class.name, ClassKind::Query, class.frequency)
            });
        }
        for (changes, class) in self.changes.iter().zip(&self.workload.modifications) {
            let moves = |layout: &&Layout| !changes.common(layout.attributes()).is_empty();
            let moved = configuration.subspaces.iter().filter(moves).count() as u32;
            let stay = 1 + configuration.subspaces.len() as u32 - moved;
            let seconds = constants.modification_seconds(stay, moved);
            let moves =
                f64::from(constants.replicas * moved) * constants.moved / constants.throughput_max;
            classes.push(ClassPrediction {
                chain: f64::from(constants.replicas * (stay + 2 * moved)),
                parts: CostParts {
                    stages: (seconds - moves) * 1e6,
                    moves: moves * 1e6,
                    ..CostParts::default()
                },
                ..ClassPrediction::of(&class.name, ClassKind::Modification, class.frequency)
            });
        }
        if self.workload.gets > 0.0 {
            classes.push(ClassPrediction {
                parts: CostParts {
                    gets: 1e6 / constants.throughput_max,
                    ..CostParts::default()
                },
                ..ClassPrediction::of("get", ClassKind::Get, self.workload.gets)
            });
        }
        let mut parts = CostParts::default();
        for class in &classes {
            parts.add(&class.parts, class.share);
        }
        let throughput = 1e6 / parts.work();
        let copies = (1 + configuration.subspaces.len()) as f64 * f64::from(constants.replicas);
        let texts = configuration.subspaces.iter();
        Prediction {
            configuration: configuration.text(self.workload),
            subspaces: texts.map(|it| it.text(self.workload)).collect(),
            indexes: configuration.index_names(self.workload),
            throughput,
            capacity: throughput,
            capacity_even: throughput,
            parts,
            latency_idle_us: parts.work(),
            latency_us: parts.work(),
            chain: mean_of(&classes, ClassKind::Modification, |it| it.chain),
            servers: 0.0,
            regions: mean_of(&classes, ClassKind::Query, |it| it.regions),
            storage_bytes: copies
                * self.workload.objects as f64
                * self.workload.object_bytes as f64,
            classes,
        }
    }
}
