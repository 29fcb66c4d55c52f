//! Channels of PUBLISH and SUBSCRIBE that are not keys of a table, and the patterns that match them.
//!
//! Any thread can publish: the message is added to the mailbox of each client that is subscribed to the channel, or to a matching
//! pattern. Channels are local to the node: a message reaches only clients of this node.
//!
//! A message is matched with all patterns in one turn of the publishing core. That work is bounded: a channel has at most
//! [`CHANNEL_BYTES_MAX`] bytes, and the patterns cost at most `PATTERNS_COST_MAX`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use larder_protocol::errors::Code;
use larder_types::KEY_BYTES_MAX;

use super::{Client, Notification};
use crate::error::Refusal;
use crate::glob::Glob;

/// Maximum length of a channel's name: that of the longest key, with the prefix of its channel.
pub const CHANNEL_BYTES_MAX: usize = KEY_BYTES_MAX + 64;
/// Maximum sum of [`Glob::cost`] over the distinct patterns of a node. A message on a channel with a short name is matched with
/// them in a few milliseconds.
const PATTERNS_COST_MAX: usize = 1 << 18;

/// The subscribers of one name, by client number.
type Subscribers = BTreeMap<u64, Arc<Client>>;

#[derive(Default)]
pub struct Channels {
    inner: RwLock<Inner>,
    /// The number of names.
    names: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    channels: HashMap<Arc<[u8]>, Subscribers>,
    patterns: HashMap<Arc<[u8]>, (Arc<Glob>, Subscribers)>,
    /// The sum of the patterns' costs.
    patterns_cost: usize,
}

impl Channels {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there are no subscriptions.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.names.load(Ordering::Relaxed) == 0
    }

    fn count_names(&self, inner: &Inner) {
        let names = inner.channels.len() + inner.patterns.len();
        self.names.store(names, Ordering::Relaxed);
    }

    pub fn subscribe(&self, name: &Arc<[u8]>, client: &Arc<Client>) {
        let mut inner = self.write();
        let subscribers = inner.channels.entry(name.clone()).or_default();
        subscribers.insert(client.id, client.clone());
        self.count_names(&inner);
    }

    /// # Errors
    /// The patterns of all clients would take too long to match.
    pub fn subscribe_to_pattern(
        &self,
        name: &Arc<[u8]>,
        glob: &Arc<Glob>,
        client: &Arc<Client>,
    ) -> Result<(), Refusal> {
        let mut inner = self.write();
        if !inner.patterns.contains_key(name) {
            let cost = inner.patterns_cost + glob.cost();
            if cost > PATTERNS_COST_MAX {
                return Err(patterns_too_costly());
            }
            inner.patterns_cost = cost;
        }
        let new = || (glob.clone(), Subscribers::new());
        let (_, subscribers) = inner.patterns.entry(name.clone()).or_insert_with(new);
        subscribers.insert(client.id, client.clone());
        self.count_names(&inner);
        Ok(())
    }

    pub fn unsubscribe(&self, name: &[u8], is_pattern: bool, client: u64) {
        let mut inner = self.write();
        if is_pattern {
            if let Some((glob, subscribers)) = inner.patterns.get_mut(name) {
                let cost = glob.cost();
                subscribers.remove(&client);
                if subscribers.is_empty() {
                    inner.patterns.remove(name);
                    inner.patterns_cost -= cost;
                }
            }
        } else if let Some(subscribers) = inner.channels.get_mut(name) {
            subscribers.remove(&client);
            if subscribers.is_empty() {
                inner.channels.remove(name);
            }
        }
        self.count_names(&inner);
    }

    /// Sends a message to the subscribers of a channel. Returns the number of messages sent.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let inner = self.read();
        let exact = inner.channels.get_key_value(channel);
        let matching =
            |(_, (glob, _)): &(&Arc<[u8]>, &(Arc<Glob>, Subscribers))| glob.matches(channel);
        let mut matching = inner.patterns.iter().filter(matching).peekable();
        if exact.is_none() && matching.peek().is_none() {
            return 0;
        }
        let channel: Arc<[u8]> = exact.map_or_else(|| channel.into(), |(name, _)| name.clone());
        let payload: Arc<[u8]> = payload.into();
        let mut delivered = 0;
        let mut send = |pattern: Option<&Arc<[u8]>>, subscribers: &Subscribers| {
            for client in subscribers.values() {
                client.mailbox.put(Notification::Message {
                    pattern: pattern.cloned(),
                    channel: channel.clone(),
                    payload: payload.clone(),
                });
            }
            delivered += subscribers.len();
        };
        if let Some((_, subscribers)) = exact {
            send(None, subscribers);
        }
        for (pattern, (_, subscribers)) in matching {
            send(Some(pattern), subscribers);
        }
        delivered
    }

    /// The channels with subscribers.
    pub fn names(&self, matches: impl Fn(&[u8]) -> bool) -> Vec<Arc<[u8]>> {
        let inner = self.read();
        let names = inner.channels.keys();
        names.filter(|name| matches(name)).cloned().collect()
    }

    /// The number of channels that have subscribers.
    pub fn count(&self) -> usize {
        self.read().channels.len()
    }

    /// The number of clients that are subscribed to a channel.
    pub fn subscribers(&self, name: &[u8]) -> usize {
        self.read().channels.get(name).map_or(0, BTreeMap::len)
    }

    /// The number of patterns with subscribers.
    pub fn patterns(&self) -> usize {
        self.read().patterns.len()
    }
}

fn patterns_too_costly() -> Refusal {
    let message = "the patterns that clients of this node are subscribed to would take too long to match: subscribe to channels, or to patterns \
                   whose only * is at the end";
    (Code::BadRequest, message.to_owned())
}
