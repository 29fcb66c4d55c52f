//! A node's interface to the service: a lease, a mirror of all keys, and changes, one at a time per purpose.
//!
//! It works like a node's own thread, without its clock. An unanswered request is retried after a while, a change under its own
//! mark.

use std::collections::BTreeMap;

use larder_cluster::coordination::{
    Change, Error, Freshness, Keys, Lease, LeaseId, Mirror, Outcome, Request, Response, WatchItem,
};
use larder_sim::{Output, Outputs};

use super::SERVICE;
use crate::replication::wire::Wire;

const PATIENCE_MS: u64 = 700;
const CHECK_EVERY_MS: u64 = 1_000;
const TTL_SECONDS: u32 = 2;

/// The purpose of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKind {
    Register,
    Map,
    Report,
    Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Read,
    Check,
    Grant,
    KeepAlive,
    Change(WriteKind),
}

/// The result of a request.
pub enum ServiceEvent {
    /// Keys have changed.
    Mirror,
    Leased,
    Renewed,
    LeaseEnded,
    /// `None` if it was rejected permanently.
    Changed(WriteKind, Option<Outcome>),
}

pub struct Agent {
    is_connected: bool,
    numbers: u64,
    /// The number and the time of the last request per purpose.
    open: BTreeMap<Purpose, (u64, u64)>,
    changes: BTreeMap<WriteKind, Change>,
    pub mirror: Mirror,
    pub is_confirmed: bool,
    must_read: bool,
    watch: Option<u64>,
    check_at_ms: u64,
    pub lease: Option<Lease>,
}

impl Agent {
    pub fn new() -> Agent {
        Agent {
            is_connected: false,
            numbers: 0,
            open: BTreeMap::new(),
            changes: BTreeMap::new(),
            mirror: Mirror::new(Keys::with_prefix("")),
            is_confirmed: false,
            must_read: true,
            watch: None,
            check_at_ms: 0,
            lease: None,
        }
    }

    pub fn connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
        self.watch = None;
        // Requests in flight may have been executed; they are retried.
        self.open.clear();
    }

    pub fn lease_id(&self) -> Option<LeaseId> {
        self.lease.as_ref().map(Lease::id)
    }

    pub fn is_writing(&self, kind: WriteKind) -> bool {
        self.changes.contains_key(&kind)
    }

    pub fn write(&mut self, kind: WriteKind, change: Change) {
        assert_eq!(change.check(), Ok(()));
        self.changes.insert(kind, change);
    }

    /// Sends the requests that are due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        if !self.is_connected {
            return;
        }
        self.open
            .retain(|_, (_, sent_ms)| now_ms < *sent_ms + PATIENCE_MS);
        let keys = self.mirror.keys().clone();
        if self.must_read {
            let freshness = Freshness::Latest;
            self.send_request(now_ms, Purpose::Read, out, || Request::Read {
                keys,
                freshness,
            });
        } else {
            if self.watch.is_none() {
                self.numbers += 1;
                self.watch = Some(self.numbers);
                let watch = Wire::Watch(self.numbers, keys.clone(), self.mirror.revision());
                out.push(Output::Send(SERVICE, watch));
            }
            if now_ms >= self.check_at_ms {
                let after = self.mirror.checked_revision();
                self.send_request(now_ms, Purpose::Check, out, || Request::RecentWrites {
                    keys,
                    after,
                });
            }
        }
        match &self.lease {
            None => {
                let ttl_seconds = TTL_SECONDS;
                self.send_request(now_ms, Purpose::Grant, out, || Request::Grant {
                    ttl_seconds,
                });
            }
            Some(lease) if now_ms >= lease.renewal_at_ms() => {
                let id = lease.id();
                self.send_request(now_ms, Purpose::KeepAlive, out, || Request::KeepAlive(id));
            }
            Some(_) => {}
        }
        for (kind, change) in self.changes.clone() {
            self.send_request(now_ms, Purpose::Change(kind), out, || {
                Request::Change(change)
            });
        }
    }

    fn send_request(
        &mut self,
        now_ms: u64,
        purpose: Purpose,
        out: &mut Outputs<Wire>,
        request: impl FnOnce() -> Request,
    ) {
        if let std::collections::btree_map::Entry::Vacant(open) = self.open.entry(purpose) {
            self.numbers += 1;
            open.insert((self.numbers, now_ms));
            out.push(Output::Send(SERVICE, Wire::Call(self.numbers, request())));
        }
    }

    pub fn handle_watch_item(
        &mut self,
        number: u64,
        item: Option<WatchItem>,
    ) -> Option<ServiceEvent> {
        if self.watch != Some(number) {
            return None;
        }
        match item {
            Some(WatchItem::Events(events)) => {
                let event = self.mirror.apply_events(events);
                (!event.is_empty()).then_some(ServiceEvent::Mirror)
            }
            Some(WatchItem::Compacted) => {
                self.must_read = true;
                self.watch = None;
                None
            }
            None => {
                self.watch = None;
                self.check_at_ms = 0;
                None
            }
        }
    }

    pub fn handle_reply(
        &mut self,
        now_ms: u64,
        number: u64,
        reply: Result<Response, Error>,
        out: &mut Outputs<Wire>,
    ) -> Option<ServiceEvent> {
        let found = self.open.iter().find(|(_, (of, _))| *of == number);
        let (purpose, sent_ms) = found.map(|(purpose, (_, sent_ms))| (*purpose, *sent_ms))?;
        if matches!(reply, Err(Error::Unknown(_) | Error::NotDone(_))) {
            // Retried at the next tick.
            self.open.remove(&purpose);
            return None;
        }
        self.open.remove(&purpose);
        match (purpose, reply) {
            (Purpose::Read, Ok(Response::Read(snapshot))) => {
                self.must_read = false;
                self.is_confirmed = true;
                if let Some(watch) = self.watch.take() {
                    out.push(Output::Send(SERVICE, Wire::Unwatch(watch)));
                }
                self.mirror.apply_snapshot(snapshot);
                self.check_at_ms = now_ms + CHECK_EVERY_MS;
                Some(ServiceEvent::Mirror)
            }
            (Purpose::Check, Ok(Response::RecentWrites(recent))) => {
                if self.mirror.matches(&recent) {
                    self.check_at_ms = now_ms + CHECK_EVERY_MS
                } else {
                    self.must_read = true
                }
                None
            }
            (Purpose::Grant, Ok(Response::Granted { lease, ttl_seconds })) => {
                self.lease = Some(Lease::new(lease, ttl_seconds, sent_ms));
                Some(ServiceEvent::Leased)
            }
            (Purpose::KeepAlive, Ok(Response::KeptAlive(left))) => {
                let lease = self.lease.as_mut()?;
                lease.record_reply(sent_ms, left);
                if !lease.has_ended() {
                    return Some(ServiceEvent::Renewed);
                }
                self.lease = None;
                // The pending changes belong to an incarnation that is over.
                self.changes.clear();
                self.open
                    .retain(|purpose, _| !matches!(purpose, Purpose::Change(_)));
                Some(ServiceEvent::LeaseEnded)
            }
            (Purpose::Change(kind), Ok(Response::Changed(outcome))) => {
                self.changes.remove(&kind);
                Some(ServiceEvent::Changed(kind, Some(outcome)))
            }
            (Purpose::Change(kind), Err(_)) => {
                self.changes.remove(&kind);
                Some(ServiceEvent::Changed(kind, None))
            }
            (purpose, reply) => panic!("{purpose:?} is answered {reply:?}"),
        }
    }
}
