//! Commands over several nodes of a cluster. Each node executes its part as it would for its own client. No command is
//! atomic over several nodes: commands that would have to be are rejected. A write that some nodes have executed and
//! others rejected returns `UNKNOWN` with an explanation.
//!
//! | command | each node | combined |
//! |---|---|---|
//! | MGET | its keys, at one moment of its own | in the order of the keys |
//! | EXISTS, TOUCH, DEL, UNLINK | its keys | the sum |
//! | RANGECOUNT, RANGEDEL, DBSIZE | its rows | the sum |
//! | RANGE | its rows, as the client reads them | merged (see `merge`) |
//! | KEYS, SCAN | its keys | in order |
//! | FLUSHALL, FLUSHDB | its rows | done |
//! | JOIN.CREATE, JOIN.DROP | follows the map | the controller changes the map |
//! | FT.\* | its objects | merged (see `resp/spaces`) |

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_cluster::map::NodeId;
use larder_protocol::commands::{Batch, Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};

use super::super::super::core::Core;
use super::super::super::incoming::Incoming;
use super::super::super::mixed::Split;
use super::super::super::nodes::{Target, Wanted};
use super::super::super::place::{is_on_its_way, place_of, record_place};
use super::super::super::replies;
use super::super::super::spaces::{self, Reach};
use super::super::super::subject::{About, is_of_table};
use super::super::joins::JoinChange;
use super::super::partly::refused;
use super::super::transaction::Transaction;
use super::super::watch::Watching;
use super::super::{To, not_served, of_several_nodes, scan, still_moving};
use super::patience::Patience;
use super::{Coordinator, all_replies, behind_keys, gone};
use crate::catalog::Snapshot;
use crate::clients::Client;
use crate::tables::{Execution, Refusal};

/// The part of a command for one node, with the place to which it is sent.
struct Part<'a> {
    node: NodeId,
    place: u16,
    args: Vec<&'a [u8]>,
}

impl Coordinator {
    /// Executes a command that concerns several nodes.
    async fn over_nodes(
        &mut self,
        snapshot: Arc<Snapshot>,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        if About::of(&snapshot, command) == About::Both {
            return self.of_stores_and_tables(command).await;
        }
        if spaces::is_of_spaces(command) {
            return self.of_spaces(command, Reach::Nodes).await;
        }
        match command.id() {
            Id::MGet | Id::JsonMGet => self.mget_of_nodes(&snapshot, command).await,
            Id::Exists | Id::Touch | Id::Del | Id::Unlink => {
                let (parts, _) = self.parts_by_node(&snapshot, command)?;
                let versions = versions(&snapshot, command);
                // All requests are sent before the first reply is awaited.
                let asked: Vec<Incoming> = parts
                    .iter()
                    .map(|part| self.ask_part(command, part, &versions))
                    .collect();
                let replies = all_replies(asked).await?;
                Ok(self.added(command, 0, &replies))
            }
            Id::RangeCount | Id::RangeDel | Id::DbSize => self.sum_of_nodes(command).await,
            Id::FlushDb | Id::FlushAll => {
                self.drop_spaces(command, Reach::Nodes).await?;
                let replies = self.ask_nodes(command.into()).await?;
                let refused = refused(command, &replies);
                Ok(refused.unwrap_or_else(|| self.encoded(|encoder| encoder.ok())))
            }
            Id::Keys => self.keys_of_nodes(command).await,
            Id::RandomKey => {
                let replies = self.ask_nodes(command.into()).await?;
                let is_key = |reply: &&Vec<u8>| replies::value(reply).is_some();
                let found: Vec<&Vec<u8>> = replies.iter().filter(is_key).collect();
                let drawn = (!found.is_empty()).then(|| found[scan::draw(found.len())].clone());
                Ok(drawn.unwrap_or_else(|| self.encoded(|encoder| encoder.null())))
            }
            Id::Scan => self.scan_nodes(command.request).await,
            Id::JoinCreate | Id::JoinDrop => {
                let change = JoinChange::of(command)?;
                let (shared, tables) = (&self.core.shared, &self.core.tables);
                super::define::define_in_cluster(shared, tables, &change).await?;
                Ok(self.encoded(|encoder| encoder.ok()))
            }
            _ => Err(of_several_nodes(command.name())),
        }
    }

    /// Returns the keys of a command by node, and the index of each key's part.
    fn parts_by_node<'a>(
        &self,
        snapshot: &Snapshot,
        command: Command<'a>,
    ) -> Result<(Vec<Part<'a>>, Vec<usize>), Refusal> {
        let tables = &self.core.tables;
        let view = tables.view().ok_or_else(gone)?;
        let mut parts: Vec<Part<'a>> = Vec::new();
        let mut part_of = Vec::with_capacity(command.len());
        for key in command.keys() {
            let place = if is_of_table(snapshot, key) {
                let computing = view.computing.as_ref().filter(|_| tables.is_computed(key));
                let owners = computing.unwrap_or(&view.owners);
                usize::from(owners.of(larder_join::row_slot(key)))
            } else {
                record_place(&self.core, &view, snapshot, key, &[])
            } as u16;
            let node = view
                .places
                .get(place)
                .ok_or_else(|| not_served(&self.core))?
                .node;
            let known = parts.iter().position(|part| part.node == node);
            let number = known.unwrap_or_else(|| {
                let args = vec![command.arg(0)];
                parts.push(Part { node, place, args });
                parts.len() - 1
            });
            parts[number].args.push(key);
            part_of.push(number);
        }
        for part in &mut parts {
            part.args.extend(behind_keys(command));
        }
        Ok((parts, part_of))
    }

    fn ask_part(
        &self,
        command: Command<'_>,
        part: &Part<'_>,
        versions: &[(String, u64)],
    ) -> Incoming {
        let mut batch = Batch::default();
        batch.push_args(command.spec, part.args.iter().copied());
        let mut wanted = Wanted::of(batch, self.proto, &self.client);
        wanted.versions = versions.to_vec();
        Incoming::routed(&self.core, Some(part.place), wanted)
    }

    async fn mget_of_nodes(
        &self,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let (parts, part_of) = self.parts_by_node(snapshot, command)?;
        let versions = versions(snapshot, command);
        let mut asked: Vec<Incoming> = parts
            .iter()
            .map(|part| self.ask_part(command, part, &versions))
            .collect();
        let mut answers = Vec::with_capacity(parts.len());
        for incoming in &mut asked {
            let reply = incoming.reply().await.ok_or_else(gone)?;
            if reply.first() == Some(&b'-') {
                return Ok(reply);
            }
            answers.push(reply);
        }
        let elements = answers
            .iter()
            .map(|reply| replies::elements(reply).map(Vec::into_iter));
        let mut values = elements.collect::<Option<Vec<_>>>().ok_or_else(gone)?;
        let mut all = self.encoded(|encoder| encoder.array(command.keys().len()));
        for part in part_of {
            all.extend_from_slice(values[part].next().ok_or_else(gone)?);
            self.bound(&all)?;
        }
        Ok(all)
    }

    async fn sum_of_nodes(&self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let replies = self.ask_nodes(command.into()).await?;
        let mut records = 0;
        if command.id() == Id::DbSize {
            // Each node counts only its rows; every node knows the records of all stores.
            let snapshot = self.core.shared.catalog.load();
            let counts = snapshot
                .iter()
                .map(|live| live.version.manifest().record_count);
            records = counts.sum::<u64>() as i64;
        }
        Ok(self.added(command, records, &replies))
    }

    /// Sends every node its part, and retries until all have executed it by the same ownership.
    async fn ask_nodes(&self, batch: Batch) -> Result<Vec<Vec<u8>>, Refusal> {
        ask_nodes(&self.core, &self.client, self.proto, batch).await
    }

    async fn keys_of_nodes(&self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        scan::refuse_store(&self.core.shared.catalog.load(), command.arg(1))?;
        let mut keys = Vec::new();
        for reply in self.ask_nodes(command.into()).await? {
            match keys_in(&reply) {
                Some(more) => keys.extend(more),
                None => return Ok(reply),
            }
        }
        keys.sort_unstable();
        Ok(self.encoded(|encoder| scan::answer_keys(encoder, &keys)))
    }

    async fn scan_nodes(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let handle = &self.core.shared.tables;
        let walk = scan::Walk::parse(request, &handle.cursors())?;
        let part = walk.part();
        let mut batch = Batch::default();
        let spec = larder_protocol::commands::spec(Id::Scan);
        batch.push_args(spec, part.iter().map(Vec::as_slice));
        let mut keys = Vec::new();
        for reply in self.ask_nodes(batch).await? {
            match keys_in(&reply) {
                Some(more) => keys.extend(more.into_iter().map(scan::Walked::decode)),
                None => return Ok(reply),
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let cursor = walk.next(&mut keys, &mut handle.cursors());
        Ok(self.encoded(|encoder| walk.answer(encoder, cursor, &keys)))
    }

    /// Executes a read of stores and tables as two commands, each on the nodes of its keys.
    async fn of_stores_and_tables(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let split = Split::of(&self.one_snapshot(), command);
        let rows = Box::pin(self.anywhere(split.rows.command())).await?;
        let stores = Box::pin(self.anywhere(split.stores.command())).await?;
        split.join(&rows, &stores).ok_or_else(gone)
    }

    /// Returns the snapshot for all parts of the command, so that this node and others answer from one version of a
    /// store.
    fn one_snapshot(&mut self) -> Arc<Snapshot> {
        let load = || self.core.shared.catalog.load().clone();
        self.snapshot.get_or_insert_with(load).clone()
    }

    /// Executes a command on the nodes of its keys. A read is retried while its slots move.
    pub(super) async fn anywhere(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let mut patience = Patience::new(&self.core);
        loop {
            let epoch = self.core.tables.epoch_of_map();
            let reply = self.anywhere_once(command).await;
            let has_moved = match &reply {
                Ok(reply) => reply.starts_with(b"-TRYAGAIN "),
                Err((code, _)) => *code == Code::TryAgain,
            };
            if !has_moved || command.writes() || patience.is_over(&self.core) {
                return reply;
            }
            wait_for_change(&self.core, epoch).await;
        }
    }

    async fn anywhere_once(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let snapshot = self.one_snapshot();
        self.follow_map();
        match place_of(&self.core, &snapshot, command) {
            To::Core(place) => {
                let mut wanted = Wanted::of(command.into(), self.proto, &self.client);
                wanted.versions = versions(&snapshot, command);
                let mut incoming = Incoming::routed(&self.core, Some(place as u16), wanted);
                incoming.reply().await.ok_or_else(gone)
            }
            To::Several => self.execute(command).await,
            To::Nodes => self.over_nodes(snapshot, command).await,
            To::Nobody if is_on_its_way(&self.core, command) => Err(still_moving()),
            To::Nobody => Err(not_served(&self.core)),
        }
    }

    /// Returns the place of another node that has all rows of a transaction; `None` if this node has them.
    ///
    /// # Errors
    /// Several nodes have them.
    pub(super) fn other_node(
        &self,
        transaction: &Transaction,
        watching: Option<&Watching>,
    ) -> Result<Option<u16>, Refusal> {
        let tables = &self.core.tables;
        let Some(view) = tables.view() else {
            return Ok(None);
        };
        let mut home: Option<(NodeId, u16)> = None;
        for queued in transaction.requests() {
            let command = queued.command.command();
            if queued.answer.is_some()
                || !self.is_of_tables(command)
                || command.keys().len() == 0 && command.range().is_none()
            {
                continue;
            }
            let place = match self.route(command).map(|route| route.to) {
                Some(To::Core(place)) => place as u16,
                Some(To::Nobody) => return Err(not_served(&self.core)),
                Some(To::Nodes) => return Err(of_several_nodes("EXEC")),
                _ => self.core.index as u16,
            };
            let node = view.places.get(place).map_or(view.me, |place| place.node);
            match home {
                Some((first, _)) if first != node => return Err(of_several_nodes("EXEC")),
                Some(_) => {}
                None => home = Some((node, place)),
            }
        }
        match home.filter(|(node, _)| *node != view.me) {
            None => Ok(None),
            Some(_) if watching.is_some() => Err(of_several_nodes("EXEC after WATCH")),
            Some((_, place)) => Ok(Some(place)),
        }
    }

    /// Executes a transaction on another node, which has all its rows. Commands without rows are executed on this node.
    pub(super) async fn on_other_node(
        &mut self,
        transaction: &Transaction,
        place: u16,
    ) -> Result<Vec<u8>, Refusal> {
        let requests = transaction.requests();
        let mut batch = Batch::default();
        let mut is_there = Vec::with_capacity(requests.len());
        for queued in requests {
            let command = queued.command.command();
            let there = queued.answer.is_none() && self.is_of_tables(command);
            is_there.push(there);
            if there {
                batch.push(command);
            }
        }
        let mut wanted = Wanted::of(batch, self.proto, &self.client);
        wanted.execution = Execution::Transaction;
        let mut incoming = Incoming::routed(&self.core, Some(place), wanted);
        let reply = incoming.reply().await.ok_or_else(gone)?;
        if is_there.iter().all(|there| *there) && requests.iter().all(|it| it.stores.is_none())
            || reply.first() == Some(&b'-')
        {
            return Ok(reply);
        }
        let mut there = replies::any_elements(&reply).ok_or_else(gone)?.into_iter();
        let mut all = self.encoded(|encoder| encoder.array(requests.len()));
        for (queued, is_there) in requests.iter().zip(is_there) {
            match (&queued.answer, is_there) {
                (Some(answer), _) => all.extend_from_slice(answer),
                (None, true) => {
                    let one = there.next().ok_or_else(gone)?.to_vec();
                    all.extend(queued.with_stores(one));
                }
                (None, false) => all.extend(self.elsewhere(queued.command.command()).await?),
            }
            self.bound(&all)?;
        }
        Ok(all)
    }
}

/// Sends every node its part, and retries until all have executed it by the same ownership.
///
/// # Errors
/// Some slots have no owner, or some nodes do not reply.
pub(in crate::resp) async fn ask_nodes(
    core: &Rc<Core>,
    client: &Arc<Client>,
    proto: Proto,
    batch: Batch,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut patience = Patience::new(core);
    loop {
        let places = places_awaited(core, &mut patience).await?.into_iter();
        let epoch = core.tables.epoch_of_map();
        let asked = places.map(|place| (place, batch.clone())).collect();
        let why = match ask_places(core, client, proto, asked).await {
            Ok(replies) => match moved(&replies) {
                Some(why) if !patience.is_over(core) => why,
                _ => return Ok(replies),
            },
            Err(why) => why?,
        };
        if patience.is_over(core) {
            return Err(if batch.iter().any(|command| command.writes()) {
                (
                    Code::Unknown,
                    format!(
                        "not all nodes answer, and those that do have done their part: {why}; send it again"
                    ),
                )
            } else {
                patience.refusal(&why)
            });
        }
        wait_for_change(core, epoch).await;
    }
}

/// Returns the error of a node that did not execute its part because slots have moved.
fn moved(replies: &[Vec<u8>]) -> Option<String> {
    let mut replies = replies.iter();
    let moved = replies.find(|reply| reply.starts_with(b"-TRYAGAIN "))?;
    Some(String::from_utf8_lossy(moved).trim_end().to_owned())
}

/// Sends each place its own part.
///
/// # Errors
/// The reason why a place did not execute its part, or that it has stopped.
pub(in crate::resp) async fn ask_places(
    core: &Rc<Core>,
    client: &Arc<Client>,
    proto: Proto,
    asked: Vec<(u16, Batch)>,
) -> Result<Vec<Vec<u8>>, Result<String, Refusal>> {
    let ask = |(place, batch)| {
        let mut wanted = Wanted::of(batch, proto, client);
        wanted.target = Target::Part(place);
        Incoming::routed(core, Some(place), wanted)
    };
    let asked: Vec<Incoming> = asked.into_iter().map(ask).collect();
    let (mut replies, mut not_done) = (Vec::new(), None);
    for mut incoming in asked {
        match incoming.reply().await {
            Some(reply) => replies.push(reply),
            None => {
                let why = incoming.not_done().map(str::to_owned);
                not_done = Some(why.ok_or_else(gone));
            }
        }
    }
    match not_done {
        Some(why) => Err(why),
        None => Ok(replies),
    }
}

/// Returns a place on each node that owns slots.
///
/// # Errors
/// Some slots have no owner.
pub(in crate::resp) fn places_of_nodes(core: &super::Core) -> Result<Vec<u16>, Refusal> {
    let tables = &core.tables;
    let (Some(view), Some(shard)) = (tables.view(), tables.shard()) else {
        return Ok(vec![core.index as u16]);
    };
    let mut nodes = Vec::new();
    let mut places = Vec::new();
    for number in shard.owners() {
        let place = view.places.get(number).ok_or_else(|| not_served(core))?;
        if !nodes.contains(&place.node) {
            nodes.push(place.node);
            // The part of this node starts on this core.
            places.push(if place.node == view.me {
                core.index as u16
            } else {
                number
            });
        }
    }
    Ok(places)
}

/// As [`places_of_nodes`]. Slots that this node is giving away have no owner until the next map or the one after it;
/// this function waits for these maps as long as `patience` lasts.
pub(in crate::resp) async fn places_awaited(
    core: &super::Core,
    patience: &mut Patience,
) -> Result<Vec<u16>, Refusal> {
    loop {
        let epoch = core.tables.epoch_of_map();
        let places = places_of_nodes(core);
        if places.is_ok() || !core.shared.tables.leaving.has_any() {
            return places;
        }
        if patience.is_over(core) {
            return Err(still_moving());
        }
        wait_for_change(core, epoch).await;
    }
}

/// Waits for a newer map, or for a short time.
pub(in crate::resp) async fn wait_for_change(core: &super::Core, epoch: u64) {
    let newer = core.tables.wait_for_epoch(epoch + 1);
    // After a timeout, the request is retried with the same map.
    let _ = tokio::time::timeout(Duration::from_millis(50), newer).await;
}

/// Returns the keys in a reply; `None` if it is an error.
fn keys_in(reply: &[u8]) -> Option<Vec<Vec<u8>>> {
    let elements = replies::elements(reply)?.into_iter();
    elements
        .map(|one| replies::value(one).map(<[u8]>::to_vec))
        .collect()
}

/// Returns the store versions from which a command is answered.
fn versions(snapshot: &Snapshot, command: Command<'_>) -> Vec<(String, u64)> {
    let mut versions: Vec<(String, u64)> = Vec::new();
    for key in command.keys() {
        let end = key.iter().position(|byte| *byte == b':').unwrap_or(0);
        let Some(live) = snapshot.get(&key[..end]) else {
            continue;
        };
        let name = live.name.as_str();
        if versions.iter().all(|(known, _)| known != name) {
            versions.push((name.to_owned(), live.version_id.0));
        }
    }
    versions
}
