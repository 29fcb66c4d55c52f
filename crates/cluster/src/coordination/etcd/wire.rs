//! Requests and responses in the encoding of etcd's JSON gateway: keys and values in base64, 64-bit numbers as strings, and zero
//! or empty fields omitted.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::coordination::{
    Change, Compare, Entry, Error, KeyEvent, Keys, LeaseId, Outcome, Revision,
};

/// A number that JSON represents as a string.
fn number<'de, D: Deserializer<'de>, T: std::str::FromStr + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        Number(T),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text
            .parse()
            .map_err(|_| D::Error::custom(format!("{text:?} is not a number"))),
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    #[serde(deserialize_with = "number")]
    revision: u64,
    #[serde(deserialize_with = "number")]
    pub raft_term: u64,
}

impl Header {
    pub fn revision(&self) -> Revision {
        Revision(self.revision)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kv {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    create_revision: u64,
    #[serde(deserialize_with = "number")]
    mod_revision: u64,
    #[serde(deserialize_with = "number")]
    lease: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Range {
    pub header: Header,
    pub kvs: Vec<Kv>,
    #[serde(deserialize_with = "number")]
    pub count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Txn {
    header: Header,
    succeeded: bool,
    responses: Vec<TxnPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TxnPart {
    response_range: Option<Range>,
    response_txn: Option<Txn>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseGrant {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub id: u64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub ttl: i64,
}

/// One message of a stream.
#[derive(Debug, Deserialize)]
pub struct StreamMessage<T> {
    pub result: T,
}

/// The TTL of an ended lease is absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseKeepAlive {
    pub header: Header,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub ttl: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Watch {
    pub created: bool,
    pub canceled: bool,
    #[serde(deserialize_with = "number")]
    pub compact_revision: u64,
    pub cancel_reason: String,
    pub events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchEvent {
    /// Absent for a put.
    #[serde(rename = "type")]
    kind: Option<String>,
    kv: Kv,
}

#[derive(Debug, Serialize)]
pub struct Login<'a> {
    pub name: &'a str,
    pub password: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Token {
    pub token: String,
}

/// Converts keys to and from etcd's, which have the prefix.
#[derive(Clone, Debug)]
pub struct KeyCodec {
    prefix: Arc<str>,
}

impl KeyCodec {
    pub fn new(prefix: String) -> Result<KeyCodec, Error> {
        if !prefix.starts_with('/') || !prefix.ends_with('/') || prefix.len() < 3 {
            return Err(Error::Refused(format!(
                "{prefix:?} is not a valid prefix of etcd keys; it must be like /larder/main/"
            )));
        }
        let prefix = prefix.into();
        Ok(KeyCodec { prefix })
    }

    fn key(&self, key: &str) -> String {
        BASE64_STANDARD.encode(format!("{}{key}", self.prefix))
    }

    /// Returns the range for a read or a watch.
    pub fn range(&self, keys: &Keys) -> Value {
        match keys {
            Keys::One(key) => json!({ "key": self.key(key) }),
            Keys::Prefix(below) => {
                let mut end = format!("{}{below}", self.prefix).into_bytes();
                // The range of a prefix ends before the prefix with its last byte incremented. No byte of UTF-8 is 255.
                *end.last_mut().expect("the prefix is not empty") += 1;
                json!({ "key": self.key(below), "range_end": BASE64_STANDARD.encode(end) })
            }
        }
    }

    pub fn entry(&self, kv: Kv) -> Result<Entry, String> {
        let decoded = |text: &str| {
            let decoded = BASE64_STANDARD.decode(text);
            decoded.map_err(|error| format!("etcd sent {text:?}, which is not base64: {error}"))
        };
        let full = String::from_utf8(decoded(&kv.key)?).map_err(|error| error.to_string())?;
        let Some(key) = full.strip_prefix(&*self.prefix) else {
            return Err(format!(
                "etcd sent the key {full}, which is not below {}",
                self.prefix
            ));
        };
        Ok(Entry {
            key: key.to_owned(),
            value: decoded(&kv.value)?.into(),
            created: Revision(kv.create_revision),
            modified: Revision(kv.mod_revision),
            lease: (kv.lease != 0).then_some(LeaseId(kv.lease)),
        })
    }

    pub fn event(&self, event: WatchEvent) -> Result<KeyEvent, String> {
        let is_deletion = event.kind.as_deref() == Some("DELETE");
        let entry = self.entry(event.kv)?;
        Ok(KeyEvent {
            key: entry.key.clone(),
            revision: entry.modified,
            entry: (!is_deletion).then_some(entry),
        })
    }

    /// Encodes a change as two nested transactions. If the mark has this change's id, the change was applied before. Otherwise it
    /// is applied if its comparisons hold, and the compared keys are read if they do not.
    pub fn txn(&self, change: &Change) -> Value {
        let mark = self.key(&change.mark.key);
        let id = BASE64_STANDARD.encode(&change.mark.id);
        let compares: Vec<Value> = change
            .compares
            .iter()
            .map(|one| self.compare(one))
            .collect();
        let puts = change.puts.iter().map(|put| {
            let mut body =
                json!({ "key": self.key(&put.key), "value": BASE64_STANDARD.encode(&put.value) });
            if let Some(lease) = put.lease {
                body["lease"] = lease.0.to_string().into();
            }
            json!({ "request_put": body })
        });
        let deletes = change
            .deletes
            .iter()
            .map(|key| json!({ "request_delete_range": { "key": self.key(key) } }));
        let marked = json!({ "request_put": { "key": mark, "value": id } });
        let made: Vec<Value> = puts.chain(deletes).chain([marked]).collect();
        let seen = change
            .compares
            .iter()
            .map(|one| json!({ "request_range": { "key": self.key(one.key()) } }));
        let seen: Vec<Value> = seen.collect();
        json!({
            "compare": [{ "key": mark, "target": "VALUE", "value": id }],
            "success": [{ "request_range": { "key": mark } }],
            "failure": [{ "request_txn": { "compare": compares, "success": made, "failure": seen } }],
        })
    }

    fn compare(&self, compare: &Compare) -> Value {
        match compare {
            Compare::Unchanged { key, modified } => {
                json!({ "key": self.key(key), "target": "MOD", "mod_revision": modified.0.to_string() })
            }
            Compare::CreatedAt { key, created } => {
                json!({ "key": self.key(key), "target": "CREATE", "create_revision": created.0.to_string() })
            }
        }
    }

    pub fn outcome(&self, change: &Change, answer: Txn) -> Result<Outcome, String> {
        let malformed = || format!("etcd's answer to change {} cannot be read", change.mark.id);
        let part = answer.responses.into_iter().next().ok_or_else(malformed)?;
        if answer.succeeded {
            let mark = part
                .response_range
                .and_then(|range| range.kvs.into_iter().next());
            let mark = self.entry(mark.ok_or_else(malformed)?)?;
            return Ok(Outcome::Done(mark.modified));
        }
        let inner = part.response_txn.ok_or_else(malformed)?;
        if inner.succeeded {
            return Ok(Outcome::Done(answer.header.revision()));
        }
        if inner.responses.len() != change.compares.len() {
            return Err(malformed());
        }
        let seen = inner.responses.into_iter().map(|part| {
            let range = part.response_range.ok_or_else(malformed)?;
            range
                .kvs
                .into_iter()
                .next()
                .map(|kv| self.entry(kv))
                .transpose()
        });
        Ok(Outcome::Conflict(seen.collect::<Result<_, _>>()?))
    }
}
