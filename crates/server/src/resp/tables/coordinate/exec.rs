//! EXEC on a server with several cores.
//!
//! ```text
//!  one core has everything ──────────► one message, no pause
//!  each command needs one core and ──► pause ─► the cores' parts, concurrently ─► one batch for the journal ─► release
//!  no read is of an output
//!  else ─────────────────────────────► pause ─► one command after another ─► one batch for the journal ─► release
//! ```

use std::rc::Rc;

use larder_protocol::commands::{Batch, Command, Id};
use larder_protocol::errors::Code;

use super::super::super::incoming::Incoming;
use super::super::super::reply_decoding;
use super::super::super::spaces;
use super::super::super::state::ConnectionState;
use super::super::super::subject::CommandSubject;
use super::super::route::{Destination, Route, route};
use super::super::strings::returned_value_key;
use super::super::transaction::{self, Queued, Transaction};
use super::super::watch::WatchedKeys;
use super::{Coordinator, collect_replies, core_stopped};
use crate::clients::encode_refusal;
use crate::tables::{Execution, Refusal, Tables, stopping};

/// Maximum number of a transaction's reads that wait concurrently for rows of PostgreSQL.
const PREFETCH_MAX: usize = 64;

impl Coordinator {
    pub(super) async fn execute_transaction(
        &mut self,
        transaction: &Transaction,
        watched_keys: Option<&WatchedKeys>,
    ) -> Result<Vec<u8>, Refusal> {
        transaction.ensure_valid()?;
        if watched_keys.is_some_and(|watched_keys| watched_keys.has_moved(&self.core.tables)) {
            return Ok(self.encode(|encoder| encoder.null_array()));
        }
        if let Some(place) = self.find_other_node(transaction, watched_keys)? {
            return self.execute_on_node(transaction, place).await;
        }
        if let Some(watched_keys) = watched_keys {
            return self.execute_watched(transaction, watched_keys).await;
        }
        if let Some(core) = self
            .find_single_core(transaction)
            .filter(|core| *core < self.cores())
        {
            let mut incoming = self.request_core(core, transaction.batch(), Execution::Transaction);
            return incoming.reply().await.ok_or_else(core_stopped);
        }
        let requests = transaction.requests();
        if let Some(refused) = self.prefetch(requests).await? {
            return Ok(refused);
        }
        let writes = requests.iter().any(|queued| queued.command.spec.writes);
        if writes {
            self.core.tables.ensure_writes_accepted()?;
            self.refuse_long(requests).await?;
        }
        if let Some(parts) = self.divide_by_core(requests) {
            return self.execute_parts(parts).await;
        }
        let paused = self.pause().await?;
        let done = self.execute_sequentially(requests).await;
        if writes {
            self.resume(paused).await?
        } else {
            self.resume_unchanged(paused)
        }
        done
    }

    /// Executes a transaction unless a key that its connection watches has changed.
    async fn execute_watched(
        &mut self,
        transaction: &Transaction,
        watched_keys: &WatchedKeys,
    ) -> Result<Vec<u8>, Refusal> {
        if let Some(refused) = self.prefetch(transaction.requests()).await? {
            return Ok(refused);
        }
        self.refuse_long(transaction.requests()).await?;
        let paused = self.pause().await?;
        let done = match self.is_unchanged(watched_keys).await {
            Err(refusal) => Err(refusal),
            Ok(false) => Ok(self.encode(|encoder| encoder.null_array())),
            Ok(true) => self.execute_sequentially(transaction.requests()).await,
        };
        self.resume(paused).await?;
        done
    }

    /// Rejects a transaction if the replies of its writes would exceed the client's limit.
    async fn refuse_long(&self, requests: &[Queued]) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        let mut bytes = 0;
        for command in requests.iter().map(|queued| queued.command.command()) {
            let Some(key) = returned_value_key(command) else {
                continue;
            };
            if self.core.tables.is_computed(key) || self.core.tables.is_mapped(key) {
                continue;
            }
            let reply = self.execute_on_owner(Id::StrLen, &[key]).await?;
            // Other errors appear in the command's own reply.
            bytes += reply_decoding::decode_integer(&reply)
                .map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0));
            if bytes > limits.reply_bytes() {
                return Err(limits.reply_too_long());
            }
        }
        Ok(())
    }

    /// Returns whether all watched keys are unchanged. Called in a pause.
    async fn is_unchanged(&self, watched_keys: &WatchedKeys) -> Result<bool, Refusal> {
        let handle = &self.core.shared.tables;
        if watched_keys.has_moved(&self.core.tables) {
            return Ok(false);
        }
        for core in 0..self.cores() {
            let part = watched_keys.part_for(|key| self.owner(key) == core);
            let (ticket, shared) = (self.ticket, self.core.shared.clone());
            let unchanged = handle.start_on(core, ticket, move |tables| async move {
                let postgres = shared.postgres.as_ref();
                part.part_is_unchanged(&tables, postgres, ticket).await
            });
            if !unchanged.await.map_err(|_| core_stopped())? {
                return Ok(false);
            }
        }
        Ok(watched_keys.stores_are_unchanged(&self.core.shared.catalog.load()))
    }

    /// Executes the requests in order, in a pause.
    async fn execute_sequentially(&mut self, requests: &[Queued]) -> Result<Vec<u8>, Refusal> {
        let mut all = self.encode(|encoder| encoder.array(requests.len()));
        for queued in requests {
            let command = queued.command.command();
            if let (false, Err((code, message))) = (command.writes(), self.check_reply_size(&all)) {
                all.extend(self.encode(|encoder| encoder.error(code, &message)));
                continue;
            }
            if let Some(stored_reply) = &queued.reply {
                all.extend_from_slice(stored_reply);
                continue;
            }
            if !self.concerns_tables(command) {
                all.extend(self.execute_without_tables(command).await?);
                continue;
            }
            let core = match self.route(command).map(|route| route.destination) {
                // A single core has all data.
                None if !spaces::is_space_command(command) => Some(self.core.index),
                Some(Destination::Core(core)) if core < self.cores() => Some(core),
                _ => None,
            };
            let reply = match core {
                Some(core) => {
                    let mut incoming =
                        self.request_core(core, command.into(), Execution::Uninterrupted);
                    incoming.reply().await.ok_or_else(core_stopped)
                }
                None => Box::pin(self.execute(command)).await,
            };
            match reply {
                Ok(reply) => self.append_reply(&mut all, command, queued.with_stores(reply)),
                // The remaining requests are not executed.
                Err(_) if self.is_pause_overdue() => return Err(core_stopped()),
                Err((code, message)) => {
                    all.extend(self.encode(|encoder| encoder.error(code, &message)));
                }
            }
        }
        Ok(all)
    }

    /// Appends the reply of an executed command, or an error if it is too long.
    fn append_reply(&self, all: &mut Vec<u8>, command: Command<'_>, reply: Vec<u8>) {
        let limits = self.core.clients.limits;
        if limits.fits(all.len(), reply.len()) {
            return all.extend(reply);
        }
        all.extend(encode_refusal(if command.writes() {
            limits.executed_reply_too_long(command.name(), reply.len())
        } else {
            limits.reply_too_long()
        }));
    }

    /// Returns the core of each request, if each needs a single core and reads no outputs. Requests of different cores
    /// are then independent.
    fn divide_by_core<'r>(&self, requests: &'r [Queued]) -> Option<Vec<(usize, Command<'r>)>> {
        let core = |queued: &'r Queued| {
            let command = queued.command.command();
            if queued.stores.is_some() || !self.concerns_tables(command) {
                return None;
            }
            match self.route(command)? {
                Route {
                    destination: Destination::Core(core),
                    reads_outputs: false,
                } if core < self.cores() => Some((core, command)),
                _ => None,
            }
        };
        requests.iter().map(core).collect()
    }

    /// Executes a transaction on all its cores concurrently, with one message to each.
    async fn execute_parts(
        &mut self,
        requests: Vec<(usize, Command<'_>)>,
    ) -> Result<Vec<u8>, Refusal> {
        let mut parts = vec![Batch::default(); self.cores()];
        for (core, command) in &requests {
            parts[*core].push(*command);
        }
        let mut all = self.encode(|encoder| encoder.array(requests.len()));
        let paused = self.pause_all().await?;
        let mut incoming = self.request_cores(parts, Execution::TransactionPart);
        let mut is_complete = true;
        for (core, command) in requests {
            let incoming = incoming[core].as_mut().ok_or_else(core_stopped)?;
            match incoming.reply().await {
                Some(reply) => self.append_reply(&mut all, command, reply),
                None => is_complete = false,
            }
        }
        self.end_pause();
        let changes = |incoming: &mut Option<Incoming>| {
            incoming
                .as_mut()
                .map(Incoming::take_changes)
                .unwrap_or_default()
        };
        let changes = incoming.iter_mut().map(changes).collect();
        let (tables, gate) = (&self.core.tables, &mut self.gate);
        paused.finish_with_changes(changes, tables, gate).await?;
        if is_complete {
            Ok(all)
        } else {
            Err(core_stopped())
        }
    }

    /// Makes the cores load the rows of mapped tables that a transaction reads, because nothing is loaded during a
    /// pause. Returns an error reply if that fails.
    async fn prefetch(&mut self, requests: &[Queued]) -> Result<Option<Vec<u8>>, Refusal> {
        if self.core.shared.postgres.is_none() {
            return Ok(None);
        }
        for chunk in requests.chunks(PREFETCH_MAX) {
            if let Some(refused) = self.prefetch_chunk(chunk).await? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Loads rows for some of the requests, on all cores concurrently. If other pauses interrupt the loading, all cores
    /// wait together.
    async fn prefetch_chunk(&mut self, requests: &[Queued]) -> Result<Option<Vec<u8>>, Refusal> {
        let (mut incoming, mut for_all_cores) = (Vec::new(), Vec::new());
        for command in requests.iter().map(|queued| queued.command.command()) {
            let is_of_spaces = spaces::is_space_command(command);
            if command.writes() || !self.concerns_tables(command) || is_of_spaces {
                continue;
            }
            match self.route(command).map(|route| route.destination) {
                Some(Destination::Core(core)) => {
                    if core < self.cores() {
                        incoming.push(self.request_core(core, command.into(), Execution::Prefetch));
                    }
                }
                Some(Destination::AllCores) => for_all_cores.push(command),
                // The command will be rejected.
                Some(Destination::Nodes | Destination::Unavailable) | None => {}
            }
        }
        let replies = collect_replies(incoming).await?;
        let refused = replies.into_iter().find(|it| it.starts_with(b"-"));
        for command in for_all_cores {
            // Other errors are returned by the transaction itself.
            match Box::pin(self.execute(command)).await {
                Ok(reply) if reply.starts_with(b"-SOURCE ") => return Ok(Some(reply)),
                Err((Code::Source, why)) => return Err((Code::Source, why)),
                _ => {}
            }
        }
        Ok(refused)
    }

    pub(super) fn concerns_tables(&self, command: Command<'_>) -> bool {
        CommandSubject::of(&self.core.shared.catalog.load(), command).has_rows()
    }

    /// Executes a command of a transaction that concerns no table.
    pub(super) async fn execute_without_tables(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        if command.spec.sums_replies() {
            let publish = |tables: Rc<Tables>| async move { tables.publish_stats() };
            let published = self.core.shared.tables.run_on_all(self.ticket, publish);
            published.await.map_err(stopping)?;
        }
        let mut scratch = ConnectionState::new(self.core.clone(), self.client.clone(), true);
        scratch.proto = self.proto;
        scratch.output.has_holes = true;
        let snapshot = self.core.shared.catalog.load();
        transaction::execute_without_tables(&mut scratch, &snapshot, command);
        self.proto = scratch.proto;
        self.closing |= scratch.closing;
        Ok(std::mem::take(&mut scratch.output.tail))
    }

    pub(super) fn route(&self, command: Command<'_>) -> Option<Route> {
        let (tables, snapshot) = (&self.core.tables, self.core.shared.catalog.load());
        Some(route(tables, &*tables.shard()?, &snapshot, command))
    }

    /// Returns the single core that the transaction needs: it has all rows, and nothing must be computed.
    fn find_single_core(&self, transaction: &Transaction) -> Option<usize> {
        let mut single = None;
        for queued in transaction.requests() {
            let command = queued.command.command();
            if matches!(command.id(), Id::Ping | Id::Echo) {
                continue;
            }
            let has_stores = queued.reply.is_some() || queued.stores.is_some();
            if has_stores || !self.concerns_tables(command) {
                return None;
            }
            match self.route(command)? {
                Route {
                    destination: Destination::Core(core),
                    reads_outputs: false,
                } if single.is_none_or(|single| single == core) => single = Some(core),
                _ => return None,
            }
        }
        Some(single.unwrap_or(self.core.index))
    }
}
