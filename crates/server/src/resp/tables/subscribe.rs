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
use super::super::pubsub::check_channel_length;
use super::super::state::ConnectionState;
use super::super::subject::is_of_table;
use super::rows_on_other_node;
use super::scan::literal_prefix;
use crate::catalog::Snapshot;
use crate::clients::{Client, Notification};
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
pub(in crate::resp) struct ConnectionSubscriptions {
    handle: Arc<TablesHandle>,
    client: Arc<Client>,
    channels: BTreeMap<Arc<[u8]>, SubscriptionSource>,
    patterns: BTreeMap<Arc<[u8]>, SubscriptionSource>,
}

/// The source of a subscription's messages.
enum SubscriptionSource {
    /// The cores that own rows whose keys have this prefix.
    Rows {
        id: u64,
        prefix: Vec<u8>,
        cores: Vec<usize>,
    },
    /// PUBLISH and keyspace events.
    Channel,
}

impl ConnectionSubscriptions {
    fn new(state: &ConnectionState) -> ConnectionSubscriptions {
        ConnectionSubscriptions {
            handle: state.core.shared.tables.clone(),
            client: state.client.clone(),
            channels: BTreeMap::new(),
            patterns: BTreeMap::new(),
        }
    }

    fn names_mut(&mut self, are_patterns: bool) -> &mut BTreeMap<Arc<[u8]>, SubscriptionSource> {
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

    fn remove(&mut self, name: &[u8], are_patterns: bool) {
        if let Some(place) = self.names_mut(are_patterns).remove(name) {
            let is_of_rows = matches!(place, SubscriptionSource::Rows { .. });
            let bytes = subscription_bytes(name, is_of_rows);
            self.client.subscription_bytes.fetch_sub(bytes, Relaxed);
            self.release(name, are_patterns, place);
        }
    }

    fn release(&self, name: &[u8], is_pattern: bool, place: SubscriptionSource) {
        let channels = &self.handle.channels;
        channels.unsubscribe(name, is_pattern, self.client.id);
        let SubscriptionSource::Rows { id, prefix, cores } = place else {
            return;
        };
        for core in cores {
            let prefix = prefix.clone();
            // The completion is not waited for.
            drop(self.handle.start_on(core, None, move |tables| async move {
                tables.unsubscribe(id, &prefix);
            }));
        }
    }

    /// Returns whether the client is still subscribed to a message.
    fn is_subscribed_to(&self, pattern: Option<&Arc<[u8]>>, channel: &Arc<[u8]>) -> bool {
        match pattern {
            Some(pattern) => self.patterns.contains_key(pattern),
            None => self.channels.contains_key(channel),
        }
    }
}

impl Drop for ConnectionSubscriptions {
    fn drop(&mut self) {
        for are_patterns in [false, true] {
            for (name, place) in std::mem::take(self.names_mut(are_patterns)) {
                self.release(&name, are_patterns, place);
            }
        }
        self.client.subscription_bytes.store(0, Relaxed);
    }
}

/// Sends the client a message of its mailbox.
pub(in crate::resp) fn deliver(state: &mut ConnectionState, note: Notification) {
    match note {
        Notification::Message {
            pattern,
            channel,
            payload,
        } => {
            let subscriptions = state.subscriptions.as_ref();
            if subscriptions.is_some_and(|own| own.is_subscribed_to(pattern.as_ref(), &channel)) {
                send_message(state, pattern.as_deref(), &channel, &payload);
            }
        }
        Notification::Ended { name, is_pattern } => end_subscription(state, &name, is_pattern),
        Notification::Invalidate(key) => invalidate(state, key.as_deref()),
        Notification::RedirectionBroken(id) => {
            let mut encoder = state.encoder();
            if encoder.proto == Proto::Resp3 {
                encoder.push(2);
                encoder.text("tracking-redir-broken");
                encoder.count(id);
            }
        }
    }
}

fn send_message(
    state: &mut ConnectionState,
    pattern: Option<&[u8]>,
    channel: &[u8],
    payload: &[u8],
) {
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
fn invalidate(state: &mut ConnectionState, key: Option<&[u8]>) {
    let is_subscribed = state.subscriptions.is_some();
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
fn end_subscription(state: &mut ConnectionState, name: &Arc<[u8]>, is_pattern: bool) {
    let Some(mut subscriptions) = state.subscriptions.take() else {
        return;
    };
    if subscriptions.names_mut(is_pattern).contains_key(name) {
        subscriptions.remove(name, is_pattern);
        let word = if is_pattern {
            "punsubscribe"
        } else {
            "unsubscribe"
        };
        encode_confirmation(state, word, Some(name), subscriptions.count());
    }
    store_subscriptions(state, subscriptions);
}

/// Returns the error for a command that is not permitted in subscriber mode (subscribed, with RESP2).
pub(in crate::resp) fn refuse_in_subscriber_mode(
    state: &ConnectionState,
    command: &Spec,
) -> Option<Refusal> {
    (state.is_in_subscriber_mode() && !command.in_subscriber_mode).then(|| {
        let name = command.name.to_ascii_lowercase();
        let message = format!(
            "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        );
        (Code::BadRequest, message)
    })
}

/// Executes PING in subscriber mode.
pub(in crate::resp) fn ping(state: &mut ConnectionState, message: &[u8]) {
    debug_assert_eq!(state.proto, Proto::Resp2);
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text("pong");
    encoder.bulk(message);
}

/// The target of a channel name or pattern.
#[derive(Clone)]
enum SubscriptionTarget {
    /// The rows whose keys have this prefix and match, or the one key. For a pattern, also the channels that match it.
    Rows {
        prefix: Vec<u8>,
        keys: Arc<Glob>,
        channels: Option<Arc<Glob>>,
    },
    /// A channel, or a pattern of channels.
    Channel(Option<Arc<Glob>>),
}

fn parse_target(
    name: &[u8],
    is_pattern: bool,
    snapshot: &Snapshot,
    any_key: &Arc<Glob>,
) -> Result<SubscriptionTarget, Refusal> {
    let channels = if is_pattern {
        Some(Arc::new(Glob::parse(name)?))
    } else {
        None
    };
    check_channel_length(name)?;
    let any = name.strip_prefix(ANY_KEY_CHANNEL).filter(|_| is_pattern);
    let Some(glob) = name.strip_prefix(KEY_CHANNEL).or(any) else {
        return Ok(SubscriptionTarget::Channel(channels));
    };
    let prefix = if is_pattern {
        literal_prefix(glob)
    } else {
        glob.to_vec()
    };
    let separator = |byte: &u8| matches!(byte, b'|' | b':');
    let end = if is_plain(&prefix) {
        None
    } else {
        prefix.iter().position(separator)
    };
    let Some(end) = end.or((!is_pattern).then_some(prefix.len())) else {
        // Changes of all tables are sent as keyspace events, if these are selected.
        return Ok(SubscriptionTarget::Channel(channels));
    };
    if !is_of_table(snapshot, &prefix) {
        let store = show(&prefix[..end]);
        let message = format!(
            "{store} is a store, and its keys change only with a new version; STORE.VERSION reports the live version"
        );
        return Err((Code::BadRequest, message));
    }
    let glob = if is_pattern {
        Arc::new(Glob::parse(glob)?)
    } else {
        // A single key is compared without a pattern, whatever its length.
        any_key.clone()
    };
    Ok(SubscriptionTarget::Rows {
        prefix,
        keys: glob,
        channels,
    })
}

/// A SUBSCRIBE or PSUBSCRIBE in progress, which registers with the cores.
pub(in crate::resp) struct SubscribeJob {
    are_patterns: bool,
    names: Vec<(Arc<[u8]>, SubscriptionTarget)>,
}

impl SubscribeJob {
    pub fn begin(
        state: &ConnectionState,
        snapshot: &Snapshot,
        request: Request<'_>,
        are_patterns: bool,
    ) -> Result<Option<Work>, Refusal> {
        let any_key = Arc::new(Glob::parse(b"")?);
        let limit = state.core.clients.limits.per_client_bytes;
        let mut bytes = state.client.memory_bytes();
        let mut names = Vec::new();
        for name in request.args().skip(1) {
            let target = parse_target(name, are_patterns, snapshot, &any_key)?;
            bytes += subscription_bytes(name, matches!(target, SubscriptionTarget::Rows { .. }));
            if bytes > limit {
                return Err(too_many_subscriptions(limit));
            }
            names.push((Arc::from(name), target));
        }
        Ok(Some(Work::Subscribe(SubscribeJob {
            are_patterns,
            names,
        })))
    }

    pub async fn run(&mut self, state: &mut ConnectionState) {
        let subscriptions = state.subscriptions.take();
        let mut subscriptions =
            subscriptions.unwrap_or_else(|| Box::new(ConnectionSubscriptions::new(state)));
        let are_patterns = self.are_patterns;
        let mut new = Vec::new();
        let mut refused = None;
        for (name, target) in &self.names {
            if subscriptions.names_mut(are_patterns).contains_key(name) {
                continue;
            }
            match self.register(state, &subscriptions, name, target).await {
                Ok(place) => {
                    let (SubscriptionTarget::Channel(glob)
                    | SubscriptionTarget::Rows { channels: glob, .. }) = target;
                    let channels = &subscriptions.handle.channels;
                    let subscribed_channel = match glob {
                        None => {
                            channels.subscribe(name, &state.client);
                            Ok(())
                        }
                        Some(glob) => channels.subscribe_to_pattern(name, glob, &state.client),
                    };
                    subscriptions
                        .names_mut(are_patterns)
                        .insert(name.clone(), place);
                    let is_of_rows = matches!(target, SubscriptionTarget::Rows { .. });
                    let bytes = subscription_bytes(name, is_of_rows);
                    state.client.subscription_bytes.fetch_add(bytes, Relaxed);
                    new.push(name.clone());
                    if let Err(refusal) = subscribed_channel {
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
                .for_each(|name| subscriptions.remove(name, are_patterns));
            state.refuse(refusal);
        } else {
            let before = subscriptions.count() - new.len();
            let (mut count, mut confirmed) = (before, 0);
            for (name, ..) in &self.names {
                if new.get(confirmed) == Some(name) {
                    (confirmed, count) = (confirmed + 1, count + 1);
                }
                let word = if are_patterns {
                    "psubscribe"
                } else {
                    "subscribe"
                };
                encode_confirmation(state, word, Some(name), count);
            }
        }
        store_subscriptions(state, subscriptions);
    }

    async fn register(
        &self,
        state: &ConnectionState,
        subscriptions: &ConnectionSubscriptions,
        name: &Arc<[u8]>,
        target: &SubscriptionTarget,
    ) -> Result<SubscriptionSource, Refusal> {
        let SubscriptionTarget::Rows { prefix, keys, .. } = target else {
            return Ok(SubscriptionSource::Channel);
        };
        let is_pattern = self.are_patterns;
        let subscription = Subscription {
            id: NEXT_ID.fetch_add(1, Relaxed),
            prefix: prefix.clone(),
            is_key: !is_pattern || *prefix == keys.pattern(),
            glob: keys.clone(),
            name: name.clone(),
            is_pattern,
            client: state.client.clone(),
        };
        let cores = state.core.tables.find_homes(prefix, subscription.is_key);
        let remote_place = cores
            .iter()
            .max()
            .filter(|core| **core >= subscriptions.handle.cores());
        if cores.len() > 1 && remote_place.is_some() {
            return Err(pattern_spans_nodes(name));
        }
        if let Some(place) = remote_place {
            return Err(rows_on_other_node(
                &state.core.tables,
                *place,
                "subscribed to",
            ));
        }
        let (id, prefix) = (subscription.id, subscription.prefix.clone());
        let mut registered_on = Vec::with_capacity(cores.len());
        let place = |cores| SubscriptionSource::Rows { id, prefix, cores };
        for core in cores {
            let (own, shared) = (subscription.clone(), state.core.shared.clone());
            let registration = subscriptions
                .handle
                .run_on(core, move |tables| tables.subscribe(own, shared));
            match registration.await.map_err(stopping) {
                Ok(Ok(())) => registered_on.push(core),
                Ok(Err(refusal)) | Err(refusal) => {
                    subscriptions.release(name, is_pattern, place(registered_on));
                    return Err(refusal);
                }
            }
        }
        Ok(place(registered_on))
    }
}

/// Returns the error for a SUBSCRIBE that exceeds the client's memory limit.
fn too_many_subscriptions(limit: usize) -> Refusal {
    let message = format!(
        "the subscriptions of this connection would take more than the {limit} bytes that server.client_memory allows, so this command subscribed to \
         nothing; use a pattern, or several connections"
    );
    (Code::OutOfMemory, message)
}

/// Returns the error for a pattern whose rows are on several nodes, because each node notifies only of its own rows.
fn pattern_spans_nodes(pattern: &[u8]) -> Refusal {
    let message = format!(
        "several nodes of the cluster own the rows of '{}', and each sends notifications only for its own rows. Subscribe to patterns that name the leading \
         column, such as __keyspace@0__:post|bob|*, each at the node that CLUSTER SLOTS names for it",
        show(pattern)
    );
    (Code::CrossSlot, message)
}

fn encode_confirmation(state: &mut ConnectionState, word: &str, name: Option<&[u8]>, count: usize) {
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
fn store_subscriptions(state: &mut ConnectionState, subscriptions: Box<ConnectionSubscriptions>) {
    state.client.set_subscriptions(subscriptions.counts());
    state.subscriptions = (subscriptions.count() > 0).then_some(subscriptions);
}

/// Executes UNSUBSCRIBE and PUNSUBSCRIBE, for the given names or for all.
pub(in crate::resp) fn unsubscribe(
    state: &mut ConnectionState,
    request: Request<'_>,
    are_patterns: bool,
) {
    let word = if are_patterns {
        "punsubscribe"
    } else {
        "unsubscribe"
    };
    let Some(mut subscriptions) = state.subscriptions.take() else {
        let names: Vec<&[u8]> = request.args().skip(1).collect();
        if names.is_empty() {
            return encode_confirmation(state, word, None, 0);
        }
        return names
            .iter()
            .for_each(|name| encode_confirmation(state, word, Some(name), 0));
    };
    let mut names: Vec<Vec<u8>> = request.args().skip(1).map(<[u8]>::to_vec).collect();
    if names.is_empty() {
        names = subscriptions
            .names_mut(are_patterns)
            .keys()
            .map(|name| name.to_vec())
            .collect();
    }
    if names.is_empty() {
        encode_confirmation(state, word, None, subscriptions.count());
    }
    for name in &names {
        subscriptions.remove(name, are_patterns);
        encode_confirmation(state, word, Some(name), subscriptions.count());
    }
    store_subscriptions(state, subscriptions);
}
