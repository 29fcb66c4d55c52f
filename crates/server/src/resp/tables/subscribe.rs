//! SUBSCRIBE and PSUBSCRIBE: a connection receives messages published on channels, and notifications of changed rows
//! under Redis's channel names.
//!
//! | channel | messages |
//! |---|---|
//! | `__keyspace@0__:post\|bob\|17`, `__keyspace@0__:hotel` | changes of one key |
//! | `__keyspace@0__:tline\|ann\|*` | changes of matching keys; the part before the first `*`, `?` or `[` contains at least a table's name and its separator |
//! | any other name or pattern | messages of PUBLISH, and the events that `notify-keyspace-events` selects (see `tables::events`) |
//!
//! The message for a key is `set` or `del`. Join outputs are included: the rows of a subscription are computed, kept up
//! to date and kept in memory. `tables::subscriptions` describes how a change reaches a connection, `clients::channels`
//! the other channels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_protocol::commands::Spec;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};
use larder_types::is_plain;

use super::super::pending::Work;
use super::super::pubsub::refuse_long;
use super::super::state::State;
use super::super::subject::is_of_table;
use super::of_other_node;
use super::scan::literal;
use crate::catalog::Snapshot;
use crate::clients::{Client, Note};
use crate::error::show;
use crate::glob::Glob;
use crate::tables::{KEY_CHANNEL, Refusal, Subscription, TablesHandle, stopping};

/// Some clients use this prefix, which stands for all databases of Redis.
const ANY_KEY_CHANNEL: &[u8] = b"__keyspace@*__:";
/// The channel on which a RESP2 connection receives the invalidations of another one.
const INVALIDATIONS: &[u8] = b"__redis__:invalidate";

/// Memory of a subscription besides its name. The cores that own the rows, and their engines, also store a subscription
/// to rows.
const CHANNEL_BYTES: usize = 400;
const ROWS_BYTES: usize = 1400;
/// Number of copies of a name.
const NAME_COPIES: usize = 6;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn subscription_bytes(name: &[u8], is_of_rows: bool) -> usize {
    let bytes = if is_of_rows {
        ROWS_BYTES
    } else {
        CHANNEL_BYTES
    };
    bytes + NAME_COPIES * name.len()
}

/// The subscriptions of a connection.
pub(in crate::resp) struct Subscribed {
    handle: Arc<TablesHandle>,
    client: Arc<Client>,
    channels: BTreeMap<Arc<[u8]>, Place>,
    patterns: BTreeMap<Arc<[u8]>, Place>,
}

/// The source of a subscription's messages.
enum Place {
    /// The cores that own rows whose keys have this prefix.
    Rows {
        id: u64,
        beginning: Vec<u8>,
        cores: Vec<usize>,
    },
    /// PUBLISH and keyspace events.
    Channel,
}

impl Subscribed {
    fn new(state: &State) -> Subscribed {
        Subscribed {
            handle: state.core.shared.tables.clone(),
            client: state.client.clone(),
            channels: BTreeMap::new(),
            patterns: BTreeMap::new(),
        }
    }

    fn names(&mut self, are_patterns: bool) -> &mut BTreeMap<Arc<[u8]>, Place> {
        if are_patterns {
            &mut self.patterns
        } else {
            &mut self.channels
        }
    }

    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Returns the numbers of channels and patterns.
    pub fn counts(&self) -> (usize, usize) {
        (self.channels.len(), self.patterns.len())
    }

    fn leave(&mut self, name: &[u8], are_patterns: bool) {
        if let Some(place) = self.names(are_patterns).remove(name) {
            let is_of_rows = matches!(place, Place::Rows { .. });
            let bytes = subscription_bytes(name, is_of_rows);
            self.client.subscription_bytes.fetch_sub(bytes, Relaxed);
            self.give_up(name, are_patterns, place);
        }
    }

    fn give_up(&self, name: &[u8], is_pattern: bool, place: Place) {
        let channels = &self.handle.channels;
        channels.unsubscribe(name, is_pattern, self.client.id);
        let Place::Rows {
            id,
            beginning,
            cores,
        } = place
        else {
            return;
        };
        for core in cores {
            let beginning = beginning.clone();
            // The completion is not waited for.
            drop(self.handle.start_on(core, None, move |tables| async move {
                tables.unsubscribe(id, &beginning);
            }));
        }
    }

    /// Returns whether the client is still subscribed to a message.
    fn wants(&self, pattern: Option<&Arc<[u8]>>, channel: &Arc<[u8]>) -> bool {
        match pattern {
            Some(pattern) => self.patterns.contains_key(pattern),
            None => self.channels.contains_key(channel),
        }
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        for are_patterns in [false, true] {
            for (name, place) in std::mem::take(self.names(are_patterns)) {
                self.give_up(&name, are_patterns, place);
            }
        }
        self.client.subscription_bytes.store(0, Relaxed);
    }
}

/// Sends the client a message of its mailbox.
pub(in crate::resp) fn deliver(state: &mut State, note: Note) {
    match note {
        Note::Message {
            pattern,
            channel,
            payload,
        } => {
            let subscribed = state.subscribed.as_ref();
            if subscribed.is_some_and(|own| own.wants(pattern.as_ref(), &channel)) {
                message(state, pattern.as_deref(), &channel, &payload);
            }
        }
        Note::Ended { name, is_pattern } => end(state, &name, is_pattern),
        Note::Invalidate(key) => invalidate(state, key.as_deref()),
        Note::RedirectionBroken(id) => {
            let mut encoder = state.encoder();
            if encoder.proto == Proto::Resp3 {
                encoder.push(2);
                encoder.text("tracking-redir-broken");
                encoder.count(id);
            }
        }
    }
}

fn message(state: &mut State, pattern: Option<&[u8]>, channel: &[u8], payload: &[u8]) {
    let mut encoder = state.encoder();
    match pattern {
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
    encoder.bulk(channel);
    encoder.bulk(payload);
}

/// Sends an invalidation of one key, or of all keys, to the client.
fn invalidate(state: &mut State, key: Option<&[u8]>) {
    let is_subscribed = state.subscribed.is_some();
    let mut encoder = state.encoder();
    match encoder.proto {
        Proto::Resp3 => {
            encoder.push(2);
            encoder.text("invalidate");
        }
        Proto::Resp2 if is_subscribed => {
            encoder.array(3);
            encoder.text("message");
            encoder.bulk(INVALIDATIONS);
        }
        // The client could not distinguish it from a reply.
        Proto::Resp2 => return,
    }
    match key {
        Some(key) => {
            encoder.array(1);
            encoder.bulk(key);
        }
        None => encoder.null(),
    }
}

/// Notifies the client that a subscription has ended, as Redis Cluster does when the slot of a sharded channel moves.
fn end(state: &mut State, name: &Arc<[u8]>, is_pattern: bool) {
    let Some(mut subscribed) = state.subscribed.take() else {
        return;
    };
    if subscribed.names(is_pattern).contains_key(name) {
        subscribed.leave(name, is_pattern);
        let word = if is_pattern {
            "punsubscribe"
        } else {
            "unsubscribe"
        };
        confirm(state, word, Some(name), subscribed.count());
    }
    keep(state, subscribed);
}

/// Returns the error for a command that is not permitted in subscriber mode (subscribed, with RESP2).
pub(in crate::resp) fn refuse_in_subscriber_mode(state: &State, command: &Spec) -> Option<Refusal> {
    (state.is_in_subscriber_mode() && !command.in_subscriber_mode).then(|| {
        let name = command.name.to_ascii_lowercase();
        let message = format!(
            "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        );
        (Code::BadRequest, message)
    })
}

/// Executes PING in subscriber mode.
pub(in crate::resp) fn ping(state: &mut State, message: &[u8]) {
    debug_assert_eq!(state.proto, Proto::Resp2);
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text("pong");
    encoder.bulk(message);
}

/// The target of a channel name or pattern.
#[derive(Clone)]
enum Target {
    /// The rows whose keys have this prefix and match, or the one key. For a pattern, also the channels that match it.
    Rows {
        beginning: Vec<u8>,
        keys: Arc<Glob>,
        channels: Option<Arc<Glob>>,
    },
    /// A channel, or a pattern of channels.
    Channel(Option<Arc<Glob>>),
}

fn understand(
    name: &[u8],
    is_pattern: bool,
    snapshot: &Snapshot,
    any_key: &Arc<Glob>,
) -> Result<Target, Refusal> {
    let channels = if is_pattern {
        Some(Arc::new(Glob::parse(name)?))
    } else {
        None
    };
    refuse_long(name)?;
    let any = name.strip_prefix(ANY_KEY_CHANNEL).filter(|_| is_pattern);
    let Some(glob) = name.strip_prefix(KEY_CHANNEL).or(any) else {
        return Ok(Target::Channel(channels));
    };
    let beginning = if is_pattern {
        literal(glob)
    } else {
        glob.to_vec()
    };
    let separator = |byte: &u8| matches!(byte, b'|' | b':');
    let end = if is_plain(&beginning) {
        None
    } else {
        beginning.iter().position(separator)
    };
    let Some(end) = end.or((!is_pattern).then_some(beginning.len())) else {
        // Changes of all tables are sent as keyspace events, if these are selected.
        return Ok(Target::Channel(channels));
    };
    if !is_of_table(snapshot, &beginning) {
        let store = show(&beginning[..end]);
        let message = format!(
            "{store} is a store, whose keys do not change one by one; STORE.VERSION tells of a new version"
        );
        return Err((Code::BadRequest, message));
    }
    let glob = if is_pattern {
        Arc::new(Glob::parse(glob)?)
    } else {
        // A single key is compared without a pattern, whatever its length.
        any_key.clone()
    };
    Ok(Target::Rows {
        beginning,
        keys: glob,
        channels,
    })
}

/// A SUBSCRIBE or PSUBSCRIBE in progress, which registers with the cores.
pub(in crate::resp) struct SubscribeJob {
    are_patterns: bool,
    names: Vec<(Arc<[u8]>, Target)>,
}

impl SubscribeJob {
    pub fn begin(
        state: &State,
        snapshot: &Snapshot,
        request: Request<'_>,
        are_patterns: bool,
    ) -> Result<Option<Work>, Refusal> {
        let any_key = Arc::new(Glob::parse(b"")?);
        let limit = state.core.clients.limits.each;
        let mut bytes = state.client.memory_bytes();
        let mut names = Vec::new();
        for name in request.args().skip(1) {
            let target = understand(name, are_patterns, snapshot, &any_key)?;
            bytes += subscription_bytes(name, matches!(target, Target::Rows { .. }));
            if bytes > limit {
                return Err(too_many(limit));
            }
            names.push((Arc::from(name), target));
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
        for (name, target) in &self.names {
            if subscribed.names(are_patterns).contains_key(name) {
                continue;
            }
            match self.enter(state, &subscribed, name, target).await {
                Ok(place) => {
                    let (Target::Channel(glob) | Target::Rows { channels: glob, .. }) = target;
                    let channels = &subscribed.handle.channels;
                    let entered = match glob {
                        None => {
                            channels.subscribe(name, &state.client);
                            Ok(())
                        }
                        Some(glob) => channels.subscribe_to_pattern(name, glob, &state.client),
                    };
                    subscribed.names(are_patterns).insert(name.clone(), place);
                    let is_of_rows = matches!(target, Target::Rows { .. });
                    let bytes = subscription_bytes(name, is_of_rows);
                    state.client.subscription_bytes.fetch_add(bytes, Relaxed);
                    new.push(name.clone());
                    if let Err(refusal) = entered {
                        refused = Some(refusal);
                        break;
                    }
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
        name: &Arc<[u8]>,
        target: &Target,
    ) -> Result<Place, Refusal> {
        let Target::Rows {
            beginning, keys, ..
        } = target
        else {
            return Ok(Place::Channel);
        };
        let is_pattern = self.are_patterns;
        let subscription = Subscription {
            id: NEXT_ID.fetch_add(1, Relaxed),
            beginning: beginning.clone(),
            is_key: !is_pattern || *beginning == keys.pattern(),
            glob: keys.clone(),
            name: name.clone(),
            is_pattern,
            client: state.client.clone(),
        };
        let cores = state.core.tables.homes(beginning, subscription.is_key);
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
        let (id, beginning) = (subscription.id, subscription.beginning.clone());
        let mut begun_on = Vec::with_capacity(cores.len());
        let place = |cores| Place::Rows {
            id,
            beginning,
            cores,
        };
        for core in cores {
            let (own, shared) = (subscription.clone(), state.core.shared.clone());
            let begun = subscribed
                .handle
                .run_on(core, move |tables| tables.subscribe(own, shared));
            match begun.await.map_err(stopping) {
                Ok(Ok(())) => begun_on.push(core),
                Ok(Err(refusal)) | Err(refusal) => {
                    subscribed.give_up(name, is_pattern, place(begun_on));
                    return Err(refusal);
                }
            }
        }
        Ok(place(begun_on))
    }
}

/// Returns the error for a SUBSCRIBE that exceeds the client's memory limit.
fn too_many(limit: usize) -> Refusal {
    let message = format!(
        "the subscriptions of this connection would take more than the {limit} bytes that server.client_memory allows: nothing of this command was \
         subscribed to; use a pattern, or several connections"
    );
    (Code::OutOfMemory, message)
}

/// Returns the error for a pattern whose rows are on several nodes, because each node notifies only of its own rows.
fn of_many_nodes(pattern: &[u8]) -> Refusal {
    let message = format!(
        "the rows of '{}' are on several nodes of the cluster, each of which notifies of its own rows only: subscribe to patterns that name the leading \
         column, such as __keyspace@0__:post|bob|*, each at the node that CLUSTER SLOTS names for it",
        show(pattern)
    );
    (Code::CrossSlot, message)
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

/// Stores the subscriptions in the connection, unless there are none.
fn keep(state: &mut State, subscribed: Box<Subscribed>) {
    state.client.set_subscriptions(subscribed.counts());
    state.subscribed = (subscribed.count() > 0).then_some(subscribed);
}

/// Executes UNSUBSCRIBE and PUNSUBSCRIBE, for the given names or for all.
pub(super) fn leave(state: &mut State, request: Request<'_>, are_patterns: bool) {
    let word = if are_patterns {
        "punsubscribe"
    } else {
        "unsubscribe"
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
        names = subscribed
            .names(are_patterns)
            .keys()
            .map(|name| name.to_vec())
            .collect();
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
