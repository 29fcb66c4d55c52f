//! Executes the complete requests that a connection has sent, in order.
//!
//! ```text
//!  bytes ─ decode ─► Request ─ parse ─► Command ─► a batch of GETs? ─► place ─► this core ─► statistics ─► next request
//!                                │ invalid              │                │
//!                                └► error               └► executed      └► other cores, or it waits
//! ```

use std::rc::Rc;
use std::time::{Duration, Instant};

use larder_protocol::commands::{Command, Id, Invalid};
use larder_protocol::errors::Code;
use larder_protocol::resp::{ProtocolError, Request, Step};

use super::command_stats::record_command;
use super::core::Core;
use super::dispatch::{dispatch, refuse_invalid};
use super::get_run::GetRun;
use super::pending::Pending;
use super::place::{RoutingDecision, may_serve_record, place};
use super::session::{Session, Stream, WaitCondition};
use super::state::ConnectionState;
use super::stray_http;
use super::stray_tls;
use super::subject::CommandSubject;
use super::tables::{mark_refused, refuse_reserved_range};
use super::tracking;
use crate::catalog::Snapshot;
use crate::membership::Membership;

/// Maximum time one connection may execute commands before the core serves the next.
pub(super) const TURN_MAX: Duration = Duration::from_millis(5);

/// Requests of one connection that are executed without requests of others in between, all from one snapshot of the
/// catalog.
struct ConnectionTurn<'s, 'i> {
    core: &'s Rc<Core>,
    snapshot: &'s Snapshot,
    started: Instant,
    /// The end time of the last request.
    clock: Instant,
    gets: GetRun<'s, 'i>,
}

/// The outcome of executing one request.
enum Outcome {
    /// The reply is complete.
    Answered,
    /// Another core executes the request.
    Forwarded,
    /// The request is in progress; the requests after it wait.
    Pending(Box<Pending>),
    /// The request waits, and has not been executed yet.
    Waiting(WaitCondition),
    /// No further request is executed.
    End,
}

impl<S: Stream> Session<S> {
    /// Executes the complete requests at the start of `input`. Returns the number of bytes consumed.
    pub(super) fn execute(&mut self, input: &[u8]) -> usize {
        let state = &mut self.state;
        self.has_unexecuted = false;
        if state.closing || input.is_empty() {
            return input.len();
        }
        if state.output.tail.capacity() == 0 {
            state.output.tail = state.core.take_buffer();
        }
        let core = state.core.clone();
        let snapshot = core.shared.catalog.load();
        let mut turn = ConnectionTurn::begin(state, &core, &snapshot);
        let mut at = 0;
        loop {
            if !state.has_room() {
                self.has_unexecuted = at < input.len();
                break;
            }
            let remaining = &input[at..];
            let size = match self.decoder.decode(remaining) {
                Ok(Step::Request(size)) => size,
                Ok(Step::Skip(size)) => {
                    at += size;
                    continue;
                }
                Ok(Step::Incomplete(_)) => break,
                Err(error) => {
                    turn.refuse_undecodable(state, &error);
                    return input.len();
                }
            };
            let authenticated = state.authenticated;
            let request = self.decoder.request(remaining);
            let next = match Command::parse(request) {
                Ok(command) => {
                    if turn.add_to_gets(state, command, self.decoder.argument_in(remaining, 1)) {
                        at += size;
                        continue;
                    }
                    let next = turn.execute(state, command);
                    if !matches!(next, Outcome::Waiting(_)) {
                        tracking::after_command(state, command);
                    }
                    next
                }
                Err(invalid) => {
                    let is_line = self.decoder.argument_in(remaining, 0).is_none();
                    turn.refuse(state, invalid, request, is_line)
                }
            };
            match next {
                Outcome::Answered => {}
                Outcome::Forwarded => {
                    at += size;
                    continue;
                }
                Outcome::Pending(pending) => {
                    self.pending = Some(pending);
                    return at + size;
                }
                Outcome::Waiting(condition) => {
                    self.wait_condition = condition;
                    return at;
                }
                Outcome::End => return input.len(),
            }
            at += size;
            if state.authenticated != authenticated {
                self.decoder.set_limits(state.request_limits());
            }
            if turn.is_expired() {
                // The turn is over although each command is short; the core serves others first.
                self.has_unexecuted = at < input.len();
                break;
            }
            if core.tables.shard().is_some() && at < input.len() && core.has_messages() {
                self.wait_condition = WaitCondition::CoreMessages;
                break;
            }
        }
        turn.execute_gets(state);
        at
    }
}

impl<'s, 'i> ConnectionTurn<'s, 'i> {
    fn begin(
        state: &ConnectionState,
        core: &'s Rc<Core>,
        snapshot: &'s Snapshot,
    ) -> ConnectionTurn<'s, 'i> {
        let started = Instant::now();
        core.clients.mark_active(&state.client, started);
        ConnectionTurn {
            core,
            snapshot,
            started,
            clock: started,
            gets: GetRun::new(),
        }
    }

    fn is_expired(&self) -> bool {
        self.clock.duration_since(self.started) > TURN_MAX
    }

    /// Adds a GET, whose key is in the input, to the current batch. If that is not possible, executes the batch and
    /// returns false.
    #[inline]
    fn add_to_gets(
        &mut self,
        state: &mut ConnectionState,
        command: Command<'_>,
        key: Option<&'i [u8]>,
    ) -> bool {
        if command.id() == Id::Get
            && (self.core.nodes.is_none() || key.is_some_and(|key| may_serve_record(state, key)))
            && state.authenticated
            && state.transaction.is_none()
            && state.subscriptions.is_none()
            && (!self.core.tables.is_tracking() || state.client.tracker.load().is_none())
            && let Some(key) = key
        {
            let is_of_cluster = self.core.nodes.is_some();
            let mut is_added = self.gets.try_add(self.snapshot, key, is_of_cluster);
            if !is_added && self.gets.len > 0 {
                self.execute_gets(state);
                is_added = self.gets.try_add(self.snapshot, key, is_of_cluster);
            }
            if is_added && self.gets.is_full() {
                self.execute_gets(state);
            }
            return is_added;
        }
        self.execute_gets(state);
        false
    }

    #[inline]
    fn execute_gets(&mut self, state: &mut ConnectionState) {
        self.gets.execute(state, &mut self.clock);
    }

    /// Executes a command, on this core or on others.
    fn execute(&mut self, state: &mut ConnectionState, command: Command<'_>) -> Outcome {
        let subject = CommandSubject::of(self.snapshot, command);
        if subject.has_rows()
            && let Some(membership) = &self.core.shared.membership
            && membership.is_refusing()
            && self.refuse_if_cluster_down(state, command, membership)
        {
            return ConnectionTurn::outcome(state);
        }
        if subject.has_rows()
            && state.authenticated
            && let Some(refusal) = refuse_reserved_range(command)
        {
            reset_counts(state);
            mark_refused(state);
            state.refuse(refusal);
            record_command(state, command.spec, &mut self.clock, command.args());
            return Outcome::Answered;
        }
        if self.core.tables.is_tracking()
            && let Some(waits) = tracking::before_command(state, command)
        {
            return Outcome::Waiting(waits);
        }
        // A pause also delays the commands of a server with one core.
        if self.core.tables.shard().is_some() || self.core.tables.is_paused() {
            match place(state, self.snapshot, command, subject) {
                RoutingDecision::Local => {}
                RoutingDecision::Forwarded => {
                    tracking::note_remote_reads(state, command, subject);
                    return Outcome::Forwarded;
                }
                RoutingDecision::Pending(pending) => {
                    tracking::note_remote_reads(state, command, subject);
                    return Outcome::Pending(pending);
                }
                RoutingDecision::Waiting(condition) => return Outcome::Waiting(condition),
                RoutingDecision::Refused => {
                    record_command(state, command.spec, &mut self.clock, command.args());
                    return Outcome::Answered;
                }
            }
        }
        reset_counts(state);
        let shared_batch = match &mut state.forwarded {
            Some(forwarded) if command.writes() => forwarded.join_shared_batch(&self.core.tables),
            _ => None,
        };
        let tables = &self.core.tables;
        let mark = state.output.mark();
        if let Some(pending) = tables.in_shared_batch(shared_batch, || {
            dispatch(state, self.snapshot, command, subject)
        }) {
            return Outcome::Pending(pending);
        }
        state.enforce_reply_limit(mark, command);
        record_command(state, command.spec, &mut self.clock, command.args());
        ConnectionTurn::outcome(state)
    }

    /// Rejects a command if this node is not a part of its cluster, or the cluster has not started. Returns whether it
    /// did.
    #[cold]
    fn refuse_if_cluster_down(
        &mut self,
        state: &mut ConnectionState,
        command: Command<'_>,
        membership: &Membership,
    ) -> bool {
        // A queued command is rejected when it is executed.
        let is_queued = state.transaction.is_some() && command.id() != Id::Exec;
        let Some(reason) = membership.refusal() else {
            return false;
        };
        if !state.authenticated || is_queued {
            return false;
        }
        reset_counts(state);
        state.transaction = None;
        state.error(Code::ClusterDown, &reason);
        record_command(state, command.spec, &mut self.clock, command.args());
        true
    }

    /// Returns an error for an invalid request. `is_line`: the request arrived as words on a line (an inline command).
    #[cold]
    fn refuse(
        &mut self,
        state: &mut ConnectionState,
        invalid: Invalid,
        request: Request<'_>,
        is_line: bool,
    ) -> Outcome {
        self.execute_gets(state);
        if let Invalid::Unknown | Invalid::Arity(_) = invalid
            && stray_http::is_http(request, is_line)
        {
            stray_http::reject(state);
            return Outcome::End;
        }
        reset_counts(state);
        refuse_invalid(state, invalid, request);
        if let Some(spec) = invalid.spec() {
            record_command(state, spec, &mut self.clock, request.args());
        }
        ConnectionTurn::outcome(state)
    }

    /// Closes a connection whose bytes cannot be decoded any more.
    #[cold]
    fn refuse_undecodable(&mut self, state: &mut ConnectionState, error: &ProtocolError) {
        self.execute_gets(state);
        self.core.stats.protocol_errors.add(1);
        if error.is_tls() {
            stray_tls::log_warning(state);
        }
        match error.too_long() {
            Some(bytes) if state.authenticated && self.core.exceeds_client_memory(bytes) => {
                let clients = &self.core.clients;
                clients.record_too_large(&state.client, bytes);
                state.refuse(clients.limits.request_too_long(bytes));
            }
            _ => state.error(Code::BadRequest, &error.to_string()),
        }
        state.closing = true;
    }

    fn outcome(state: &ConnectionState) -> Outcome {
        if state.closing {
            Outcome::End
        } else {
            Outcome::Answered
        }
    }
}

/// Resets the statistics of the current command.
fn reset_counts(state: &mut ConnectionState) {
    state.failed = false;
    state.series = None;
    state.keys = (0, 0);
}
