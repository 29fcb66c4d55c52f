//! The gate of a connection: its replies wait until its writes are as durable as `tables.fsync` requires (passed to the
//! kernel, or on disk), and until outputs reflect them.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use larder_journal::{AppendOutcome, Ticket};

use super::Tables;
use super::replicated::ReplyConditions;

/// Maximum time for which a reply is delayed while the journal cannot be written. The connection is then closed.
const JOURNAL_FAILURE_MAX: Duration = Duration::from_secs(5);

/// The conditions of a connection's gate, which has none at first. All replies of a connection wait for them, so that
/// they are sent in order.
#[derive(Debug, Default)]
pub struct Gate {
    /// The journal must have this ticket, as durably as `tables.fsync` requires.
    pub(super) ticket: Option<Ticket>,
    /// Outputs must reflect this change.
    pub(super) change: Option<u64>,
    /// Other cores with replicas of the rows must reflect this change; see [`Tables::is_export_reflected`].
    pub(super) exports: Option<u64>,
    /// The journal did not accept a transaction: the gate never opens.
    pub(super) failed: bool,
    /// Changes that replicas must acknowledge.
    pub(super) replicated: Option<Box<ReplyConditions>>,
}

impl Gate {
    /// Adds the other gate's conditions.
    pub fn merge(&mut self, other: Gate) {
        self.ticket = self.ticket.max(other.ticket);
        self.change = self.change.max(other.change);
        self.exports = self.exports.max(other.exports);
        self.failed |= other.failed;
        match (&mut self.replicated, other.replicated) {
            (Some(own), Some(other)) => own.join(*other),
            (own, other) => *own = own.take().or(other),
        }
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.ticket.is_none()
            && self.change.is_none()
            && self.exports.is_none()
            && self.replicated.is_none()
            && !self.failed
    }
}

impl Tables {
    /// Returns ready if the gate is open; otherwise registers the task to be woken when it may be.
    ///
    /// # Errors
    /// Writes may be lost: the connection must be closed, and their outcome is unknown to the client.
    pub fn poll_gate(&self, gate: &mut Gate, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let lost = gate.failed
            || gate
                .ticket
                .is_some_and(|ticket| match self.outcome(ticket) {
                    AppendOutcome::Done => {
                        gate.ticket = None;
                        false
                    }
                    // The write is in memory and may still succeed, but the client must not wait forever.
                    AppendOutcome::Pending => self.journal_failing_for() > JOURNAL_FAILURE_MAX,
                    AppendOutcome::Unknown | AppendOutcome::NotDone => true,
                });
        if lost {
            return Poll::Ready(Err(io::Error::other(
                "the journal could not be written; it is unknown whether this write is durable",
            )));
        }
        if let Some(change) = gate.change
            && self.engine.borrow().is_done(change)
        {
            gate.change = None;
        }
        if let Some(exports) = gate.exports
            && self.is_export_reflected(exports)
        {
            gate.exports = None;
        }
        if let (Some(awaits), Some(replicated)) = (&mut gate.replicated, &self.replicated) {
            match replicated.poll(awaits) {
                Poll::Ready(Ok(())) => gate.replicated = None,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(io::Error::other(why))),
                Poll::Pending => {}
            }
        }
        if gate.is_open() {
            return Poll::Ready(Ok(()));
        }
        self.waiting.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_gate_has_the_later_of_each_condition() {
        let mut gate = Gate::default();
        gate.merge(Gate::default());
        assert!(gate.is_open());
        for (change, exports) in [(Some(3), None), (None, Some(5)), (Some(2), Some(4))] {
            gate.merge(Gate {
                change,
                exports,
                ..Gate::default()
            });
        }
        assert_eq!((gate.change, gate.exports), (Some(3), Some(5)));
        (gate.change, gate.exports) = (None, None);
        assert!(gate.is_open());
        gate.merge(Gate {
            failed: true,
            ..Gate::default()
        });
        assert!(!gate.is_open(), "it never opens");
    }
}
