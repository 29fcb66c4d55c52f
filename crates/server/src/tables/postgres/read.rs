//! A read that needs rows that are not in memory: it waits until they are loaded, and is executed again.

use larder_join::{KeyRange, Needs};
use larder_protocol::errors::Code;

use super::{Postgres, refusal};
use crate::tables::{Refusal, Tables};

/// Maximum number of consecutive loads for one read. Each join in a chain needs one; more mean that loaded rows are
/// evicted before they are read.
const ROUNDS_MAX: u32 = 64;

/// The ranges that a read waits for.
pub(crate) struct RangeLoad {
    ranges: Vec<KeyRange>,
    rounds: u32,
}

impl RangeLoad {
    /// Takes the ranges that reads need; `None` if they need none.
    pub fn take(needs: &mut Needs) -> Option<RangeLoad> {
        let mut ranges = std::mem::take(&mut needs.external);
        ranges.sort();
        ranges.dedup();
        (!ranges.is_empty()).then_some(RangeLoad { ranges, rounds: 1 })
    }

    /// Counts this load as the successor of `before`, after which the read was executed again.
    pub fn count_after(&mut self, before: &RangeLoad) {
        self.rounds = before.rounds + 1;
    }

    /// Waits until the ranges are loaded on this core.
    ///
    /// # Errors
    /// The reason why they cannot be loaded.
    pub async fn load(&self, postgres: Option<&Postgres>, tables: &Tables) -> Result<(), Refusal> {
        if self.rounds > ROUNDS_MAX {
            let message = "the read needs more rows of PostgreSQL at a time than fit in tables.memory; read a narrower range, or raise tables.memory";
            return Err((Code::OutOfMemory, message.to_owned()));
        }
        let Some(postgres) = postgres else {
            let message = "rows of PostgreSQL or of another node have not arrived yet";
            return Err((Code::Io, message.to_owned()));
        };
        let loaded = postgres
            .database
            .load(tables.index, self.ranges.clone())
            .await;
        loaded.map_err(refusal)
    }
}
