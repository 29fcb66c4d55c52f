//! etcd, 3.4 and newer, through the JSON gateway that listens on the same port as its gRPC: HTTP/1.1, so that no compiler
//! for protocol buffers comes into the build.
//!
//! - [`http`]: the members, one after another, with short time-outs.
//! - [`wire`]: requests and answers as etcd spells them.
//! - [`watch`]: the one stream.
//!
//! **Keepalives.** A leader of etcd 3.4 that is stuck may go on to renew leases while another leader has been elected, whose clock for the
//! same leases runs down. So a keepalive counts here only once a linearizable read after it was answered in the same raft term:
//! then the leader that renewed was the leader.

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
    Change, Coordination, Error, Freshness, Keys, LeaseId, Outcome, Recent, Request, Response,
    Revision, Snapshot, Watched,
};
use http::{Failure, Members};
pub use tls::TlsFiles;
use wire::Names;

/// Where etcd is, and as whom to speak to it.
#[derive(Clone, Default)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one for each member.
    pub endpoints: Vec<String>,
    /// What all keys begin with, such as `/larder/main/`.
    pub prefix: String,
    /// A name and a password, if etcd asks for them.
    pub user: Option<(String, String)>,
    pub tls: TlsFiles,
    /// Which member to speak to as long as it answers: nodes take different ones.
    pub first: usize,
    /// How long one request is tried at one member after another; 4 seconds if nothing is said.
    pub tried_for: Option<Duration>,
}

impl fmt::Debug for EtcdConfig {
    /// Without the password.
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
    members: Arc<Members>,
    names: Names,
}

impl Etcd {
    /// Speaks to nobody yet.
    ///
    /// # Errors
    /// [`Error::Refused`], which says what in the configuration cannot be used.
    pub fn new(config: EtcdConfig) -> Result<Etcd, Error> {
        let names = Names::new(config.prefix.clone())?;
        let members = Arc::new(Members::new(config)?);
        Ok(Etcd { members, names })
    }

    /// How many requests were sent so far, tries that failed included.
    pub fn requests(&self) -> u64 {
        self.members.requests()
    }

    async fn ask<T: for<'a> Deserialize<'a>>(
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
        let mut body = self.names.range(keys);
        if freshness == Freshness::Any {
            body["serializable"] = true.into();
        }
        let answer: wire::Range = self.ask("kv/range", &body).await?;
        let entries = answer.kvs.into_iter().map(|kv| self.names.entry(kv));
        Ok(Snapshot {
            revision: answer.header.revision(),
            entries: entries
                .collect::<Result<_, _>>()
                .map_err(Failure::Unknown)?,
        })
    }

    async fn recent(&self, keys: &Keys, after: Revision) -> Result<Recent, Failure> {
        let mut body = self.names.range(keys);
        body["keys_only"] = true.into();
        body["min_mod_revision"] = (after.0 + 1).to_string().into();
        let answer: wire::Range = self.ask("kv/range", &body).await?;
        let written = answer.kvs.into_iter().map(|kv| {
            let entry = self.names.entry(kv)?;
            Ok((entry.key, entry.modified))
        });
        Ok(Recent {
            revision: answer.header.revision(),
            count: answer.count,
            written: written
                .collect::<Result<_, String>>()
                .map_err(Failure::Unknown)?,
        })
    }

    async fn change(&self, change: &Change) -> Result<Outcome, Failure> {
        let answer: wire::Txn = self.ask("kv/txn", &self.names.txn(change)).await?;
        self.names.outcome(change, answer).map_err(Failure::Unknown)
    }

    /// See the module.
    async fn keep_alive(&self, lease: LeaseId) -> Result<Option<u32>, Failure> {
        const TRIES: usize = 3;
        let body = serde_json::json!({ "ID": lease.0.to_string() });
        for _ in 0..TRIES {
            let renewed: wire::Streamed<wire::KeptAlive> =
                self.ask("lease/keepalive", &body).await?;
            let renewed = renewed.result;
            if renewed.ttl <= 0 {
                return Ok(None);
            }
            let mut nothing = self.names.range(&Keys::one("map"));
            nothing["count_only"] = true.into();
            let confirmed: wire::Range = self.ask("kv/range", &nothing).await?;
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
            Request::Recent { keys, after } => {
                Ok(Response::Recent(self.recent(&keys, after).await?))
            }
            Request::Change(change) => Ok(Response::Changed(self.change(&change).await?)),
            Request::Grant { ttl_seconds } => {
                let body = serde_json::json!({ "TTL": ttl_seconds.to_string() });
                let granted: wire::Granted = self.ask("lease/grant", &body).await?;
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
                    (Failure::NoLease, None) => {
                        Error::Refused("etcd knows no such lease".to_owned())
                    }
                    (Failure::Refused(why), _) => Error::Refused(why),
                    (Failure::NotDone(why), _) => Error::NotDone(why),
                    (Failure::Unknown(why), _) => Error::Unknown(why),
                })
        })
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, Watched> {
        watch::watch(self.members.clone(), self.names.clone(), keys, after)
    }
}
