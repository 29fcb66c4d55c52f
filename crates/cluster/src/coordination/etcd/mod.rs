//! A client for etcd 3.4 and newer. It uses the JSON gateway, which listens on the same port as gRPC, over HTTP/1.1, so that the
//! build needs no protocol-buffer compiler.
//!
//! - [`http`]: the members, tried one after another with short timeouts.
//! - [`wire`]: requests and responses in etcd's encoding.
//! - [`watch`]: the stream of events.
//!
//! **Keepalives.** A stalled leader of etcd 3.4 may continue to renew leases after another leader, whose timers for the same
//! leases run, has been elected. A keepalive therefore counts only after a subsequent linearizable read was answered in the same
//! raft term, which proves that the renewing member was the leader.

mod http;
mod tls;
mod watch;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Change, Coordination, Error, Freshness, Keys, LeaseId, Outcome, RecentWrites, Request,
    Response, Revision, Snapshot, WatchItem,
};
use http::{EtcdMembers, Failure};
pub use tls::TlsFiles;
use wire::KeyCodec;

/// The addresses of etcd, and the credentials.
#[derive(Clone, Default)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one per member.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, such as `/larder/main/`.
    pub prefix: String,
    /// User name and password, if etcd requires them.
    pub user: Option<(String, String)>,
    pub tls: TlsFiles,
    /// The member to use first. Nodes choose different ones.
    pub first: usize,
    /// The total time for one request over all members; the default is 4 seconds.
    pub request_timeout: Option<Duration>,
}

impl fmt::Debug for EtcdConfig {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

pub struct Etcd {
    members: Arc<EtcdMembers>,
    keys_codec: KeyCodec,
}

impl Etcd {
    /// Creates a client without connecting.
    ///
    /// # Errors
    /// [`Error::Refused`] with the invalid part of the configuration.
    pub fn new(config: EtcdConfig) -> Result<Etcd, Error> {
        let keys_codec = KeyCodec::new(config.prefix.clone())?;
        let members = Arc::new(EtcdMembers::new(config)?);
        Ok(Etcd {
            members,
            keys_codec,
        })
    }

    /// The number of requests sent so far, including failed attempts.
    pub fn requests(&self) -> u64 {
        self.members.requests()
    }

    async fn post_json<T: for<'a> Deserialize<'a>>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, Failure> {
        let answer = self.members.post(path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            Failure::Unknown(format!("{path}: the answer cannot be read: {error}"))
        })
    }

    async fn read(&self, keys: &Keys, freshness: Freshness) -> Result<Snapshot, Failure> {
        let mut body = self.keys_codec.range(keys);
        if freshness == Freshness::Any {
            body["serializable"] = true.into();
        }
        let answer: wire::Range = self.post_json("kv/range", &body).await?;
        let entries = answer.kvs.into_iter().map(|kv| self.keys_codec.entry(kv));
        Ok(Snapshot {
            revision: answer.header.revision(),
            entries: entries
                .collect::<Result<_, _>>()
                .map_err(Failure::Unknown)?,
        })
    }

    async fn recent(&self, keys: &Keys, after: Revision) -> Result<RecentWrites, Failure> {
        let mut body = self.keys_codec.range(keys);
        body["keys_only"] = true.into();
        body["min_mod_revision"] = (after.0 + 1).to_string().into();
        let answer: wire::Range = self.post_json("kv/range", &body).await?;
        let written = answer.kvs.into_iter().map(|kv| {
            let entry = self.keys_codec.entry(kv)?;
            Ok((entry.key, entry.modified))
        });
        Ok(RecentWrites {
            revision: answer.header.revision(),
            count: answer.count,
            written: written
                .collect::<Result<_, String>>()
                .map_err(Failure::Unknown)?,
        })
    }

    async fn change(&self, change: &Change) -> Result<Outcome, Failure> {
        let answer: wire::Txn = self
            .post_json("kv/txn", &self.keys_codec.txn(change))
            .await?;
        self.keys_codec
            .outcome(change, answer)
            .map_err(Failure::Unknown)
    }

    /// See the module's section on keepalives.
    async fn keep_alive(&self, lease: LeaseId) -> Result<Option<u32>, Failure> {
        const TRIES: usize = 3;
        let body = serde_json::json!({ "ID": lease.0.to_string() });
        for _ in 0..TRIES {
            let renewed: wire::StreamMessage<wire::LeaseKeepAlive> =
                self.post_json("lease/keepalive", &body).await?;
            let renewed = renewed.result;
            if renewed.ttl <= 0 {
                return Ok(None);
            }
            let mut nothing = self.keys_codec.range(&Keys::one("map"));
            nothing["count_only"] = true.into();
            let confirmed: wire::Range = self.post_json("kv/range", &nothing).await?;
            if confirmed.header.raft_term == renewed.header.raft_term {
                return Ok(Some(renewed.ttl.try_into().unwrap_or(u32::MAX)));
            }
        }
        Err(Failure::Unknown(format!(
            "etcd's leader changed during each of {TRIES} keepalives of lease {lease}"
        )))
    }

    async fn serve(&self, request: Request) -> Result<Response, Failure> {
        match request {
            Request::Read { keys, freshness } => {
                Ok(Response::Read(self.read(&keys, freshness).await?))
            }
            Request::RecentWrites { keys, after } => {
                Ok(Response::RecentWrites(self.recent(&keys, after).await?))
            }
            Request::Change(change) => Ok(Response::Changed(self.change(&change).await?)),
            Request::Grant { ttl_seconds } => {
                let body = serde_json::json!({ "TTL": ttl_seconds.to_string() });
                let granted: wire::LeaseGrant = self.post_json("lease/grant", &body).await?;
                Ok(Response::Granted {
                    lease: LeaseId(granted.id),
                    ttl_seconds: granted.ttl.try_into().unwrap_or(0),
                })
            }
            Request::KeepAlive(lease) => Ok(Response::KeptAlive(self.keep_alive(lease).await?)),
            Request::Revoke(lease) => {
                let body = serde_json::json!({ "ID": lease.0.to_string() });
                match self.members.post("lease/revoke", &body).await {
                    Ok(_) | Err(Failure::NoLease) => Ok(Response::Revoked),
                    Err(failure) => Err(failure),
                }
            }
        }
    }
}

impl Coordination for Etcd {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
        Box::pin(async move {
            let mut bound = None;
            if let Request::Change(change) = &request {
                change.check()?;
                bound = change.puts.iter().find_map(|put| put.lease);
            }
            self.serve(request)
                .await
                .map_err(|failure| match (failure, bound) {
                    (Failure::NoLease, Some(lease)) => Error::LeaseEnded(lease),
                    (Failure::NoLease, None) => Error::Refused("etcd has no such lease".to_owned()),
                    (Failure::Refused(why), _) => Error::Refused(why),
                    (Failure::NotDone(why), _) => Error::NotDone(why),
                    (Failure::Unknown(why), _) => Error::Unknown(why),
                })
        })
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, WatchItem> {
        watch::watch(self.members.clone(), self.keys_codec.clone(), keys, after)
    }
}
