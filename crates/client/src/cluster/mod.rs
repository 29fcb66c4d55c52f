//! A cluster client: sends each command to the node that has its key, and fails over to another node if that one is
//! slow or unreachable.
//!
//! ```text
//!   command ─ route: its slot ─► known: nodes with the slot, health, zones ─► drive: send, redirect, fail over
//!                                   ▲
//!                                   └─ topology: CLUSTER SLOTS, on the first call, every minute, and when it proves outdated
//! ```
//!
//! Guarantees for callers:
//!
//! 1. A write is sent twice only if it was certainly not executed. If that is not known, the error is
//!    [`Error::Unknown`].
//! 2. A reply is complete or an error. For several keys, [`ClusterClient::mget_each`] returns one result per key.
//! 3. Records of one store come from one version, also over several nodes: each part of an `MGET` reads the version
//!    before and after it, and the complete request is retried if they differ. (A version that was live only between
//!    the two is not detected.)
//! 4. A node that does not respond is avoided, and retried after pauses that grow; until then other nodes are used.
//!    If all nodes are avoided, they are used anyway.
//! 5. Hedged requests are always limited to a percentage of the reads.
//!
//! Rows of tables on several nodes are not read at one instant. The client works with any server that has
//! `CLUSTER SLOTS`; a server without it is treated as the owner of all slots.

mod attempt;
mod connection;
mod drive;
mod health;
mod latency;
mod multi_get;
mod node;
mod pipeline;
mod route;
mod topology;
mod transport;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use larder_protocol::commands::{self, Id};
use larder_protocol::resp::client::{Reply, request};

use crate::error::Error;
use crate::resp_client::refused;
use crate::tls::Tls;
use drive::{Call, CallOutcome, drive};
use health::NodeState;
use route::Route;
pub(crate) use route::is_read_only;
use view::ClusterView;

/// The options of a [`ClusterClient`].
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The timeout of a call, including all attempts. It should exceed the time of a failover (the lease of a node
    /// and what follows its expiry), so that a call on rows survives the death of their owner.
    pub timeout: Duration,
    /// The timeout for connecting and for a read of one key; after it the node counts as failed, and another one is
    /// used.
    pub attempt_timeout: Duration,
    /// Maximum number of idle connections per node; more may be open while in use.
    pub idle_connections_max: usize,
    /// Sent first on every connection.
    pub password: Option<String>,
    /// With it the connections use TLS, without it they are plaintext.
    pub tls: Option<Tls>,
    /// The caller's zone: records of stores are read in this zone if possible.
    pub zone: Option<String>,
    /// The zones of nodes, by `host:port`, if the cluster does not report them.
    pub zones: BTreeMap<String, String>,
    /// Maximum percentage of reads that may be hedged. 0 disables hedging.
    pub hedge_percent: u8,
    /// The interval of topology refreshes.
    pub refresh_after: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions {
            timeout: Duration::from_secs(15),
            attempt_timeout: Duration::from_secs(1),
            idle_connections_max: 16,
            password: None,
            tls: None,
            zone: None,
            zones: BTreeMap::new(),
            hedge_percent: 5,
            refresh_after: Duration::from_secs(60),
        }
    }
}

/// Reads and writes over all nodes of a cluster. `Sync`: share one among threads. A call blocks only its own thread.
pub struct ClusterClient {
    view: ClusterView,
}

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Commands, and parts of commands over several nodes.
    pub requests: u64,
    /// Requests repeated on another node after a failure.
    pub retries: u64,
    /// Hedged requests, and how many of them were faster.
    pub hedges: u64,
    pub hedges_won: u64,
    /// The number of `MOVED` and `ASK` replies.
    pub redirections: u64,
    /// Topology refreshes.
    pub topologies: u64,
}

/// The result for one of several keys: its value, or `None` if it is absent.
pub type KeyResult = Result<Option<Vec<u8>>, Error>;

/// A client's view of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNode {
    pub address: String,
    pub zone: Option<String>,
    /// It has failed, and has not replied since.
    pub is_excluded: bool,
    /// The number of slots that it owns.
    pub slots: u32,
}

impl ClusterClient {
    /// Creates a client of the cluster to which these nodes (`host:port`) belong; one reachable node is enough.
    /// Connects on the first call.
    pub fn new<S: Into<String>>(nodes: impl IntoIterator<Item = S>) -> ClusterClient {
        ClusterClient::with_options(nodes, ClusterOptions::default())
    }

    pub fn with_options<S: Into<String>>(
        nodes: impl IntoIterator<Item = S>,
        options: ClusterOptions,
    ) -> ClusterClient {
        ClusterClient {
            view: ClusterView::new(nodes.into_iter().map(Into::into).collect(), options),
        }
    }

    /// Returns the value of a key, or `None` if it is absent.
    ///
    /// # Errors
    /// [`Error::NoNode`] if no node responds. An absent key is never an error, and a failure is never `None`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        value(self.command(&[b"GET", key.as_ref()])?)
    }

    /// Returns the values of several keys, in order, read from their nodes concurrently; those of one store come from
    /// one version.
    ///
    /// # Errors
    /// Like [`ClusterClient::get`]; one failing key fails the call. [`Error::SeveralVersions`] if the nodes' versions
    /// do not converge.
    pub fn mget<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.mget_each(keys)?.into_iter().collect()
    }

    /// Like [`ClusterClient::mget`], with a result per key: keys on healthy nodes succeed even if others fail.
    ///
    /// # Errors
    /// If no topology is known; or [`Error::SeveralVersions`].
    pub fn mget_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<KeyResult>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        multi_get::mget(&self.view, &keys)
    }

    /// Sends one command, name first, to the node that has its first key, and returns its reply.
    ///
    /// # Errors
    /// An error reply becomes [`Error::Refused`]. For a write: [`Error::Unknown`] if it may have been executed,
    /// [`Error::NoNode`] if it was not.
    pub fn command(&self, parts: &[&[u8]]) -> Result<Reply, Error> {
        let name = parts.first().copied().unwrap_or_default();
        if parts.len() > 2 && commands::find(name).is_some_and(|spec| spec.id == Id::MGet) {
            let values = self.mget(&parts[1..])?;
            let reply = |value: Option<Vec<u8>>| value.map_or(Reply::Null, Reply::Bulk);
            return Ok(Reply::Array(values.into_iter().map(reply).collect()));
        }
        let topology = self.view.topology()?;
        let Some(route) = Route::of(&topology, parts) else {
            return Err(Error::BoundToConnection {
                command: String::from_utf8_lossy(name).to_uppercase(),
            });
        };
        let mut bytes = Vec::new();
        request(&mut bytes, parts);
        let call = Call {
            slots: route.slot.into_iter().collect(),
            request: bytes,
            replies: 1,
            main: 0,
            is_read: route.is_read,
            of_stores: route.of_stores,
            is_point: route.is_point,
        };
        match drive(&self.view, &[call]).pop() {
            Some(Ok(CallOutcome::Replies(mut replies))) => match replies.pop() {
                Some(Reply::Error(error)) => Err(refused(error)),
                reply => Ok(reply.unwrap_or(Reply::Null)),
            },
            Some(Err(error)) => Err(error),
            Some(Ok(CallOutcome::Split)) | None => unreachable!("one call of one slot"),
        }
    }

    /// Sends many commands together, those of one node in one write, and returns their results in order. Commands on
    /// the same key are executed in order, unless the key moves to another node in the meantime.
    ///
    /// # Errors
    /// If no topology is known. Per command: like [`ClusterClient::command`]. [`Error::Unknown`] then applies to all
    /// commands that were sent to that node, of which some may have been executed.
    pub fn pipeline(&self, commands: &[Vec<&[u8]>]) -> Result<Vec<Result<Reply, Error>>, Error> {
        pipeline::pipeline(&self.view, commands)
    }

    /// Returns the slot of a key, according to what is known about stores: see `Topology::slot`.
    ///
    /// # Errors
    /// If no topology is known.
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> Result<u16, Error> {
        Ok(self.view.topology()?.slot(key.as_ref()))
    }

    /// Refreshes the topology now.
    ///
    /// # Errors
    /// If no node returns one.
    pub fn refresh(&self) -> Result<(), Error> {
        self.view.refresh(true)
    }

    /// Returns all known nodes, ordered by address.
    ///
    /// # Errors
    /// If no topology is known.
    pub fn nodes(&self) -> Result<Vec<ClusterNode>, Error> {
        let topology = self.view.topology()?;
        let (owned, now_ms) = (topology.owned(), self.view.now_ms());
        let nodes = self.view.nodes();
        let nodes = nodes.values().map(|node| ClusterNode {
            address: node.address.clone(),
            zone: node.zone.clone(),
            is_excluded: node.state(now_ms) != NodeState::Up,
            slots: owned.get(&*node.address).copied().unwrap_or(0),
        });
        Ok(nodes.collect())
    }

    pub fn counts(&self) -> ClusterCounts {
        self.view.counts()
    }
}

fn value(reply: Reply) -> Result<Option<Vec<u8>>, Error> {
    match reply {
        Reply::Bulk(value) => Ok(Some(value)),
        Reply::Null => Ok(None),
        Reply::Error(error) => Err(refused(error)),
        other => Err(Error::Protocol {
            address: "the cluster".to_owned(),
            detail: format!("expected a value, received {other:?}"),
        }),
    }
}
