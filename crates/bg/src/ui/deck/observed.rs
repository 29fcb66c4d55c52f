//! A trial runner whose trials the deck shows.

use std::sync::Arc;

use super::board::Board;
use crate::verdict::measure::{Measurements, StopCondition, Trial, TrialRunner};

/// Registers the start and the result of each trial with the board. The collector registers the seconds.
pub struct ObservedRunner<'a> {
    runner: &'a mut dyn TrialRunner,
    board: Arc<Board>,
}

impl<'a> ObservedRunner<'a> {
    pub fn new(runner: &'a mut dyn TrialRunner, board: Arc<Board>) -> ObservedRunner<'a> {
        ObservedRunner { runner, board }
    }
}

impl TrialRunner for ObservedRunner<'_> {
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
        self.run_until(trial, &|_, _| false)
    }

    fn run_until(
        &mut self,
        trial: &Trial,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        self.board.record_start(trial);
        let ended = self.runner.run_until(trial, should_stop);
        self.board.record_end(&ended);
        ended
    }

    fn is_over(&self) -> bool {
        self.runner.is_over()
    }
}
