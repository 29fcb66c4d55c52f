//! What a command may see and change of its connection.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{self, Encoder, Proto};

use super::core::{CommandSeries, Core};
use super::forwarded::Forwarded;
use super::output::{Mark, Output};
use super::tables::{Subscribed, Transaction, Watching};
use crate::clients::Client;
use crate::error::Refusal;
use crate::tables::{Gate, Tables};

pub(super) struct State {
    pub core: Rc<Core>,
    pub client: Arc<Client>,
    pub proto: Proto,
    pub authenticated: bool,
    /// Answer no more requests and close when all has been sent.
    pub closing: bool,
    pub output: Output,
    /// What the output waits for before it is sent.
    pub gate: Gate,
    pub transaction: Option<Box<Transaction>>,
    /// What WATCH was told.
    pub watching: Option<Box<Watching>>,
    pub subscribed: Option<Box<Subscribed>>,
    /// What CLIENT CACHING has said of the next command.
    pub caching: Option<bool>,
    /// It executes a part, for another core or node: of rows that all of them have, its own.
    pub is_of_node: bool,
    /// The epoch of the map by whose owners the parts are divided.
    pub asked_at: u64,
    /// READONLY: reads of stores are answered where a replica is, with cluster.routing = redirect.
    pub reads_replicas: bool,
    /// Requests of this batch for other cores.
    pub forwarded: Option<Box<Forwarded>>,
    /// Since when the next request waits for slots that are given to another node.
    pub slots_awaited: Option<Instant>,
    /// Set by the command being executed: whether it failed, the store it is counted under, the
    /// keys it asked for and how many of them were absent.
    pub failed: bool,
    pub series: Option<Rc<CommandSeries>>,
    pub keys: (u64, u64),
}

impl State {
    pub fn new(core: Rc<Core>, client: Arc<Client>, authenticated: bool) -> State {
        State {
            core,
            client,
            proto: Proto::Resp2,
            authenticated,
            closing: false,
            output: Output::default(),
            gate: Gate::default(),
            transaction: None,
            watching: None,
            subscribed: None,
            caching: None,
            is_of_node: false,
            asked_at: 0,
            reads_replicas: false,
            forwarded: None,
            slots_awaited: None,
            failed: false,
            series: None,
            keys: (0, 0),
        }
    }

    #[inline]
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.output.encoder(self.proto)
    }

    /// This core's part of the tables.
    pub fn tables(&self) -> Rc<Tables> {
        self.core.tables.clone()
    }

    pub fn error(&mut self, code: Code, message: &str) {
        self.failed = true;
        self.core.stats.error_replies.add(code);
        self.encoder().error(code, message);
    }

    pub fn refuse(&mut self, (code, message): Refusal) {
        self.error(code, &message);
    }

    /// Takes back what was answered since `mark` if it is more than one client may have, and says so instead.
    #[inline]
    pub fn bound_whole_answer(&mut self, mark: Mark, command: Command<'_>) {
        if self.output.len() > self.core.clients.limits.most() {
            self.take_back_long(mark, command.name(), command.writes());
        }
    }

    #[cold]
    pub fn take_back_long(&mut self, mark: Mark, command: &str, has_changed: bool) {
        let limits = self.core.clients.limits;
        // Values that are read where they lie take nothing.
        if self.output.memory_bytes() <= limits.most() {
            return;
        }
        let all = self.output.len();
        self.output.rewind(mark);
        self.refuse(match has_changed {
            true => limits.executed(command, all - self.output.len()),
            false => limits.too_long(),
        });
    }

    /// Refuses an answer that would be longer than what one client may have.
    pub fn bound_answer(&self) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        match self.output.len() > limits.answer() {
            true => Err(limits.too_long()),
            false => Ok(()),
        }
    }

    /// Whether more replies may be produced before some are taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.output.len() < self.core.output_bytes_max
    }

    /// Whether the connection is subscribed to something and speaks version 2 of the protocol, in which what it is told looks
    /// like a reply.
    pub fn is_in_subscriber_mode(&self) -> bool {
        self.subscribed.is_some() && self.proto == Proto::Resp2
    }

    /// How large the requests of its client may be, who has given the password or has not.
    pub fn request_limits(&self) -> resp::Limits {
        match self.authenticated {
            true => self.core.limits,
            false => self.core.limits.before_password(),
        }
    }

    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.resp3.store(proto == Proto::Resp3, Relaxed);
    }
}
