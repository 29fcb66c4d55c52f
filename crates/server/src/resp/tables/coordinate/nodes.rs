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
use super::super::super::handlers::{self, Coordination};
use super::super::super::incoming::Incoming;
use super::super::super::mixed_reads::SplitRequest;
use super::super::super::nodes::{BatchTarget, RoutedBatch};
use super::super::super::place::{are_slots_moving, place_of, record_place};
use super::super::super::reply_decoding;
use super::super::super::spaces::QueryScope;
use super::super::super::subject::{CommandSubject, is_of_table};
use super::super::joins::JoinChange;
use super::super::partial_write::combined_error;
use super::super::transaction::Transaction;
use super::super::watch::WatchedKeys;
use super::super::{Destination, keys_on_several_nodes, scan, slot_not_served, slots_still_moving};
use super::retry_limit::RetryLimit;
use super::{Coordinator, collect_replies, core_stopped, trailing_argument};
use crate::catalog::Snapshot;
use crate::clients::Client;
use crate::tables::{Execution, Refusal};

/// The part of a command for one node, with the place to which it is sent.
struct NodePart<'a> {
    node: NodeId,
    place: u16,
    args: Vec<&'a [u8]>,
}

impl Coordinator {
    /// Executes a command that concerns several nodes.
    async fn execute_over_nodes(
        &mut self,
        snapshot: Arc<Snapshot>,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        if CommandSubject::of(&snapshot, command) == CommandSubject::Both {
            return self.read_stores_and_tables(command).await;
        }
        match handlers::find(command).coordination {
            Coordination::Spaces(_, function) => {
                function(&mut self.query_context(QueryScope::Nodes), command).await
            }
            Coordination::Elements => self.mget_over_nodes(&snapshot, command).await,
            Coordination::Sum if command.keys().len() > 0 => {
                self.sum_by_key(&snapshot, command).await
            }
            Coordination::Sum => {
                let replies = self.request_nodes(command.into()).await?;
                Ok(self.add_replies(command, 0, &replies))
            }
            Coordination::Functions {
                nodes: Some(function),
                ..
            } => function(self, command).await,
            Coordination::Functions { nodes: None, .. } | Coordination::Rejected => {
                Err(keys_on_several_nodes(command.name()))
            }
        }
    }

    /// Adds up the replies of the nodes of a command's keys.
    async fn sum_by_key(
        &self,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let (parts, _) = self.parts_by_node(snapshot, command)?;
        let versions = store_versions(snapshot, command);
        // All requests are sent before the first reply is awaited.
        let incoming: Vec<Incoming> = parts
            .iter()
            .map(|part| self.request_part(command, part, &versions))
            .collect();
        let replies = collect_replies(incoming).await?;
        Ok(self.add_replies(command, 0, &replies))
    }

    pub(in crate::resp) async fn flush_over_nodes(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        self.drop_spaces(command, QueryScope::Nodes).await?;
        let replies = self.request_nodes(command.into()).await?;
        let refused = combined_error(command, &replies);
        Ok(refused.unwrap_or_else(|| self.encode(|encoder| encoder.ok())))
    }

    pub(in crate::resp) async fn random_key_over_nodes(
        &self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let replies = self.request_nodes(command.into()).await?;
        let is_key = |reply: &&Vec<u8>| reply_decoding::decode_value(reply).is_some();
        let found: Vec<&Vec<u8>> = replies.iter().filter(is_key).collect();
        let chosen = (!found.is_empty()).then(|| found[scan::random_index(found.len())].clone());
        Ok(chosen.unwrap_or_else(|| self.encode(|encoder| encoder.null())))
    }

    /// Executes JOIN.CREATE and JOIN.DROP.
    pub(in crate::resp) async fn define_join_over_nodes(
        &self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let change = JoinChange::parse(command.id(), command.request)?;
        let (shared, tables) = (&self.core.shared, &self.core.tables);
        super::define::define_in_cluster(shared, tables, &change).await?;
        Ok(self.encode(|encoder| encoder.ok()))
    }

    /// Returns the keys of a command by node, and the index of each key's part.
    fn parts_by_node<'a>(
        &self,
        snapshot: &Snapshot,
        command: Command<'a>,
    ) -> Result<(Vec<NodePart<'a>>, Vec<usize>), Refusal> {
        let tables = &self.core.tables;
        let view = tables.view().ok_or_else(core_stopped)?;
        let mut parts: Vec<NodePart<'a>> = Vec::new();
        let mut part_of = Vec::with_capacity(command.len());
        for key in command.keys() {
            let place = if is_of_table(snapshot, key) {
                let computing = view.computing.as_ref().filter(|_| tables.is_computed(key));
                let owners = computing.unwrap_or(&view.owners);
                usize::from(owners.owner_of(larder_join::row_slot(key)))
            } else {
                record_place(&self.core, &view, snapshot, key, &[])
            } as u16;
            let node = view
                .places
                .get(place)
                .ok_or_else(|| slot_not_served(&self.core))?
                .node;
            let position = parts.iter().position(|part| part.node == node);
            let number = position.unwrap_or_else(|| {
                let args = vec![command.arg(0)];
                parts.push(NodePart { node, place, args });
                parts.len() - 1
            });
            parts[number].args.push(key);
            part_of.push(number);
        }
        for part in &mut parts {
            part.args.extend(trailing_argument(command));
        }
        Ok((parts, part_of))
    }

    fn request_part(
        &self,
        command: Command<'_>,
        part: &NodePart<'_>,
        versions: &[(String, u64)],
    ) -> Incoming {
        let mut batch = Batch::default();
        batch.push_args(command.spec, part.args.iter().copied());
        let mut routed = RoutedBatch::of(batch, self.proto, &self.client);
        routed.versions = versions.to_vec();
        Incoming::request_owner(&self.core, Some(part.place), routed)
    }

    async fn mget_over_nodes(
        &self,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let (parts, part_of) = self.parts_by_node(snapshot, command)?;
        let versions = store_versions(snapshot, command);
        let mut incoming_replies: Vec<Incoming> = parts
            .iter()
            .map(|part| self.request_part(command, part, &versions))
            .collect();
        let mut part_replies = Vec::with_capacity(parts.len());
        for incoming in &mut incoming_replies {
            let reply = incoming.reply().await.ok_or_else(core_stopped)?;
            if reply.first() == Some(&b'-') {
                return Ok(reply);
            }
            part_replies.push(reply);
        }
        let elements = part_replies
            .iter()
            .map(|reply| reply_decoding::decode_elements(reply).map(Vec::into_iter));
        let mut values = elements
            .collect::<Option<Vec<_>>>()
            .ok_or_else(core_stopped)?;
        let mut all = self.encode(|encoder| encoder.array(command.keys().len()));
        for part in part_of {
            all.extend_from_slice(values[part].next().ok_or_else(core_stopped)?);
            self.check_reply_size(&all)?;
        }
        Ok(all)
    }

    pub(in crate::resp) async fn db_size_over_nodes(
        &self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let replies = self.request_nodes(command.into()).await?;
        // Each node counts only its rows; every node knows the records of all stores.
        let snapshot = self.core.shared.catalog.load();
        let counts = snapshot
            .iter()
            .map(|live| live.version.manifest().record_count);
        let records = counts.sum::<u64>() as i64;
        Ok(self.add_replies(command, records, &replies))
    }

    /// Sends every node its part, and retries until all have executed it by the same ownership.
    async fn request_nodes(&self, batch: Batch) -> Result<Vec<Vec<u8>>, Refusal> {
        request_nodes(&self.core, &self.client, self.proto, batch).await
    }

    pub(in crate::resp) async fn keys_over_nodes(
        &self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        scan::refuse_store(&self.core.shared.catalog.load(), command.arg(1))?;
        let mut keys = Vec::new();
        for reply in self.request_nodes(command.into()).await? {
            match decode_keys(&reply) {
                Some(more) => keys.extend(more),
                None => return Ok(reply),
            }
        }
        keys.sort_unstable();
        Ok(self.encode(|encoder| scan::encode_keys(encoder, &keys)))
    }

    pub(in crate::resp) async fn scan_over_nodes(
        &self,
        request: Request<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let handle = &self.core.shared.tables;
        let walk = scan::KeyWalk::parse(request, &handle.cursors())?;
        let part = walk.part_args();
        let mut batch = Batch::default();
        let spec = larder_protocol::commands::spec(Id::Scan);
        batch.push_args(spec, part.iter().map(Vec::as_slice));
        let mut keys = Vec::new();
        for reply in self.request_nodes(batch).await? {
            match decode_keys(&reply) {
                Some(more) => keys.extend(more.into_iter().map(scan::FoundKey::decode)),
                None => return Ok(reply),
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let cursor = walk.take_page(&mut keys, &mut handle.cursors());
        Ok(self.encode(|encoder| walk.encode_page(encoder, cursor, &keys)))
    }

    /// Executes a read of stores and tables as two commands, each on the nodes of its keys.
    async fn read_stores_and_tables(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let split = SplitRequest::split(&self.pin_snapshot(), command);
        let rows = Box::pin(self.execute_on_owners(split.rows.command())).await?;
        let stores = Box::pin(self.execute_on_owners(split.stores.command())).await?;
        split.merge_replies(&rows, &stores).ok_or_else(core_stopped)
    }

    /// Returns the snapshot for all parts of the command, so that this node and others answer from one version of a
    /// store.
    fn pin_snapshot(&mut self) -> Arc<Snapshot> {
        let load = || self.core.shared.catalog.load().clone();
        self.snapshot.get_or_insert_with(load).clone()
    }

    /// Executes a command on the nodes of its keys. A read is retried while its slots move.
    pub(super) async fn execute_on_owners(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let mut retry_limit = RetryLimit::new(&self.core);
        loop {
            let epoch = self.core.tables.map_epoch();
            let reply = self.try_execute_on_owners(command).await;
            let has_moved = match &reply {
                Ok(reply) => reply.starts_with(b"-TRYAGAIN "),
                Err((code, _)) => *code == Code::TryAgain,
            };
            if !has_moved || command.writes() || retry_limit.is_exhausted(&self.core) {
                return reply;
            }
            wait_for_change(&self.core, epoch).await;
        }
    }

    async fn try_execute_on_owners(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let snapshot = self.pin_snapshot();
        self.adopt_newest_map();
        match place_of(&self.core, &snapshot, command) {
            Destination::Core(place) => {
                let mut routed = RoutedBatch::of(command.into(), self.proto, &self.client);
                routed.versions = store_versions(&snapshot, command);
                let mut incoming = Incoming::request_owner(&self.core, Some(place as u16), routed);
                incoming.reply().await.ok_or_else(core_stopped)
            }
            Destination::AllCores => self.execute(command).await,
            Destination::Nodes => self.execute_over_nodes(snapshot, command).await,
            Destination::Unavailable if are_slots_moving(&self.core, command) => {
                Err(slots_still_moving())
            }
            Destination::Unavailable => Err(slot_not_served(&self.core)),
        }
    }

    /// Returns the place of another node that has all rows of a transaction; `None` if this node has them.
    ///
    /// # Errors
    /// Several nodes have them.
    pub(super) fn find_other_node(
        &self,
        transaction: &Transaction,
        watched_keys: Option<&WatchedKeys>,
    ) -> Result<Option<u16>, Refusal> {
        let tables = &self.core.tables;
        let Some(view) = tables.view() else {
            return Ok(None);
        };
        let mut home: Option<(NodeId, u16)> = None;
        for queued in transaction.requests() {
            let command = queued.command.command();
            if queued.reply.is_some()
                || !self.concerns_tables(command)
                || command.keys().len() == 0 && command.range().is_none()
            {
                continue;
            }
            let place = match self.route(command).map(|route| route.destination) {
                Some(Destination::Core(place)) => place as u16,
                Some(Destination::Unavailable) => return Err(slot_not_served(&self.core)),
                Some(Destination::Nodes) => return Err(keys_on_several_nodes("EXEC")),
                _ => self.core.index as u16,
            };
            let node = view.places.get(place).map_or(view.me, |place| place.node);
            match home {
                Some((first, _)) if first != node => return Err(keys_on_several_nodes("EXEC")),
                Some(_) => {}
                None => home = Some((node, place)),
            }
        }
        match home.filter(|(node, _)| *node != view.me) {
            None => Ok(None),
            Some(_) if watched_keys.is_some() => Err(keys_on_several_nodes("EXEC after WATCH")),
            Some((_, place)) => Ok(Some(place)),
        }
    }

    /// Executes a transaction on another node, which has all its rows. Commands without rows are executed on this node.
    pub(super) async fn execute_on_node(
        &mut self,
        transaction: &Transaction,
        place: u16,
    ) -> Result<Vec<u8>, Refusal> {
        let requests = transaction.requests();
        let mut batch = Batch::default();
        let mut is_remote = Vec::with_capacity(requests.len());
        for queued in requests {
            let command = queued.command.command();
            let remote = queued.reply.is_none() && self.concerns_tables(command);
            is_remote.push(remote);
            if remote {
                batch.push(command);
            }
        }
        let mut routed = RoutedBatch::of(batch, self.proto, &self.client);
        routed.execution = Execution::Transaction;
        let mut incoming = Incoming::request_owner(&self.core, Some(place), routed);
        let reply = incoming.reply().await.ok_or_else(core_stopped)?;
        if is_remote.iter().all(|remote| *remote) && requests.iter().all(|it| it.stores.is_none())
            || reply.first() == Some(&b'-')
        {
            return Ok(reply);
        }
        let mut remote_replies = reply_decoding::decode_nested_elements(&reply)
            .ok_or_else(core_stopped)?
            .into_iter();
        let mut all = self.encode(|encoder| encoder.array(requests.len()));
        for (queued, is_remote) in requests.iter().zip(is_remote) {
            match (&queued.reply, is_remote) {
                (Some(stored_reply), _) => all.extend_from_slice(stored_reply),
                (None, true) => {
                    let one = remote_replies.next().ok_or_else(core_stopped)?.to_vec();
                    all.extend(queued.with_stores(one));
                }
                (None, false) => all.extend(
                    self.execute_without_tables(queued.command.command())
                        .await?,
                ),
            }
            self.check_reply_size(&all)?;
        }
        Ok(all)
    }
}

/// Sends every node its part, and retries until all have executed it by the same ownership.
///
/// # Errors
/// Some slots have no owner, or some nodes do not reply.
pub(in crate::resp) async fn request_nodes(
    core: &Rc<Core>,
    client: &Arc<Client>,
    proto: Proto,
    batch: Batch,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut retry_limit = RetryLimit::new(core);
    loop {
        let places = wait_for_node_places(core, &mut retry_limit)
            .await?
            .into_iter();
        let epoch = core.tables.map_epoch();
        let parts = places.map(|place| (place, batch.clone())).collect();
        let why = match request_places(core, client, proto, parts).await {
            Ok(replies) => match find_moved_error(&replies) {
                Some(why) if !retry_limit.is_exhausted(core) => why,
                _ => return Ok(replies),
            },
            Err(why) => why?,
        };
        if retry_limit.is_exhausted(core) {
            return Err(if batch.iter().any(|command| command.writes()) {
                (
                    Code::Unknown,
                    format!(
                        "some nodes did not reply, and the others have executed their part: {why}; retry the request"
                    ),
                )
            } else {
                retry_limit.refusal(&why)
            });
        }
        wait_for_change(core, epoch).await;
    }
}

/// Returns the error of a node that did not execute its part because slots have moved.
fn find_moved_error(replies: &[Vec<u8>]) -> Option<String> {
    let mut replies = replies.iter();
    let moved = replies.find(|reply| reply.starts_with(b"-TRYAGAIN "))?;
    Some(String::from_utf8_lossy(moved).trim_end().to_owned())
}

/// Sends each place its own part.
///
/// # Errors
/// The reason why a place did not execute its part, or that it has stopped.
pub(in crate::resp) async fn request_places(
    core: &Rc<Core>,
    client: &Arc<Client>,
    proto: Proto,
    parts: Vec<(u16, Batch)>,
) -> Result<Vec<Vec<u8>>, Result<String, Refusal>> {
    let send = |(place, batch)| {
        let mut routed = RoutedBatch::of(batch, proto, client);
        routed.target = BatchTarget::Part(place);
        Incoming::request_owner(core, Some(place), routed)
    };
    let incoming: Vec<Incoming> = parts.into_iter().map(send).collect();
    let (mut replies, mut failure) = (Vec::new(), None);
    for mut incoming in incoming {
        match incoming.reply().await {
            Some(reply) => replies.push(reply),
            None => {
                let why = incoming.rejection().map(str::to_owned);
                failure = Some(why.ok_or_else(core_stopped));
            }
        }
    }
    match failure {
        Some(why) => Err(why),
        None => Ok(replies),
    }
}

/// Returns a place on each node that owns slots.
///
/// # Errors
/// Some slots have no owner.
pub(in crate::resp) fn node_places(core: &super::Core) -> Result<Vec<u16>, Refusal> {
    let tables = &core.tables;
    let (Some(view), Some(shard)) = (tables.view(), tables.shard()) else {
        return Ok(vec![core.index as u16]);
    };
    let mut nodes = Vec::new();
    let mut places = Vec::new();
    for number in shard.owners() {
        let place = view
            .places
            .get(number)
            .ok_or_else(|| slot_not_served(core))?;
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

/// As [`node_places`]. Slots that this node is giving away have no owner until the next map or the one after it;
/// this function waits for these maps as long as `retry_limit` lasts.
pub(in crate::resp) async fn wait_for_node_places(
    core: &super::Core,
    retry_limit: &mut RetryLimit,
) -> Result<Vec<u16>, Refusal> {
    loop {
        let epoch = core.tables.map_epoch();
        let places = node_places(core);
        if places.is_ok() || !core.shared.tables.outgoing_slots.has_any() {
            return places;
        }
        if retry_limit.is_exhausted(core) {
            return Err(slots_still_moving());
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
fn decode_keys(reply: &[u8]) -> Option<Vec<Vec<u8>>> {
    let elements = reply_decoding::decode_elements(reply)?.into_iter();
    elements
        .map(|one| reply_decoding::decode_value(one).map(<[u8]>::to_vec))
        .collect()
}

/// Returns the store versions from which a command is answered.
fn store_versions(snapshot: &Snapshot, command: Command<'_>) -> Vec<(String, u64)> {
    let mut versions: Vec<(String, u64)> = Vec::new();
    for key in command.keys() {
        let end = key.iter().position(|byte| *byte == b':').unwrap_or(0);
        let Some(live) = snapshot.get(&key[..end]) else {
            continue;
        };
        let name = live.name.as_str();
        if versions.iter().all(|(listed, _)| listed != name) {
            versions.push((name.to_owned(), live.version_id.0));
        }
    }
    versions
}
