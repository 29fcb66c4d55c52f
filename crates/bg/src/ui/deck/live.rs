//! The deck of a process: the seconds of its trials, and the effects of the buttons.

use std::time::Duration;

use super::board::{Controls, Second};
use super::view::About;
use crate::run::Setup;
use crate::run::live::{Live, LiveState};

impl Controls for Live {
    fn set_threads(&self, threads: u32) {
        Live::set_threads(self, threads);
    }

    fn stop(&self) {
        Live::stop(self);
    }
}

impl<'a> From<&'a LiveState> for Second<'a> {
    fn from(seen: &'a LiveState) -> Second<'a> {
        Second {
            now: Duration::from_nanos(seen.now_ns),
            threads: seen.threads,
            second: &seen.second,
            total: &seen.total,
            failures: &seen.failures,
        }
    }
}

/// Maximum number of threads if members may act for several threads at the same time.
const THREADS_MAX: u32 = 1 << 20;

impl About {
    pub fn new(command: &'static str, setup: &Setup) -> About {
        let population = &setup.population;
        let members = setup.drawing.size();
        About {
            command,
            store: setup.store.name().to_owned(),
            mix: setup.mix.name().to_owned(),
            draw: setup.drawing.distribution().to_string(),
            members: population.members,
            friends: population.friends,
            resources: population.resources,
            image_size_bytes: population.image_size,
            workers: setup.workers,
            threads_max: if setup.run_options.unique_reads {
                members
            } else {
                THREADS_MAX
            },
        }
    }
}
