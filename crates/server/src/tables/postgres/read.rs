//! A read that needs rows which are not here: it waits until they are loaded, and is executed again.

use larder_join::{KeyRange, Needs};
use larder_postgres::Range;
use larder_protocol::errors::Code;

use super::{Postgres, refusal};
use crate::tables::{Refusal, Tables};

/// Loads that one read may need one after another. Each join on the way needs one; more means that what is loaded
/// is evicted before it is read.
const ROUNDS_MAX: u32 = 64;

/// The ranges that a read waits for.
pub(crate) struct RangeLoad {
    ranges: Vec<KeyRange>,
    rounds: u32,
}

impl RangeLoad {
    /// The ranges that reads need; `None` if they need none.
    pub fn of(needs: &mut Needs) -> Option<RangeLoad> {
        let mut ranges = std::mem::take(&mut needs.elsewhere);
        ranges.sort();
        ranges.dedup();
        (!ranges.is_empty()).then_some(RangeLoad { ranges, rounds: 1 })
    }

    /// The read was executed again when it had those, and misses these.
    pub fn follows(&mut self, before: &RangeLoad) {
        self.rounds = before.rounds + 1;
    }

    /// Waits until they are here, on this core.
    ///
    /// # Errors
    /// Why they cannot be.
    pub async fn load(&self, postgres: Option<&Postgres>, tables: &Tables) -> Result<(), Refusal> {
        if self.rounds > ROUNDS_MAX {
            let message = "the read needs more rows of PostgreSQL at a time than tables.memory holds; read a narrower range or raise it";
            return Err((Code::OutOfMemory, message.to_owned()));
        }
        let Some(postgres) = postgres else {
            let message = "rows that come from elsewhere are not here yet";
            return Err((Code::Io, message.to_owned()));
        };
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|range| Range::new(&range.lo, &range.hi));
        let loaded = postgres.database.load(tables.index, ranges.collect()).await;
        loaded.map_err(refusal)
    }
}
