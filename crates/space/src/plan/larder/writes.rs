//! The cost of a modification: the owner, each copy, and moves.

use super::super::configuration::{AttributeSet, Layout};
use super::super::model::CostParts;
use super::super::workload::ModificationKind;
use super::LarderModel;

#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    pub share: f64,
    pub kind: ModificationKind,
    pub changes: AttributeSet,
}

impl LarderModel<'_> {
    /// Returns the cost of one copy in a subspace, or, without a layout, in the key subspace.
    pub(super) fn write_parts(&self, write: &Write, layout: Option<&Layout>) -> (f64, CostParts) {
        let costs = &self.deployment.costs;
        let replicas = f64::from(self.deployment.replicas);
        let all = f64::from(self.indexes.count());
        let changed = f64::from(self.indexes.common(write.changes).count());
        let (moves, entries) = match write.kind {
            ModificationKind::Create | ModificationKind::Delete => (0.0, all),
            ModificationKind::Update => {
                let moves =
                    layout.map_or(0.0, |layout| moves(write.changes, layout, self.servers()));
                (moves, 2.0 * (moves * all + (1.0 - moves) * changed))
            }
        };
        let chain = replicas * (1.0 + moves);
        let left = replicas * moves * costs.leave_us.unwrap_or(costs.stage_us);
        let stages = match layout {
            Some(_) => replicas * costs.stage_us + left,
            None => {
                let commit = costs.commit_us / self.concurrent_writes.max(1.0);
                costs.write_us + commit + (replicas - 1.0) * costs.stage_us
            }
        };
        let mut parts = CostParts {
            stages,
            moves: replicas * moves * costs.move_us,
            index_entries: replicas * entries * costs.index_entry_us,
            ..CostParts::default()
        };
        let copies = layout.map(|it| it.regions() * replicas);
        let unevenness = copies.map_or(1.0, |it| self.unevenness(it));
        parts.skew = parts.work() * (unevenness - 1.0);
        (chain, parts)
    }
}

/// Returns the share of updates of these attributes that move the object to another server. Adjacent regions are on the
/// same server, so only the outer bits matter.
fn moves(changes: AttributeSet, layout: &Layout, servers: f64) -> f64 {
    let mut places = servers.min(layout.regions());
    let mut same = 1.0;
    for &(attribute, bits) in &layout.dimensions {
        let of_these = f64::from(1 << bits).min(places);
        if changes.contains(attribute.into()) {
            same /= of_these;
        }
        places = (places / of_these).max(1.0);
    }
    1.0 - same
}
