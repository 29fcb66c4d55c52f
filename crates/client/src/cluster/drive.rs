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

use super::attempt::{Attempt, AttemptProgress, explain};
use super::health::NodeState;
use super::node::{Node, locked};
use super::topology::address;
use super::view::{ClusterView, count};
use crate::error::Error;

/// Maximum number of concurrent calls; the others are queued.
const IN_FLIGHT_MAX: usize = 64;
const REDIRECTIONS_MAX: u32 = 16;
/// Minimum delay of a hedged request, however fast earlier reads were.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(1);
/// The delay of a hedge for a probe of a failed node while no latencies are known.
const PROBE_HEDGE_AFTER: Duration = Duration::from_millis(20);
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The time reserved for a reply at the end of a call's timeout; a tenth of a short timeout.
const REPLY_RESERVE: Duration = Duration::from_millis(100);
/// Maximum number of failures in an error.
const FAILURES_MAX: usize = 4;

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
pub(crate) enum CallOutcome {
    Replies(Vec<Reply>),
    /// It has keys of several slots that are not, or no longer, on one node.
    Split,
}

/// Executes calls concurrently to completion.
pub(crate) fn drive(view: &ClusterView, calls: &[Call]) -> Vec<Result<CallOutcome, Error>> {
    let mut results: Vec<Option<Result<CallOutcome, Error>>> = calls.iter().map(|_| None).collect();
    let mut waiting = calls.iter().enumerate();
    let mut runs: Vec<Run<'_>> = Vec::new();
    let deadline = Instant::now() + view.options.timeout;
    loop {
        while runs.len() < IN_FLIGHT_MAX
            && let Some((index, call)) = waiting.next()
        {
            runs.push(Run::new(view, call, index, deadline));
        }
        let now = Instant::now();
        for run in &mut runs {
            run.step(now);
            if let Some(result) = run.result.take() {
                results[run.index] = Some(result);
                run.has_ended = true;
            }
        }
        runs.retain(|run| !run.has_ended);
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
        .map(|it| PollFd::from_borrowed_fd(it.connection.fd(), it.connection.poll_events()))
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
    view: &'a ClusterView,
    call: &'a Call,
    index: usize,
    began: Instant,
    deadline: Instant,
    attempts: Vec<Attempt>,
    /// The nodes that have failed since the last pause.
    tried: Vec<Arc<Node>>,
    /// The node that a redirection named; `true` if it requires `ASKING`.
    redirect_target: Option<(Arc<Node>, bool)>,
    /// The next attempt must use a new connection.
    needs_fresh_connection: bool,
    hedge_at: Option<Instant>,
    paused_until: Option<Instant>,
    pause: Duration,
    redirections: u32,
    /// The last reply that stated that the command was not executed.
    refused: Option<ErrorReply>,
    failures: Vec<String>,
    result: Option<Result<CallOutcome, Error>>,
    has_ended: bool,
}

impl<'a> Run<'a> {
    fn new(view: &'a ClusterView, call: &'a Call, index: usize, deadline: Instant) -> Run<'a> {
        count(&view.counters.requests);
        if call.is_read {
            locked(&view.budget).earn();
        }
        Run {
            view,
            call,
            index,
            began: Instant::now(),
            deadline,
            attempts: Vec::new(),
            tried: Vec::new(),
            redirect_target: None,
            needs_fresh_connection: false,
            hedge_at: None,
            paused_until: None,
            pause: PAUSE_FIRST,
            redirections: 0,
            refused: None,
            failures: Vec::new(),
            result: None,
            has_ended: false,
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
            match self.attempts[at].poll(now) {
                AttemptProgress::Pending => at += 1,
                AttemptProgress::Answered => self.handle_reply(at),
                AttemptProgress::Failed(error) => self.handle_failure(at, &error),
            }
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.tried.clear();
            // Refreshes the topology, to find the slot's current owner. The result of the call does not depend on its
            // success.
            let _ = self.view.topology();
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
        if now >= self.deadline || self.is_out_of_time(now) {
            self.result = Some(Err(self.final_error()));
            return;
        }
        if let Some((node, is_asking)) = self.redirect_target.take() {
            return self.attempt(node, now, false, is_asking);
        }
        let candidates = self.view.candidates(self.call);
        let next = candidates.into_iter().find(|node| !self.has_tried(node));
        match next {
            Some(node) => self.attempt(node, now, false, false),
            None => self.pause(now),
        }
    }

    /// Returns whether too little time is left to resend a command that was rejected so far and therefore certainly
    /// not executed. Without a reply, the outcome of a write would be unknown, and the servers' error replies would
    /// be lost.
    fn is_out_of_time(&self, now: Instant) -> bool {
        let reserve = REPLY_RESERVE.min(self.view.options.timeout / 10);
        self.refused.is_some() && now + reserve >= self.deadline
    }

    fn has_tried(&self, node: &Arc<Node>) -> bool {
        let is_it = |it: &Arc<Node>| it.address == node.address;
        self.tried.iter().any(is_it) || self.attempts.iter().any(|attempt| is_it(&attempt.node))
    }

    fn pause(&mut self, now: Instant) {
        let spread = self.view.random() % 1_000;
        let pause = self.pause / 2 + self.pause.mul_f64(spread as f64 / 2_000.0);
        self.paused_until = Some((now + pause).min(self.deadline));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.view.mark_stale();
    }

    fn attempt(&mut self, node: Arc<Node>, now: Instant, is_hedge: bool, is_asking: bool) {
        let options = &self.view.options;
        let now_ms = self.view.now_ms();
        let is_probe = node.state(now_ms) == NodeState::Due;
        if is_probe {
            node.begin_probe(now_ms, options.attempt_timeout.as_millis() as u64);
        }
        let fresh = std::mem::take(&mut self.needs_fresh_connection);
        let connection = node.connection(options, fresh);
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => return self.record_unreachable(node, &error),
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
        let reply_timeout = match (self.call.is_read, self.call.is_point) {
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
            until: (now + reply_timeout).min(self.deadline),
            replies_read: Vec::with_capacity(expected),
            expected,
        });
    }

    /// Returns when a hedged attempt is due: never for a write.
    fn hedge_at(&self, now: Instant, is_probe: bool) -> Option<Instant> {
        if !self.call.is_read || self.view.options.hedge_percent == 0 {
            return None;
        }
        let p99_us = locked(self.view.recent(self.call.is_point)).p99_us();
        let p99 = p99_us.map(Duration::from_micros);
        let after = p99.or(is_probe.then_some(PROBE_HEDGE_AFTER))?;
        Some(now + after.max(HEDGE_AFTER_MIN))
    }

    fn hedge(&mut self, now: Instant) {
        let candidates = self.view.candidates(self.call);
        let now_ms = self.view.now_ms();
        let is_up = |node: &Arc<Node>| node.state(now_ms) == NodeState::Up;
        let other = candidates
            .into_iter()
            .find(|it| is_up(it) && !self.has_tried(it));
        // The probe of a failed node benefits all calls, so its hedge does not count against the budget.
        let needs_no_budget = self.attempts.iter().any(|attempt| !is_up(&attempt.node));
        if let Some(node) = other
            && (needs_no_budget || locked(&self.view.budget).spend())
        {
            count(&self.view.counters.hedges);
            self.attempt(node, now, true, false);
        }
    }

    /// Handles a failure of a read, or one before anything was sent: the call may be retried.
    fn record_unreachable(&mut self, node: Arc<Node>, error: &io::Error) {
        node.record_failure(self.view.now_ms(), self.view.random());
        self.view.mark_stale();
        self.record_attempt(node, error);
    }

    fn record_attempt(&mut self, node: Arc<Node>, error: &io::Error) {
        count(&self.view.counters.retries);
        if self.failures.len() == FAILURES_MAX {
            self.failures.remove(0);
        }
        self.failures
            .push(format!("{} {}", node.address, explain(error)));
        self.tried.push(node);
    }

    fn handle_failure(&mut self, at: usize, error: &io::Error) {
        let Attempt {
            node,
            connection,
            replies_read,
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
            node.record_failure(self.view.now_ms(), self.view.random());
            self.view.mark_stale();
            self.result = Some(Err(Error::Unknown {
                address: node.address.clone(),
                detail: explain(error),
            }));
            return;
        }
        let is_cut = error.kind() != io::ErrorKind::TimedOut && replies_read.is_empty();
        if connection.is_reused && is_cut {
            // The connection was closed while it was idle, for example by a restart of the server.
            self.needs_fresh_connection = true;
            self.redirect_target = Some((node, false));
            return;
        }
        self.record_unreachable(node, error);
    }

    fn handle_reply(&mut self, at: usize) {
        let Attempt {
            node,
            connection,
            is_hedge,
            mut replies_read,
            expected,
            ..
        } = self.attempts.swap_remove(at);
        let options = &self.view.options;
        node.record_success();
        node.release(connection, options.idle_connections_max);
        replies_read.drain(..expected - self.call.replies);
        let is_group = self.call.slots.len() > 1;
        let Some(refused) = retryable_error(&replies_read[self.call.main], is_group).cloned()
        else {
            if self.call.is_read {
                let took_us = self.began.elapsed().as_micros() as u64;
                locked(self.view.recent(self.call.is_point)).add(took_us);
            }
            if is_hedge {
                count(&self.view.counters.hedges_won);
            }
            let (now_ms, random) = (self.view.now_ms(), self.view.random());
            for slower in self.attempts.iter().filter(|it| !it.is_hedge) {
                slower.node.record_overtaken(now_ms, random);
            }
            self.result = Some(Ok(CallOutcome::Replies(replies_read)));
            return;
        };
        if is_group && !UNAVAILABLE_CODES.contains(&&*refused.code) {
            self.view.mark_stale();
            self.result = Some(Ok(CallOutcome::Split));
            return;
        }
        self.handle_redirect(node, refused);
    }

    fn handle_redirect(&mut self, node: Arc<Node>, refused: ErrorReply) {
        let to = parse_redirect(&refused.message, &node.address);
        match (refused.code.as_str(), to) {
            ("MOVED" | "ASK", Some((slot, address))) => {
                count(&self.view.counters.redirections);
                self.redirections += 1;
                if self.redirections > REDIRECTIONS_MAX {
                    self.result = Some(Err(crate::resp_client::refused(refused)));
                    return;
                }
                let is_asking = refused.code == "ASK";
                if !is_asking {
                    self.view.record_move(slot, &address);
                }
                self.redirect_target = Some((self.view.node(&address), is_asking));
            }
            ("TRYAGAIN", _) => self.pause(Instant::now()),
            // For a read, another node may be able to execute it; otherwise retry after a pause.
            (code, _) if self.call.is_read && UNAVAILABLE_CODES.contains(&code) => {
                self.view.mark_stale();
                self.tried.push(node);
            }
            _ => self.pause(Instant::now()),
        }
        self.refused = Some(refused);
    }

    fn final_error(&mut self) -> Error {
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
const UNAVAILABLE_CODES: [&str; 3] = ["CLUSTERDOWN", "LOADING", "MASTERDOWN"];

/// Returns the error of a reply that states that the command was not executed and may succeed on another node or
/// later.
pub(super) fn retryable_error(reply: &Reply, is_group: bool) -> Option<&ErrorReply> {
    let Reply::Error(error) = reply else {
        return None;
    };
    let code = error.code.as_str();
    let is_moved = matches!(code, "MOVED" | "ASK" | "TRYAGAIN");
    let is_split = is_group && code == "CROSSSLOT";
    (is_moved || is_split || UNAVAILABLE_CODES.contains(&code)).then_some(error)
}

/// Parses `12182 127.0.0.1:7101`. Without a host, it is that of the replying node.
fn parse_redirect(message: &str, answered_by: &str) -> Option<(u16, String)> {
    let (slot, to) = message.split_once(' ')?;
    let (host, port) = to.trim().rsplit_once(':')?;
    Some((
        slot.parse().ok()?,
        address(host, port.parse().ok()?, answered_by),
    ))
}
