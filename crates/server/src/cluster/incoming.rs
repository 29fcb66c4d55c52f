//! The ordered queue of messages from other nodes for a core.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use larder_cluster::peer::{Exchange, PeerInfo, Replicate, Requests};

use super::link::{Link, Responder};

/// While this many messages wait, no more is read, so that senders are throttled.
const WAITING_MAX: usize = 1_024;

pub enum Incoming {
    /// The messages that follow with this link come from this peer.
    Connected(Rc<Link>, PeerInfo),
    /// To be executed and answered.
    Requests(Requests, Responder),
    Exchange(Rc<Link>, Exchange),
    Replicate(Rc<Link>, Replicate),
    /// The link has ended, with the reason. Its times determine when the peer certainly no longer trusts the rows that it
    /// received.
    Ended(Rc<Link>, Rc<str>),
}

/// The queue of one core. Its consumer must not wait for a response of another node before it takes the next message, because
/// responses arrive after it.
#[derive(Default)]
pub struct Arrivals(RefCell<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Incoming>,
    consumer: Option<Waker>,
    /// Connections that do not read until there is room.
    paused_readers: Vec<Waker>,
}

impl Arrivals {
    pub async fn next(&self) -> Incoming {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Incoming> {
        let mut queue = self.0.borrow_mut();
        let Some(next) = queue.waiting.pop_front() else {
            queue.consumer = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if queue.waiting.len() < WAITING_MAX / 2 {
            queue.paused_readers.drain(..).for_each(Waker::wake);
        }
        Poll::Ready(next)
    }

    pub(super) fn push(&self, incoming: Incoming) {
        let mut queue = self.0.borrow_mut();
        queue.waiting.push_back(incoming);
        if let Some(consumer) = queue.consumer.take() {
            consumer.wake();
        }
    }

    /// Returns whether more bytes may be read. If not, the task is woken when there is room.
    pub(super) fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut queue = self.0.borrow_mut();
        if queue.waiting.len() < WAITING_MAX {
            return true;
        }
        if !queue
            .paused_readers
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            queue.paused_readers.push(cx.waker().clone());
        }
        false
    }
}
