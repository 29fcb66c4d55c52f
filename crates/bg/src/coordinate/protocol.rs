//! The messages between coordinators and clients: one JSON object per line, over TCP.
//!
//! | from the coordinator | |
//! |---|---|
//! | `{"hello":{"protocol":4,"secret":"..."}}` | the first message; the secret only if there is one |
//! | `{"prepare":{"words":["rate","--store","memory"],"fragment":0,"speeds":[1.0,1.0],"load":true,"run":"18a-1"}}` | take this fragment of the members; `load`: load the data store first |
//! | `{"trial":{"load":{"threads":8},"warmup_seconds":1.0,"seconds":3.0}}` | prepare this trial; `{"rate":500.0}` for an open loop |
//! | `"go"` | all clients are ready: start |
//! | `{"threads":5}` | change the number of emulated threads of a running closed loop |
//! | `"stop"` | end the trial now, with the results so far |
//! | `"alive"` | keep-alive message, every second |
//!
//! | from the client | |
//! |---|---|
//! | `{"hello":{"protocol":4}}` | the answer to hello |
//! | `"alive"` | keep-alive message, every second while it works |
//! | `{"prepared":{"mass":0.5,"members":471}}` | the answer to prepare: its proportion of all draws, and the number of its members |
//! | `"ready"` | the answer to trial: connected, waiting for go |
//! | `{"second":{...}}` | after each second of a trial: a [`Second`] |
//! | `{"done":{...}}` | the trial is over: a [`Done`] |
//! | `{"failed":{"why":"..."}}` | the answer to any request that failed |
//!
//! Closing the connection ends the client's work for this coordinator. The secret is sent in plain text: it keeps out
//! peers that do not know it, but not those that can read the network traffic.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::verdict::measure::{Measurements, ReadValidation};

/// Interval between keep-alive messages in both directions.
pub const ALIVE: Duration = Duration::from_secs(1);

/// Incremented when the meaning of a message changes.
pub const PROTOCOL: u32 = 4;

/// Maximum size of a request in bytes: a command line, and a speed for each client.
const REQUEST_MAX: u64 = 1 << 20;

/// Maximum size of a line in bytes. The result of a trial of many seconds is about a megabyte.
const LINE_MAX: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoordinatorMessage {
    Hello {
        protocol: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
    },
    Prepare(PrepareRequest),
    Trial(TrialRequest),
    Go,
    Threads(u32),
    Stop,
    Alive,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareRequest {
    /// A `bg` command and its options.
    #[serde(rename = "words")]
    pub arguments: Vec<String>,
    /// Index of this client, from 0. The number of clients is the length of `speeds`.
    pub fragment: usize,
    pub speeds: Vec<f64>,
    pub load: bool,
    /// The name under which all clients of this coordinator are registered with the data store.
    pub run: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRequest {
    pub load: LoadShare,
    pub warmup_seconds: f64,
    pub seconds: f64,
    /// This client's part of the actions that end the trial; `warmup_actions`: its part of the unmeasured actions
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_actions: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadShare {
    Threads(u32),
    Rate(f64),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientMessage {
    Hello { protocol: u32 },
    Alive,
    Prepared { mass: f64, members: u32 },
    Ready,
    Second(Box<SecondReport>),
    Done(Box<TrialResult>),
    Failed { why: String },
}

/// One second of a running trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondReport {
    /// Index of the second since the start of the trial, including the warm-up, from 0.
    pub index: u64,
    /// End of the second, in nanoseconds since the start of the trial.
    pub now_ns: u64,
    /// True if the second is measured, not part of the warm-up.
    pub counts: bool,
    /// The measurements, without reads.
    pub measured: Measurements,
    /// Reasons for failed calls since the start of the trial.
    pub failures: Vec<(String, u64)>,
    /// Reads validated since the start of the trial. None if they are validated at the end.
    pub reads: Option<ReadValidation>,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    pub measured: Measurements,
    /// Reasons for failed calls.
    pub failures: Vec<(String, u64)>,
    /// Faults that the data store has injected into its answers so far.
    pub injected: Vec<(String, u64)>,
}

impl ClientMessage {
    /// Returns whether the client sends no further message until its next request.
    pub fn is_last(&self) -> bool {
        !matches!(
            self,
            ClientMessage::Alive | ClientMessage::Ready | ClientMessage::Second(_)
        )
    }

    pub fn name(&self) -> &'static str {
        match self {
            ClientMessage::Hello { .. } => "hello",
            ClientMessage::Alive => "alive",
            ClientMessage::Prepared { .. } => "prepared",
            ClientMessage::Ready => "ready",
            ClientMessage::Second(_) => "second",
            ClientMessage::Done(_) => "done",
            ClientMessage::Failed { .. } => "failed",
        }
    }
}

/// Writes a message as a line.
///
/// # Errors
///
/// The connection failed.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads the next message from a peer whose messages are limited to the size of a request.
///
/// # Errors
///
/// As for [`read`].
pub fn read_request(from: &mut impl BufRead) -> io::Result<CoordinatorMessage> {
    read_within(from, REQUEST_MAX)
}

/// Reads the next message.
///
/// # Errors
///
/// The connection failed or was closed, or a line is not a valid message.
pub fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    read_within(from, LINE_MAX)
}

fn read_within<T: DeserializeOwned>(from: &mut impl BufRead, most: u64) -> io::Result<T> {
    let mut line = Vec::new();
    from.take(most).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed",
        ));
    }
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed within a message",
        ));
    }
    serde_json::from_slice(&line).map_err(|why| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not a message of protocol {PROTOCOL}: {why}"),
        )
    })
}
