//! The grouping of members into the cells of [`DrawCounts`], which count draws.

use super::{Cell, DrawCounts, Drawing};

/// The minimum share of all draws in a cell, except for the last cell of the most popular fifth and the last cell of
/// all.
const MASS: f64 = 0.01;

/// The cell of each member, in one byte, so that counting a draw touches little memory.
#[derive(Clone, Debug)]
pub struct Cells {
    of_member: Vec<u8>,
    empty: DrawCounts,
}

impl Cells {
    pub fn new(drawing: &Drawing) -> Cells {
        let (members, distribution) = (drawing.members, drawing.distribution);
        let exponent = distribution.exponent(members);
        let weight = |rank: u32| (f64::from(rank) + 1.0).powf(-exponent);
        let total: f64 = (0..members).map(weight).sum();
        let mut of_member = vec![0; members as usize];
        let mut cells: Vec<Cell> = Vec::new();
        let mut mass = f64::INFINITY;
        for rank in 0..members {
            if mass >= MASS || rank == members.div_ceil(5) {
                mass = 0.0;
                cells.push(Cell {
                    first_rank: rank + 1,
                    last_rank: rank + 1,
                    intended: 0.0,
                    drawn: 0,
                });
            }
            let index = cells.len() - 1;
            let member = distribution.member_of_rank(members, rank);
            let share = weight(rank) / total;
            mass += share;
            cells[index].last_rank = rank + 1;
            if drawing.owns(member) {
                cells[index].intended += share;
            }
            of_member[member as usize] = u8::try_from(index).expect("about a hundred cells");
        }
        Cells {
            of_member,
            empty: DrawCounts { cells },
        }
    }

    /// Returns the cells without any draws.
    pub fn empty(&self) -> DrawCounts {
        self.empty.clone()
    }

    /// Counts a draw in cells that [`Cells::empty`] returned.
    pub fn count(&self, drawn: &mut DrawCounts, member: u32) {
        let cell = self.of_member[member as usize];
        drawn.cells[usize::from(cell)].drawn += 1;
    }
}
