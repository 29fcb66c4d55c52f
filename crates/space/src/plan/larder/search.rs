//! What a search takes: whom it asks, what these look at, and what they find.

use super::super::configuration::Layout;
use super::super::model::Parts;
use super::LarderModel;
use super::placed::Placed;

#[derive(Debug, Clone)]
pub(super) struct Query {
    pub share: f64,
    /// At most one for an attribute.
    pub constraints: Vec<Constraint>,
    pub matches: f64,
    pub results: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Constraint {
    pub attribute: usize,
    pub asks: Asks,
    /// The share of objects that pass it.
    pub selectivity: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Asks {
    Values(f64),
    Range(f64),
}

impl Query {
    /// How many are found on so many servers together, each of which finds no more than are sent.
    pub(super) fn found_on(&self, servers: f64) -> f64 {
        if self.results >= self.matches {
            return self.results;
        }
        self.matches * (1.0 - (1.0 - self.results / self.matches).powf(servers))
    }

    /// On how many of these servers something is found and sent.
    pub(super) fn servers_that_find(&self, servers: f64) -> f64 {
        servers * self.results / (self.results + servers)
    }
}

/// So many objects are looked at one after the other in the time that it takes to look at one of a list, where that was not measured.
const SCANNED: f64 = 64.0;

/// What one query does with one subspace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub index: Option<usize>,
    pub parts: Parts,
}

impl LarderModel<'_> {
    pub(super) fn estimate(&self, query: &Query, layout: Option<&Layout>) -> Estimate {
        let objects = self.workload.objects as f64;
        let (regions, placed) = match layout {
            None => {
                let regions = self.servers() * f64::from(self.deployment.key_regions);
                (regions, Placed::everywhere(self.servers()))
            }
            Some(layout) => {
                let contacts = layout.dimensions.iter().map(|&(attribute, bits)| {
                    self.contacts(query, attribute.into(), f64::from(1 << bits))
                });
                (contacts.product(), self.placed(query, layout))
            }
        };
        let here = objects * placed.share;
        let mut candidates = here;
        let mut index = None;
        for constraint in &query.constraints {
            if !self.indexes.contains(constraint.attribute) {
                continue;
            }
            // The servers contacted are chosen by this attribute, too: among their objects more pass.
            let chosen = placed.chosen_by(constraint.attribute);
            let found = here * (constraint.selectivity / chosen).min(1.0);
            if found < candidates {
                (candidates, index) = (found, Some(constraint.attribute));
            }
        }
        let candidates = candidates.max(query.matches).min(objects);
        let costs = &self.deployment.costs;
        let result_us = costs.result_us + self.workload.object_bytes as f64 * costs.result_byte_us;
        let further = query.constraints.len().saturating_sub(1) as f64;
        // What the index leads to is what is asked for, where nothing else is.
        let listed_us = match (index, further > 0.0) {
            (Some(_), false) if costs.match_us.is_some() => 0.0,
            (Some(_), _) => candidates * costs.candidate_us,
            (None, _) => f64::INFINITY,
        };
        let scanned_us = match costs.scan_us {
            Some(us) => here * us,
            None => (here / SCANNED + query.matches) * costs.candidate_us,
        };
        let (index, candidates) = match listed_us <= scanned_us {
            true => (index, candidates),
            false => (None, here.min(scanned_us / costs.candidate_us)),
        };
        let mut parts = Parts {
            queries: costs.query_us,
            servers: placed.servers * (costs.server_us + further * costs.condition_us),
            regions: regions * costs.region_us,
            candidates: listed_us.min(scanned_us)
                + query.matches * costs.match_us.unwrap_or_default(),
            results: query.found_on(placed.servers) * result_us
                + query.servers_that_find(placed.servers) * costs.found_us,
            contention: placed.servers * costs.beside_us * (1.0 - (-self.writes_under_way).exp()),
            ..Parts::default()
        };
        let of_a_server = (parts.work() - parts.queries) / placed.servers;
        parts.skew = self.servers() * placed.excess * of_a_server;
        Estimate {
            servers: placed.servers,
            regions,
            candidates,
            index,
            parts,
        }
    }

    pub(super) fn best<'l>(
        &self,
        query: &Query,
        layouts: &'l [Layout],
    ) -> (Option<&'l Layout>, Estimate) {
        let mut best = (None, self.estimate(query, None));
        for layout in layouts {
            let estimate = self.estimate(query, Some(layout));
            if estimate.parts.with_skew() < best.1.parts.with_skew() {
                best = (Some(layout), estimate);
            }
        }
        best
    }
}
