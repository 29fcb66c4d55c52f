//! Which members belong together when draws are counted: [`Drawn`]'s cells, and whose draw goes where.

use super::{Cell, Drawing, Drawn};

/// Part of all draws that a cell has at least, but for the last of the most popular fifth and the last of all.
const MASS: f64 = 0.01;

/// One byte a member, so that counting a draw touches little memory.
#[derive(Clone, Debug)]
pub struct Cells {
    of_member: Vec<u8>,
    empty: Drawn,
}

impl Cells {
    pub fn of(drawing: &Drawing) -> Cells {
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
                    meant: 0.0,
                    drawn: 0,
                });
            }
            let index = cells.len() - 1;
            let member = distribution.ranked(members, rank);
            let share = weight(rank) / total;
            mass += share;
            cells[index].last_rank = rank + 1;
            if drawing.owns(member) {
                cells[index].meant += share;
            }
            of_member[member as usize] = u8::try_from(index).expect("about a hundred cells");
        }
        Cells {
            of_member,
            empty: Drawn { cells },
        }
    }

    /// Before any draw.
    pub fn empty(&self) -> Drawn {
        self.empty.clone()
    }

    /// Counts a draw into what [`Cells::empty`] returned.
    pub fn count(&self, drawn: &mut Drawn, member: u32) {
        let cell = self.of_member[member as usize];
        drawn.cells[usize::from(cell)].drawn += 1;
    }
}
