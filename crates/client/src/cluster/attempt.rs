//! An attempt of a call: a request to one node. A call may have several concurrent attempts.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use larder_protocol::resp::client::Reply;
use rustix::event::{PollFd, Timespec, poll};

use super::connection::Connection;
use super::known::Known;
use super::node::Node;
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
    pub got: Vec<Reply>,
    /// The number of expected replies, including the one to `ASKING`.
    pub expected: usize,
}

pub(crate) enum Progress {
    Waits,
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

    pub fn go_on(&mut self, now: Instant) -> Progress {
        if self.is_ready || now >= self.ends_at() {
            self.is_ready = false;
            if let Err(error) = self.connection.progress(&mut self.got, self.expected) {
                return Progress::Failed(error);
            }
        }
        match self.got.len() == self.expected {
            true => Progress::Answered,
            false if now >= self.ends_at() => Progress::Failed(io::ErrorKind::TimedOut.into()),
            false => Progress::Waits,
        }
    }
}

/// Sends requests to one node, without failover.
///
/// # Errors
/// If it does not respond.
pub(crate) fn ask(
    known: &Known,
    node: &Arc<Node>,
    requests: &[u8],
    replies: usize,
) -> Result<Vec<Reply>, Error> {
    let options = &known.options;
    let until = Instant::now() + options.attempt_timeout;
    let failed = |error: &io::Error| {
        node.failed(known.now_ms(), known.random());
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
    let mut connection = connection.map_err(|error| failed(&error))?;
    connection.send(requests);
    let mut got = Vec::with_capacity(replies);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(&io::ErrorKind::TimedOut.into()));
        }
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(
            connection.fd(),
            connection.wants(),
        )];
        let _ = poll(&mut fds, Some(&left));
        let moved = connection.progress(&mut got, replies);
        moved.map_err(|error| failed(&error))?;
        if got.len() == replies {
            node.succeeded();
            node.give_back(connection, options.idle_connections_max);
            return Ok(got);
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
