//! What comes from other nodes, in its order, for the core to take.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use larder_cluster::peer::{Exchange, Peer, Replicate, Requests};

use super::link::{Answering, Link};

/// While so many wait, nothing more is read: those who send wait.
const WAITING_MAX: usize = 1_024;

pub enum Incoming {
    /// What follows with this link comes from there.
    Connected(Rc<Link>, Peer),
    /// To be executed, and answered.
    Requests(Requests, Answering),
    Exchange(Rc<Link>, Exchange),
    Replicate(Rc<Link>, Replicate),
    /// Nothing more comes over it, and why. Its times say when the other has surely forgotten what it was told.
    Ended(Rc<Link>, Rc<str>),
}

/// A queue of one core. Who takes from it must not wait for an answer of another node before it takes the next: answers come behind it.
#[derive(Default)]
pub struct Arrivals(RefCell<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Incoming>,
    taker: Option<Waker>,
    /// Connections that do not read until there is room.
    stopped: Vec<Waker>,
}

impl Arrivals {
    pub async fn next(&self) -> Incoming {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Incoming> {
        let mut queue = self.0.borrow_mut();
        let Some(next) = queue.waiting.pop_front() else {
            queue.taker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if queue.waiting.len() < WAITING_MAX / 2 {
            queue.stopped.drain(..).for_each(Waker::wake);
        }
        Poll::Ready(next)
    }

    pub(super) fn push(&self, incoming: Incoming) {
        let mut queue = self.0.borrow_mut();
        queue.waiting.push_back(incoming);
        if let Some(taker) = queue.taker.take() {
            taker.wake();
        }
    }

    /// Whether more may be read; if not, the task is woken when it may.
    pub(super) fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut queue = self.0.borrow_mut();
        if queue.waiting.len() < WAITING_MAX {
            return true;
        }
        if !queue
            .stopped
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            queue.stopped.push(cx.waker().clone());
        }
        false
    }
}
