//! The service that a cluster keeps its few common facts in: etcd, or a file for one node alone.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `map` | the whole map | the controller; an owner, for its replicas in sync |
//! | `nodes/<name>` | who and where a node is; bound to its lease | the node |
//! | `controller/<lease>` | a candidate: the oldest leads | each node |
//! | `asks/<id>` | what a person asked of the controller | any node |
//! | `reports/<name>` | how far a node is | the node |
//! | `marks/<writer>` | the id of the writer's last change | whoever changes something |
//!
//! Keys are below `/larder/<cluster>/` in etcd, which callers never see. What is asked for is a value, [`Request`], and so is
//! its answer: cores without I/O hand them out, and the simulated service ([`model`]) takes them as the real ones do.
//!
//! - [`Change`] is the only way to write: compare and swap, whole or not at all, and once even if it is asked for twice.
//! - [`Lease`] says whether a node surely still holds its lease; [`Session`] keeps one alive.
//! - [`Mirror`] is a copy of some keys; [`Follower`] keeps one fresh by watching, and finds out what a watch lost.
//! - [`leader`] says which candidate leads.
//! - [`Embedded`] is a file, [`Etcd`] speaks to etcd over its JSON gateway.
//!
//! Why it is so stands in `docs/decisions/0015-coordination.md`.

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

pub use candidates::{candidacy, leader};
pub use change::{CHANGE_BYTES_MAX, Change, Compare, Mark, OPERATIONS_MAX, Outcome, Put, Writer};
pub use clock::boot_ms;
pub use embedded::Embedded;
pub use entry::{Entry, Event, Keys, LeaseId, Recent, Revision, Snapshot};
pub use error::Error;
pub use etcd::{Etcd, EtcdConfig, TlsFiles};
pub use follow::Follower;
pub use lease::Lease;
pub use mirror::Mirror;
pub use session::{Held, Session};

/// What is asked of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Keys and values. Answered with [`Response::Read`].
    Read { keys: Keys, freshness: Freshness },
    /// Whether something was written after this revision. Answered with [`Response::Recent`].
    Recent { keys: Keys, after: Revision },
    /// Answered with [`Response::Changed`].
    Change(Change),
    /// A new lease of at least so many seconds. Answered with [`Response::Granted`].
    Grant { ttl_seconds: u32 },
    /// Answered with [`Response::KeptAlive`].
    KeepAlive(LeaseId),
    /// Ends a lease, and deletes what is bound to it; well done too when it has ended already. Answered with [`Response::Revoked`].
    Revoke(LeaseId),
}

/// How old an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It holds every change that was answered before it was asked for.
    Latest,
    /// However old: what one member of the service knows, also while most of them are away.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Read(Snapshot),
    Recent(Recent),
    Changed(Outcome),
    /// The seconds count from some time after the request was sent; the service may grant more than were asked for.
    Granted {
        lease: LeaseId,
        ttl_seconds: u32,
    },
    /// The lease lasts for so many seconds more, or `None`: it has ended.
    KeptAlive(Option<u32>),
    Revoked,
}

/// What a watch hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// All changes of some revisions, in their order; those of one revision are never split.
    Events(Vec<Event>),
    /// What came right after the revision asked for is not kept any more: read everything, then watch on. The watch has ended.
    Compacted,
}

/// The coordination service.
pub trait Coordination: Send + Sync {
    /// Asks, and tries for a few seconds to be answered. Every request may be asked again after [`Error::Unknown`].
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>>;

    /// What changes after a revision. The stream ends when the watch is cut: watch again from the last revision heard. A watch may be late, and
    /// (by etcd's own defects) lose changes in silence: [`Follower`] copes with both.
    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, Watched>;
}

/// [`Coordination::call`], with an answer of the fitting kind.
impl dyn Coordination + '_ {
    pub async fn read(&self, keys: &Keys) -> Result<Snapshot, Error> {
        let (keys, freshness) = (keys.clone(), Freshness::Latest);
        match self.call(Request::Read { keys, freshness }).await? {
            Response::Read(snapshot) => Ok(snapshot),
            other => Err(unfitting(&other)),
        }
    }

    pub async fn recent(&self, keys: &Keys, after: Revision) -> Result<Recent, Error> {
        let keys = keys.clone();
        match self.call(Request::Recent { keys, after }).await? {
            Response::Recent(recent) => Ok(recent),
            other => Err(unfitting(&other)),
        }
    }

    pub async fn change(&self, change: &Change) -> Result<Outcome, Error> {
        match self.call(Request::Change(change.clone())).await? {
            Response::Changed(outcome) => Ok(outcome),
            other => Err(unfitting(&other)),
        }
    }

    /// The lease, and the seconds that it was granted for.
    pub async fn grant(&self, ttl_seconds: u32) -> Result<(LeaseId, u32), Error> {
        match self.call(Request::Grant { ttl_seconds }).await? {
            Response::Granted { lease, ttl_seconds } => Ok((lease, ttl_seconds)),
            other => Err(unfitting(&other)),
        }
    }

    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<u32>, Error> {
        match self.call(Request::KeepAlive(lease)).await? {
            Response::KeptAlive(ttl_seconds) => Ok(ttl_seconds),
            other => Err(unfitting(&other)),
        }
    }

    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        match self.call(Request::Revoke(lease)).await? {
            Response::Revoked => Ok(()),
            other => Err(unfitting(&other)),
        }
    }
}

fn unfitting(response: &Response) -> Error {
    Error::Unknown(format!(
        "the coordination service answered something else: {response:?}"
    ))
}
