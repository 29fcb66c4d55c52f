//! The cost of a search: the contacted servers, their candidates, and their matches.

use super::super::configuration::Layout;
use super::super::model::CostParts;
use super::LarderModel;
use super::match_distribution::MatchDistribution;
use super::query_placement::QueryPlacement;

#[derive(Debug, Clone)]
pub(super) struct Query {
    pub share: f64,
    /// At most one for each attribute.
    pub constraints: Vec<Constraint>,
    pub matches: f64,
    pub results: f64,
    pub found: MatchDistribution,
}

#[derive(Debug, Clone)]
pub(super) struct Constraint {
    pub attribute: usize,
    pub kind: ConstraintKind,
    /// The share of objects that satisfy the constraint.
    pub selectivity: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ConstraintKind {
    Values(f64),
    Range(f64),
}

/// The number of objects that a scan examines in the time of one listed object, if it was not measured.
const SCAN_SPEEDUP: f64 = 64.0;

/// The work of one query in one subspace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    pub servers: f64,
    pub regions: f64,
    pub candidates: f64,
    pub index: Option<usize>,
    pub parts: CostParts,
}

impl LarderModel<'_> {
    pub(super) fn estimate(&self, query: &Query, layout: Option<&Layout>) -> Estimate {
        let objects = self.workload.objects as f64;
        let (regions, placed) = match layout {
            None => {
                let regions = self.servers() * f64::from(self.deployment.key_regions);
                (regions, QueryPlacement::everywhere(self.servers()))
            }
            Some(layout) => {
                let contacts = layout.dimensions.iter().map(|&(attribute, bits)| {
                    self.contacts(query, attribute.into(), f64::from(1 << bits))
                });
                (contacts.product(), self.place_query(query, layout))
            }
        };
        let local_objects = objects * placed.share;
        let mut candidates = local_objects;
        let mut leads = None;
        for constraint in &query.constraints {
            if !self.indexes.contains(constraint.attribute) {
                continue;
            }
            // This attribute also selected the contacted servers, so a larger share of their objects satisfies the
            // constraint.
            let of_these = local_objects / placed.remaining_share(constraint.attribute);
            let found = (of_these * constraint.selectivity).min(local_objects);
            if found < candidates {
                (candidates, leads) = (found, Some((constraint, of_these)));
            }
        }
        let candidates = candidates.max(query.matches).min(objects);
        let costs = &self.deployment.costs;
        let bytes = self.workload.object_bytes as f64;
        let result_us = costs.result_us + bytes * costs.result_byte_us;
        let rows = query.found.total_on(placed.servers);
        let results_us = match costs.row_us {
            Some(us) => rows * (us + bytes * costs.row_byte_us) + query.results * result_us,
            None => rows * result_us,
        };
        let further = query.constraints.len().saturating_sub(1) as f64;
        let scanned_us = match costs.scan_us {
            Some(us) => local_objects * us,
            None => (local_objects / SCAN_SPEEDUP + query.matches) * costs.candidate_us,
        };
        let looked_at_us = match leads {
            // Without other conditions, the index yields only matches.
            Some(_) if further == 0.0 && costs.match_us.is_some() => 0.0,
            Some((constraint, of_these)) => {
                // At least the matches, if every object that satisfies another condition satisfies this one too.
                let share = constraint.selectivity.max(query.matches / of_these);
                self.listed(constraint, share, |share| {
                    ((of_these * share).min(local_objects) * costs.candidate_us).min(scanned_us)
                })
            }
            None => scanned_us,
        };
        let (index, candidates) = if looked_at_us < scanned_us {
            (leads.map(|it| it.0.attribute), candidates)
        } else {
            (None, local_objects.min(scanned_us / costs.candidate_us))
        };
        let match_us = costs.match_us.unwrap_or_default();
        let mut parts = CostParts {
            queries: costs.query_us,
            servers: placed.servers * (costs.server_us + further * costs.condition_us),
            regions: regions * costs.region_us,
            candidates: looked_at_us
                + query.found.selection_us(
                    placed.servers,
                    local_objects,
                    further == 0.0,
                    match_us,
                    costs.walk_us,
                ),
            results: results_us + query.found.servers_with_matches(placed.servers) * costs.found_us,
            contention: placed.servers * costs.beside_us * (1.0 - (-self.concurrent_writes).exp()),
            ..CostParts::default()
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

    /// Returns the mean of `us`, a function of the share of objects that satisfy the constraint, over the requested
    /// values. The mean of that share is `selectivity`.
    fn listed(&self, constraint: &Constraint, selectivity: f64, us: impl Fn(f64) -> f64) -> f64 {
        let ConstraintKind::Values(_) = constraint.kind else {
            return us(selectivity);
        };
        let values = self.values(constraint.attribute);
        // This class may request other values than all classes together.
        let of_class = selectivity / values.selectivity().max(f64::MIN_POSITIVE);
        values.mean(|share| us(share * of_class))
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
