//! Why a command is not answered yet: it is refused, or it needs rows or steps, which it then waits for.
//!
//! ```text
//!  engine ─► ReadOutcome ─ complete ─► Done: its rows
//!                                 └──► Unanswered::Needs ─► request_needed ─► Awaited ─ wait_for ─► the read is tried again
//!                                            └ ranges of PostgreSQL: postgres::RangeLoad ─ load ─┘
//! ```

use std::future::poll_fn;
use std::task::Poll;

use larder_join::{KeyRange, Needs, ReadOutcome};
use larder_protocol::errors::Code;

use super::{Refusal, Tables, refusal};

/// Why there is no answer.
pub enum Unanswered {
    Refused(Refusal),
    Needs(Box<Needs>),
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Unanswered {
        Unanswered::Refused(refusal)
    }
}

impl Unanswered {
    /// How it is answered where nothing is waited for.
    pub fn refusal(self) -> Refusal {
        let needs = match self {
            Unanswered::Refused(refusal) => return refusal,
            Unanswered::Needs(needs) => needs,
        };
        let why = match needs.steps {
            None => "rows that come from elsewhere are not here yet",
            Some(_) => "the rows are being computed",
        };
        (Code::Io, why.to_owned())
    }
}

/// The rows of a read, or why there are none.
pub fn complete<T>(outcome: Result<ReadOutcome<T>, larder_join::Error>) -> Result<T, Unanswered> {
    match outcome {
        Ok(ReadOutcome::Done(done)) => Ok(done),
        Ok(ReadOutcome::Needs(needs)) => Err(Unanswered::Needs(needs)),
        Err(error) => Err(Unanswered::Refused(refusal(error))),
    }
}

/// What a read waits for that engines have or compute.
pub enum Awaited {
    /// Rows of other cores.
    Rows(Vec<(u16, KeyRange)>),
    /// These cores have rows that had expired when the read came, and that outputs may still show.
    Expired { cores: Vec<usize>, by: u64 },
    /// What it reads is computed by [`Tables::run_maintenance`], some rows at a time. It waits for this count to change.
    Steps { ended: u64 },
    /// It was read, but other nodes may have changed rows that it was computed from, and this node may not have heard of it.
    Subscribed,
    /// Replicas, of changes that are under way. It waits for this number to change; see `Tables::replication_progress`.
    Replicas { progress: u64 },
}

impl Tables {
    /// Asks other cores for what a read needs, or has it computed; returns what is to be waited for, `None` if that is PostgreSQL alone.
    pub fn request_needed(&self, needs: &mut Needs) -> Option<Awaited> {
        if let Some(rows) = self.request_rows(std::mem::take(&mut needs.owned)) {
            return Some(Awaited::Rows(rows));
        }
        let ended = needs.steps.take()?;
        self.wake_maintenance();
        Some(Awaited::Steps { ended })
    }

    /// Waits until the read may be tried again.
    ///
    /// # Errors
    /// It cannot be answered at the moment.
    pub async fn wait_for(&self, awaited: &Awaited, ticket: Option<u64>) -> Result<(), Refusal> {
        match awaited {
            Awaited::Rows(rows) => self.wait_for_rows(rows).await?,
            Awaited::Subscribed => self.wait_until_subscribed().await?,
            Awaited::Expired { cores, by } => self.wait_until_settled(cores, *by, ticket).await,
            // It may take a map, and none is taken in a pause.
            Awaited::Replicas { .. } if ticket.is_some() => {
                let why = "a slot is on its way to another node; send it again";
                return Err((Code::TryAgain, why.to_owned()));
            }
            Awaited::Replicas { progress } => {
                poll_fn(|cx| {
                    if self.replication_progress() != *progress {
                        return Poll::Ready(());
                    }
                    self.waiting.borrow_mut().push(cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            Awaited::Steps { ended } => {
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
