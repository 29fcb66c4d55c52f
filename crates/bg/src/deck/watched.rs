//! A laboratory whose trials the deck shows.

use std::sync::Arc;

use super::board::Board;
use crate::measure::{Laboratory, Measured, Trial};

/// Tells the board where each trial begins and what came of it; its seconds are told by whoever collects them.
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
        self.board.begins(trial);
        let ended = self.laboratory.run(trial);
        self.board.ends(&ended);
        ended
    }
}
