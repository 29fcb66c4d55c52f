//! A client that knows a cluster: it asks each key of the node that has it, and another when that one is slow or gone.
//!
//! ```text
//!   command ─ route: its slot ─► known: who has the slot, who is well, who is near ─► drive: sent, redirected, asked of another
//!                                   ▲
//!                                   └─ topology: CLUSTER SLOTS, at first, every minute, and when something shows that it is wrong
//! ```
//!
//! What a caller may rely on:
//!
//! 1. A write is never sent twice unless it is known that it was not done. If that is not known, the error is [`Error::Unknown`].
//! 2. An answer is whole or an error. Of several keys, [`ClusterClient::mget_each`] tells of each.
//! 3. Records of one store are of one version, also over several nodes: each part of an `MGET` is asked for the version before and
//!    behind it, and all is asked again if they differ. (A version that was live for the moment between the two is not seen.)
//! 4. A node that does not answer is left out, and tried again after pauses that grow; meanwhile others are asked. If all are left out,
//!    they are asked all the same.
//! 5. Second requests beside slow ones are at most so many percent of the reads, whatever happens.
//!
//! Rows of tables on several nodes are not of one moment. Any server with `CLUSTER SLOTS` will do; one without has every slot itself.

mod attempt;
mod connection;
mod drive;
mod health;
mod known;
mod latency;
mod line;
mod many;
mod node;
mod pipeline;
mod route;
mod topology;

use std::collections::BTreeMap;
use std::time::Duration;

use larder_protocol::commands::{self, Id};
use larder_protocol::resp::client::{Reply, request};

use crate::error::Error;
use crate::resp_client::refused;
use crate::tls::Tls;
use drive::{Call, Done, drive};
use health::State;
use known::Known;
use route::Route;
pub(crate) use route::is_read_only;

/// How a [`ClusterClient`] behaves.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// A call ends after this, whatever was tried. Longer than the lease of the cluster's nodes and what follows on its end, so that a call on
    /// rows outlives the death of their owner.
    pub timeout: Duration,
    /// A node that does not answer a read of one key by then, or accepts no connection, has failed, and another is asked.
    pub attempt_timeout: Duration,
    /// Idle connections kept for each node; more may be open while in use.
    pub idle_connections_max: usize,
    /// Given on every connection before anything else.
    pub password: Option<String>,
    /// With it the nodes must speak TLS, without it plainly.
    pub tls: Option<Tls>,
    /// Where the caller is: records of stores are read in this zone if they are there.
    pub zone: Option<String>,
    /// The zones of nodes, by `host:port`, where the cluster does not tell them.
    pub zones: BTreeMap<String, String>,
    /// So many of 100 reads may be sent a second time because the first is slow. 0: none.
    pub hedge_percent: u8,
    /// Who has which slot is asked for again after this.
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

/// Reads and writes over all nodes of a cluster. `Sync`: share one among threads. A call blocks its thread, and no other.
pub struct ClusterClient {
    known: Known,
}

/// What a client has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Commands, and parts of commands over several nodes.
    pub requests: u64,
    /// Asked of another node because one has failed.
    pub retries: u64,
    /// Asked of a second node because the first was slow, and how often that was the faster.
    pub hedges: u64,
    pub hedges_won: u64,
    /// Replies MOVED and ASK.
    pub redirections: u64,
    /// How often it was learned who has which slot.
    pub topologies: u64,
}

/// What became of one key of several: its value, or `None` if it is absent.
pub type KeyResult = Result<Option<Vec<u8>>, Error>;

/// A node as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNode {
    pub address: String,
    pub zone: Option<String>,
    /// It has failed, and has not answered since.
    pub is_left_out: bool,
    /// Slots that it owns.
    pub slots: u32,
}

impl ClusterClient {
    /// A client of the cluster that these nodes (`host:port`) are of; one that answers is enough. Connects at the first call.
    pub fn new<S: Into<String>>(nodes: impl IntoIterator<Item = S>) -> ClusterClient {
        ClusterClient::with_options(nodes, ClusterOptions::default())
    }

    pub fn with_options<S: Into<String>>(
        nodes: impl IntoIterator<Item = S>,
        options: ClusterOptions,
    ) -> ClusterClient {
        ClusterClient {
            known: Known::new(nodes.into_iter().map(Into::into).collect(), options),
        }
    }

    /// The value of a key, or `None` if it is absent.
    ///
    /// # Errors
    /// [`Error::NoNode`] when nobody answers: an absent key is never told by an error, nor a failure by `None`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        value(self.command(&[b"GET", key.as_ref()])?)
    }

    /// The values of several keys, in their order, asked of their nodes at the same time; those of one store are of one version.
    ///
    /// # Errors
    /// As for [`ClusterClient::get`]; one failing key fails the whole. [`Error::SeveralVersions`] if nodes do not come to agree on one.
    pub fn mget<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.mget_each(keys)?.into_iter().collect()
    }

    /// The same, with what became of each key: what is asked of nodes that are well is told though others fail.
    ///
    /// # Errors
    /// Nothing is known of the cluster; or [`Error::SeveralVersions`].
    pub fn mget_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<KeyResult>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        many::mget(&self.known, &keys)
    }

    /// Sends one command, name first, to the node that has its first key, and returns its reply.
    ///
    /// # Errors
    /// An error reply becomes [`Error::Refused`]. Of a write: [`Error::Unknown`] if it may have been done, [`Error::NoNode`] if it was not.
    pub fn command(&self, parts: &[&[u8]]) -> Result<Reply, Error> {
        let name = parts.first().copied().unwrap_or_default();
        if parts.len() > 2 && commands::find(name).is_some_and(|spec| spec.id == Id::MGet) {
            let values = self.mget(&parts[1..])?;
            let reply = |value: Option<Vec<u8>>| value.map_or(Reply::Null, Reply::Bulk);
            return Ok(Reply::Array(values.into_iter().map(reply).collect()));
        }
        let topology = self.known.topology()?;
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
        match drive(&self.known, &[call]).pop() {
            Some(Ok(Done::Replies(mut replies))) => match replies.pop() {
                Some(Reply::Error(error)) => Err(refused(error)),
                reply => Ok(reply.unwrap_or(Reply::Null)),
            },
            Some(Err(error)) => Err(error),
            Some(Ok(Done::Apart)) | None => unreachable!("one call of one slot"),
        }
    }

    /// Sends many commands at once, those of one node in one write; what becomes of each, in their order. Commands of one key are done in their
    /// order, unless the key moves to another node meanwhile.
    ///
    /// # Errors
    /// Nothing is known of the cluster. Of each command: as for [`ClusterClient::command`]; [`Error::Unknown`] is then said of all that went to that
    /// node, of which some may have been done.
    pub fn pipeline(&self, commands: &[Vec<&[u8]>]) -> Result<Vec<Result<Reply, Error>>, Error> {
        pipeline::pipeline(&self.known, commands)
    }

    /// The slot of a key, as far as it is known whether it is a store's: see `Topology::slot`.
    ///
    /// # Errors
    /// Nothing is known of the cluster.
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> Result<u16, Error> {
        Ok(self.known.topology()?.slot(key.as_ref()))
    }

    /// Learns now who has which slot.
    ///
    /// # Errors
    /// No node tells it.
    pub fn refresh(&self) -> Result<(), Error> {
        self.known.learn(true)
    }

    /// All nodes that are known, in the order of their addresses.
    ///
    /// # Errors
    /// Nothing is known of the cluster.
    pub fn nodes(&self) -> Result<Vec<ClusterNode>, Error> {
        let topology = self.known.topology()?;
        let (owned, now_ms) = (topology.owned(), self.known.now_ms());
        let nodes = self.known.nodes();
        let nodes = nodes.values().map(|node| ClusterNode {
            address: node.address.clone(),
            zone: node.zone.clone(),
            is_left_out: node.state(now_ms) != State::Up,
            slots: owned.get(&*node.address).copied().unwrap_or(0),
        });
        Ok(nodes.collect())
    }

    pub fn counts(&self) -> ClusterCounts {
        self.known.counts()
    }
}

fn value(reply: Reply) -> Result<Option<Vec<u8>>, Error> {
    match reply {
        Reply::Bulk(value) => Ok(Some(value)),
        Reply::Null => Ok(None),
        Reply::Error(error) => Err(refused(error)),
        other => Err(Error::Protocol {
            address: "the cluster".to_owned(),
            detail: format!("{other:?} stands where a value belongs"),
        }),
    }
}
