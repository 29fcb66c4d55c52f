//! The exchange of this core's engine with others (see `larder_join`'s exchange), and the tasks that wait for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use larder_join::{
    Engine, Exchange, JoinInfo, KeyRange, LogEntry, NO_OWNER, Shard, SlotOwners, range_slot,
};
use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_types::{SLOTS, text_row, with_object_row};
use tokio::sync::Notify;

use super::conversations::{Conversations, Unsent};
use super::expiry::ExpiryQueue;
use super::postgres::{Postgres, RangeLoad};
use super::{CoreMessage, Gate, NoReply, Refusal, Tables};
use crate::cluster::View;
use crate::spaces::{Spaces, copies};

/// Rows that one turn processes for other cores.
const TURN_ROWS: usize = 4096;
/// Maximum time that a read waits for rows of an unreachable node that is up according to the map: it may return, or
/// its lease expires and its rows get other owners. If the map shows that a row's owner is down, the read fails
/// immediately.
const UNREACHED_MAX: Duration = Duration::from_secs(3);
/// Interval at which the shares of the memory limit are computed.
const SHARE_INTERVAL: Duration = Duration::from_millis(100);

/// A core's share of the tables, and its exchange.
pub struct ShardState {
    /// Replaced when owners change.
    shard: RefCell<Rc<Shard>>,
    pub(super) exchange: RefCell<Exchange>,
    /// Tasks that wait for rows of other cores.
    pub(super) waiting: RefCell<Vec<Waker>>,
    /// True if there are, or may be, other nodes.
    is_in_cluster: bool,
    /// Conversations with engines of other nodes, in a cluster.
    pub(super) conversations: RefCell<Option<Conversations>>,
    pub(super) unsent: Unsent,
    /// The current view, in a cluster.
    pub(super) view: RefCell<Option<Arc<View>>>,
    /// The epoch of the last view whose joins are declared here.
    map_epoch: Cell<u64>,
    /// True if a join of the map is not declared here. Its rows would seem to be absent.
    is_missing_joins: Cell<bool>,
    ownership_epoch: Cell<u64>,
    /// A view that arrived during a pause, to be applied at its end.
    pub(super) deferred_view: RefCell<Option<Arc<View>>>,
    /// Notified when a row gets an expiry time.
    expiring: Notify,
    pub(super) expiry_queue: RefCell<ExpiryQueue>,
}

impl ShardState {
    pub fn new(shard: Shard) -> ShardState {
        let mut exchange = Exchange::new(shard.clone());
        exchange.pace_parts();
        ShardState {
            exchange: RefCell::new(exchange),
            shard: RefCell::new(Rc::new(shard)),
            waiting: RefCell::default(),
            is_in_cluster: false,
            conversations: RefCell::default(),
            unsent: RefCell::default(),
            view: RefCell::default(),
            map_epoch: Cell::new(0),
            is_missing_joins: Cell::new(false),
            ownership_epoch: Cell::new(0),
            deferred_view: RefCell::default(),
            expiring: Notify::new(),
            expiry_queue: RefCell::default(),
        }
    }

    /// Returns this core's share, and the owners of the others.
    pub fn shard(&self) -> Rc<Shard> {
        self.shard.borrow().clone()
    }

    /// Marks this node as a member of a cluster.
    pub(super) fn into_cluster(mut self) -> ShardState {
        self.is_in_cluster = true;
        self.exchange.borrow_mut().track_in_flight();
        self
    }

    /// Sends changes to other cores; `gate` then waits for those that have the rows. Returns whether there were any.
    pub(super) fn export(
        &self,
        changes: &[LogEntry],
        copied: Vec<copies::CopyChange>,
        atomic: bool,
        gate: &mut Gate,
    ) -> bool {
        let mut exchange = self.exchange.borrow_mut();
        let before = exchange.sequence();
        for change in copied {
            let value = change.value.as_deref();
            exchange.queue_part_change(&change.row, value, &change.readers, atomic);
        }
        exchange.export(changes, atomic);
        let is_told = exchange.sequence() > before;
        if is_told {
            gate.exports = Some(exchange.sequence());
        }
        if changes.iter().any(|c| matches!(c, LogEntry::Expire { .. })) {
            self.expiring.notify_one();
        }
        is_told
    }

    /// The last change that was sent to other cores.
    pub(super) fn last_exported(&self) -> u64 {
        self.exchange.borrow().sequence()
    }

    /// Ends the conversation with a reader, which must drop the rows that it received. Returns the mark with which it
    /// must acknowledge that.
    pub(super) fn end_reader(&self, reader: u16) -> u64 {
        self.exchange.borrow_mut().end_reader(reader)
    }

    /// Handles own slots that moved to other nodes in these terms. Until the map names the owners, the slots have none,
    /// and requests of earlier maps are not answered.
    pub(super) fn release_moved_slots(
        &self,
        engine: &mut Engine,
        spaces: &Spaces,
        slots: &[(u16, u64)],
    ) {
        let before = self.shard();
        let is_gone = |slot: u16| {
            let is_own = before.owner_of_slot(slot) == before.index;
            is_own && slots.iter().any(|(gone, _)| *gone == slot)
        };
        if !slots.iter().any(|(slot, _)| is_gone(*slot)) {
            return;
        }
        let owner = |slot| {
            if is_gone(slot) {
                NO_OWNER
            } else {
                before.owner_of_slot(slot)
            }
        };
        let owners = Arc::new(SlotOwners::new((0..SLOTS).map(owner).collect()));
        let shard = Shard::with_owners(before.index, before.count, owners);
        let mut exchange = self.exchange.borrow_mut();
        let last = slots.iter().map(|(_, term)| *term).max().unwrap_or(0);
        let epoch = exchange.epoch().max(last);
        exchange.change_owners(engine, shard.clone(), epoch);
        spaces.owners_changed(&before, &shard);
        *self.shard.borrow_mut() = Rc::new(shard);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Makes readers drop the rows of these slots. Returns the mark with which they must acknowledge that.
    pub(super) fn withdraw(&self, slots: &[u16]) -> u64 {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for &slot in slots {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => runs.push((slot, slot)),
            }
        }
        self.exchange.borrow_mut().withdraw(&runs)
    }

    pub(super) fn is_acknowledged(&self, exports: u64) -> bool {
        self.exchange.borrow().is_acknowledged(exports)
    }

    /// As [`ShardState::is_acknowledged`], for the first `places` places only: own cores precede those of other nodes.
    pub(super) fn is_acknowledged_by_first(&self, places: usize, exports: u64) -> bool {
        let exchange = self.exchange.borrow();
        exchange.is_acknowledged_by_first(places, exports)
    }
}

impl Tables {
    /// Receives messages of another core's engine.
    pub fn receive(&self, from: u16, messages: Vec<larder_join::EngineMessage>) {
        let Some(sharing) = &self.sharing else { return };
        let mut exchange = sharing.exchange.borrow_mut();
        for message in messages {
            exchange.receive(from, message);
        }
        drop(exchange);
        self.wake_maintenance();
    }

    /// Returns whether messages of other engines have not been processed.
    pub fn has_unprocessed(&self) -> bool {
        let sharing = self.sharing.as_ref();
        sharing.is_some_and(|sharing| sharing.exchange.borrow().has_unprocessed())
    }

    /// Processes messages of other engines for one turn. Returns whether all are processed.
    pub fn process_messages(&self) -> bool {
        if !self.has_unprocessed() {
            return true;
        }
        self.exchange_step();
        self.wake_maintenance();
        !self.has_unprocessed()
    }

    /// Applies a view, immediately or at the end of the current pause.
    pub fn receive_view(&self, view: Arc<View>) {
        match &self.sharing {
            Some(sharing) if self.is_paused() => *sharing.deferred_view.borrow_mut() = Some(view),
            _ => self.apply_view(&view),
        }
    }

    /// Applies the view that arrived during the pause.
    pub(super) fn apply_deferred_view(&self) {
        let held = self
            .sharing
            .as_ref()
            .and_then(|sharing| sharing.deferred_view.take());
        if let Some(view) = held {
            self.apply_view(&view);
        }
    }

    /// Changes the owners to those of the view. Replicas of rows whose owner has changed are dropped, with what was
    /// computed from them.
    pub fn apply_view(&self, view: &Arc<View>) {
        let Some(sharing) = &self.sharing else { return };
        // At least two, because with one shard the engine would consider all rows its own.
        let (index, count) = (self.index as u16, view.places.count().max(2));
        let mut engine = self.engine.borrow_mut();
        let owners = match &self.replicated {
            None => view.owners.clone(),
            Some(replicated) => self.assign_slots(replicated, &mut engine, view),
        };
        let shard = Shard::with_owners(index, count, owners);
        let mut exchange = sharing.exchange.borrow_mut();
        exchange.change_owners(&mut engine, shard.clone(), view.map.epoch().0);
        self.spaces.owners_changed(&sharing.shard(), &shard);
        *sharing.shard.borrow_mut() = Rc::new(shard);
        let before = sharing.view.replace(Some(view.clone()));
        // If maps were skipped, owners may have changed in between.
        let is_same = |before: Arc<View>| {
            before.map.epoch().0 + 1 >= view.map.epoch().0
                && before.owners == view.owners
                && before.computing == view.computing
        };
        let is_same = before.is_some_and(is_same);
        if !is_same {
            sharing.ownership_epoch.set(view.map.epoch().0);
        }
        drop(exchange);
        if let Some(replicated) = &self.replicated {
            self.move_rows(replicated, &mut engine);
        }
        drop(engine);
        self.drop_down_nodes(view);
        self.handle.set_owners(view.owners.clone());
        self.refresh_definitions();
        if !is_same {
            self.invalidate_all_reads();
        }
        self.end_moved_subscriptions(view);
        sharing.waiting.take().into_iter().for_each(Waker::wake);
        self.wake_maintenance();
    }

    /// Handles an engine on another core of this node that dropped its withheld messages: its rows are dropped, with
    /// what was computed from them.
    pub fn owner_lost(&self, owner: u16, upto: u64) {
        let Some(sharing) = &self.sharing else { return };
        let mut engine = self.engine.borrow_mut();
        let mut exchange = sharing.exchange.borrow_mut();
        exchange.handle_owner_end(&mut engine, owner, upto);
        drop(exchange);
        drop(engine);
        self.spaces.owner_lost(owner, &sharing.shard());
        sharing.waiting.take().into_iter().for_each(Waker::wake);
        self.wake_maintenance();
    }

    /// Waits until all messages of other engines are processed.
    pub async fn wait_until_processed(&self) {
        let Some(sharing) = &self.sharing else { return };
        poll_fn(|cx| {
            if !self.has_unprocessed() {
                return Poll::Ready(());
            }
            sharing.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Processes messages of other engines for one turn. Returns whether there is more to do.
    pub(super) fn exchange_step(&self) -> bool {
        let Some(sharing) = &self.sharing else {
            return false;
        };
        // Requests for parts are answered from the indexes, which must be up to date.
        self.queue_moved_objects();
        let now = self.now();
        let mut engine = self.engine.borrow_mut();
        if engine.next_expiry().is_some_and(|at| at <= now) {
            // Expired rows must not be sent.
            engine.begin(now);
            let _ = self.log(&mut engine, &mut Gate::default());
        }
        let mut exchange = sharing.exchange.borrow_mut();
        let progress = self.run_measured(&mut engine, |engine| {
            exchange.step_with(engine, &mut self.spaces.copy_exchange(), now, TURN_ROWS)
        });
        drop(exchange);
        // Processing does not change own rows.
        let _ = self.log(&mut engine, &mut Gate::default());
        drop(engine);
        if progress.supplied || !self.has_unprocessed() {
            sharing.waiting.take().into_iter().for_each(Waker::wake);
        }
        progress.more
    }

    /// Acknowledges to other cores the changes that all outputs here reflect.
    pub(super) fn acknowledge(&self) {
        if let Some(sharing) = &self.sharing {
            let engine = self.engine.borrow();
            sharing.exchange.borrow_mut().acknowledge(&engine);
            drop(engine);
            self.publish_acknowledged_expiry();
        }
    }

    /// Sends the messages of this core's engine to the others. Must be called before any message that relies on them.
    pub fn send_exchange(&self) {
        let Some(sharing) = &self.sharing else { return };
        let mut exchange = sharing.exchange.borrow_mut();
        let shard = sharing.shard();
        let own = shard.index;
        for to in (0..shard.count).filter(|&to| to != own) {
            let mut messages = exchange.drain_outgoing(to);
            if messages.is_empty() {
                continue;
            }
            self.hold_uncommitted(to, &mut messages);
            if !messages.is_empty() {
                self.send_engine_messages(to, messages);
            }
        }
    }

    /// Sends messages to another engine, on this or another node.
    pub(super) fn send_engine_messages(&self, to: u16, messages: Vec<larder_join::EngineMessage>) {
        if usize::from(to) >= self.handle.cores() {
            if let Some(place) = self.place(to) {
                self.send_to_node(to, place, messages);
            }
        } else {
            let from = self.index as u16;
            let message = CoreMessage::Exchange { from, messages };
            self.handle.send(usize::from(to), message);
        }
    }

    /// Requests rows that reads need from other cores. Returns the requested ranges, or `None` if there are none.
    pub(super) fn request_rows(
        &self,
        needed: Vec<(u16, KeyRange)>,
    ) -> Option<Vec<(u16, KeyRange)>> {
        let sharing = self.sharing.as_ref()?;
        let mut engine = self.engine.borrow_mut();
        sharing.exchange.borrow_mut().request(&mut engine, &needed);
        drop(engine);
        if needed.is_empty() {
            return None;
        }
        self.wake_maintenance();
        Some(needed)
    }

    /// Waits until the rows have arrived.
    ///
    /// # Errors
    /// The owner cannot be reached, or there is none.
    pub(super) async fn wait_for_rows(&self, awaited: &[(u16, KeyRange)]) -> Result<(), Refusal> {
        let Some(sharing) = &self.sharing else {
            return Ok(());
        };
        if let Some((owner, _)) =
            (awaited.iter()).find(|(owner, range)| self.is_ownerless(*owner, range))
        {
            return Err(self.unreachable_refusal(*owner));
        }
        let shard = sharing.shard();
        let is_of_nobody = awaited.iter().any(|(owner, _)| *owner == NO_OWNER);
        let mut unreached_since = None;
        poll_fn(|cx| {
            let is_asked = sharing.exchange.borrow().is_requested(awaited);
            let is_nobodys = is_of_nobody && Rc::ptr_eq(&shard, &sharing.shard.borrow());
            if !(is_asked || is_nobodys) {
                return Poll::Ready(Ok(()));
            }
            let mut owners = awaited.iter().map(|(owner, _)| *owner);
            let is_answering = |owner| {
                self.is_reachable(owner) && !sharing.exchange.borrow().is_epoch_behind(owner)
            };
            match owners.find(|owner| !is_answering(*owner)) {
                None => unreached_since = None,
                Some(owner) => {
                    let since = *unreached_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNREACHED_MAX {
                        return Poll::Ready(Err(self.unreachable_refusal(owner)));
                    }
                }
            }
            sharing.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the freshness of all replicas of other nodes' rows is guaranteed, or they are dropped.
    ///
    /// # Errors
    /// The time limit was exceeded.
    pub(super) async fn wait_until_subscribed(&self) -> Result<(), Refusal> {
        let Some(sharing) = &self.sharing else {
            return Ok(());
        };
        let started = Instant::now();
        poll_fn(|cx| {
            if self.is_subscribed() {
                return Poll::Ready(Ok(()));
            }
            if started.elapsed() > UNREACHED_MAX {
                let message =
                    "a node with source rows of this result does not answer at the moment";
                return Poll::Ready(Err((Code::ClusterDown, message.to_owned())));
            }
            sharing.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Returns whether some rows of a range have no owner that is up, according to the map. Rows that are moving between nodes
    /// do not count.
    fn is_ownerless(&self, owner: u16, range: &KeyRange) -> bool {
        let Some(view) = self.view() else {
            return false;
        };
        if owner != NO_OWNER {
            return (self.place(owner)).is_some_and(|place| !view.map.is_up(place.node));
        }
        let is_nobodys = |slot: u16| view.owners.owner_of(slot) == NO_OWNER;
        match range_slot(&range.lo, &range.hi) {
            Some(slot) => is_nobodys(slot),
            None => (0..SLOTS).any(is_nobodys),
        }
    }

    fn unreachable_refusal(&self, owner: u16) -> Refusal {
        let sharing = self.sharing.as_ref();
        let is_behind = sharing.is_some_and(|it| it.exchange.borrow().is_epoch_behind(owner));
        let message = match self.place(owner).map(|place| self.node_name(place.node)) {
            None => "no node of the cluster has some of the source rows of this result".to_owned(),
            Some(name) if is_behind => format!(
                "this node has not received the map that {name} uses, which has, or had, source rows of this result; send the command again, \
                 or send it to another node"
            ),
            Some(name) => {
                format!("{name}, which has source rows of this result, cannot be reached")
            }
        };
        (Code::ClusterDown, message)
    }

    /// Formats a node's name for messages.
    pub fn node_name(&self, node: larder_cluster::map::NodeId) -> String {
        let view = self.view();
        let member = view.as_ref().and_then(|view| view.map.member(node));
        match member {
            Some(member) => format!("node {} at {}", member.name(), member.registration.resp),
            None => format!("node {node}"),
        }
    }

    /// Returns whether this node is, or may be, one of several.
    #[inline]
    pub fn is_in_cluster(&self) -> bool {
        self.sharing
            .as_ref()
            .is_some_and(|sharing| sharing.is_in_cluster)
    }

    /// The current view of this core, in a cluster.
    pub fn view(&self) -> Option<Arc<View>> {
        self.sharing.as_ref()?.view.borrow().clone()
    }

    /// The epoch of the map that this core has applied, including its joins and spaces; 0 before the first.
    pub fn map_epoch(&self) -> u64 {
        let sharing = self.sharing.as_ref();
        sharing.map_or(0, |sharing| sharing.map_epoch.get())
    }

    /// The earliest known epoch with the current owners.
    pub fn ownership_epoch(&self) -> u64 {
        let sharing = self.sharing.as_ref();
        sharing.map_or(0, |sharing| sharing.ownership_epoch.get())
    }

    /// Waits until the map of this epoch, or a later one, is applied.
    pub async fn wait_for_epoch(&self, epoch: u64) {
        while self.map_epoch() < epoch {
            self.wait_for_view().await;
        }
    }

    /// Waits for a newer view, for a limited time.
    pub async fn wait_for_view(&self) {
        let Some(sharing) = &self.sharing else { return };
        let mut has_waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            sharing.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Returns whether a join of the map is not declared here. Commands on tables must wait until it is.
    #[inline]
    pub fn is_missing_joins(&self) -> bool {
        self.sharing
            .as_ref()
            .is_some_and(|it| it.is_missing_joins.get())
    }

    /// Returns whether this core has the joins and spaces of the map.
    pub fn has_definitions(&self) -> bool {
        let Some(view) = self.view() else { return true };
        let (joins, engine) = (view.map.joins(), self.engine.borrow());
        let have = engine.list();
        have.len() == joins.len()
            && have.iter().all(|join| joins.contains_key(&join.name))
            && self.has_spaces_of(&view.map)
    }

    /// Updates the state after joins were declared or dropped, or the map has others.
    pub fn refresh_definitions(&self) {
        let (Some(sharing), Some(view)) = (&self.sharing, self.view()) else {
            return;
        };
        let have = self.engine.borrow().list();
        let is_here = |name: &str, text: &str| {
            let is_it =
                |join: &JoinInfo| join.name == name && join.definition.trim() == text.trim();
            have.iter().any(is_it)
        };
        let mut joins = view.map.joins().iter();
        let lacks_joins = !joins.all(|(name, join)| is_here(name, &join.text));
        sharing.is_missing_joins.set(lacks_joins);
        if self.has_definitions() {
            sharing.map_epoch.set(view.map.epoch().0);
            sharing.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Makes the reply to a read wait until all readers reflect the changes of the rows that it returns. No later read
    /// of outputs then shows an older state.
    pub fn wait_for_sent_changes(&self, command: Command<'_>, gate: &mut Gate) {
        let Some(sharing) = &self.sharing else { return };
        let exchange = sharing.exchange.borrow();
        let last_sent = match command.range() {
            Some((lo, hi)) => exchange.last_in_flight_in(lo, hi),
            None => {
                let has_objects = self.spaces.is_any();
                let keys = command.keys();
                keys.filter_map(|key| last_sent_change(&exchange, key, has_objects))
                    .max()
            }
        };
        if let Some(last_sent) = last_sent.filter(|last_sent| !exchange.is_acknowledged(*last_sent))
        {
            gate.exports = gate.exports.max(Some(last_sent));
        }
    }

    /// Reads computed rows or rows of PostgreSQL. Waits for rows and computations, as often as necessary.
    pub async fn read_when_available<T>(
        &self,
        ticket: Option<u64>,
        postgres: Option<&Postgres>,
        mut read: impl FnMut(&mut Engine, u64) -> Result<T, NoReply>,
    ) -> Result<T, Refusal> {
        let mut before: Option<RangeLoad> = None;
        if let Some(settled) = self.unreflected_expiry() {
            self.wait_for(&settled, ticket).await?;
            self.wait_while_paused(ticket).await;
        }
        loop {
            // After the lease has expired, which may happen during a wait, other nodes may own the rows.
            self.ensure_lease()?;
            let done = match ticket {
                None => self.with_deferred_reads(|| self.read(&mut read)),
                Some(_) => self.read(&mut read),
            };
            let mut needs = match done {
                Ok(_) if !self.is_subscribed() => {
                    self.wait_until_subscribed().await?;
                    continue;
                }
                Ok(done) => return Ok(done),
                Err(NoReply::Refused(refusal)) => return Err(refusal),
                Err(NoReply::Needs(needs)) => needs,
            };
            if let Some(awaited) = self.request_needed(&mut needs) {
                self.wait_for(&awaited, ticket).await?;
            } else if ticket.is_none()
                && let Some(mut load) = RangeLoad::take(&mut needs)
            {
                if let Some(before) = &before {
                    load.count_after(before);
                }
                load.load(postgres, self).await?;
                before = Some(load);
            } else {
                return Err(NoReply::Needs(needs).refusal());
            }
            self.wait_while_paused(ticket).await;
        }
    }

    /// Returns whether a key's table is in PostgreSQL.
    pub fn is_mapped(&self, key: &[u8]) -> bool {
        self.handle.has_mapped_tables && self.engine.borrow().is_supplied(key)
    }

    /// Returns whether joins compute a key's table.
    pub fn is_computed(&self, key: &[u8]) -> bool {
        self.engine.borrow().table_of(key) == Some(true)
    }

    /// Removes rows as they expire, for the cores that have replicas of them. Never returns.
    pub async fn run_expiry(self: Rc<Self>) {
        let Some(sharing) = &self.sharing else { return };
        loop {
            let next = self.engine.borrow().next_expiry();
            let Some(at) = next else {
                sharing.expiring.notified().await;
                continue;
            };
            let left = at.saturating_sub(self.now()).clamp(1, 1000);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(left)) => {}
                () = sharing.expiring.notified() => {}
            }
            self.wait_while_paused(None).await;
            self.read(|_, _| ());
        }
    }

    /// Gives each engine the part of the memory limit that other engines and other memory leave, and at least its share
    /// of the engines' part. Never returns.
    pub async fn share_memory(self: Rc<Self>, limit_bytes: usize) {
        let used = &self.handle.used_bytes;
        let mut tick = tokio::time::interval(SHARE_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let mut engine = self.engine.borrow_mut();
            let beside = self.non_engine_bytes();
            used[self.index].store((engine.memory_bytes() + beside) as u64, Ordering::Relaxed);
            let others = used.iter().enumerate().filter(|(at, _)| *at != self.index);
            let others: u64 = others.map(|(_, used)| used.load(Ordering::Relaxed)).sum();
            let share = limit_bytes / used.len();
            let left = limit_bytes.saturating_sub(usize::try_from(others).unwrap_or(usize::MAX));
            engine.set_memory_limit(Some(left.max(share).saturating_sub(beside)));
        }
    }
}

/// Returns the last change that was sent of a key: of its row and, if there are objects with copies on other places, of
/// its object.
fn last_sent_change(exchange: &Exchange, key: &[u8], has_objects: bool) -> Option<u64> {
    let of_object = if has_objects {
        with_object_row(key, |row| exchange.last_in_flight(row))
    } else {
        None
    };
    exchange.last_in_flight(&text_row(key)).max(of_object)
}

#[cfg(test)]
mod tests {
    use larder_types::object_row;

    use super::*;

    #[test]
    fn a_read_of_an_object_waits_for_the_holders_of_its_copies() {
        let mut exchange = Exchange::new(Shard::new(0, 2));
        exchange.track_in_flight();
        let readers = [(1, 5, true)];
        exchange.queue_part_change(&object_row(b"thing:7"), Some(b"new"), &readers, false);
        let last_sent = Some(exchange.sequence());
        assert_eq!(last_sent_change(&exchange, b"thing:7", true), last_sent);
        assert_eq!(last_sent_change(&exchange, b"thing:8", true), None);
    }
}
