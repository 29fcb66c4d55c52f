//! A laboratory whose trials the deck shows.

use std::sync::Arc;

use super::board::Board;
use crate::verdict::measure::{Enough, Laboratory, Measured, Trial};

/// Registers the start and the result of each trial with the board. The collector registers the seconds.
pub struct Watched<'a> {
    laboratory: &'a mut dyn Laboratory,
    board: Arc<Board>,
}

impl<'a> Watched<'a> {
    pub fn new(laboratory: &'a mut dyn Laboratory, board: Arc<Board>) -> Watched<'a> {
        Watched { laboratory, board }
    }
}

impl Laboratory for Watched<'_> {
    fn run(&mut self, trial: &Trial) -> Result<Measured, String> {
        self.run_until(trial, &|_, _| false)
    }

    fn run_until(&mut self, trial: &Trial, enough: Enough<'_>) -> Result<Measured, String> {
        self.board.begins(trial);
        let ended = self.laboratory.run_until(trial, enough);
        self.board.ends(&ended);
        ended
    }

    fn is_over(&self) -> bool {
        self.laboratory.is_over()
    }
}
