//! The reasons why a command has no reply yet: it is rejected, or it needs rows or steps, for which it then waits.
//!
//! ```text
//!  engine ─► ReadOutcome ─ require_done ─► Done: its rows
//!                                     └──► NoReply::Needs ─► request_needed ─► WaitCondition ─ wait_for ─► the read is retried
//!                                                └ ranges of PostgreSQL: postgres::RangeLoad ─ load ─┘
//! ```

use std::future::poll_fn;
use std::task::Poll;

use larder_join::{KeyRange, Needs, ReadOutcome};
use larder_protocol::errors::Code;

use super::{Refusal, Tables, refusal};

/// The reason why a command has no reply.
pub enum NoReply {
    Refused(Refusal),
    Needs(Box<Needs>),
}

impl From<Refusal> for NoReply {
    fn from(refusal: Refusal) -> NoReply {
        NoReply::Refused(refusal)
    }
}

impl NoReply {
    /// Returns the error to report if the command may not wait.
    pub fn refusal(self) -> Refusal {
        let needs = match self {
            NoReply::Refused(refusal) => return refusal,
            NoReply::Needs(needs) => needs,
        };
        let why = match needs.steps {
            None => "rows of PostgreSQL or of another node have not arrived yet",
            Some(_) => "the rows are being computed",
        };
        (Code::Io, why.to_owned())
    }
}

/// Returns the rows of a read, or why there are none.
pub fn require_done<T>(outcome: Result<ReadOutcome<T>, larder_join::Error>) -> Result<T, NoReply> {
    match outcome {
        Ok(ReadOutcome::Done(done)) => Ok(done),
        Ok(ReadOutcome::Needs(needs)) => Err(NoReply::Needs(needs)),
        Err(error) => Err(NoReply::Refused(refusal(error))),
    }
}

/// A condition that a read waits for, other than PostgreSQL.
pub enum WaitCondition {
    /// Rows of other cores.
    Rows(Vec<(u16, KeyRange)>),
    /// Removal of rows on these cores that had expired when the read arrived, and that outputs may still reflect.
    Expired { cores: Vec<usize>, by: u64 },
    /// Steps of [`Tables::run_maintenance`], which computes what is read. The read waits for this count to change.
    Steps { ended: u64 },
    /// A subscription lease. The read was executed, but other nodes may have changed the rows that it was computed from
    /// without this node having been notified.
    Subscribed,
    /// Acknowledgements of replicas for changes in progress. The read waits for this number to change; see
    /// `Tables::replication_progress`.
    Replicas { progress: u64 },
}

impl Tables {
    /// Requests missing rows from other cores, or starts computing. Returns what to wait for; `None` if that is only
    /// PostgreSQL.
    pub fn request_needed(&self, needs: &mut Needs) -> Option<WaitCondition> {
        if let Some(rows) = self.request_rows(std::mem::take(&mut needs.remote)) {
            return Some(WaitCondition::Rows(rows));
        }
        let ended = needs.steps.take()?;
        self.wake_maintenance();
        Some(WaitCondition::Steps { ended })
    }

    /// Waits until the read can be retried.
    ///
    /// # Errors
    /// It cannot be answered at the moment.
    pub async fn wait_for(
        &self,
        awaited: &WaitCondition,
        ticket: Option<u64>,
    ) -> Result<(), Refusal> {
        match awaited {
            WaitCondition::Rows(rows) => self.wait_for_rows(rows).await?,
            WaitCondition::Subscribed => self.wait_until_subscribed().await?,
            WaitCondition::Expired { cores, by } => self.wait_for_expiry(cores, *by, ticket).await,
            // The wait may need a new map, and none is applied during a pause.
            WaitCondition::Replicas { .. } if ticket.is_some() => {
                let why = "a slot is moving to another node; send the command again";
                return Err((Code::TryAgain, why.to_owned()));
            }
            WaitCondition::Replicas { progress } => {
                poll_fn(|cx| {
                    if self.replication_progress() != *progress {
                        return Poll::Ready(());
                    }
                    self.waiting.borrow_mut().push(cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            WaitCondition::Steps { ended } => {
                poll_fn(|cx| {
                    if self.engine.borrow().ended_reads() != *ended {
                        return Poll::Ready(());
                    }
                    self.waiting.borrow_mut().push(cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
        }
        Ok(())
    }
}
