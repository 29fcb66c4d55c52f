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

use super::core::Core;
use super::count::finish;
use super::dispatch::{dispatch, refuse_invalid};
use super::get_run::GetRun;
use super::pending::Pending;
use super::place::{Placed, may_answer_record, place};
use super::session::{Session, Stream, Waits};
use super::state::State;
use super::stray_http;
use super::stray_tls;
use super::subject::About;
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
    begun: Instant,
    /// The end time of the last request.
    clock: Instant,
    gets: GetRun<'s, 'i>,
}

/// The outcome of executing one request.
enum Next {
    /// The reply is complete.
    Answered,
    /// Another core executes the request.
    Forwarded,
    /// The request is in progress; the requests after it wait.
    Pending(Box<Pending>),
    /// The request waits, and has not been executed yet.
    Waits(Waits),
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
            let left = &input[at..];
            let size = match self.decoder.decode(left) {
                Ok(Step::Request(size)) => size,
                Ok(Step::Skip(size)) => {
                    at += size;
                    continue;
                }
                Ok(Step::Incomplete(_)) => break,
                Err(error) => {
                    turn.refuse_bytes(state, &error);
                    return input.len();
                }
            };
            let authenticated = state.authenticated;
            let request = self.decoder.request(left);
            let next = match Command::parse(request) {
                Ok(command) => {
                    if turn.adds_to_gets(state, command, self.decoder.argument_in(left, 1)) {
                        at += size;
                        continue;
                    }
                    let next = turn.execute(state, command);
                    if !matches!(next, Next::Waits(_)) {
                        tracking::after_command(state, command);
                    }
                    next
                }
                Err(invalid) => {
                    let is_line = self.decoder.argument_in(left, 0).is_none();
                    turn.refuse(state, invalid, request, is_line)
                }
            };
            match next {
                Next::Answered => {}
                Next::Forwarded => {
                    at += size;
                    continue;
                }
                Next::Pending(pending) => {
                    self.pending = Some(pending);
                    return at + size;
                }
                Next::Waits(why) => {
                    self.waits = why;
                    return at;
                }
                Next::End => return input.len(),
            }
            at += size;
            if state.authenticated != authenticated {
                self.decoder.set_limits(state.request_limits());
            }
            if turn.is_over() {
                // The turn is over although each command is short; the core serves others first.
                self.has_unexecuted = at < input.len();
                break;
            }
            if core.tables.shard().is_some() && at < input.len() && core.has_messages() {
                self.waits = Waits::Others;
                break;
            }
        }
        turn.answer_gets(state);
        at
    }
}

impl<'s, 'i> ConnectionTurn<'s, 'i> {
    fn begin(state: &State, core: &'s Rc<Core>, snapshot: &'s Snapshot) -> ConnectionTurn<'s, 'i> {
        let begun = Instant::now();
        core.clients.active(&state.client, begun);
        ConnectionTurn {
            core,
            snapshot,
            begun,
            clock: begun,
            gets: GetRun::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.clock.duration_since(self.begun) > TURN_MAX
    }

    /// Adds a GET, whose key is in the input, to the current batch. If that is not possible, executes the batch and
    /// returns false.
    #[inline]
    fn adds_to_gets(
        &mut self,
        state: &mut State,
        command: Command<'_>,
        key: Option<&'i [u8]>,
    ) -> bool {
        if command.id() == Id::Get
            && (self.core.nodes.is_none() || key.is_some_and(|key| may_answer_record(state, key)))
            && state.authenticated
            && state.transaction.is_none()
            && state.subscribed.is_none()
            && (!self.core.tables.is_tracking() || state.client.tracker.load().is_none())
            && let Some(key) = key
        {
            let is_of_cluster = self.core.nodes.is_some();
            let mut taken = self.gets.take(self.snapshot, key, is_of_cluster);
            if !taken && self.gets.len > 0 {
                self.answer_gets(state);
                taken = self.gets.take(self.snapshot, key, is_of_cluster);
            }
            if taken && self.gets.is_full() {
                self.answer_gets(state);
            }
            return taken;
        }
        self.answer_gets(state);
        false
    }

    #[inline]
    fn answer_gets(&mut self, state: &mut State) {
        self.gets.answer(state, &mut self.clock);
    }

    /// Executes a command, on this core or on others.
    fn execute(&mut self, state: &mut State, command: Command<'_>) -> Next {
        let about = About::of(self.snapshot, command);
        if about.has_rows()
            && let Some(membership) = &self.core.shared.membership
            && membership.is_refusing()
            && self.is_refused(state, command, membership)
        {
            return ConnectionTurn::next(state);
        }
        if about.has_rows()
            && state.authenticated
            && let Some(refusal) = refuse_reserved_range(command)
        {
            reset_counts(state);
            mark_refused(state);
            state.refuse(refusal);
            finish(state, command.spec, &mut self.clock, command.args());
            return Next::Answered;
        }
        if self.core.tables.is_tracking()
            && let Some(waits) = tracking::before_command(state, command)
        {
            return Next::Waits(waits);
        }
        // A pause also delays the commands of a server with one core.
        if self.core.tables.shard().is_some() || self.core.tables.is_paused() {
            match place(state, self.snapshot, command, about) {
                Placed::Here => {}
                Placed::Forwarded => {
                    tracking::note_reads_elsewhere(state, command, about);
                    return Next::Forwarded;
                }
                Placed::Pending(pending) => {
                    tracking::note_reads_elsewhere(state, command, about);
                    return Next::Pending(pending);
                }
                Placed::Waits(why) => return Next::Waits(why),
                Placed::Refused => {
                    finish(state, command.spec, &mut self.clock, command.args());
                    return Next::Answered;
                }
            }
        }
        reset_counts(state);
        let shared_batch = match &mut state.forwarded {
            Some(forwarded) if command.writes() => {
                forwarded.shared_batch_with_here(&self.core.tables)
            }
            _ => None,
        };
        let tables = &self.core.tables;
        let mark = state.output.mark();
        if let Some(pending) = tables.in_shared_batch(shared_batch, || {
            dispatch(state, self.snapshot, command, about)
        }) {
            return Next::Pending(pending);
        }
        state.bound_whole_answer(mark, command);
        finish(state, command.spec, &mut self.clock, command.args());
        ConnectionTurn::next(state)
    }

    /// Rejects a command if this node is not a part of its cluster, or the cluster has not started. Returns whether it
    /// did.
    #[cold]
    fn is_refused(
        &mut self,
        state: &mut State,
        command: Command<'_>,
        membership: &Membership,
    ) -> bool {
        // A queued command is rejected when it is executed.
        let is_queued = state.transaction.is_some() && command.id() != Id::Exec;
        let Some(why) = membership.refusal() else {
            return false;
        };
        if !state.authenticated || is_queued {
            return false;
        }
        reset_counts(state);
        state.transaction = None;
        state.error(Code::ClusterDown, &why);
        finish(state, command.spec, &mut self.clock, command.args());
        true
    }

    /// Returns an error for an invalid request. `is_line`: the request arrived as words on a line (an inline command).
    #[cold]
    fn refuse(
        &mut self,
        state: &mut State,
        invalid: Invalid,
        request: Request<'_>,
        is_line: bool,
    ) -> Next {
        self.answer_gets(state);
        if let Invalid::Unknown | Invalid::Arity(_) = invalid
            && stray_http::is_http(request, is_line)
        {
            stray_http::end(state);
            return Next::End;
        }
        reset_counts(state);
        refuse_invalid(state, invalid, request);
        if let Some(spec) = invalid.spec() {
            finish(state, spec, &mut self.clock, request.args());
        }
        ConnectionTurn::next(state)
    }

    /// Closes a connection whose bytes cannot be decoded any more.
    #[cold]
    fn refuse_bytes(&mut self, state: &mut State, error: &ProtocolError) {
        self.answer_gets(state);
        self.core.stats.protocol_errors.add(1);
        if error.is_tls() {
            stray_tls::tell(state);
        }
        match error.too_long() {
            Some(bytes) if state.authenticated && self.core.is_too_long_to_keep(bytes) => {
                let clients = &self.core.clients;
                clients.note_too_large(&state.client, bytes);
                state.refuse(clients.limits.request_too_long(bytes));
            }
            _ => state.error(Code::BadRequest, &error.to_string()),
        }
        state.closing = true;
    }

    fn next(state: &State) -> Next {
        if state.closing {
            Next::End
        } else {
            Next::Answered
        }
    }
}

/// Resets the statistics of the current command.
fn reset_counts(state: &mut State) {
    state.failed = false;
    state.series = None;
    state.keys = (0, 0);
}
