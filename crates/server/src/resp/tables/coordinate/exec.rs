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
use super::super::super::replies;
use super::super::super::spaces;
use super::super::super::state::State;
use super::super::super::subject::About;
use super::super::route::{Route, To, route};
use super::super::strings::key_of_answer;
use super::super::transaction::{self, Queued, Transaction};
use super::super::watch::Watching;
use super::{Coordinator, all_replies, gone};
use crate::clients::as_reply;
use crate::tables::{Execution, Refusal, Tables, stopping};

/// Maximum number of a transaction's reads that wait concurrently for rows of PostgreSQL.
const READ_AHEAD_MAX: usize = 64;

impl Coordinator {
    pub(super) async fn transaction(
        &mut self,
        transaction: &Transaction,
        watching: Option<&Watching>,
    ) -> Result<Vec<u8>, Refusal> {
        transaction.refuse()?;
        if watching.is_some_and(|watching| watching.has_moved(&self.core.tables)) {
            return Ok(self.encoded(|encoder| encoder.null_array()));
        }
        if let Some(place) = self.other_node(transaction, watching)? {
            return self.on_other_node(transaction, place).await;
        }
        if let Some(watching) = watching {
            return self.watched(transaction, watching).await;
        }
        if let Some(core) = self
            .only_core(transaction)
            .filter(|core| *core < self.cores())
        {
            let mut incoming = self.ask(core, transaction.batch(), Execution::Transaction);
            return incoming.reply().await.ok_or_else(gone);
        }
        let requests = transaction.requests();
        if let Some(refused) = self.read_ahead(requests).await? {
            return Ok(refused);
        }
        let writes = requests.iter().any(|queued| queued.command.spec.writes);
        if writes {
            self.core.tables.ensure_writes_taken()?;
            self.refuse_long(requests).await?;
        }
        if let Some(parts) = self.by_core(requests) {
            return self.parts(parts).await;
        }
        let paused = self.pause().await?;
        let done = self.one_after_another(requests).await;
        if writes {
            self.resume(paused).await?
        } else {
            self.end_reading(paused)
        }
        done
    }

    /// Executes a transaction unless a key that its connection watches has changed.
    async fn watched(
        &mut self,
        transaction: &Transaction,
        watching: &Watching,
    ) -> Result<Vec<u8>, Refusal> {
        if let Some(refused) = self.read_ahead(transaction.requests()).await? {
            return Ok(refused);
        }
        self.refuse_long(transaction.requests()).await?;
        let paused = self.pause().await?;
        let done = match self.is_unchanged(watching).await {
            Err(refusal) => Err(refusal),
            Ok(false) => Ok(self.encoded(|encoder| encoder.null_array())),
            Ok(true) => self.one_after_another(transaction.requests()).await,
        };
        self.resume(paused).await?;
        done
    }

    /// Rejects a transaction if the replies of its writes would exceed the client's limit.
    async fn refuse_long(&self, requests: &[Queued]) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        let mut bytes = 0;
        for command in requests.iter().map(|queued| queued.command.command()) {
            let Some(key) = key_of_answer(command) else {
                continue;
            };
            if self.core.tables.is_computed(key) || self.core.tables.is_mapped(key) {
                continue;
            }
            let reply = self.one(Id::StrLen, &[key]).await?;
            // Other errors appear in the command's own reply.
            bytes += replies::number(&reply).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0));
            if bytes > limits.answer() {
                return Err(limits.too_long());
            }
        }
        Ok(())
    }

    /// Returns whether all watched keys are unchanged. Called in a pause.
    async fn is_unchanged(&self, watching: &Watching) -> Result<bool, Refusal> {
        let handle = &self.core.shared.tables;
        if watching.has_moved(&self.core.tables) {
            return Ok(false);
        }
        for core in 0..self.cores() {
            let part = watching.part(|key| self.owner(key) == core);
            let (ticket, shared) = (self.ticket, self.core.shared.clone());
            let holds = handle.start_on(core, ticket, move |tables| async move {
                let postgres = shared.postgres.as_ref();
                part.part_is_unchanged(&tables, postgres, ticket).await
            });
            if !holds.await.map_err(|_| gone())? {
                return Ok(false);
            }
        }
        Ok(watching.stores_are_unchanged(&self.core.shared.catalog.load()))
    }

    /// Executes the requests in order, in a pause.
    async fn one_after_another(&mut self, requests: &[Queued]) -> Result<Vec<u8>, Refusal> {
        let mut all = self.encoded(|encoder| encoder.array(requests.len()));
        for queued in requests {
            let command = queued.command.command();
            if let (false, Err((code, message))) = (command.writes(), self.bound(&all)) {
                all.extend(self.encoded(|encoder| encoder.error(code, &message)));
                continue;
            }
            if let Some(answer) = &queued.answer {
                all.extend_from_slice(answer);
                continue;
            }
            if !self.is_of_tables(command) {
                all.extend(self.elsewhere(command).await?);
                continue;
            }
            let core = match self.route(command).map(|route| route.to) {
                // A single core has all data.
                None if !spaces::is_of_spaces(command) => Some(self.core.index),
                Some(To::Core(core)) if core < self.cores() => Some(core),
                _ => None,
            };
            let reply = match core {
                Some(core) => {
                    let mut incoming = self.ask(core, command.into(), Execution::ToEnd);
                    incoming.reply().await.ok_or_else(gone)
                }
                None => Box::pin(self.execute(command)).await,
            };
            match reply {
                Ok(reply) => self.put(&mut all, command, queued.with_stores(reply)),
                // The remaining requests are not executed.
                Err(_) if self.is_late() => return Err(gone()),
                Err((code, message)) => {
                    all.extend(self.encoded(|encoder| encoder.error(code, &message)));
                }
            }
        }
        Ok(all)
    }

    /// Appends the reply of an executed command, or an error if it is too long.
    fn put(&self, all: &mut Vec<u8>, command: Command<'_>, reply: Vec<u8>) {
        let limits = self.core.clients.limits;
        if limits.fits(all.len(), reply.len()) {
            return all.extend(reply);
        }
        all.extend(as_reply(if command.writes() {
            limits.executed(command.name(), reply.len())
        } else {
            limits.too_long()
        }));
    }

    /// Returns the core of each request, if each needs a single core and reads no outputs. Requests of different cores
    /// are then independent.
    fn by_core<'r>(&self, requests: &'r [Queued]) -> Option<Vec<(usize, Command<'r>)>> {
        let core = |queued: &'r Queued| {
            let command = queued.command.command();
            if queued.stores.is_some() || !self.is_of_tables(command) {
                return None;
            }
            match self.route(command)? {
                Route {
                    to: To::Core(core),
                    reads_outputs: false,
                } if core < self.cores() => Some((core, command)),
                _ => None,
            }
        };
        requests.iter().map(core).collect()
    }

    /// Executes a transaction on all its cores concurrently, with one message to each.
    async fn parts(&mut self, requests: Vec<(usize, Command<'_>)>) -> Result<Vec<u8>, Refusal> {
        let mut parts = vec![Batch::default(); self.cores()];
        for (core, command) in &requests {
            parts[*core].push(*command);
        }
        let mut all = self.encoded(|encoder| encoder.array(requests.len()));
        let paused = self.pause_all().await?;
        let mut incoming = self.ask_each(parts, Execution::TransactionPart);
        let mut is_whole = true;
        for (core, command) in requests {
            let incoming = incoming[core].as_mut().ok_or_else(gone)?;
            match incoming.reply().await {
                Some(reply) => self.put(&mut all, command, reply),
                None => is_whole = false,
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
        paused.finish_taken(changes, tables, gate).await?;
        if is_whole { Ok(all) } else { Err(gone()) }
    }

    /// Makes the cores load the rows of mapped tables that a transaction reads, because nothing is loaded during a
    /// pause. Returns an error reply if that fails.
    async fn read_ahead(&mut self, requests: &[Queued]) -> Result<Option<Vec<u8>>, Refusal> {
        if self.core.shared.postgres.is_none() {
            return Ok(None);
        }
        for some in requests.chunks(READ_AHEAD_MAX) {
            if let Some(refused) = self.read_some_ahead(some).await? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Loads rows for some of the requests, on all cores concurrently. If other pauses interrupt the loading, all cores
    /// wait together.
    async fn read_some_ahead(&mut self, requests: &[Queued]) -> Result<Option<Vec<u8>>, Refusal> {
        let (mut asked, mut of_several) = (Vec::new(), Vec::new());
        for command in requests.iter().map(|queued| queued.command.command()) {
            let is_of_spaces = spaces::is_of_spaces(command);
            if command.writes() || !self.is_of_tables(command) || is_of_spaces {
                continue;
            }
            match self.route(command).map(|route| route.to) {
                Some(To::Core(core)) => {
                    if core < self.cores() {
                        asked.push(self.ask(core, command.into(), Execution::Prefetch));
                    }
                }
                Some(To::Several) => of_several.push(command),
                // The command will be rejected.
                Some(To::Nodes | To::Nobody) | None => {}
            }
        }
        let replies = all_replies(asked).await?;
        let refused = replies.into_iter().find(|it| it.starts_with(b"-"));
        for command in of_several {
            // Other errors are returned by the transaction itself.
            match Box::pin(self.execute(command)).await {
                Ok(reply) if reply.starts_with(b"-SOURCE ") => return Ok(Some(reply)),
                Err((Code::Source, why)) => return Err((Code::Source, why)),
                _ => {}
            }
        }
        Ok(refused)
    }

    pub(super) fn is_of_tables(&self, command: Command<'_>) -> bool {
        About::of(&self.core.shared.catalog.load(), command).has_rows()
    }

    /// Executes a command of a transaction that concerns no table.
    pub(super) async fn elsewhere(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        if command.spec.adds_up_figures() {
            let publish = |tables: Rc<Tables>| async move { tables.publish_figures() };
            let published = self.core.shared.tables.run_on_all(self.ticket, publish);
            published.await.map_err(stopping)?;
        }
        let mut apart = State::new(self.core.clone(), self.client.clone(), true);
        apart.proto = self.proto;
        apart.output.has_holes = true;
        let snapshot = self.core.shared.catalog.load();
        transaction::answer(&mut apart, &snapshot, command);
        self.proto = apart.proto;
        self.closing |= apart.closing;
        Ok(std::mem::take(&mut apart.output.tail))
    }

    pub(super) fn route(&self, command: Command<'_>) -> Option<Route> {
        let (tables, snapshot) = (&self.core.tables, self.core.shared.catalog.load());
        Some(route(tables, &*tables.shard()?, &snapshot, command))
    }

    /// Returns the only core that the transaction needs: it has all rows, and nothing must be computed.
    fn only_core(&self, transaction: &Transaction) -> Option<usize> {
        let mut only = None;
        for queued in transaction.requests() {
            let command = queued.command.command();
            if matches!(command.id(), Id::Ping | Id::Echo) {
                continue;
            }
            let has_stores = queued.answer.is_some() || queued.stores.is_some();
            if has_stores || !self.is_of_tables(command) {
                return None;
            }
            match self.route(command)? {
                Route {
                    to: To::Core(core),
                    reads_outputs: false,
                } if only.is_none_or(|only| only == core) => only = Some(core),
                _ => return None,
            }
        }
        Some(only.unwrap_or(self.core.index))
    }
}
