//! A cache over a database that is never stale: leases as in the IQ framework, over memcached's compare-and-swap.
//!
//! (Ghandeharizadeh, Yap, Nguyen, "Strong Consistency in Cache Augmented SQL Systems", Middleware 2014; theirs changes the
//! cache server, this needs none of that.)
//!
//! A key holds a value, or one of two markers:
//!
//! ```text
//!              reader adds                  reader swaps, if still its own
//!    absent ───────────────► [I] being read ─────────────────────────────► value
//!      ▲                          │                                          │
//!      │ writer releases          │ writer swaps                             │ writer swaps
//!      └──────────── [Q] being written: tokens of the writers ◄──────────────┘
//! ```
//!
//! * A *reader* that finds a value takes it. One that finds nothing adds I, reads the database, and replaces I by what it read by compare-and-swap. One
//!   that finds a marker reads the database and leaves the cache alone.
//! * A *writer* first puts its token into Q on every key that it may change, replacing value or I; then commits; then takes
//!   its token out again, and the last token takes Q with it. If it finds its token gone, it deletes what is
//!   there unless that is Q. If nobody knows whether it committed, Q stays until it expires.
//!
//! # Why a value that is found is the database's at that instant
//!
//! Let a value be in the cache at t, put there by a reader that added I at a, saw the database as of s, and swapped at b: a ≤ s ≤ b ≤ t,
//! with I untouched from a to b and the value from b to t (else the swap fails, or it is gone). Suppose a commit at c
//! changed what the value tells, s < c ≤ t. Its writer put Q at q < c. If q ≥ a, it replaced I or the value: not
//! untouched. If q < a, then Q was on the key until its writer released it, after c; but I is added only to an absent
//! key, so a is after the release and after c: contradicts a ≤ s < c. So there is no such commit.
//!
//! # What may go wrong, and why it stays right
//!
//! * The cache forgets (evicts) I: the swap fails. It forgets Q before the commit: another reader may put an old value; the
//!   writer finds its token gone and deletes it before it acknowledges, so an *acknowledged* write is seen by all later reads.
//! * A reader dies: I expires. Until then others read the database.
//! * A writer dies, or gives up: Q expires, after the database ended its statement (`statement_timeout`
//!   is shorter), so whoever reads afterwards sees what became of it.
//! * The cache is not reached: reads go to the database; writes are refused before they begin.
//!
//! What is left: a writer dies *and* its statement reaches the database only after Q expired. Values expire too, which bounds that.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};

use crate::stores::contract::Failure;
use crate::stores::memcached::{Cache, Deleted, Entry, Found, Only};

pub const VALUE: u32 = 0;
const BEING_READ: u32 = 1;
const BEING_WRITTEN: u32 = 2;

/// memcached's clock ticks in seconds: what is to last n may last n - 1.
const READ_SECONDS: u32 = 5;
const WRITE_SECONDS: u32 = 10;
/// How long the database may take over a statement.
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(5);
pub const VALUE_SECONDS: u32 = 300;

/// What a reader found.
pub enum Looked {
    Value(Bytes),
    /// Nothing; I was added, with this cas.
    Read(u64),
    /// Somebody reads or writes it.
    Busy,
}

pub async fn look(cache: &impl Cache, key: &str) -> Result<Looked, Failure> {
    match cache.get(key).await? {
        Some(found) if found.flags == VALUE => Ok(Looked::Value(found.value)),
        Some(_) => Ok(Looked::Busy),
        None => {
            let marker = Entry {
                value: b"",
                flags: BEING_READ,
                seconds: READ_SECONDS,
            };
            let added = cache.store(key, &marker, Only::IfAbsent).await?;
            Ok(added.map_or(Looked::Busy, Looked::Read))
        }
    }
}

/// Replaces I by what was read; nothing happens if a writer came between.
pub async fn fill(cache: &impl Cache, key: &str, cas: u64, value: &[u8]) -> Result<(), Failure> {
    let entry = Entry {
        value,
        flags: VALUE,
        seconds: VALUE_SECONDS,
    };
    cache.store(key, &entry, Only::If(cas)).await?;
    Ok(())
}

/// Keys that a writer has put its token on.
pub struct Quarantine {
    token: u64,
    held: Vec<Held>,
}

struct Held {
    key: String,
    /// Of Q as this writer left it, if its token is the only one.
    alone: Option<u64>,
}

/// # Errors
///
/// The cache was not reached: the write must not begin. Keys already marked expire.
pub async fn quarantine(cache: &impl Cache, keys: Vec<String>) -> Result<Quarantine, Failure> {
    let token = new_token();
    let held = keys.into_iter().map(async |key| {
        let alone = mark(cache, &key, token).await?;
        Ok::<_, Failure>(Held { key, alone })
    });
    let held = try_join_all(held).await;
    let held = held.map_err(|why| Failure::Refused(format!("not written: {why}")))?;
    Ok(Quarantine { token, held })
}

/// # Errors
///
/// The cache was not reached: the keys stay marked until that expires.
pub async fn release(cache: &impl Cache, quarantine: Quarantine) -> Result<(), Failure> {
    let token = quarantine.token;
    let released = quarantine.held.iter().map(async |held| {
        if let Some(cas) = held.alone {
            match cache.delete(&held.key, Some(cas)).await? {
                Deleted::Done | Deleted::WasAbsent => return Ok(()),
                Deleted::WasOther => {}
            }
        }
        unmark(cache, &held.key, token).await
    });
    join_all(released).await.into_iter().collect()
}

/// Puts the token into Q; the cas if it is the only one there.
async fn mark(cache: &impl Cache, key: &str, token: u64) -> Result<Option<u64>, Failure> {
    loop {
        let (mut tokens, only) = match peek(cache, key).await? {
            None => (Vec::new(), Only::IfAbsent),
            Some((tokens, cas)) => (tokens.unwrap_or_default(), Only::If(cas)),
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
        // In Q without the token: there is no value, and whoever reads next sees the commit.
        if count > 0 && left.len() == count {
            return Ok(());
        }
        let is_done = match left.is_empty() {
            true => cache.delete(key, Some(cas)).await? != Deleted::WasOther,
            false => store_tokens(cache, key, &left, Only::If(cas))
                .await?
                .is_some(),
        };
        if is_done {
            return Ok(());
        }
    }
}

/// What is there but for a value's bytes: the tokens if it is Q, and its cas.
async fn peek(cache: &impl Cache, key: &str) -> Result<Option<(Option<Vec<u64>>, u64)>, Failure> {
    let is_written = |found: &Found| found.flags == BEING_WRITTEN;
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
    only: Only,
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

/// Nobody else's, but by chance of 2^-64: each state is seeded at random.
fn new_token() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
