//! An attempt of a call: a request to one node. A call may have several concurrent attempts.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use larder_protocol::resp::client::Reply;
use rustix::event::{PollFd, Timespec, poll};

use super::connection::Connection;
use super::node::Node;
use super::view::ClusterView;
use crate::error::Error;
use crate::tls;

pub(crate) struct Attempt {
    pub node: Arc<Node>,
    pub connection: Connection,
    pub is_hedge: bool,
    pub is_ready: bool,
    /// The deadline for sending the request.
    pub sent_until: Instant,
    pub until: Instant,
    pub replies_read: Vec<Reply>,
    /// The number of expected replies, including the one to `ASKING`.
    pub expected: usize,
}

pub(crate) enum AttemptProgress {
    Pending,
    Answered,
    Failed(io::Error),
}

impl Attempt {
    pub fn ends_at(&self) -> Instant {
        if self.connection.has_sent {
            self.until
        } else {
            self.until.min(self.sent_until)
        }
    }

    pub fn poll(&mut self, now: Instant) -> AttemptProgress {
        if self.is_ready || now >= self.ends_at() {
            self.is_ready = false;
            if let Err(error) = self
                .connection
                .advance(&mut self.replies_read, self.expected)
            {
                return AttemptProgress::Failed(error);
            }
        }
        match self.replies_read.len() == self.expected {
            true => AttemptProgress::Answered,
            false if now >= self.ends_at() => {
                AttemptProgress::Failed(io::ErrorKind::TimedOut.into())
            }
            false => AttemptProgress::Pending,
        }
    }
}

/// Sends requests to one node, without failover.
///
/// # Errors
/// If it does not respond.
pub(crate) fn exchange(
    view: &ClusterView,
    node: &Arc<Node>,
    requests: &[u8],
    replies: usize,
) -> Result<Vec<Reply>, Error> {
    let options = &view.options;
    let until = Instant::now() + options.attempt_timeout;
    let record_failure = |error: &io::Error| {
        node.record_failure(view.now_ms(), view.random());
        let address = node.address.clone();
        if let Some(detail) = tls::advice(error) {
            return Error::Tls { address, detail };
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Error::NoServer { address },
            io::ErrorKind::TimedOut => Error::TimedOut {
                address,
                seconds: options.attempt_timeout.as_secs_f64(),
            },
            io::ErrorKind::InvalidInput => Error::BadAddress {
                address,
                detail: error.to_string(),
            },
            _ => Error::Broken {
                address,
                detail: explain(error),
            },
        }
    };
    // A pooled connection may have been closed, which would be no evidence, so a new one is used.
    let connection = node.connection(options, true);
    let mut connection = connection.map_err(|error| record_failure(&error))?;
    connection.send(requests);
    let mut replies_read = Vec::with_capacity(replies);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(record_failure(&io::ErrorKind::TimedOut.into()));
        }
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(
            connection.fd(),
            connection.poll_events(),
        )];
        let _ = poll(&mut fds, Some(&left));
        let advanced = connection.advance(&mut replies_read, replies);
        advanced.map_err(|error| record_failure(&error))?;
        if replies_read.len() == replies {
            node.record_success();
            node.release(connection, options.idle_connections_max);
            return Ok(replies_read);
        }
    }
}

/// Returns the reason why a node did not respond, as text.
pub(crate) fn explain(error: &io::Error) -> String {
    if let Some(advice) = tls::advice(error) {
        return advice;
    }
    match error.kind() {
        io::ErrorKind::TimedOut => "did not answer in time".to_owned(),
        io::ErrorKind::UnexpectedEof => "closed the connection before it answered".to_owned(),
        io::ErrorKind::ConnectionRefused => "refuses connections".to_owned(),
        _ => error.to_string(),
    }
}
