//! The client: each connection sends `depth` requests, and the next ones after all replies have arrived.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use larder_types::Random;

use crate::Result;
use crate::load::Poll;

/// Encoded requests, and the expected number of rows in each reply.
#[derive(Default)]
pub struct EncodedRequests {
    pub bytes: Vec<u8>,
    ends: Vec<usize>,
    rows: Vec<u32>,
}

impl EncodedRequests {
    /// Ends a request: the bytes written since the previous one, with the expected number of rows.
    pub fn end(&mut self, rows: usize) {
        self.ends.push(self.bytes.len());
        self.rows.push(rows as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    fn slice(&self, first: usize, count: usize) -> &[u8] {
        let start = if first == 0 { 0 } else { self.ends[first - 1] };
        &self.bytes[start..self.ends[first + count - 1]]
    }
}

/// Parses the replies of a protocol.
pub trait Replies {
    /// Returns the size of the reply at the start of `bytes`, and its number of rows. `None` if it is incomplete. The
    /// next call must pass the same bytes, followed by more.
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(usize, u32)>>;
}

pub struct Line {
    pub stream: TcpStream,
    pub replies: Box<dyn Replies>,
}

/// The result of a run.
pub struct DriveResult {
    pub answered: u64,
    pub elapsed: Duration,
    /// In microseconds.
    pub latencies: Histogram<u64>,
}

struct QueryConnection {
    line: Line,
    input: Vec<u8>,
    filled: usize,
    /// The request whose reply is next, and the number of outstanding replies.
    next: usize,
    awaited: usize,
    sent: Instant,
}

const READ_BYTES: usize = 256 << 10;

/// Drives requests for about `duration`. Each connection starts at a random position of the list.
pub fn drive(
    lines: Vec<Line>,
    requests: &EncodedRequests,
    depth: usize,
    duration: Duration,
) -> Result<(DriveResult, Vec<Line>)> {
    let poll = Poll::new()?;
    let mut random = Random::new(lines.len() as u64 * 1000 + depth as u64);
    let mut all = Vec::new();
    for (token, line) in lines.into_iter().enumerate() {
        poll.add(&line.stream, token)?;
        all.push(QueryConnection {
            line,
            input: vec![0; READ_BYTES],
            filled: 0,
            next: random.index(requests.len().saturating_sub(depth).max(1)),
            awaited: 0,
            sent: Instant::now(),
        });
    }
    let started = Instant::now();
    let mut latencies = Histogram::new(3)?;
    let mut answered = 0;
    for connection in &mut all {
        connection.send(requests, depth)?;
    }
    let mut under_way = all.len();
    while under_way > 0 {
        for token in poll.wait()? {
            let connection = &mut all[token];
            let taken = connection.receive(requests)?;
            answered += taken;
            if taken == 0 || connection.awaited > 0 {
                continue;
            }
            latencies.record(connection.sent.elapsed().as_micros() as u64)?;
            if started.elapsed() < duration {
                connection.send(requests, depth)?;
            } else {
                under_way -= 1;
            }
        }
    }
    let driven = DriveResult {
        answered,
        elapsed: started.elapsed(),
        latencies,
    };
    Ok((driven, all.into_iter().map(|it| it.line).collect()))
}

/// Sends every request once, in order.
pub fn send_all(line: Line, requests: &EncodedRequests) -> Result<Line> {
    const BATCH: usize = 64;
    let poll = Poll::new()?;
    poll.add(&line.stream, 0)?;
    let mut connection = QueryConnection {
        line,
        input: vec![0; READ_BYTES],
        filled: 0,
        next: 0,
        awaited: 0,
        sent: Instant::now(),
    };
    for first in (0..requests.len()).step_by(BATCH) {
        connection.next = first;
        connection.send(requests, BATCH.min(requests.len() - first))?;
        while connection.awaited > 0 {
            let _ = poll.wait()?;
            connection.receive(requests)?;
        }
    }
    Ok(connection.line)
}

impl QueryConnection {
    fn send(&mut self, requests: &EncodedRequests, depth: usize) -> Result<()> {
        if self.next + depth > requests.len() {
            self.next = 0;
        }
        self.line.stream.set_nonblocking(false)?;
        self.sent = Instant::now();
        // A few kilobytes always fit in the socket's buffer, which is empty now.
        self.line
            .stream
            .write_all(requests.slice(self.next, depth))?;
        self.line.stream.set_nonblocking(true)?;
        self.awaited = depth;
        Ok(())
    }

    /// Reads available bytes. Returns the number of completed replies.
    fn receive(&mut self, requests: &EncodedRequests) -> Result<u64> {
        if self.filled == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        match self.line.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(count) => self.filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        }
        let (mut at, mut taken) = (0, 0);
        while self.awaited > 0 {
            let reply = self.line.replies.next(&self.input[at..self.filled])?;
            let Some((size, rows)) = reply else { break };
            let expected = requests.rows[self.next];
            if rows != expected {
                let begin = String::from_utf8_lossy(&self.input[at..at + size.min(200)]);
                return Err(format!("{rows} rows and not {expected}: {begin:?}").into());
            }
            at += size;
            taken += 1;
            self.next += 1;
            self.awaited -= 1;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(taken)
    }
}
