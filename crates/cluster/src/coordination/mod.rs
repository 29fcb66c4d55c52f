//! The coordination service, which stores the cluster's shared metadata: etcd, or a file for a single node.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `map` | the complete map | the controller; an owner, for its in-sync replicas |
//! | `nodes/<name>` | a node's registration, bound to its lease | the node |
//! | `controller/<lease>` | a candidate: the oldest is the leader | each node |
//! | `asks/<id>` | an operator request to the controller | any node |
//! | `reports/<name>` | a node's progress | the node |
//! | `marks/<writer>` | the id of the writer's last change | every writer |
//!
//! In etcd, keys have the prefix `/larder/<cluster>/`, which callers never see. A request is a value, [`Request`], and so is its
//! response. Sans-IO cores return requests, and the simulated service ([`model`]) executes them like the real ones.
//!
//! - [`Change`] is the only way to write: an atomic compare-and-swap, applied once despite retries.
//! - [`Lease`] computes whether a node certainly still holds its lease; [`Session`] renews it.
//! - [`Mirror`] is a copy of a set of keys; [`Follower`] keeps one fresh by watching, and detects lost events.
//! - [`leader`] returns the candidate that is the leader.
//! - [`Embedded`] uses a file; [`Etcd`] uses etcd's JSON gateway.
//!
//! `docs/decisions/0015-coordination.md` explains the design.

mod candidates;
mod change;
mod clock;
mod embedded;
mod entry;
mod error;
mod etcd;
mod follow;
mod lease;
mod mirror;
pub mod model;
mod session;
mod store;

use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub use candidates::{leader, put_candidate};
pub use change::{CHANGE_BYTES_MAX, Change, Compare, Mark, OPERATIONS_MAX, Outcome, Put, Writer};
pub use clock::boot_ms;
pub use embedded::Embedded;
pub use entry::{Entry, KeyEvent, Keys, LeaseId, RecentWrites, Revision, Snapshot};
pub use error::Error;
pub use etcd::{Etcd, EtcdConfig, TlsFiles};
pub use follow::Follower;
pub use lease::Lease;
pub use mirror::Mirror;
pub use session::{LeaseHandle, Session};

/// A request to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads keys and values. Answered with [`Response::Read`].
    Read { keys: Keys, freshness: Freshness },
    /// Lists what was written after this revision. Answered with [`Response::RecentWrites`].
    RecentWrites { keys: Keys, after: Revision },
    /// Answered with [`Response::Changed`].
    Change(Change),
    /// Requests a new lease of at least this TTL. Answered with [`Response::Granted`].
    Grant { ttl_seconds: u32 },
    /// Answered with [`Response::KeptAlive`].
    KeepAlive(LeaseId),
    /// Ends a lease and deletes the keys bound to it. Succeeds if the lease has already ended. Answered with
    /// [`Response::Revoked`].
    Revoke(LeaseId),
}

/// The permitted staleness of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The answer contains every change that was answered before the request.
    Latest,
    /// The answer may be arbitrarily stale: it comes from one member, even without a quorum.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Read(Snapshot),
    RecentWrites(RecentWrites),
    Changed(Outcome),
    /// The TTL counts from some time after the request was sent. The service may grant more than requested.
    Granted {
        lease: LeaseId,
        ttl_seconds: u32,
    },
    /// The remaining TTL in seconds; `None` if the lease has ended.
    KeptAlive(Option<u32>),
    Revoked,
}

/// An item of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// All changes of some revisions, in order. The changes of one revision are never split.
    Events(Vec<KeyEvent>),
    /// The events right after the requested revision have been compacted: read everything, then watch again. The watch has ended.
    Compacted,
}

/// The coordination service.
pub trait Coordination: Send + Sync {
    /// Sends a request, and retries for a few seconds. After [`Error::Unknown`], the caller may retry any request.
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>>;

    /// Streams the changes after a revision. The stream ends when the watch is interrupted: watch again from the last revision
    /// received. A watch may be late and may (due to defects of etcd) silently lose changes; [`Follower`] handles both.
    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, WatchItem>;
}

/// [`Coordination::call`] with typed responses.
impl dyn Coordination + '_ {
    pub async fn read(&self, keys: &Keys) -> Result<Snapshot, Error> {
        let (keys, freshness) = (keys.clone(), Freshness::Latest);
        match self.call(Request::Read { keys, freshness }).await? {
            Response::Read(snapshot) => Ok(snapshot),
            other => Err(unexpected_response(&other)),
        }
    }

    pub async fn recent_writes(&self, keys: &Keys, after: Revision) -> Result<RecentWrites, Error> {
        let keys = keys.clone();
        match self.call(Request::RecentWrites { keys, after }).await? {
            Response::RecentWrites(recent) => Ok(recent),
            other => Err(unexpected_response(&other)),
        }
    }

    pub async fn change(&self, change: &Change) -> Result<Outcome, Error> {
        match self.call(Request::Change(change.clone())).await? {
            Response::Changed(outcome) => Ok(outcome),
            other => Err(unexpected_response(&other)),
        }
    }

    /// Returns the lease and the granted TTL in seconds.
    pub async fn grant(&self, ttl_seconds: u32) -> Result<(LeaseId, u32), Error> {
        match self.call(Request::Grant { ttl_seconds }).await? {
            Response::Granted { lease, ttl_seconds } => Ok((lease, ttl_seconds)),
            other => Err(unexpected_response(&other)),
        }
    }

    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<u32>, Error> {
        match self.call(Request::KeepAlive(lease)).await? {
            Response::KeptAlive(ttl_seconds) => Ok(ttl_seconds),
            other => Err(unexpected_response(&other)),
        }
    }

    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        match self.call(Request::Revoke(lease)).await? {
            Response::Revoked => Ok(()),
            other => Err(unexpected_response(&other)),
        }
    }
}

fn unexpected_response(response: &Response) -> Error {
    Error::Unknown(format!(
        "the coordination service sent an unexpected response: {response:?}"
    ))
}
