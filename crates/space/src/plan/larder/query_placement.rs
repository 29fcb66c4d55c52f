//! The servers that a search contacts: its regions, and their servers.

use super::super::configuration::Layout;
use super::LarderModel;
use super::search::{ConstraintKind, Query};

/// The number of servers with contacted regions, and the excess load of the busiest one.
#[derive(Debug, Clone)]
pub(super) struct QueryPlacement {
    pub servers: f64,
    /// The share of all objects on these servers.
    pub share: f64,
    /// For each attribute, the share of the servers that remain after the constraints on the other attributes.
    pub remaining_shares: Vec<(usize, f64)>,
    /// The load above the mean, as a share of the queries.
    pub excess: f64,
}

impl QueryPlacement {
    pub(super) fn everywhere(servers: f64) -> QueryPlacement {
        QueryPlacement {
            servers,
            share: 1.0,
            remaining_shares: Vec::new(),
            excess: 0.0,
        }
    }

    pub(super) fn remaining_share(&self, attribute: usize) -> f64 {
        let chosen = self.remaining_shares.iter().find(|it| it.0 == attribute);
        chosen.map_or(1.0, |it| it.1)
    }
}

impl LarderModel<'_> {
    /// Returns the number of cells of a dimension that a query contacts.
    pub(super) fn contacts(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        match constraint.map(|it| it.kind) {
            None => cells,
            Some(ConstraintKind::Range(share)) => 1.0 + share * (cells - 1.0),
            Some(ConstraintKind::Values(count)) => {
                let values = self.values(attribute);
                let one = values.cells(cells).min(cells) / cells;
                let missed = (1.0 - one).powf(count);
                // The cell of objects with several values, or none, is contacted too.
                let others = if values.profile.lists { missed } else { 0.0 };
                cells * (1.0 - missed) + others
            }
        }
    }

    /// Returns the share of the queries that contact the fullest cell of a dimension.
    pub(super) fn hottest(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let even = self.contacts(query, attribute, cells) / cells;
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        let Some(ConstraintKind::Values(_)) = constraint.map(|it| it.kind) else {
            return even;
        };
        let profile = &self.workload.attributes[attribute];
        if profile.lists {
            return 1.0;
        }
        let hottest = profile.hot.iter().map(|value| {
            if value.objects * cells > 1.0 {
                value.queries
            } else {
                value.queries + (1.0 - value.queries) / cells
            }
        });
        hottest.fold(even, f64::max)
    }

    pub(super) fn place_query(&self, query: &Query, layout: &Layout) -> QueryPlacement {
        let servers = self.servers();
        let of_a_server = (layout.regions() / servers).max(1.0);
        let mut width = layout.regions();
        let (mut contacted, mut even, mut hottest) = (1.0, 1.0, 1.0);
        let mut chosen = Vec::new();
        for &(attribute, bits) in &layout.dimensions {
            // Within one server, inner dimensions make no difference.
            if width <= of_a_server {
                break;
            }
            let attribute = usize::from(attribute);
            let cells = f64::from(1 << bits);
            let inner = width / cells;
            let contacts = self.contacts(query, attribute, cells);
            even *= contacts / cells;
            hottest *= self.hottest(query, attribute, cells);
            // The number of servers that hold a cell of the dimensions so far. Several cells may share one.
            let here = width / of_a_server;
            let (most, of_these) = if inner >= of_a_server {
                (cells, contacts)
            } else if self.is_contiguous(query, attribute) {
                let run = 1.0 + (contacts - 1.0) * inner / of_a_server;
                (here.max(1.0), run.min(here.max(1.0)))
            } else {
                let here = here.max(1.0);
                let run = self.cells_of_value(query, attribute, cells);
                let of_one = (1.0 + (run - 1.0) * inner / of_a_server).min(here);
                (
                    here,
                    here * (1.0 - (1.0 - of_one / here).powf(contacts / run)),
                )
            };
            contacted *= of_these;
            chosen.push((attribute, of_these / most));
            width = inner;
        }
        QueryPlacement {
            share: chosen.iter().map(|it| it.1).product(),
            remaining_shares: chosen,
            servers: contacted.clamp(1.0, servers),
            excess: (hottest - even).max(0.0)
                + contacted.clamp(1.0, servers) / servers
                    * (self.unevenness(layout.regions()) - 1.0),
        }
    }

    /// Returns the number of adjacent cells of a requested value.
    pub(super) fn cells_of_value(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let mut constraints = query.constraints.iter();
        match constraints.find(|it| it.attribute == attribute) {
            None => 1.0,
            Some(_) => {
                let values = self.values(attribute);
                values.cells(cells).min(cells)
            }
        }
    }

    /// Returns whether the contacted cells are adjacent.
    pub(super) fn is_contiguous(&self, query: &Query, attribute: usize) -> bool {
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        !matches!(
            constraint.map(|it| it.kind),
            Some(ConstraintKind::Values(_))
        )
    }
}
