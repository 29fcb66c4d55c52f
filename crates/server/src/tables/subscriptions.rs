//! Subscriptions of connections (SUBSCRIBE, PSUBSCRIBE): every change of a matching row adds a notification to the
//! connection's mailbox.
//!
//! ```text
//!  engine ─ row changes ─► deliver_row_changes ─► subscriptions, by key prefix ─► Mailbox ─► the connection's session
//! ```
//!
//! 1. A mailbox has a size limit: the connection is closed if it does not read its notifications.
//! 2. The notifications of one row are in the order of its changes, because they come from the one core that has the
//!    row.

use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use larder_cluster::coordination::boot_ms;
use larder_join::{KeyRange, RowChange, range_slot, row_slot};
use larder_types::{SLOTS, object_row, row_key, text_row};
use tokio::sync::Notify;

use super::{NoReply, Refusal, Tables, require_done};
use crate::Shared;
use crate::clients::{Client, Notification};
use crate::cluster::View;
use crate::glob::Glob;

/// The prefix of the channels of keys.
pub const KEY_CHANNEL: &[u8] = b"__keyspace@0__:";

/// A connection's subscription to keys.
#[derive(Clone)]
pub struct Subscription {
    pub id: u64,
    /// The prefix of all keys, or the only key.
    pub prefix: Vec<u8>,
    pub is_key: bool,
    /// The pattern that keys must match.
    pub glob: Arc<Glob>,
    /// The channel or pattern as the client wrote it.
    pub name: Arc<[u8]>,
    pub is_pattern: bool,
    pub client: Arc<Client>,
}

impl Subscription {
    fn matches(&self, key: &[u8]) -> bool {
        if self.is_key {
            *key == *self.prefix
        } else {
            self.glob.matches(key)
        }
    }

    fn notify(&self, key: &[u8], is_there: bool) {
        let payload: &[u8] = if is_there { b"set" } else { b"del" };
        let channel = if self.is_pattern {
            [KEY_CHANNEL, key].concat().into()
        } else {
            self.name.clone()
        };
        self.client.mailbox.put(Notification::Message {
            pattern: self.is_pattern.then(|| self.name.clone()),
            channel,
            payload: payload.into(),
        });
    }
}

/// The subscriptions of a core, by key prefix.
#[derive(Default)]
pub(super) struct Subscriptions {
    by_prefix: RefCell<HashMap<Vec<u8>, Vec<Subscriber>>>,
    /// The lengths of the prefixes, with the number of prefixes of each.
    lengths: RefCell<BTreeMap<usize, usize>>,
    /// Wakes `refresh_subscriptions`: ranges may be behind.
    pub refresh_needed: Notify,
    /// True if `refresh_subscriptions` is running.
    is_refreshing: Cell<bool>,
}

struct Subscriber {
    subscription: Subscription,
    /// The engine's subscription numbers: for rows of text, and for objects.
    numbers: [u64; 2],
}

impl Subscriptions {
    fn deliver(&self, change: &RowChange) {
        let all = self.by_prefix.borrow();
        let key = row_key(&change.key);
        for &length in self.lengths.borrow().keys() {
            let Some(prefix) = key.get(..length) else {
                return;
            };
            for subscriber in all.get(prefix).into_iter().flatten() {
                let subscription = &subscriber.subscription;
                if subscription.matches(key) {
                    subscription.notify(key, change.exists);
                }
            }
        }
    }
}

impl Tables {
    /// Adds notifications of all row changes since the last call to the subscribers' mailboxes.
    pub(super) fn deliver_row_changes(&self) {
        let changes = self.engine.borrow_mut().take_row_changes();
        // With keyspace events enabled, changes of base rows are published as events instead.
        let only_computed = self.handle.events.have_keyspace();
        for change in &changes {
            if !only_computed || self.is_computed(&change.key) {
                self.subscriptions.deliver(change);
            }
        }
    }

    /// Returns whether subscribed ranges must be brought up to date before all their changes are known.
    pub(super) fn has_stale_subscriptions(&self) -> bool {
        self.subscriptions.is_refreshing.get()
            && !self.engine.borrow().stale_subscriptions().is_empty()
    }

    /// Starts notifying a connection of changes on this core.
    ///
    /// # Errors
    /// Changes of these rows are not tracked.
    pub async fn subscribe(
        self: Rc<Self>,
        subscription: Subscription,
        shared: Arc<Shared>,
    ) -> Result<(), Refusal> {
        let is_key = subscription.is_key;
        // The prefix of a pattern has a separator; a key need not have one.
        let prefix = &*text_row(&subscription.prefix);
        let number = self
            .read_when_available(None, shared.postgres.as_ref(), |engine, now| {
                require_done(engine.subscribe(prefix, is_key, now))
            })
            .await?;
        let row = object_row(&subscription.prefix);
        let of_objects = self.read(|engine, now| require_done(engine.subscribe(&row, is_key, now)));
        let of_objects = of_objects.map_err(NoReply::refusal)?;
        // The subscription does not include earlier changes.
        self.deliver_row_changes();
        let length = subscription.prefix.len();
        *self
            .subscriptions
            .lengths
            .borrow_mut()
            .entry(length)
            .or_default() += 1;
        let mut all = self.subscriptions.by_prefix.borrow_mut();
        all.entry(subscription.prefix.clone())
            .or_default()
            .push(Subscriber {
                subscription,
                numbers: [number, of_objects],
            });
        drop(all);
        if !self.subscriptions.is_refreshing.replace(true) {
            tokio::task::spawn_local(self.clone().refresh_subscriptions(shared));
        }
        if let Some(view) = self.view() {
            // The rows may have moved while they were computed.
            self.end_moved_subscriptions(&view);
        }
        Ok(())
    }

    /// Ends the subscriptions to rows that this core does not have in this view, or may not have because its lease has
    /// expired.
    pub(super) fn end_moved_subscriptions(&self, view: &View) {
        let is_held = view.has_valid_lease(boot_ms());
        let own_cores = view.places.own_cores();
        let owns_all =
            LazyCell::new(|| (0..SLOTS).all(|slot| view.owners.owner_of(slot) < own_cores));
        let is_here = |subscription: &Subscription| {
            let home = self.find_home_slot(&subscription.prefix, subscription.is_key);
            is_held
                && match home {
                    Some((slot, is_computed)) => {
                        let computing = view.computing.as_ref().filter(|_| is_computed);
                        usize::from(computing.unwrap_or(&view.owners).owner_of(slot)) == self.index
                    }
                    None => *owns_all,
                }
        };
        let all = self.subscriptions.by_prefix.borrow();
        let moved = all.values().flatten().map(|it| &it.subscription);
        let moved: Vec<Subscription> = moved.filter(|it| !is_here(it)).cloned().collect();
        drop(all);
        if moved.is_empty() {
            return;
        }
        self.deliver_row_changes();
        for subscription in moved {
            self.unsubscribe(subscription.id, &subscription.prefix);
            subscription.client.mailbox.put(Notification::Ended {
                name: subscription.name,
                is_pattern: subscription.is_pattern,
            });
        }
    }

    /// Ends all subscriptions if this node's lease has expired: another node may have the rows.
    pub(super) fn end_subscriptions_without_lease(&self) {
        let Some(view) = self.view() else { return };
        let is_held = view.has_valid_lease(boot_ms());
        self.handle_lease_change(is_held);
        if !is_held && !self.subscriptions.lengths.borrow().is_empty() {
            self.end_moved_subscriptions(&view);
        }
    }

    /// Returns the places whose cores have, or compute, rows of a subscription.
    pub fn find_homes(&self, prefix: &[u8], is_key: bool) -> Vec<usize> {
        let Some(shard) = self.shard() else {
            return vec![self.index];
        };
        let Some((slot, is_computed)) = self.find_home_slot(prefix, is_key) else {
            return shard.owners().map(usize::from).collect();
        };
        let view = self.view();
        let computing = view.as_ref().and_then(|view| view.computing.as_ref());
        let home = match computing.filter(|_| is_computed) {
            Some(computing) => computing.owner_of(slot),
            None => shard.owner_of_slot(slot),
        };
        vec![usize::from(home)]
    }

    /// Returns the slot whose place has all rows of a key or prefix, and whether joins compute them. `None`: every
    /// place has some of them.
    fn find_home_slot(&self, prefix: &[u8], is_key: bool) -> Option<(u16, bool)> {
        let is_computed = self.is_computed(prefix);
        let range = if is_key {
            KeyRange::point(prefix)
        } else {
            KeyRange::prefix(prefix)
        };
        let slot = range_slot(&range.lo, &range.hi).or_else(|| {
            let has_home = is_computed || self.is_mapped(prefix);
            let name = prefix.iter().position(|byte| matches!(byte, b'|' | b':'));
            has_home.then(|| row_slot(&prefix[..name.map_or(prefix.len(), |end| end + 1)]))
        });
        slot.map(|slot| (slot, is_computed))
    }

    pub fn unsubscribe(&self, id: u64, prefix: &[u8]) {
        let mut all = self.subscriptions.by_prefix.borrow_mut();
        let Some(own) = all.get_mut(prefix) else {
            return;
        };
        let Some(at) = own.iter().position(|own| own.subscription.id == id) else {
            return;
        };
        let gone = own.swap_remove(at);
        if own.is_empty() {
            all.remove(prefix);
        }
        let mut lengths = self.subscriptions.lengths.borrow_mut();
        if let Some(count) = lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&prefix.len());
            }
        }
        for number in gone.numbers {
            self.engine.borrow_mut().unsubscribe(number);
        }
    }

    /// Brings subscribed ranges up to date when their sources have changed, so that the changes of their rows are
    /// recorded. Never returns.
    async fn refresh_subscriptions(self: Rc<Self>, shared: Arc<Shared>) {
        loop {
            self.subscriptions.refresh_needed.notified().await;
            let stale = self.engine.borrow().stale_subscriptions();
            for number in stale {
                self.wait_while_paused(None).await;
                let postgres = shared.postgres.as_ref();
                let read = self.read_when_available(None, postgres, |engine, now| {
                    require_done(engine.refresh_subscription(number, now))
                });
                if let Err((_, why)) = read.await {
                    tracing::warn!(why, "subscribed rows cannot be computed");
                    // Do not retry immediately.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}
