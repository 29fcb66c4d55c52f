//! Nodes whose slots move and whose links break, with planted mistakes: each must be detected.

use super::World;

/// A mistake that reads must reveal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A reader that has lost the connection to an owner keeps the owner's rows.
    KeepsWhatIsNotTold,
    /// Changes are acknowledged on arrival, before outputs reflect them.
    AcknowledgesTooEarly,
    /// Messages of an earlier epoch are treated like those of the current one.
    IgnoresEpochs,
    /// A slot is moved without notifying the shards that have its rows.
    GivesAwayUntold,
    /// Those shards acknowledge the withdrawal without dropping the rows.
    ForgetsTooLate,
    /// The old owner still answers requests for the slot's rows until the new owner has them.
    StillAnswers,
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
            |world: &World| world.moves.is_some() && world.cores.len() > 2 && !world.elsewhere;
        worlds.find(is_right).expect("one in some is")
    }
}

#[test]
fn nodes_whose_slots_move_answer_as_one_engine_would() {
    let seeds = match std::env::var("LARDER_SLOW_TESTS") {
        Ok(_) => 2_000,
        Err(_) => 60,
    };
    for seed in 0..seeds {
        World::of_nodes(seed).run_nodes(120);
    }
}

/// Checks that some seed detects a planted mistake, and that the same seed passes without it.
fn check_found(planted: Planted) {
    let fails = |seed: u64, planted: Option<Planted>| {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::of_nodes(seed);
            world.planted = planted;
            world.run_nodes(120);
        });
        run.is_err()
    };
    let found = (0..300).find(|seed| fails(*seed, Some(planted)));
    eprintln!("{planted:?} is found by seed {found:?}");
    let found = found.expect("some seed finds it");
    assert!(!fails(found, None), "seed {found} fails without it, too");
}

#[test]
fn a_reader_that_keeps_what_it_is_not_told_of_any_more_is_found() {
    check_found(Planted::KeepsWhatIsNotTold);
}

#[test]
fn an_acknowledgement_before_the_change_is_reflected_is_found() {
    check_found(Planted::AcknowledgesTooEarly);
}

#[test]
fn answers_of_an_earlier_epoch_that_count_are_found() {
    check_found(Planted::IgnoresEpochs);
}

#[test]
fn a_slot_that_is_given_away_untold_is_found() {
    check_found(Planted::GivesAwayUntold);
}

#[test]
fn a_reader_that_says_that_it_has_forgotten_and_has_not_is_found() {
    check_found(Planted::ForgetsTooLate);
}

#[test]
fn an_owner_that_still_answers_of_a_slot_that_it_gives_away_is_found() {
    check_found(Planted::StillAnswers);
}

#[test]
fn a_reader_that_is_to_forget_and_is_not_waited_for_is_found() {
    check_found(Planted::EndsWithoutWaiting);
}
