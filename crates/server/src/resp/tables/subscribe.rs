//! SUBSCRIBE and PSUBSCRIBE: a connection is told of rows that change, by Redis's names for it.
//!
//! | channel | tells of |
//! |---|---|
//! | `__keyspace@0__:post\|bob\|17`, `__keyspace@0__:hotel` | one key |
//! | `__keyspace@0__:tline\|ann\|*` | keys that match; before the first `*`, `?` or `[` stand at least a table's name and its separator |
//!
//! The message is `set` or `del`. Rows that joins make count: what is subscribed to is computed, and kept fresh and in memory. See
//! `tables::subscriptions` for how a change comes to a connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_join::{Owner, row_slot};
use larder_protocol::commands::Spec;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};
use tokio::sync::mpsc;

use super::super::pending::Work;
use super::super::state::State;
use super::super::subject::is_of_table;
use super::check::{ZERO_BYTE, is_reserved};
use super::of_other_node;
use super::range::successor;
use super::scan::literal;
use crate::catalog::Snapshot;
use crate::clients::Filter;
use crate::error::show;
use crate::glob::Glob;
use crate::tables::{
    Mailbox, Note, Refusal, RowEvent, Subscription, Tables, TablesHandle, stopping,
};

const PREFIX: &[u8] = b"__keyspace@0__:";
/// As some clients write it, for all of Redis's databases.
const ANY_PREFIX: &[u8] = b"__keyspace@*__:";

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What a connection has subscribed to.
pub(in crate::resp) struct Subscribed {
    handle: Arc<TablesHandle>,
    mailbox: Arc<Mailbox>,
    pub notes: mpsc::UnboundedReceiver<Note>,
    channels: BTreeMap<Vec<u8>, Place>,
    patterns: BTreeMap<Vec<u8>, Place>,
}

/// Who tells of it.
struct Place {
    id: u64,
    beginning: Vec<u8>,
    cores: Vec<usize>,
}

impl Subscribed {
    fn new(state: &State) -> Subscribed {
        let (clients, id) = (state.core.clients.clone(), state.client.id);
        let end = move || {
            let filter = Filter {
                id: Some(id),
                ..Filter::default()
            };
            clients.kill(&filter, 0);
        };
        let bytes_max = state.core.shared.config.server.subscriber_buffer_bytes.0;
        let (mailbox, notes) = Mailbox::new(bytes_max as usize, end);
        Subscribed {
            handle: state.core.shared.tables.clone(),
            mailbox,
            notes,
            channels: BTreeMap::new(),
            patterns: BTreeMap::new(),
        }
    }

    fn names(&mut self, are_patterns: bool) -> &mut BTreeMap<Vec<u8>, Place> {
        match are_patterns {
            true => &mut self.patterns,
            false => &mut self.channels,
        }
    }

    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// How many channels and patterns.
    pub fn counts(&self) -> (usize, usize) {
        (self.channels.len(), self.patterns.len())
    }

    fn leave(&mut self, name: &[u8], are_patterns: bool) {
        if let Some(place) = self.names(are_patterns).remove(name) {
            self.give_up(place);
        }
    }

    fn give_up(&self, place: Place) {
        for core in place.cores {
            let (id, beginning) = (place.id, place.beginning.clone());
            // Nobody waits for it.
            drop(self.handle.start_on(core, None, move |tables| async move {
                tables.unsubscribe(id, &beginning);
            }));
        }
    }

    /// Whether a note is of what is still wanted.
    fn wants(&self, note: &Note) -> bool {
        match &note.pattern {
            Some(pattern) => self.patterns.contains_key(&**pattern),
            None => self.channels.contains_key(&channel_of(&note.key)),
        }
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.channels).into_values();
        for place in all.chain(std::mem::take(&mut self.patterns).into_values()) {
            self.give_up(place);
        }
    }
}

fn channel_of(key: &[u8]) -> Vec<u8> {
    [PREFIX, key].concat()
}

/// Tells the client of a change.
pub(in crate::resp) fn deliver(state: &mut State, note: &Note) {
    let Some(subscribed) = &state.subscribed else {
        return;
    };
    subscribed.mailbox.taken(note);
    if !subscribed.wants(note) {
        return;
    }
    let event = match note.event {
        RowEvent::Set => "set",
        RowEvent::Del => "del",
        RowEvent::Ended => return end(state, note),
    };
    let mut encoder = state.encoder();
    match &note.pattern {
        None => {
            encoder.push(3);
            encoder.text("message");
        }
        Some(pattern) => {
            encoder.push(4);
            encoder.text("pmessage");
            encoder.bulk(pattern);
        }
    }
    encoder.bulk(&channel_of(&note.key));
    encoder.text(event);
}

/// Tells the client that a subscription has ended, as Redis Cluster does when the slot of a sharded channel moves.
fn end(state: &mut State, note: &Note) {
    let Some(mut subscribed) = state.subscribed.take() else {
        return;
    };
    let (word, name, is_pattern) = match &note.pattern {
        Some(pattern) => ("punsubscribe", pattern.to_vec(), true),
        None => ("unsubscribe", channel_of(&note.key), false),
    };
    subscribed.leave(&name, is_pattern);
    confirm(state, word, Some(&name), subscribed.count());
    keep(state, subscribed);
}

/// Why a command is refused while the connection is in subscriber mode: subscribed, in version 2 of the protocol.
pub(in crate::resp) fn refuse_in_subscriber_mode(state: &State, command: &Spec) -> Option<Refusal> {
    (state.is_in_subscriber_mode() && !command.in_subscriber_mode).then(|| {
        let name = command.name.to_ascii_lowercase();
        let message = format!(
            "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        );
        (Code::BadRequest, message)
    })
}

/// PING of such a connection.
pub(in crate::resp) fn ping(state: &mut State, message: &[u8]) {
    debug_assert_eq!(state.proto, Proto::Resp2);
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text("pong");
    encoder.bulk(message);
}

/// What of a key's or a pattern's rows a name asks for.
fn understand(
    name: &[u8],
    is_pattern: bool,
    snapshot: &Snapshot,
) -> Result<(Vec<u8>, Arc<Glob>), Refusal> {
    let refuse = |message: String| Err((Code::BadRequest, message));
    let shown = show(name);
    let any = name.strip_prefix(ANY_PREFIX).filter(|_| is_pattern);
    let Some(glob) = name.strip_prefix(PREFIX).or(any) else {
        return refuse(format!(
            "'{shown}' is no channel: those of keys are __keyspace@0__:table|key, and there are no others"
        ));
    };
    let beginning = match is_pattern {
        true => literal(glob),
        false => glob.to_vec(),
    };
    if is_reserved(&beginning) {
        return refuse(ZERO_BYTE.to_owned());
    }
    let end = beginning
        .iter()
        .position(|byte| matches!(byte, b'|' | b':'));
    let Some(end) = end.or((!is_pattern).then_some(beginning.len())) else {
        return refuse(format!(
            "'{shown}' names no table: the key begins with the table's name and | or :, such as __keyspace@0__:post|bob|*"
        ));
    };
    if !is_of_table(snapshot, &beginning) {
        let store = show(&beginning[..end]);
        return refuse(format!(
            "{store} is a store, whose keys do not change one by one; STORE.VERSION tells of a new version"
        ));
    }
    // A key is compared, however long it is.
    let glob = Glob::parse(if is_pattern { glob } else { b"" })?;
    Ok((beginning, Arc::new(glob)))
}

/// A SUBSCRIBE or PSUBSCRIBE that is under way: the cores are told.
pub(in crate::resp) struct SubscribeJob {
    are_patterns: bool,
    /// With what their keys begin with, and their patterns.
    names: Vec<(Vec<u8>, Vec<u8>, Arc<Glob>)>,
}

impl SubscribeJob {
    pub fn begin(
        snapshot: &Snapshot,
        request: Request<'_>,
        are_patterns: bool,
    ) -> Result<Option<Work>, Refusal> {
        let mut names = Vec::new();
        for name in request.args().skip(1) {
            let (beginning, glob) = understand(name, are_patterns, snapshot)?;
            names.push((name.to_vec(), beginning, glob));
        }
        Ok(Some(Work::Subscribe(SubscribeJob {
            are_patterns,
            names,
        })))
    }

    pub async fn run(&mut self, state: &mut State) {
        let subscribed = state.subscribed.take();
        let mut subscribed = subscribed.unwrap_or_else(|| Box::new(Subscribed::new(state)));
        let are_patterns = self.are_patterns;
        let mut new = Vec::new();
        let mut refused = None;
        for (name, beginning, glob) in &self.names {
            if subscribed.names(are_patterns).contains_key(name) {
                continue;
            }
            match self.enter(state, &subscribed, name, beginning, glob).await {
                Ok(place) => {
                    subscribed.names(are_patterns).insert(name.clone(), place);
                    new.push(name.clone());
                }
                Err(refusal) => {
                    refused = Some(refusal);
                    break;
                }
            }
        }
        if let Some(refusal) = refused {
            new.iter()
                .for_each(|name| subscribed.leave(name, are_patterns));
            state.refuse(refusal);
        } else {
            let before = subscribed.count() - new.len();
            let (mut count, mut told) = (before, 0);
            for (name, ..) in &self.names {
                if new.get(told) == Some(name) {
                    (told, count) = (told + 1, count + 1);
                }
                let word = if are_patterns {
                    "psubscribe"
                } else {
                    "subscribe"
                };
                confirm(state, word, Some(name), count);
            }
        }
        keep(state, subscribed);
    }

    async fn enter(
        &self,
        state: &State,
        subscribed: &Subscribed,
        name: &[u8],
        beginning: &[u8],
        glob: &Arc<Glob>,
    ) -> Result<Place, Refusal> {
        let is_pattern = self.are_patterns;
        let subscription = Subscription {
            id: NEXT_ID.fetch_add(1, Relaxed),
            beginning: beginning.to_vec(),
            is_key: !is_pattern || beginning == glob.pattern(),
            glob: glob.clone(),
            pattern: is_pattern.then(|| Arc::from(name)),
            mailbox: subscribed.mailbox.clone(),
        };
        let mut place = Place {
            id: subscription.id,
            beginning: beginning.to_vec(),
            cores: Vec::new(),
        };
        let cores = cores_of(state, &subscription);
        let elsewhere = cores
            .iter()
            .max()
            .filter(|core| **core >= subscribed.handle.cores());
        if cores.len() > 1 && elsewhere.is_some() {
            return Err(of_many_nodes(name));
        }
        if let Some(place) = elsewhere {
            return Err(of_other_node(&state.core.tables, *place, "subscribed to"));
        }
        for core in cores {
            let (own, shared) = (subscription.clone(), state.core.shared.clone());
            let begun = subscribed
                .handle
                .run_on(core, move |tables| tables.subscribe(own, shared));
            match begun.await.map_err(stopping) {
                Ok(Ok(())) => place.cores.push(core),
                Ok(Err(refusal)) | Err(refusal) => {
                    subscribed.give_up(place);
                    return Err(refusal);
                }
            }
        }
        Ok(place)
    }
}

/// How a pattern is refused whose rows several nodes have: each node notifies of its own rows alone.
fn of_many_nodes(pattern: &[u8]) -> Refusal {
    let message = format!(
        "the rows of '{}' are on several nodes of the cluster, each of which notifies of its own rows only: subscribe to patterns that name the leading \
         column, such as __keyspace@0__:post|bob|*, each at the node that CLUSTER SLOTS names for it",
        show(pattern)
    );
    (Code::CrossSlot, message)
}

/// The place that computes rows like this one, where that is not their owner.
fn computing(tables: &Tables, key: &[u8]) -> Option<usize> {
    let view = tables.view()?;
    let computing = view
        .computing
        .as_ref()
        .filter(|_| tables.is_computed(key))?;
    Some(usize::from(computing.of(row_slot(key))))
}

/// The cores that have the rows: of a range that joins compute over several columns, one.
fn cores_of(state: &State, subscription: &Subscription) -> Vec<usize> {
    let tables = &state.core.tables;
    let Some(shard) = tables.shard() else {
        return vec![tables.index];
    };
    let key = &subscription.beginning;
    let hi = match subscription.is_key {
        true => [&key[..], b"\0"].concat(),
        false => successor(key),
    };
    match shard.owner_of_range(key, &hi) {
        Owner::One(one) => vec![computing(tables, key).unwrap_or(usize::from(one))],
        Owner::All if tables.is_computed(key) || tables.is_mapped(key) => {
            let name = key.iter().position(|byte| matches!(byte, b'|' | b':'));
            let name = &key[..name.map_or(key.len(), |end| end + 1)];
            vec![computing(tables, key).unwrap_or(usize::from(shard.owner_of(name)))]
        }
        Owner::All => shard.owners().map(usize::from).collect(),
    }
}

fn confirm(state: &mut State, word: &str, name: Option<&[u8]>, count: usize) {
    let mut encoder = state.encoder();
    encoder.push(3);
    encoder.text(word);
    match name {
        Some(name) => encoder.bulk(name),
        None => encoder.null(),
    }
    encoder.count(count as u64);
}

/// Takes what is subscribed to back into the connection, unless it is nothing.
fn keep(state: &mut State, subscribed: Box<Subscribed>) {
    state.client.set_subscriptions(subscribed.counts());
    state.subscribed = (subscribed.count() > 0).then_some(subscribed);
}

/// UNSUBSCRIBE and PUNSUBSCRIBE: of the names, or of all.
pub(super) fn leave(state: &mut State, request: Request<'_>, are_patterns: bool) {
    let word = match are_patterns {
        true => "punsubscribe",
        false => "unsubscribe",
    };
    let Some(mut subscribed) = state.subscribed.take() else {
        let names: Vec<&[u8]> = request.args().skip(1).collect();
        if names.is_empty() {
            return confirm(state, word, None, 0);
        }
        return names
            .iter()
            .for_each(|name| confirm(state, word, Some(name), 0));
    };
    let mut names: Vec<Vec<u8>> = request.args().skip(1).map(<[u8]>::to_vec).collect();
    if names.is_empty() {
        names = subscribed.names(are_patterns).keys().cloned().collect();
    }
    if names.is_empty() {
        confirm(state, word, None, subscribed.count());
    }
    for name in &names {
        subscribed.leave(name, are_patterns);
        confirm(state, word, Some(name), subscribed.count());
    }
    keep(state, subscribed);
}
