//! Nodes whose slots move and whose links break, with planted mistakes: each must be detected.

use super::World;

/// A mistake that reads must reveal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A reader that has lost the connection to an owner keeps the owner's rows.
    KeepsRowsOfLostOwner,
    /// Changes are acknowledged on arrival, before outputs reflect them.
    AcknowledgesTooEarly,
    /// Messages of an earlier epoch are treated like those of the current one.
    IgnoresEpochs,
    /// A slot is moved without notifying the shards that have its rows.
    MovesWithoutWithdrawal,
    /// Those shards acknowledge the withdrawal without dropping the rows.
    KeepsWithdrawnRows,
    /// The old owner still answers requests for the slot's rows until the new owner has them.
    AnswersForMovedSlot,
    /// The owner does not wait for readers to drop the rows.
    EndsWithoutWaiting,
}

impl World {
    /// Runs nodes whose slots move and whose links break continually. Outputs depend on rows of other nodes.
    fn run_nodes(&mut self, steps: usize) {
        for definition in [
            "x|<b>|<a> = copy p|<a>|<b>",
            "y|<b> = count p|<a>|<b>",
            "z|<c>|<a>|<b> = copy q|<a>|<b>|<c>",
            "w|<b>|<a> = check r|<b> copy p|<a>|<b>",
        ] {
            self.define(definition.to_owned());
        }
        for _ in 0..steps {
            match self.random.below(100) {
                0..=29 => self.put(),
                30..=34 => self.remove(),
                35..=69 => {
                    let core = self.random.below(self.cores.len());
                    self.check_on(Some(core));
                }
                70..=74 => self.break_some_link(),
                75..=79 => {
                    self.put();
                    self.end_conversations();
                    let core = self.random.below(self.cores.len());
                    self.check_on(Some(core));
                }
                80..=94 => self.move_slot(),
                95..=96 => self.restart(),
                _ => self.deliver(3),
            }
        }
    }

    /// Returns a world with three or more nodes.
    fn of_nodes(seed: u64) -> World {
        let mut worlds = (seed * 1_000..).map(World::new);
        let is_right =
            |world: &World| world.moves.is_some() && world.cores.len() > 2 && !world.has_external;
        worlds.find(is_right).expect("one in some is")
    }
}

#[test]
fn nodes_with_moving_slots_agree_with_one_engine() {
    let seeds = match std::env::var("LARDER_SLOW_TESTS") {
        Ok(_) => 2_000,
        Err(_) => 60,
    };
    for seed in 0..seeds {
        World::of_nodes(seed).run_nodes(120);
    }
}

/// Checks that a seed from `first` on detects a planted mistake; see [`larder_sim::check_found`].
fn check_found(first: u64, planted: Planted) {
    larder_sim::check_found(first, 300, |seed, is_planted| {
        let mut world = World::of_nodes(seed);
        world.planted = is_planted.then_some(planted);
        world.run_nodes(120);
    });
}

#[test]
fn keeping_rows_of_a_lost_owner_is_detected() {
    check_found(0, Planted::KeepsRowsOfLostOwner);
}

#[test]
fn an_acknowledgement_before_the_change_is_reflected_is_detected() {
    check_found(16, Planted::AcknowledgesTooEarly);
}

#[test]
fn accepting_messages_of_an_earlier_epoch_is_detected() {
    check_found(2, Planted::IgnoresEpochs);
}

#[test]
fn moving_a_slot_without_withdrawal_is_detected() {
    check_found(74, Planted::MovesWithoutWithdrawal);
}

#[test]
fn a_false_acknowledgement_of_a_withdrawal_is_detected() {
    check_found(24, Planted::KeepsWithdrawnRows);
}

#[test]
fn an_old_owner_that_serves_a_moved_slot_is_detected() {
    check_found(0, Planted::AnswersForMovedSlot);
}

#[test]
fn not_waiting_for_readers_to_drop_rows_is_detected() {
    check_found(1, Planted::EndsWithoutWaiting);
}
