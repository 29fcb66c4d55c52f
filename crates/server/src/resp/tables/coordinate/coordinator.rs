//! Executes one command on the cores that own its rows, and combines their replies.

use std::rc::Rc;

use larder_protocol::commands::{Batch, Command, Id, Keys};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use tokio::time::Instant;

use super::super::super::handlers::{self, Coordination};
use super::super::super::incoming::Incoming;
use super::super::super::reply_decoding;
use super::super::super::spaces::{self, QueryContext, QueryScope};
use super::super::super::subject::CommandSubject;
use super::super::joins::JoinChange;
use super::super::merge::Merge;
use super::super::partial_write::combined_error;
use super::super::range::{RangeQuery, check_flush, encode_header, encode_row};
use super::super::{joins, scan, slots_still_moving};
use super::{
    ATTEMPTS_MAX, Commands, Coordinator, LEAVING_MAX, MultiCoreRead, PAUSED_MAX, SLOTS_MOVED,
    are_consistent, collect_replies, core_stopped, nodes, trailing_argument, until_deadline,
};
use crate::tables::{Execution, PausedCores, Refusal, refusal, stopping};

impl Coordinator {
    pub(super) fn request_core(&self, to: usize, batch: Batch, execution: Execution) -> Incoming {
        let (core, client) = (&self.core, &self.client);
        let (proto, ticket, epoch) = (self.proto, self.ticket, self.epoch);
        let incoming =
            Incoming::request_core(core, to, batch, proto, client, ticket, execution, epoch);
        incoming.with_deadline(self.paused_until)
    }

    /// Returns whether the commands need a slot that is moving from this node to another.
    pub(super) fn needs_leaving_slot(&self) -> bool {
        let leaving = &self.core.shared.tables.outgoing_slots;
        if !leaving.has_any() {
            return false;
        }
        let (tables, snapshot) = (&self.core.tables, self.core.shared.catalog.load());
        let concerns = |command: Command<'_>| {
            let is_of_rows = CommandSubject::of(&snapshot, command).has_rows();
            is_of_rows && leaving.affects(command, |key| tables.is_computed(key))
        };
        match &self.commands {
            Commands::One(command) => concerns(command.command()),
            Commands::Transaction(transaction) => {
                let mut requests = transaction.requests().iter();
                requests.any(|queued| concerns(queued.command.command()))
            }
        }
    }

    /// Waits until the slots that are moving to another node have left, before anything is read.
    pub(super) async fn wait_while_leaving(&mut self) -> Result<(), Refusal> {
        let started_at = Instant::now();
        while self.needs_leaving_slot() {
            if started_at.elapsed() > LEAVING_MAX {
                return Err(slots_still_moving());
            }
            nodes::wait_for_change(&self.core, self.core.tables.map_epoch()).await;
            self.adopt_newest_map();
        }
        Ok(())
    }

    /// Adopts the newest map. A part that another node coordinates keeps the epoch of that node's map.
    pub(super) fn adopt_newest_map(&mut self) {
        self.shard = self.core.tables.shard();
        if !self.is_of_node {
            self.epoch = self.core.tables.map_epoch();
        }
    }

    /// Rejects a reply that exceeds the limit of one client.
    pub(super) fn check_reply_size(&self, reply: &[u8]) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        if reply.len() > limits.reply_bytes() {
            Err(limits.reply_too_long())
        } else {
            Ok(())
        }
    }

    pub(super) fn execution(&self) -> Execution {
        match self.ticket {
            None => Execution::OneByOne,
            Some(_) => Execution::Uninterrupted,
        }
    }

    pub(super) fn cores(&self) -> usize {
        self.core.shared.tables.cores()
    }

    /// Sends each core its part, if it has one.
    pub(super) fn request_cores(
        &self,
        parts: Vec<Batch>,
        execution: Execution,
    ) -> Vec<Option<Incoming>> {
        self.core.tables.send_exchange();
        let send = |(core, part): (usize, Batch)| {
            (!part.is_empty()).then(|| self.request_core(core, part, execution))
        };
        parts.into_iter().enumerate().map(send).collect()
    }

    pub(super) fn owner(&self, key: &[u8]) -> usize {
        let shard = self.shard.as_ref();
        shard.map_or(0, |shard| usize::from(shard.owner_of(key)))
    }

    /// # Errors
    /// The ownership has changed since the command started.
    pub(super) fn check_shard(&self) -> Result<(), Refusal> {
        let is_same = match (&self.shard, self.core.tables.shard()) {
            (Some(before), Some(now)) => Rc::ptr_eq(before, &now),
            (before, now) => before.is_none() && now.is_none(),
        };
        if is_same {
            Ok(())
        } else {
            Err((Code::TryAgain, SLOTS_MOVED.to_owned()))
        }
    }

    /// # Errors
    /// Another node owns some of the keys by now.
    pub(super) fn check_owners(&self, command: Command<'_>) -> Result<(), Refusal> {
        let mut keys = command.keys();
        if keys.all(|key| self.owner(key) < self.cores()) {
            Ok(())
        } else {
            Err((Code::TryAgain, SLOTS_MOVED.to_owned()))
        }
    }

    pub(super) async fn execute(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        use Coordination::{Elements, Functions, Rejected, Spaces, Sum};
        let coordination = handlers::find(command).coordination;
        if let Spaces(_, function) = coordination {
            return function(&mut self.query_context(QueryScope::Alone), command).await;
        }
        self.check_owners(command)?;
        if let Some(core) = self.mapped_core(command) {
            let mut incoming = self.request_core(core, command.into(), self.execution());
            return incoming.reply().await.ok_or_else(core_stopped);
        }
        if command.writes() && self.ticket.is_none() {
            // Checked before the pause, which involves all cores.
            self.core.tables.ensure_writes_accepted()?;
        }
        match coordination {
            Sum | Elements if command.writes() => {
                self.refuse_computed_rows(command.keys())?;
                Ok(self.execute_divided(command).await?.0)
            }
            Sum | Elements if self.ticket.is_none() => self.read_consistently(command).await,
            Sum | Elements => Ok(self.execute_divided(command).await?.0),
            Functions {
                cores: Some(function),
                ..
            } => function(self, command).await,
            Functions { cores: None, .. } | Rejected | Spaces(..) => Err((
                Code::BadRequest,
                format!("{} cannot be executed over several cores", command.name()),
            )),
        }
    }

    /// Executes a command on its cores, each of which executes it on its keys or rows, and combines the replies.
    async fn execute_divided(&self, command: Command<'_>) -> Result<MultiCoreRead, Refusal> {
        match handlers::find(command).coordination {
            Coordination::Elements => self.mget(command).await,
            _ if command.keys().len() > 0 => {
                self.sum_replies(command, self.divide_by_owner(command))
                    .await
            }
            _ => {
                self.sum_replies(command, self.copy_for_each_core(command))
                    .await
            }
        }
    }

    /// Executes JOIN.CREATE and JOIN.DROP.
    pub(in crate::resp) async fn define_join(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        self.define(JoinChange::parse(command.id(), command.request)?)
            .await
    }

    pub(in crate::resp) async fn join_info(
        &self,
        request: Request<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let joins = self.core.shared.tables.joins(self.ticket).await;
        let name = joins::parse_text(request.arg(1))?;
        let joins = joins.map_err(stopping)?;
        let Some(join) = joins.iter().find(|join| join.name == name) else {
            let name = name.to_owned();
            return Err(refusal(larder_join::Error::UnknownJoin { name }));
        };
        Ok(self.encode(|encoder| joins::encode_join(encoder, join)))
    }

    pub(super) fn query_context(&self, scope: QueryScope) -> QueryContext {
        QueryContext {
            core: self.core.clone(),
            client: self.client.clone(),
            proto: self.proto,
            scope: if self.is_of_node {
                QueryScope::Part { epoch: self.epoch }
            } else {
                scope
            },
            ticket: self.ticket,
        }
    }

    /// Drops the spaces that a FLUSHALL drops.
    pub(super) async fn drop_spaces(
        &self,
        command: Command<'_>,
        scope: QueryScope,
    ) -> Result<(), Refusal> {
        if self.is_of_node || !spaces::must_drop_spaces(&self.core) {
            return Ok(());
        }
        check_flush(command.request)?;
        if self.ticket.is_some() {
            return Err(spaces::flush_in_multi_refusal(command.name()));
        }
        spaces::drop_all(&self.query_context(scope)).await
    }

    /// Returns the core that executes the complete command if its keys are of mapped tables. One core can load all
    /// their rows, and PostgreSQL executes a write of several keys atomically. That core rejects a write that also
    /// concerns other tables.
    pub(super) fn mapped_core(&self, command: Command<'_>) -> Option<usize> {
        let takes_all_keys = command.spec.keys == Keys::Every || command.id() == Id::MSet;
        let mut keys = command.keys();
        let is_mapped = |key| self.core.tables.is_mapped(key);
        let first = keys.next()?;
        let is_mapped_command = if command.writes() {
            is_mapped(first) || keys.any(is_mapped)
        } else {
            is_mapped(first) && keys.all(is_mapped)
        };
        (takes_all_keys && is_mapped_command).then(|| self.owner(first))
    }

    /// Reads keys or counts rows of several cores at one moment. If transactions keep interfering, the cores are
    /// paused.
    pub(super) async fn read_consistently(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let (reply, is_consistent) = self.execute_divided(command).await?;
            if is_consistent {
                return Ok(reply);
            }
        }
        let paused = self.pause().await?;
        let reply = match self.ensure_owners(command).await {
            Ok(()) => Box::pin(self.execute(command)).await,
            Err(refusal) => Err(refusal),
        };
        self.resume_unchanged(paused);
        reply
    }

    /// Checks, during a pause, that each core owns the rows that it owned by the map of [`Self::epoch`], for a command
    /// on rows that every core has.
    ///
    /// # Errors
    /// Rows have moved since, or have not arrived yet.
    pub(super) async fn ensure_owners(&self, command: Command<'_>) -> Result<(), Refusal> {
        if command.keys().len() > 0 {
            return Ok(());
        }
        let epoch = self.epoch;
        let handle = &self.core.shared.tables;
        handle.ensure_owners_since(self.ticket, epoch).await
    }

    /// Divides a command on keys into one command for each core that owns some of them.
    pub(super) fn divide_by_owner(&self, command: Command<'_>) -> Vec<Batch> {
        let mut args: Vec<Vec<&[u8]>> = vec![vec![command.arg(0)]; self.cores()];
        for key in command.keys() {
            args[self.owner(key)].push(key);
        }
        let last = trailing_argument(command);
        let mut parts = vec![Batch::default(); self.cores()];
        for (part, mut args) in parts.iter_mut().zip(args) {
            if args.len() > 1 {
                args.extend(last);
                part.push_args(command.spec, args.iter().copied());
            }
        }
        parts
    }

    /// Returns the same command for each core.
    pub(super) fn copy_for_each_core(&self, command: Command<'_>) -> Vec<Batch> {
        vec![command.into(); self.cores()]
    }

    pub(in crate::resp) fn encode(&self, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let (mut out, proto) = (Vec::new(), self.proto);
        write(&mut Encoder {
            out: &mut out,
            proto,
        });
        out
    }

    pub(super) async fn mget(&self, command: Command<'_>) -> Result<MultiCoreRead, Refusal> {
        let mut all_incoming = self.request_cores(self.divide_by_owner(command), self.execution());
        let mut part_replies = Vec::with_capacity(all_incoming.len());
        for incoming in &mut all_incoming {
            let reply = match incoming {
                None => Vec::new(),
                Some(incoming) => incoming.reply().await.ok_or_else(core_stopped)?,
            };
            if reply.first() == Some(&b'-') {
                return Ok((reply, true));
            }
            part_replies.push(reply);
        }
        let values = part_replies.iter().map(|reply| {
            if reply.is_empty() {
                Some(Vec::new().into_iter())
            } else {
                reply_decoding::decode_elements(reply).map(Vec::into_iter)
            }
        });
        let mut values = values
            .collect::<Option<Vec<_>>>()
            .ok_or_else(core_stopped)?;
        let mut all = self.encode(|encoder| encoder.array(command.keys().len()));
        for key in command.keys() {
            let value = values[self.owner(key)].next().ok_or_else(core_stopped)?;
            all.extend_from_slice(value);
            self.check_reply_size(&all)?;
        }
        Ok((all, are_consistent(all_incoming.iter().flatten())))
    }

    /// Adds up the cores' replies, which are numbers.
    pub(super) async fn sum_replies(
        &self,
        command: Command<'_>,
        parts: Vec<Batch>,
    ) -> Result<MultiCoreRead, Refusal> {
        let mut all = self.request_cores(parts, self.execution());
        let mut replies = Vec::with_capacity(all.len());
        for incoming in all.iter_mut().flatten() {
            replies.push(incoming.reply().await.ok_or_else(core_stopped)?);
        }
        let is_consistent = are_consistent(all.iter().flatten());
        Ok((self.add_replies(command, 0, &replies), is_consistent))
    }

    /// Returns the sum of the replies, or the error if some of them are errors.
    pub(super) fn add_replies(
        &self,
        command: Command<'_>,
        more: i64,
        replies: &[Vec<u8>],
    ) -> Vec<u8> {
        let numbers = replies
            .iter()
            .filter_map(|reply| reply_decoding::decode_integer(reply));
        let sum = numbers.sum::<i64>() + more;
        combined_error(command, replies)
            .unwrap_or_else(|| self.encode(|encoder| encoder.integer(sum)))
    }

    /// Removes all rows, on each core separately.
    pub(in crate::resp) async fn flush(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        self.drop_spaces(command, QueryScope::Alone).await?;
        let incoming = self.request_cores(self.copy_for_each_core(command), self.execution());
        let replies = collect_replies(incoming.into_iter().flatten()).await?;
        let refused = combined_error(command, &replies);
        Ok(refused.unwrap_or_else(|| self.encode(|encoder| encoder.ok())))
    }

    /// Pauses the cores, unless they are already paused.
    pub(in crate::resp) async fn pause(&mut self) -> Result<Option<PausedCores>, Refusal> {
        match self.ticket {
            Some(_) => Ok(None),
            None => self.pause_all().await.map(Some),
        }
    }

    pub(super) async fn pause_all(&mut self) -> Result<PausedCores, Refusal> {
        let paused = PausedCores::pause_all(&self.core.shared.tables).await;
        let paused = paused.map_err(stopping)?;
        // No view is applied during a pause, so the check remains valid.
        if self.check_shard().is_err() || self.needs_leaving_slot() {
            paused.resume_after_reads();
            return Err((Code::TryAgain, SLOTS_MOVED.to_owned()));
        }
        self.ticket = Some(paused.ticket);
        let is_of_cluster = self.core.tables.is_replicated();
        self.paused_until = is_of_cluster.then(|| Instant::now() + PAUSED_MAX);
        Ok(paused)
    }

    /// Returns whether a pause has lasted too long.
    pub(super) fn is_pause_overdue(&self) -> bool {
        self.paused_until
            .is_some_and(|until| Instant::now() >= until)
    }

    /// Resets the state after a pause.
    pub(super) fn end_pause(&mut self) {
        (self.ticket, self.paused_until) = (None, None);
    }

    /// Logs the changes, and resumes the cores that this command paused.
    pub(in crate::resp) async fn resume(
        &mut self,
        paused: Option<PausedCores>,
    ) -> Result<(), Refusal> {
        match paused {
            None => Ok(()),
            Some(paused) => {
                self.end_pause();
                paused.finish(&self.core.tables, &mut self.gate).await
            }
        }
    }

    /// As [`Coordinator::resume`], for commands that wrote nothing: does not wait for the cores to confirm.
    pub(super) fn resume_unchanged(&mut self, paused: Option<PausedCores>) {
        if let Some(paused) = paused {
            self.end_pause();
            paused.resume_after_reads();
        }
    }

    /// Returns all rows of a range, in a transaction.
    pub(in crate::resp) async fn read_range(
        &self,
        request: Request<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let query = RangeQuery::parse(request)?;
        let handle = &self.core.shared.tables;
        let pause = self.ticket.map(|ticket| (ticket, self.paused_until));
        let mut merge = Merge::begin(handle, &query, self.epoch, pause, &self.client).await?;
        let (form, rows) = (query.form, merge.left);
        let mut all = self.encode(|encoder| encode_header(encoder, form, rows));
        while let Some((key, value)) = merge.next().await? {
            all.extend(self.encode(|encoder| encode_row(encoder, form, &key, &value)));
            self.check_reply_size(&all)?;
        }
        Ok(all)
    }

    /// Returns whether one core has or computes all rows of a table.
    pub(super) fn has_single_core(&self, table: &[u8]) -> bool {
        let tables = &self.core.tables;
        tables.is_computed(table) || tables.is_mapped(table)
    }

    pub(in crate::resp) async fn scan(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let handle = &self.core.shared.tables;
        if self.is_of_node {
            let walk = scan::KeyWalk::parse_part(request)?;
            let keys = self.collect_keys(&walk).await?;
            return Ok(self.encode(|encoder| scan::encode_part(encoder, &keys)));
        }
        let walk = scan::KeyWalk::parse(request, &handle.cursors())?;
        let mut keys = self.collect_keys(&walk).await?;
        let cursor = walk.take_page(&mut keys, &mut handle.cursors());
        Ok(self.encode(|encoder| walk.encode_page(encoder, cursor, &keys)))
    }

    /// Returns the next keys of the cores, in order.
    pub(super) async fn collect_keys(
        &self,
        walk: &scan::KeyWalk,
    ) -> Result<Vec<scan::FoundKey>, Refusal> {
        let handle = &self.core.shared.tables;
        let home = match &walk.only_table {
            Some(name) if self.has_single_core(name) => Some(self.owner(name)),
            _ => None,
        };

        let (epoch, mut keys) = (self.epoch, Vec::new());
        for core in (0..self.cores()).filter(|&core| home.is_none_or(|home| home == core)) {
            let (walk, ticket) = (walk.clone(), self.ticket);
            let shared = self.core.shared.clone();
            let part = handle.start_on(core, ticket, move |tables| async move {
                let postgres = shared.postgres.as_ref();
                let read = tables.read_when_available(ticket, postgres, |engine, now| {
                    // A row that moves during the read is then in the part of at least one core or node.
                    tables.ensure_owner_since(epoch)?;
                    walk.read_keys(engine, now)
                });
                let keys = read.await?;
                tables.wait_until_committed().await?;
                Ok(keys)
            });
            let part = until_deadline(self.paused_until, part)
                .await
                .ok_or_else(core_stopped)?;
            let part: Result<Vec<scan::FoundKey>, Refusal> = part.map_err(|_| core_stopped())?;
            keys.extend(part?);
        }
        keys.sort_unstable();
        Ok(keys)
    }
}
