//! Executes calls concurrently on the caller's thread: waits for all their sockets together, and advances each call
//! when possible.
//!
//! ```text
//!  candidates ─► attempt ──► reply ─────────────────────────────────────────► done
//!      ▲            │  │       └─ MOVED, ASK: retry on the named node
//!      │            │  │       └─ CLUSTERDOWN, TRYAGAIN, LOADING: not executed; the next candidate, or a pause
//!      │            │  └─ slower than the 99th percentile: a hedged attempt, for reads and within the budget
//!      │            ▼
//!      │        no reply ─► a read, or nothing was sent: the next candidate
//!      └── a pause ◄─┘  └─► a sent write: unknown
//! ```
//!
//! Invariants:
//! 1. A write is retried only if it was certainly not executed: nothing was written to the socket, or the reply
//!    states it.
//! 2. Of two attempts the first complete reply is used; the other attempt's connection is closed, so that its reply
//!    is never read.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_protocol::resp::client::{ErrorReply, Reply, request};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use super::attempt::{Attempt, Progress, explain};
use super::health::State;
use super::known::{Known, count};
use super::node::{Node, locked};
use super::topology::address;
use crate::error::Error;

/// Maximum number of concurrent calls; the others are queued.
const AT_ONCE: usize = 64;
const REDIRECTIONS_MAX: u32 = 16;
/// Minimum delay of a hedged request, however fast earlier reads were.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(1);
/// The delay of a hedge for a probe of a failed node while no latencies are known.
const PROBE_HEDGE_AFTER: Duration = Duration::from_millis(20);
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// The time reserved for a reply at the end of a call's timeout; a tenth of a short timeout.
const REPLY_TIME: Duration = Duration::from_millis(100);
/// Maximum number of failures in an error.
const TOLD: usize = 4;

/// A command with the additional requests that surround it on the same connection.
pub(crate) struct Call {
    /// The slots of its keys; empty if any node can execute it.
    pub slots: Vec<u16>,
    pub request: Vec<u8>,
    /// The number of replies, and the index of the command's own reply.
    pub replies: usize,
    pub main: usize,
    pub is_read: bool,
    pub of_stores: bool,
    pub is_point: bool,
}

/// The result of a call.
pub(crate) enum Done {
    Replies(Vec<Reply>),
    /// It has keys of several slots that are not, or no longer, on one node.
    Apart,
}

/// Executes calls concurrently to completion.
pub(crate) fn drive(known: &Known, calls: &[Call]) -> Vec<Result<Done, Error>> {
    let mut results: Vec<Option<Result<Done, Error>>> = calls.iter().map(|_| None).collect();
    let mut waiting = calls.iter().enumerate();
    let mut runs: Vec<Run<'_>> = Vec::new();
    let deadline = Instant::now() + known.options.timeout;
    loop {
        while runs.len() < AT_ONCE
            && let Some((index, call)) = waiting.next()
        {
            runs.push(Run::new(known, call, index, deadline));
        }
        let now = Instant::now();
        for run in &mut runs {
            run.step(now);
            if let Some(result) = run.result.take() {
                results[run.index] = Some(result);
                run.is_over = true;
            }
        }
        runs.retain(|run| !run.is_over);
        if runs.is_empty() && waiting.len() == 0 {
            break;
        }
        wait(&mut runs);
    }
    let all = results.into_iter();
    all.map(|result| result.expect("each call ends before the loop does"))
        .collect()
}

/// Waits until a socket is ready or a deadline is reached.
fn wait(runs: &mut [Run<'_>]) {
    let now = Instant::now();
    let Some(until) = runs.iter().filter_map(Run::wakes_at).min() else {
        return;
    };
    let left = until.saturating_duration_since(now);
    let left = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let attempts = runs.iter().flat_map(|run| &run.attempts);
    let mut fds: Vec<PollFd<'_>> = attempts
        .map(|it| PollFd::from_borrowed_fd(it.connection.fd(), it.connection.wants()))
        .collect();
    match poll(&mut fds, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => unreachable!("poll takes these sockets: {error}"),
    }
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let mut ready = ready.into_iter();
    for run in runs {
        for attempt in &mut run.attempts {
            attempt.is_ready = ready.next().unwrap_or(true);
        }
    }
}

/// A running call.
struct Run<'a> {
    known: &'a Known,
    call: &'a Call,
    index: usize,
    began: Instant,
    deadline: Instant,
    attempts: Vec<Attempt>,
    /// The nodes that have failed since the last pause.
    tried: Vec<Arc<Node>>,
    /// The node that a redirection named; `true` if it requires `ASKING`.
    named: Option<(Arc<Node>, bool)>,
    /// The next attempt must use a new connection.
    wants_fresh: bool,
    hedge_at: Option<Instant>,
    paused_until: Option<Instant>,
    pause: Duration,
    redirections: u32,
    /// The last reply that stated that the command was not executed.
    refused: Option<ErrorReply>,
    failures: Vec<String>,
    result: Option<Result<Done, Error>>,
    is_over: bool,
}

impl<'a> Run<'a> {
    fn new(known: &'a Known, call: &'a Call, index: usize, deadline: Instant) -> Run<'a> {
        count(&known.counters.requests);
        if call.is_read {
            locked(&known.budget).read();
        }
        Run {
            known,
            call,
            index,
            began: Instant::now(),
            deadline,
            attempts: Vec::new(),
            tried: Vec::new(),
            named: None,
            wants_fresh: false,
            hedge_at: None,
            paused_until: None,
            pause: PAUSE_FIRST,
            redirections: 0,
            refused: None,
            failures: Vec::new(),
            result: None,
            is_over: false,
        }
    }

    /// Returns the time of the next action that does not depend on a socket.
    fn wakes_at(&self) -> Option<Instant> {
        let attempts = self.attempts.iter().map(Attempt::ends_at);
        let times = attempts.chain(self.hedge_at).chain(self.paused_until);
        times.chain([self.deadline]).min()
    }

    fn step(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.attempts.len() && self.result.is_none() {
            match self.attempts[at].go_on(now) {
                Progress::Waits => at += 1,
                Progress::Answered => self.answered(at),
                Progress::Failed(error) => self.failed(at, &error),
            }
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.tried.clear();
            // Refreshes the topology, to find the slot's current owner. The result of the call does not depend on its
            // success.
            let _ = self.known.topology();
        }
        while self.result.is_none() && self.attempts.is_empty() && self.paused_until.is_none() {
            self.next_attempt(now);
        }
        if self.result.is_none() && self.hedge_at.is_some_and(|at| at <= now) {
            self.hedge_at = None;
            self.hedge(now);
        }
    }

    fn next_attempt(&mut self, now: Instant) {
        if now >= self.deadline || self.is_too_late(now) {
            self.result = Some(Err(self.gave_up()));
            return;
        }
        if let Some((node, is_asking)) = self.named.take() {
            return self.attempt(node, now, false, is_asking);
        }
        let candidates = self.known.candidates(self.call);
        let next = candidates.into_iter().find(|node| !self.has_tried(node));
        match next {
            Some(node) => self.attempt(node, now, false, false),
            None => self.pause(now),
        }
    }

    /// Returns whether too little time is left to resend a command that was rejected so far and therefore certainly
    /// not executed. Without a reply, the outcome of a write would be unknown, and the servers' error replies would
    /// be lost.
    fn is_too_late(&self, now: Instant) -> bool {
        let reserve = REPLY_TIME.min(self.known.options.timeout / 10);
        self.refused.is_some() && now + reserve >= self.deadline
    }

    fn has_tried(&self, node: &Arc<Node>) -> bool {
        let is_it = |it: &Arc<Node>| it.address == node.address;
        self.tried.iter().any(is_it) || self.attempts.iter().any(|attempt| is_it(&attempt.node))
    }

    fn pause(&mut self, now: Instant) {
        let spread = self.known.random() % 1_000;
        let pause = self.pause / 2 + self.pause.mul_f64(spread as f64 / 2_000.0);
        self.paused_until = Some((now + pause).min(self.deadline));
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        self.known.doubt();
    }

    fn attempt(&mut self, node: Arc<Node>, now: Instant, is_hedge: bool, is_asking: bool) {
        let options = &self.known.options;
        let now_ms = self.known.now_ms();
        let is_probe = node.state(now_ms) == State::Due;
        if is_probe {
            node.begin_probe(now_ms, options.attempt_timeout.as_millis() as u64);
        }
        let fresh = std::mem::take(&mut self.wants_fresh);
        let connection = node.connection(options, fresh);
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => return self.not_reached(node, &error),
        };
        let mut expected = self.call.replies;
        if is_asking {
            let mut asking = Vec::new();
            request(&mut asking, &["ASKING"]);
            connection.send(&asking);
            expected += 1;
        }
        connection.send(&self.call.request);
        if connection.is_reused {
            // Most requests can be sent immediately. An error recurs when the reply is read.
            let _ = connection.flush();
        }
        // Reads of many rows may take longer.
        let patience = match (self.call.is_read, self.call.is_point) {
            (true, true) => options.attempt_timeout,
            (true, false) => options.attempt_timeout.max(options.timeout / 2),
            // For a write that may have been executed, waiting longer yields no more information.
            (false, _) => options.attempt_timeout.max(options.timeout / 3),
        };
        if !is_hedge {
            self.hedge_at = self.hedge_at(now, is_probe);
        }
        self.attempts.push(Attempt {
            node,
            connection,
            is_hedge,
            is_ready: false,
            sent_until: (now + options.attempt_timeout).min(self.deadline),
            until: (now + patience).min(self.deadline),
            got: Vec::with_capacity(expected),
            expected,
        });
    }

    /// Returns when a hedged attempt is due: never for a write.
    fn hedge_at(&self, now: Instant, is_probe: bool) -> Option<Instant> {
        if !self.call.is_read || self.known.options.hedge_percent == 0 {
            return None;
        }
        let p99_us = locked(self.known.recent(self.call.is_point)).p99_us();
        let p99 = p99_us.map(Duration::from_micros);
        let after = p99.or(is_probe.then_some(PROBE_HEDGE_AFTER))?;
        Some(now + after.max(HEDGE_AFTER_MIN))
    }

    fn hedge(&mut self, now: Instant) {
        let candidates = self.known.candidates(self.call);
        let now_ms = self.known.now_ms();
        let is_up = |node: &Arc<Node>| node.state(now_ms) == State::Up;
        let other = candidates
            .into_iter()
            .find(|it| is_up(it) && !self.has_tried(it));
        // The probe of a failed node benefits all calls, so its hedge does not count against the budget.
        let is_free = self.attempts.iter().any(|attempt| !is_up(&attempt.node));
        if let Some(node) = other
            && (is_free || locked(&self.known.budget).take())
        {
            count(&self.known.counters.hedges);
            self.attempt(node, now, true, false);
        }
    }

    /// Handles a failure of a read, or one before anything was sent: the call may be retried.
    fn not_reached(&mut self, node: Arc<Node>, error: &io::Error) {
        node.failed(self.known.now_ms(), self.known.random());
        self.known.doubt();
        self.leave(node, error);
    }

    fn leave(&mut self, node: Arc<Node>, error: &io::Error) {
        count(&self.known.counters.retries);
        if self.failures.len() == TOLD {
            self.failures.remove(0);
        }
        self.failures
            .push(format!("{} {}", node.address, explain(error)));
        self.tried.push(node);
    }

    fn failed(&mut self, at: usize, error: &io::Error) {
        let Attempt {
            node,
            connection,
            got,
            ..
        } = self.attempts.swap_remove(at);
        if error.kind() == io::ErrorKind::PermissionDenied {
            // A wrong password: every node rejects it.
            self.result = Some(Err(Error::Refused {
                code: error.to_string().split(' ').next().unwrap_or("").to_owned(),
                message: error.to_string(),
                retry: false,
            }));
            return;
        }
        if !self.call.is_read && connection.has_sent {
            node.failed(self.known.now_ms(), self.known.random());
            self.known.doubt();
            self.result = Some(Err(Error::Unknown {
                address: node.address.clone(),
                detail: explain(error),
            }));
            return;
        }
        let is_cut = error.kind() != io::ErrorKind::TimedOut && got.is_empty();
        if connection.is_reused && is_cut {
            // The connection was closed while it was idle, for example by a restart of the server.
            self.wants_fresh = true;
            self.named = Some((node, false));
            return;
        }
        self.not_reached(node, error);
    }

    fn answered(&mut self, at: usize) {
        let Attempt {
            node,
            connection,
            is_hedge,
            mut got,
            expected,
            ..
        } = self.attempts.swap_remove(at);
        let options = &self.known.options;
        node.succeeded();
        node.give_back(connection, options.idle_connections_max);
        got.drain(..expected - self.call.replies);
        let is_group = self.call.slots.len() > 1;
        let Some(refused) = not_done(&got[self.call.main], is_group).cloned() else {
            if self.call.is_read {
                let took_us = self.began.elapsed().as_micros() as u64;
                locked(self.known.recent(self.call.is_point)).add(took_us);
            }
            if is_hedge {
                count(&self.known.counters.hedges_won);
            }
            let (now_ms, random) = (self.known.now_ms(), self.known.random());
            for slower in self.attempts.iter().filter(|it| !it.is_hedge) {
                slower.node.overtaken(now_ms, random);
            }
            self.result = Some(Ok(Done::Replies(got)));
            return;
        };
        if is_group && !IS_ILL.contains(&&*refused.code) {
            self.known.doubt();
            self.result = Some(Ok(Done::Apart));
            return;
        }
        self.redirected(node, refused);
    }

    fn redirected(&mut self, node: Arc<Node>, refused: ErrorReply) {
        let to = place(&refused.message, &node.address);
        match (refused.code.as_str(), to) {
            ("MOVED" | "ASK", Some((slot, address))) => {
                count(&self.known.counters.redirections);
                self.redirections += 1;
                if self.redirections > REDIRECTIONS_MAX {
                    self.result = Some(Err(crate::resp_client::refused(refused)));
                    return;
                }
                let is_asking = refused.code == "ASK";
                if !is_asking {
                    self.known.moved(slot, &address);
                }
                self.named = Some((self.known.node(&address), is_asking));
            }
            ("TRYAGAIN", _) => self.pause(Instant::now()),
            // For a read, another node may be able to execute it; otherwise retry after a pause.
            (code, _) if self.call.is_read && IS_ILL.contains(&code) => {
                self.known.doubt();
                self.tried.push(node);
            }
            _ => self.pause(Instant::now()),
        }
        self.refused = Some(refused);
    }

    fn gave_up(&mut self) -> Error {
        match self.refused.take() {
            Some(refused) if self.failures.is_empty() => Error::Refused {
                message: format!("{} {}", refused.code, refused.message),
                code: refused.code,
                retry: true,
            },
            refused => {
                let refused = refused.map(|it| format!("{} {}", it.code, it.message));
                let failures = std::mem::take(&mut self.failures);
                Error::NoNode {
                    slot: self.call.slots.first().copied(),
                    failures: failures.into_iter().chain(refused).collect(),
                }
            }
        }
    }
}

/// Codes of a server that is temporarily unavailable.
const IS_ILL: [&str; 3] = ["CLUSTERDOWN", "LOADING", "MASTERDOWN"];

/// Returns the error of a reply that states that the command was not executed and may succeed on another node or
/// later.
pub(super) fn not_done(reply: &Reply, is_group: bool) -> Option<&ErrorReply> {
    let Reply::Error(error) = reply else {
        return None;
    };
    let code = error.code.as_str();
    let is_elsewhere = matches!(code, "MOVED" | "ASK" | "TRYAGAIN");
    let is_apart = is_group && code == "CROSSSLOT";
    (is_elsewhere || is_apart || IS_ILL.contains(&code)).then_some(error)
}

/// Parses `12182 127.0.0.1:7101`. Without a host, it is that of the replying node.
fn place(message: &str, said_by: &str) -> Option<(u16, String)> {
    let (slot, to) = message.split_once(' ')?;
    let (host, port) = to.trim().rsplit_once(':')?;
    Some((
        slot.parse().ok()?,
        address(host, port.parse().ok()?, said_by),
    ))
}
