//! What coordinators and clients say to each other: a JSON object a line, over TCP.
//!
//! | from the coordinator | |
//! |---|---|
//! | `{"hello":{"protocol":4,"secret":"..."}}` | first of all; the secret only where there is one |
//! | `{"prepare":{"words":["rate","--store","memory"],"fragment":0,"speeds":[1.0,1.0],"load":true,"run":"18a-1"}}` | take this part of the members, who are as loaded; load the data store |
//! | `{"trial":{"load":{"threads":8},"warmup_seconds":1.0,"seconds":3.0}}` | get ready to run this; `{"rate":500.0}` for an open loop |
//! | `"go"` | all are ready: begin |
//! | `{"threads":5}` | while a closed loop runs: so many emulated threads from now on |
//! | `"stop"` | end the trial now, with what it has |
//! | `"alive"` | each second, whatever it does |
//!
//! | from the client | |
//! |---|---|
//! | `{"hello":{"protocol":4}}` | the answer to hello |
//! | `"alive"` | each second while it works |
//! | `{"prepared":{"mass":0.5,"members":471}}` | the answer to prepare: its part of all draws, and how many members are its |
//! | `"ready"` | the answer to trial: connected, and waiting for go |
//! | `{"second":{...}}` | after each second of a trial: a [`Second`] |
//! | `{"done":{...}}` | the trial is over: a [`Done`] |
//! | `{"failed":{"why":"..."}}` | the answer to anything that could not be done |
//!
//! Closing the connection ends what the client is doing for this coordinator. The secret goes over the network as it is: it keeps out who does not
//! know it, not who can listen.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::verdict::measure::{Judged, Measured};

/// Time between signs of life, of both sides.
pub const ALIVE: Duration = Duration::from_secs(1);

/// Raised when a message changes its meaning.
pub const PROTOCOL: u32 = 4;

/// Bytes of an order: the words of a command, and a speed for each client.
const ORDER_MAX: u64 = 1 << 20;

/// Bytes of a line; a result of many seconds has a megabyte.
const LINE_MAX: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    Hello {
        protocol: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
    },
    Prepare(Prepare),
    Trial(Trial),
    Go,
    Threads(u32),
    Stop,
    Alive,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// A command of `bg` and its options.
    pub words: Vec<String>,
    /// Which client this is, from 0, of as many as there are speeds.
    pub fragment: usize,
    pub speeds: Vec<f64>,
    pub load: bool,
    /// By which name the data store knows all clients of this coordinator.
    pub run: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub load: Load,
    pub warmup_seconds: f64,
    pub seconds: f64,
    /// This client's part of the actions after which the trial ends, and of those before it that are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_actions: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    Threads(u32),
    Rate(f64),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tell {
    Hello { protocol: u32 },
    Alive,
    Prepared { mass: f64, members: u32 },
    Ready,
    Second(Box<Second>),
    Done(Box<Done>),
    Failed { why: String },
}

/// A second of a trial that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Of the trial's seconds, warm-up and all, from 0.
    pub index: u64,
    /// Its end, since the trial's start.
    pub now_ns: u64,
    /// Whether it is none of the warm-up.
    pub counts: bool,
    /// Without reads.
    pub measured: Measured,
    /// Why calls failed since the trial began.
    pub failures: Vec<(String, u64)>,
    /// Reads judged since the trial began; None where they are judged at the end.
    pub reads: Option<Judged>,
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    pub measured: Measured,
    /// Why calls failed.
    pub failures: Vec<(String, u64)>,
    /// Faults that the data store put into its answers on purpose, so far.
    pub injected: Vec<(String, u64)>,
}

impl Tell {
    /// Whether the client says nothing more before it is asked again.
    pub fn is_last(&self) -> bool {
        !matches!(self, Tell::Alive | Tell::Ready | Tell::Second(_))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Tell::Hello { .. } => "hello",
            Tell::Alive => "alive",
            Tell::Prepared { .. } => "prepared",
            Tell::Ready => "ready",
            Tell::Second(_) => "second",
            Tell::Done(_) => "done",
            Tell::Failed { .. } => "failed",
        }
    }
}

/// # Errors
///
/// Those of the connection.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// The next message of somebody who may say no more than a few options.
///
/// # Errors
///
/// As [`read`].
pub fn read_order(from: &mut impl BufRead) -> io::Result<Order> {
    read_within(from, ORDER_MAX)
}

/// The next message.
///
/// # Errors
///
/// Those of the connection, its end, and a line that is no message.
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
