//! A connection's mailbox: messages from other connections and cores for its client, until its session encodes them.
//!
//! 1. A mailbox holds no more than its limit. A connection whose mailbox is full is closed, because a message was lost.
//! 2. Messages from one thread are taken in the order in which they were put.
//! 3. The session takes messages only when all requests that it has executed are answered. An invalidation therefore follows the
//!    reply that it invalidates.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The memory of a message in addition to its payload.
const NOTIFICATION_BYTES: usize = 96;

/// A message for a client.
#[derive(Debug, Clone)]
pub enum Notification {
    /// A message of a channel, because the client is subscribed to the channel or to a matching pattern.
    Message {
        pattern: Option<Arc<[u8]>>,
        channel: Arc<[u8]>,
        payload: Arc<[u8]>,
    },
    /// The rows of a channel or pattern moved to another node, and the subscription has ended.
    Ended { name: Arc<[u8]>, is_pattern: bool },
    /// The client's cached value of a key is stale; `None`: of all keys.
    Invalidate(Option<Arc<[u8]>>),
    /// The connection to which invalidations were redirected is closed; its number.
    RedirectionBroken(u64),
}

impl Notification {
    fn bytes(&self) -> usize {
        NOTIFICATION_BYTES
            + match self {
                Notification::Message {
                    channel, payload, ..
                } => channel.len() + payload.len(),
                Notification::Ended { name, .. } => name.len(),
                Notification::Invalidate(key) => key.as_ref().map_or(0, |key| key.len()),
                Notification::RedirectionBroken(_) => 0,
            }
    }
}

pub struct Mailbox {
    bytes_max: usize,
    bytes: AtomicUsize,
    is_full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    notifications: VecDeque<Notification>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub fn new(bytes_max: usize) -> Mailbox {
        Mailbox {
            bytes_max,
            bytes: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, note: Notification) {
        if self.is_full.load(Ordering::Relaxed) {
            return;
        }
        let bytes = note.bytes();
        let mut inner = self.lock();
        if self.is_full() {
            return;
        }
        if matches!(note, Notification::Invalidate(None)) {
            // It supersedes all earlier invalidations.
            let before = std::mem::take(&mut inner.notifications);
            let is_kept = |note: &Notification| !matches!(note, Notification::Invalidate(_));
            inner
                .notifications
                .extend(before.into_iter().filter(is_kept));
            let kept = inner.notifications.iter().map(Notification::bytes).sum();
            self.bytes.store(kept, Ordering::Release);
        }
        if self.bytes.load(Ordering::Relaxed) + bytes > self.bytes_max {
            self.is_full.store(true, Ordering::Relaxed);
            tracing::warn!(
                limit = self.bytes_max,
                "a client did not read its messages and is closed (server.subscriber_buffer_bytes)"
            );
        } else {
            inner.notifications.push_back(note);
            self.bytes.fetch_add(bytes, Ordering::Release);
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether a message did not fit. The connection must then be closed.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        // Each message counts some bytes.
        self.bytes.load(Ordering::Acquire) == 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Drops all messages and accepts no more. Trackers may outlive the connection.
    pub fn close(&self) {
        let mut inner = self.lock();
        self.is_full.store(true, Ordering::Relaxed);
        *inner = Inner::default();
        self.bytes.store(0, Ordering::Release);
    }

    /// Takes the first message.
    pub fn take(&self) -> Option<Notification> {
        if self.is_empty() {
            return None;
        }
        let mut inner = self.lock();
        let note = inner.notifications.pop_front()?;
        self.bytes.fetch_sub(note.bytes(), Ordering::Release);
        if inner.notifications.is_empty() && inner.notifications.capacity() > 64 {
            inner.notifications = VecDeque::new();
        }
        Some(note)
    }

    /// Ready when there is a message, or when the mailbox is full.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if !inner.notifications.is_empty() || self.is_full() {
            return Poll::Ready(());
        }
        match &mut inner.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Notification {
        Notification::Invalidate(Some(name.as_bytes().into()))
    }

    #[test]
    fn a_full_mailbox_rejects_notifications() {
        let mailbox = Mailbox::new(2 * NOTIFICATION_BYTES + 2);
        mailbox.put(key("a"));
        mailbox.put(key("b"));
        assert!(!mailbox.is_full() && mailbox.bytes() == 2 * NOTIFICATION_BYTES + 2);
        mailbox.put(key("c"));
        assert!(mailbox.is_full());
    }

    #[test]
    fn a_closed_mailbox_holds_nothing() {
        let mailbox = Mailbox::new(10_000);
        mailbox.put(key("a"));
        mailbox.close();
        mailbox.put(key("b"));
        assert!(mailbox.is_empty() && mailbox.take().is_none());
    }

    #[test]
    fn an_invalidation_of_all_keys_replaces_those_of_single_keys() {
        let mailbox = Mailbox::new(10_000);
        mailbox.put(key("a"));
        mailbox.put(Notification::RedirectionBroken(7));
        mailbox.put(key("b"));
        mailbox.put(Notification::Invalidate(None));
        assert!(matches!(
            mailbox.take(),
            Some(Notification::RedirectionBroken(7))
        ));
        assert!(matches!(
            mailbox.take(),
            Some(Notification::Invalidate(None))
        ));
        assert!(mailbox.take().is_none() && mailbox.bytes() == 0);
    }
}
