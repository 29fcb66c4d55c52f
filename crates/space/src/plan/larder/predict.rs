//! The prediction for a complete configuration.

use super::super::configuration::Configuration;
use super::super::latency;
use super::super::model::{ClassKind, ClassPrediction, CostParts, Prediction, mean_of};
use super::LarderModel;

impl LarderModel<'_> {
    pub(super) fn compute_prediction(&self, configuration: &Configuration) -> Prediction {
        let model = self.with_indexes(configuration.indexes);
        let workload = self.workload;
        let message = self.deployment.message_us;
        let mut classes = Vec::new();
        if self.get_share > 0.0 {
            let parts = CostParts {
                gets: self.deployment.costs.get_us,
                ..CostParts::default()
            };
            classes.push(ClassPrediction {
                latency_idle_us: parts.work() + message,
                servers: 1.0,
                parts,
                ..ClassPrediction::of("get", ClassKind::Get, self.get_share)
            });
        }
        for (query, named) in model.queries.iter().zip(&workload.queries) {
            let (layout, estimate) = model.best(query, &configuration.subspaces);
            let considered = configuration.subspaces.len() as f64;
            let mut parts = estimate.parts;
            parts.queries += considered * self.deployment.costs.subspace_us;
            // Servers search in parallel, but the results pass through one of them.
            let searched = parts.servers + parts.regions + parts.candidates + parts.contention;
            let path = parts.queries + parts.results + searched / estimate.servers;
            let index = estimate
                .index
                .map(|at| workload.attributes[at].name.clone());
            classes.push(ClassPrediction {
                subspace: layout.map(|it| it.text(workload)),
                index,
                servers: estimate.servers,
                regions: estimate.regions,
                candidates: estimate.candidates,
                results: query.results,
                latency_idle_us: path + 3.0 * message,
                parts,
                ..ClassPrediction::of(&named.name, ClassKind::Query, query.share)
            });
        }
        for (write, named) in model.writes.iter().zip(&workload.modifications) {
            let (mut chain, mut parts) = model.write_parts(write, None);
            for layout in &configuration.subspaces {
                let (servers, more) = model.write_parts(write, Some(layout));
                chain += servers;
                parts.add(&more, 1.0);
            }
            // Down the chain, back, and to the client.
            let messages = 2.0 * (chain - 1.0) + 1.0;
            classes.push(ClassPrediction {
                chain,
                servers: chain.min(self.servers()),
                latency_idle_us: parts.work() + messages * message,
                parts,
                ..ClassPrediction::of(&named.name, ClassKind::Modification, write.share)
            });
        }
        model.combine_classes(configuration, classes)
    }

    fn combine_classes(
        &self,
        configuration: &Configuration,
        mut classes: Vec<ClassPrediction>,
    ) -> Prediction {
        let mut parts = CostParts::default();
        for class in &classes {
            parts.add(&class.parts, class.share);
        }
        let idle: f64 = classes.iter().map(|it| it.share * it.latency_idle_us).sum();
        let processors = self.servers() * f64::from(self.deployment.cores);
        let load = latency::Load {
            work_us: parts.with_skew(),
            idle_us: idle,
            waits_us: idle - self.busy_path(&classes),
            processors,
        };
        let steady = latency::solve_steady_state(&load, self.deployment.clients);
        for class in &mut classes {
            let waits = self.waits(class);
            class.latency_us = waits + (class.latency_idle_us - waits) * steady.stretch;
        }
        let texts = configuration.subspaces.iter();
        Prediction {
            configuration: configuration.text(self.workload),
            subspaces: texts.map(|it| it.text(self.workload)).collect(),
            indexes: configuration.index_names(self.workload),
            throughput: steady.throughput,
            capacity: 1e6 * processors / parts.with_skew(),
            capacity_even: 1e6 * processors / parts.work(),
            parts,
            latency_idle_us: idle,
            latency_us: steady.latency_us,
            chain: mean_of(&classes, ClassKind::Modification, |it| it.chain),
            servers: mean_of(&classes, ClassKind::Query, |it| it.servers),
            regions: mean_of(&classes, ClassKind::Query, |it| it.regions),
            storage_bytes: self.storage(configuration.subspaces.len()),
            classes,
        }
    }

    /// Returns the time of messages, during which no processor works on the operation.
    fn waits(&self, class: &ClassPrediction) -> f64 {
        let messages = match class.kind {
            ClassKind::Get => 1.0,
            ClassKind::Query => 3.0,
            ClassKind::Modification => 2.0 * (class.chain - 1.0) + 1.0,
        };
        messages * self.deployment.message_us
    }

    fn busy_path(&self, classes: &[ClassPrediction]) -> f64 {
        let of = |it: &ClassPrediction| it.share * (it.latency_idle_us - self.waits(it));
        classes.iter().map(of).sum()
    }
}
