//! A cache over a database that never returns stale values: leases as in the IQ framework, implemented with memcached's
//! compare-and-swap.
//!
//! (Ghandeharizadeh, Yap, Nguyen, "Strong Consistency in Cache Augmented SQL Systems", Middleware 2014. Their framework
//! changes the cache server; this implementation needs no change.)
//!
//! A key has a value, or one of two markers:
//!
//! ```text
//!              reader adds                  reader swaps, if still its own
//!    absent ───────────────► [I] being read ─────────────────────────────► value
//!      ▲                          │                                          │
//!      │ writer releases          │ writer swaps                             │ writer swaps
//!      └──────────── [Q] being written: tokens of the writers ◄──────────────┘
//! ```
//!
//! * A *reader* that finds a value uses it. A reader that finds nothing adds I, reads the database, and replaces I with
//!   the result by compare-and-swap. A reader that finds a marker reads the database and does not change the cache.
//! * A *writer* first adds its token to Q on every key that it may change, which replaces a value or I. It then
//!   commits, and removes its token; the last token removes Q too. If its token is gone, it deletes whatever is there,
//!   unless that is Q. If the outcome of the commit is unknown, Q stays until it expires.
//!
//! # Proof that a value in the cache equals that of the database at the same instant
//!
//! Let a value be in the cache at time t. A reader put it there: it added I at a, read the database as of s, and
//! swapped at b, where a ≤ s ≤ b ≤ t. I was unchanged from a to b, and the value from b to t (otherwise the swap fails,
//! or the value is gone). Suppose that a commit at c changed the value, with s < c ≤ t. Its writer had put Q at q < c.
//!
//! - If q ≥ a, Q replaced I or the value, which contradicts that they were unchanged.
//! - If q < a, Q was on the key until its writer released it, after c. But I is added only to an absent key, so a is
//!   after the release and after c, which contradicts a ≤ s < c.
//!
//! So there is no such commit.
//!
//! # Failures
//!
//! * The cache evicts I: the swap fails. The cache evicts Q before the commit: another reader may store an old value.
//!   The writer finds its token gone, and deletes the value before it acknowledges, so all later reads see an
//!   *acknowledged* write.
//! * A reader dies: I expires. Until then, other readers read the database.
//! * A writer dies or gives up: Q expires after the database has ended its statement (`statement_timeout` is shorter).
//!   Later readers see the outcome.
//! * The cache is unreachable: reads go to the database, and writes are rejected before they begin.
//!
//! One case remains: a writer dies *and* its statement reaches the database only after Q has expired. Values expire
//! too, which limits the effect.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};

use crate::stores::contract::Failure;
use crate::stores::memcached::{Cache, CachedEntry, DeleteOutcome, Entry, StoreCondition};

pub const VALUE: u32 = 0;
const BEING_READ: u32 = 1;
const BEING_WRITTEN: u32 = 2;

/// memcached's clock has a resolution of one second, so a duration of n may be n - 1.
const READ_SECONDS: u32 = 5;
const WRITE_SECONDS: u32 = 10;
/// The maximum time of a statement in the database.
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(5);
pub const VALUE_SECONDS: u32 = 300;

/// The result of a lookup.
pub enum Lookup {
    Value(Bytes),
    /// Nothing was found. I was added, with this CAS.
    Reserved(u64),
    /// The key is being read or written.
    Busy,
}

pub async fn lookup(cache: &impl Cache, key: &str) -> Result<Lookup, Failure> {
    match cache.get(key).await? {
        Some(found) if found.flags == VALUE => Ok(Lookup::Value(found.value)),
        Some(_) => Ok(Lookup::Busy),
        None => {
            let marker = Entry {
                value: b"",
                flags: BEING_READ,
                seconds: READ_SECONDS,
            };
            let added = cache.store(key, &marker, StoreCondition::IfAbsent).await?;
            Ok(added.map_or(Lookup::Busy, Lookup::Reserved))
        }
    }
}

/// Replaces I with the value that was read. Has no effect if a writer has changed the key since.
pub async fn fill(cache: &impl Cache, key: &str, cas: u64, value: &[u8]) -> Result<(), Failure> {
    let entry = Entry {
        value,
        flags: VALUE,
        seconds: VALUE_SECONDS,
    };
    cache.store(key, &entry, StoreCondition::If(cas)).await?;
    Ok(())
}

/// The keys on which a writer has put its token.
pub struct Quarantine {
    token: u64,
    marked_keys: Vec<QuarantinedKey>,
}

struct QuarantinedKey {
    key: String,
    /// The CAS of Q as this writer left it, if its token is the only one.
    alone: Option<u64>,
}

/// Puts a new token on all keys.
///
/// # Errors
///
/// The cache is unreachable: the write must not begin. Keys that are already marked expire.
pub async fn quarantine(cache: &impl Cache, keys: Vec<String>) -> Result<Quarantine, Failure> {
    let token = new_token();
    let marked_keys = keys.into_iter().map(async |key| {
        let alone = mark(cache, &key, token).await?;
        Ok::<_, Failure>(QuarantinedKey { key, alone })
    });
    let marked_keys = try_join_all(marked_keys).await;
    let marked_keys = marked_keys.map_err(|why| Failure::Refused(format!("not written: {why}")))?;
    Ok(Quarantine { token, marked_keys })
}

/// Removes the token from all keys.
///
/// # Errors
///
/// The cache is unreachable: the keys stay marked until the markers expire.
pub async fn release(cache: &impl Cache, quarantine: Quarantine) -> Result<(), Failure> {
    let token = quarantine.token;
    let released = quarantine.marked_keys.iter().map(async |marked| {
        if let Some(cas) = marked.alone {
            match cache.delete(&marked.key, Some(cas)).await? {
                DeleteOutcome::Deleted | DeleteOutcome::Absent => return Ok(()),
                DeleteOutcome::VersionMismatch => {}
            }
        }
        unmark(cache, &marked.key, token).await
    });
    join_all(released).await.into_iter().collect()
}

/// Adds the token to Q. Returns the CAS if it is the only token.
async fn mark(cache: &impl Cache, key: &str, token: u64) -> Result<Option<u64>, Failure> {
    loop {
        let (mut tokens, only) = match peek(cache, key).await? {
            None => (Vec::new(), StoreCondition::IfAbsent),
            Some((tokens, cas)) => (tokens.unwrap_or_default(), StoreCondition::If(cas)),
        };
        tokens.push(token);
        if let Some(cas) = store_tokens(cache, key, &tokens, only).await? {
            return Ok((tokens.len() == 1).then_some(cas));
        }
    }
}

async fn unmark(cache: &impl Cache, key: &str, token: u64) -> Result<(), Failure> {
    loop {
        let Some((tokens, cas)) = peek(cache, key).await? else {
            return Ok(());
        };
        let mut left = tokens.unwrap_or_default();
        let count = left.len();
        left.retain(|other| *other != token);
        // Q exists without the token: there is no value, and the next reader sees the commit.
        if count > 0 && left.len() == count {
            return Ok(());
        }
        let is_done = if left.is_empty() {
            cache.delete(key, Some(cas)).await? != DeleteOutcome::VersionMismatch
        } else {
            store_tokens(cache, key, &left, StoreCondition::If(cas))
                .await?
                .is_some()
        };
        if is_done {
            return Ok(());
        }
    }
}

/// Reads the marker of a key, but not a value's bytes. Returns the tokens, if it is Q, and the CAS.
async fn peek(cache: &impl Cache, key: &str) -> Result<Option<(Option<Vec<u64>>, u64)>, Failure> {
    let is_written = |found: &CachedEntry| found.flags == BEING_WRITTEN;
    match cache.peek(key).await? {
        None => Ok(None),
        Some(found) if !is_written(&found) => Ok(Some((None, found.cas))),
        Some(_) => {
            let found = cache.get(key).await?;
            Ok(found.map(|found| {
                let tokens = is_written(&found).then(|| tokens(&found.value));
                (tokens, found.cas)
            }))
        }
    }
}

async fn store_tokens(
    cache: &impl Cache,
    key: &str,
    tokens: &[u64],
    only: StoreCondition,
) -> Result<Option<u64>, Failure> {
    let value: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    let entry = Entry {
        value: &value,
        flags: BEING_WRITTEN,
        seconds: WRITE_SECONDS,
    };
    cache.store(key, &entry, only).await
}

fn tokens(value: &[u8]) -> Vec<u64> {
    let (tokens, _) = value.as_chunks();
    tokens
        .iter()
        .map(|token| u64::from_le_bytes(*token))
        .collect()
}

/// Returns a token that is unique except with a probability of 2^-64: each state has a random seed.
fn new_token() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
