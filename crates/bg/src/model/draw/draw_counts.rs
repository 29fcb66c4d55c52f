//! The actual frequencies of drawn members, compared with the intended ones.
//!
//! Members are grouped by rank into cells of about a hundredth of all draws each; the most popular members have cells
//! of their own. The memory and the messages therefore do not depend on the number of members, and the cells of clients
//! with different members can be added.
//!
//! Invariant: no cell contains members of both the most popular fifth and the rest.

use serde::{Deserialize, Serialize};

/// The draws of a trial; empty if they were not counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "DrawCountsJson", from = "DrawCountsJson")]
pub struct DrawCounts {
    /// By rank, most popular first.
    pub cells: Vec<Cell>,
}

/// A group of members with adjacent ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Counted from 1, both bounds inclusive.
    pub first_rank: u32,
    pub last_rank: u32,
    /// The intended share of the draws, for the members in the cell that this client can draw.
    #[serde(rename = "meant")]
    pub intended: f64,
    /// The number of draws.
    pub drawn: u64,
}

/// A share of the draws, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub intended: f64,
    pub actual: f64,
}

/// Pearson's chi-square, over cells with at least ten expected draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChiSquare {
    pub value: f64,
    /// The expected value if the draws match the distribution.
    pub degrees_of_freedom: u32,
}

impl DrawCounts {
    pub fn draws(&self) -> u64 {
        self.cells.iter().map(|cell| cell.drawn).sum()
    }

    /// Returns the share of the most popular fifth of all members.
    pub fn popular(&self) -> Share {
        let members = self.cells.last().map_or(0, |cell| cell.last_rank);
        let popular = members.div_ceil(5);
        let (intended, draws) = self.all();
        let of = |share: fn(&Cell) -> f64| -> f64 {
            let cells = self.cells.iter();
            cells
                .filter(|cell| cell.last_rank <= popular)
                .map(share)
                .sum()
        };
        Share {
            intended: of(|cell| cell.intended) / intended,
            actual: of(|cell| cell.drawn as f64) / draws,
        }
    }

    /// Returns the share of the draws, from 0 to 1, that would have to go to other cells to match the distribution:
    /// half the sum of the absolute differences of the shares.
    pub fn total_variation(&self) -> f64 {
        let (intended, draws) = self.all();
        let apart = |cell: &Cell| (cell.drawn as f64 / draws - cell.intended / intended).abs();
        self.cells.iter().map(apart).sum::<f64>() / 2.0
    }

    pub fn chi_square(&self) -> ChiSquare {
        let (intended, draws) = self.all();
        let (mut value, mut groups) = (0.0, 0u32);
        let (mut expected, mut drawn) = (0.0, 0.0);
        for cell in &self.cells {
            expected += cell.intended / intended * draws;
            drawn += cell.drawn as f64;
            if expected >= 10.0 {
                value += (drawn - expected).powi(2) / expected;
                groups += 1;
                (expected, drawn) = (0.0, 0.0);
            }
        }
        ChiSquare {
            value,
            degrees_of_freedom: groups.saturating_sub(1),
        }
    }

    /// Summarizes the draws in a sentence. `None` if nothing was drawn or counted.
    pub fn summary(&self) -> Option<String> {
        let draws = self.draws();
        if draws == 0 {
            return None;
        }
        let (popular, chi) = (self.popular(), self.chi_square());
        Some(format!(
            "members drawn {draws} times: {:.2} % of the draws went to the most popular 20 % (intended {:.2} %); total variation {:.4}, \
             chi-square {:.0} at {} degrees of freedom",
            100.0 * popular.actual,
            100.0 * popular.intended,
            self.total_variation(),
            chi.value,
            chi.degrees_of_freedom
        ))
    }

    /// Adds the draws of another worker of the same client.
    pub fn add(&mut self, other: &DrawCounts) {
        if self.cells.is_empty() {
            self.cells.clone_from(&other.cells);
            return;
        }
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            mine.drawn += theirs.drawn;
        }
    }

    /// Adds the draws of a client with other members.
    pub fn join(&mut self, other: &DrawCounts) {
        let known = !self.cells.is_empty();
        self.add(other);
        if known {
            for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
                mine.intended += theirs.intended;
            }
        }
    }

    fn all(&self) -> (f64, f64) {
        let intended: f64 = self.cells.iter().map(|cell| cell.intended).sum();
        (
            intended.max(f64::MIN_POSITIVE),
            (self.draws() as f64).max(1.0),
        )
    }
}

/// The JSON form, with derived figures for its readers.
#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct DrawCountsJson {
    draws: u64,
    popular_share: f64,
    popular_share_meant: f64,
    total_variation: f64,
    chi_square: f64,
    degrees_of_freedom: u32,
    cells: Vec<Cell>,
}

impl From<DrawCounts> for DrawCountsJson {
    fn from(drawn: DrawCounts) -> DrawCountsJson {
        let (popular, chi) = (drawn.popular(), drawn.chi_square());
        DrawCountsJson {
            draws: drawn.draws(),
            popular_share: popular.actual,
            popular_share_meant: popular.intended,
            total_variation: drawn.total_variation(),
            chi_square: chi.value,
            degrees_of_freedom: chi.degrees_of_freedom,
            cells: drawn.cells,
        }
    }
}

impl From<DrawCountsJson> for DrawCounts {
    fn from(spelled: DrawCountsJson) -> DrawCounts {
        DrawCounts {
            cells: spelled.cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(of: &[(f64, u64)]) -> DrawCounts {
        let cell = |(index, &(intended, drawn)): (usize, &(f64, u64))| Cell {
            first_rank: index as u32 + 1,
            last_rank: index as u32 + 1,
            intended,
            drawn,
        };
        DrawCounts {
            cells: of.iter().enumerate().map(cell).collect(),
        }
    }

    #[test]
    fn statistics_of_a_known_distribution_are_exact() {
        let drawn = cells(&[(0.4, 50), (0.3, 20), (0.1, 10), (0.1, 10), (0.1, 10)]);
        assert_eq!(drawn.draws(), 100);
        let popular = drawn.popular();
        assert!((popular.intended - 0.4).abs() < 1e-12 && popular.actual == 0.5);
        assert!((drawn.total_variation() - 0.1).abs() < 1e-12);
        let chi = drawn.chi_square();
        assert_eq!(chi.degrees_of_freedom, 4);
        assert!((chi.value - (100.0 / 40.0 + 100.0 / 30.0)).abs() < 1e-9);
    }

    #[test]
    fn counts_of_clients_with_disjoint_members_merge() {
        let mut one = cells(&[(0.4, 40), (0.0, 0), (0.1, 10)]);
        assert!(
            (one.popular().intended - 0.8).abs() < 1e-12,
            "among its own"
        );
        one.join(&cells(&[(0.0, 0), (0.5, 50), (0.0, 0)]));
        assert_eq!(one.draws(), 100);
        assert!(one.total_variation() < 1e-12 && one.chi_square().value < 1e-9);
    }

    #[test]
    fn no_draws_have_no_summary() {
        assert_eq!(DrawCounts::default().summary(), None);
        assert_eq!(cells(&[(1.0, 0)]).summary(), None);
        let text = serde_json::to_string(&DrawCounts::default()).unwrap();
        assert_eq!(
            serde_json::from_str::<DrawCounts>(&text).unwrap(),
            DrawCounts::default()
        );
    }
}
