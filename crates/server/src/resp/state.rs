//! The state of a connection that commands read and change.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{self, Encoder, Proto};

use super::core::{CommandSeries, Core};
use super::forwarded::Forwarded;
use super::output::{Output, OutputMark};
use super::tables::{ConnectionSubscriptions, Transaction, WatchedKeys};
use crate::clients::Client;
use crate::error::Refusal;
use crate::tables::{Gate, Tables};

pub(super) struct ConnectionState {
    pub core: Rc<Core>,
    pub client: Arc<Client>,
    pub proto: Proto,
    pub authenticated: bool,
    /// Execute no more requests, and close the connection once all output has been sent.
    pub closing: bool,
    pub output: Output,
    /// The conditions that the output waits for before it is sent.
    pub gate: Gate,
    pub transaction: Option<Box<Transaction>>,
    /// The keys watched by WATCH.
    pub watched_keys: Option<Box<WatchedKeys>>,
    pub subscriptions: Option<Box<ConnectionSubscriptions>>,
    /// The argument of CLIENT CACHING, for the next command.
    pub caching: Option<bool>,
    /// The state executes a part of a command for another core or node. For data that every core has, only this node's
    /// share counts.
    pub executes_part: bool,
    /// The epoch of the map by which the parts were divided.
    pub routing_epoch: u64,
    /// READONLY was sent: with `cluster.routing = redirect`, replicas may serve reads of stores.
    pub reads_replicas: bool,
    /// Requests of this batch that are forwarded to other cores.
    pub forwarded: Option<Box<Forwarded>>,
    /// The time at which the next request began to wait for slots that are moving to another node.
    pub slots_awaited_since: Option<Instant>,
    /// Set by the command being executed: its success or failure, the store under which it is counted, the number of
    /// its keys, and the number of absent keys.
    pub failed: bool,
    pub series: Option<Rc<CommandSeries>>,
    pub keys: (u64, u64),
}

impl ConnectionState {
    pub fn new(core: Rc<Core>, client: Arc<Client>, authenticated: bool) -> ConnectionState {
        ConnectionState {
            core,
            client,
            proto: Proto::Resp2,
            authenticated,
            closing: false,
            output: Output::default(),
            gate: Gate::default(),
            transaction: None,
            watched_keys: None,
            subscriptions: None,
            caching: None,
            executes_part: false,
            routing_epoch: 0,
            reads_replicas: false,
            forwarded: None,
            slots_awaited_since: None,
            failed: false,
            series: None,
            keys: (0, 0),
        }
    }

    #[inline]
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.output.encoder(self.proto)
    }

    /// Returns this core's part of the tables.
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

    /// If the output exceeds the limit of one client, replaces everything appended since `mark` with an error.
    #[inline]
    pub fn enforce_reply_limit(&mut self, mark: OutputMark, command: Command<'_>) {
        if self.output.len() > self.core.clients.limits.unsent_bytes() {
            self.discard_long_reply(mark, command.name(), command.writes());
        }
    }

    #[cold]
    pub fn discard_long_reply(&mut self, mark: OutputMark, command: &str, has_changed: bool) {
        let limits = self.core.clients.limits;
        // Values in a mapped file take no memory.
        if self.output.memory_bytes() <= limits.unsent_bytes() {
            return;
        }
        let all = self.output.len();
        self.output.rewind(mark);
        self.refuse(if has_changed {
            limits.executed_reply_too_long(command, all - self.output.len())
        } else {
            limits.reply_too_long()
        });
    }

    /// Rejects a reply that exceeds the limit of one client.
    pub fn check_reply_limit(&self) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        if self.output.len() > limits.reply_bytes() {
            Err(limits.reply_too_long())
        } else {
            Ok(())
        }
    }

    /// Returns whether more replies may be produced before the client reads some.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.output.len() < self.core.output_bytes_max
    }

    /// Returns whether the connection has subscriptions and uses RESP2, in which a pushed message cannot be
    /// distinguished from a reply.
    pub fn is_in_subscriber_mode(&self) -> bool {
        self.subscriptions.is_some() && self.proto == Proto::Resp2
    }

    /// Returns the limits on request sizes, which are stricter before authentication.
    pub fn request_limits(&self) -> resp::Limits {
        if self.authenticated {
            self.core.limits
        } else {
            self.core.limits.before_password()
        }
    }

    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.resp3.store(proto == Proto::Resp3, Relaxed);
    }
}
