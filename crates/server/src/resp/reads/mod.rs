//! Reads of stores (GET, MGET, EXISTS and similar): from memory directly, or by a disk thread while the core serves
//! other connections.
//!
//! ```text
//!  keys ─ resolve ─► targets ─ read ──► from memory ──────────────► reply
//!                                 │ would block, or the output is full
//!                                 ▼
//!                               ReadJob ─ start_reads ─► disk threads ─ deliver ─► reply
//! ```
//!
//! The targets refer to the stores of one snapshot, so a reply never mixes versions, however long it takes. Replies for
//! keys of tables may be interleaved (see `mixed`). `reply` builds the reply, and `job` completes reads that must wait.
//!
//! A value copied from a mapped file is valid only if its version is intact afterwards; otherwise it is looked up
//! again, by position. Disk threads read stores with large values even when those are in memory, because verifying a
//! large value's checksum could delay other connections.

mod disk_hook;
mod job;
mod reply;

use std::sync::Arc;

use larder_batch::{Attempt, Error, Value};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use larder_types::integer;

use super::dispatch::NOT_AN_INTEGER;
use super::output::OutputMark;
use super::state::ConnectionState;
use crate::catalog::{LiveStore, Lookup, Snapshot};
use crate::error::{Refusal, show};
use crate::pinned_value::PinnedValue;

pub(in crate::resp) use disk_hook::is_hooked;
pub use disk_hook::set_disk_hook;
pub(in crate::resp) use job::{ReadJob, ReadStep, ReadTarget};
use reply::ReplyBuilder;
pub(in crate::resp) use reply::byte_range;

/// Maximum number of concurrent disk reads of one command.
const READS_MAX: usize = 16;
/// Values of at least this size are read one at a time, which limits the memory of a command.
const READ_AHEAD_BYTES_MAX: usize = 1 << 20;
/// Maximum number of keys of one store that are looked up together.
const BATCH: usize = 64;
/// Approximate size of the values that are looked up together.
const BATCH_BYTES: u64 = 256 << 10;

/// The error of Redis with an eviction policy other than LFU.
const NO_FREQUENCY: &str = "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// The property of each key that a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum KeyQuery {
    Get,
    MGet,
    Exists,
    StrLen,
    GetRange {
        start: i64,
        end: i64,
    },
    MemoryUsage,
    Object(ObjectQuery),
    Digest,
    Type,
    /// TTL, EXPIRETIME and similar: a store's key never expires.
    Ttl,
}

/// The subcommands of OBJECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum ObjectQuery {
    Encoding,
    IdleTime,
    RefCount,
}

impl ObjectQuery {
    /// Appends the reply for a text.
    pub fn encode_text_reply(self, value: &[u8], encoder: &mut Encoder<'_>) {
        /// Redis embeds strings of up to this size in their header.
        const EMBEDDED_MAX: usize = 44;
        self.encode_reply(encoder, || match value.len() {
            _ if integer(value).is_some() => "int",
            ..=EMBEDDED_MAX => "embstr",
            _ => "raw",
        });
    }

    pub fn encode_reply(self, encoder: &mut Encoder<'_>, encoding: impl FnOnce() -> &'static str) {
        match self {
            ObjectQuery::Encoding => encoder.text(encoding()),
            ObjectQuery::IdleTime => encoder.integer(0),
            ObjectQuery::RefCount => encoder.integer(1),
        }
    }
}

/// Parses GETRANGE.
///
/// # Errors
/// An offset is not an integer.
pub(in crate::resp) fn range_query(request: Request<'_>) -> Result<KeyQuery, Refusal> {
    let number = |at| {
        let refusal = || (Code::BadRequest, NOT_AN_INTEGER.to_owned());
        integer(request.arg(at)).ok_or_else(refusal)
    };
    Ok(KeyQuery::GetRange {
        start: number(2)?,
        end: number(3)?,
    })
}

/// Parses OBJECT, except its subcommand HELP.
///
/// # Errors
/// Access frequencies are not counted.
pub(in crate::resp) fn object_query(request: Request<'_>) -> Result<KeyQuery, Refusal> {
    Ok(KeyQuery::Object(
        match request.arg(1).to_ascii_uppercase().as_slice() {
            b"ENCODING" => ObjectQuery::Encoding,
            b"IDLETIME" => ObjectQuery::IdleTime,
            b"REFCOUNT" => ObjectQuery::RefCount,
            _ => return Err((Code::BadRequest, NO_FREQUENCY.to_owned())),
        },
    ))
}

/// Returns the live store and the key in it that a Redis key denotes, if there is such a store.
#[inline]
pub(in crate::resp) fn find_record<'s, 'k>(
    snapshot: &'s Snapshot,
    redis_key: &'k [u8],
) -> Option<(&'s Arc<LiveStore>, &'k [u8])> {
    let colon = redis_key.iter().position(|&byte| byte == b':')?;
    let live = snapshot.get(&redis_key[..colon])?;
    Some((live, &redis_key[colon + 1..]))
}

/// As [`record`], but returns an error if there is no such store.
#[inline]
pub(in crate::resp) fn resolve<'s, 'k>(
    snapshot: &'s Snapshot,
    redis_key: &'k [u8],
) -> Result<(&'s Arc<LiveStore>, &'k [u8]), Refusal> {
    let Some(colon) = redis_key.iter().position(|&byte| byte == b':') else {
        return Err(missing_store_name(redis_key));
    };
    match snapshot.lookup(&redis_key[..colon]) {
        Lookup::Live(live) => Ok((live, &redis_key[colon + 1..])),
        other => Err(unreadable(&other, &redis_key[..colon])),
    }
}

#[cold]
fn missing_store_name(redis_key: &[u8]) -> Refusal {
    let shown = show(redis_key);
    (
        Code::BadRequest,
        format!("key '{shown}' names no store; write store:key, such as pymk:42"),
    )
}

/// Returns the error for a store that cannot be read.
#[cold]
pub(in crate::resp) fn unreadable(lookup: &Lookup<'_>, name: &[u8]) -> Refusal {
    match lookup {
        Lookup::Unavailable(why) => (why.cause.code(), why.reason.clone()),
        _ => {
            let shown = show(name);
            (
                Code::NoSuchStore,
                format!("no store is named '{shown}'; STORE.LIST lists all stores"),
            )
        }
    }
}

/// Returns the error reply for a failed lookup.
pub(in crate::resp) fn lookup_error(error: &Error) -> Refusal {
    let code = match error {
        Error::Corrupted { .. } => Code::Corrupted,
        Error::NotHere { .. } => Code::ClusterDown,
        _ => Code::Io,
    };
    (code, error.to_string())
}

/// Returns the number of a store's keys to look up together: `most`, or fewer if values are so large that the replies
/// would exceed the memory for one batch.
#[inline]
pub(in crate::resp) fn batch_len(live: &LiveStore, most: usize) -> usize {
    let manifest = live.version.manifest();
    let value_bytes = manifest.value_bytes / manifest.record_count.max(1);
    match value_bytes {
        0..=4096 => most,
        _ => ((BATCH_BYTES / value_bytes) as usize).clamp(1, most),
    }
}

/// Executes a read of `keys`, as far as memory and the output allow. The returned job completes the rest.
pub(in crate::resp) fn read<'k>(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    query: KeyQuery,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
) -> Option<ReadJob> {
    let mut targets = Vec::with_capacity(keys.len());
    for key in keys {
        match resolve(snapshot, key) {
            Ok(target) => targets.push(target),
            Err((code, message)) => {
                state.error(code, &message);
                return None;
            }
        }
    }
    if let Some(hot) = &state.core.hot {
        for (live, key) in &targets {
            hot.record(&live.name, &[*key]);
        }
    }
    let mark = state.output.mark();
    let mut reply = ReplyBuilder::new(query, targets.len());
    let mut done = 0;
    let mut found = Vec::new();
    while done < targets.len() && state.has_room() {
        let live = targets[done].0;
        let rest = &targets[done..];
        let same = rest
            .iter()
            .take(batch_len(live, BATCH))
            .take_while(|(other, _)| Arc::ptr_eq(other, live))
            .count();
        let batch = &rest[..same];
        let checkpoint = ReplyCheckpoint::take(live, state, &reply, done);
        if same > 1
            && live.version.is_resident()
            && !live.has_large_values()
            && !batch.iter().any(|(_, key)| is_hooked(key))
        {
            let keys: Vec<&[u8]> = batch.iter().map(|(_, key)| *key).collect();
            live.version.get_many(&keys, &mut found);
        } else {
            match try_lookup(live, batch[0].1) {
                Ok(Attempt::Ready(value)) => found.push(Ok(value)),
                Ok(Attempt::WouldBlock) => break,
                Err(error) => found.push(Err(error)),
            }
        }
        for (value, (live, key)) in found.drain(..).zip(batch) {
            match value {
                Ok(value) => add(state, &mut reply, live, key, value),
                Err(error) => {
                    state.output.rewind(mark);
                    state.refuse(lookup_error(&error));
                    return None;
                }
            }
            done += 1;
        }
        if checkpoint.is_invalidated(live) {
            (reply, done) = checkpoint.restore(state);
        }
    }
    if let Some((live, _)) = targets.first() {
        state.series = Some(state.core.store_series(live.name.as_str()));
    }
    if done == targets.len() {
        reply.finish(&mut state.output, state.proto);
        state.keys = (reply.requested, reply.absent);
        return None;
    }
    let owned = targets[done..]
        .iter()
        .map(|(live, key)| ReadTarget::Key((*live).clone(), Box::from(*key)));
    let read_ahead = batch_len(targets[done].0, READS_MAX);
    Some(ReadJob::for_rest(reply, owned.collect(), mark, read_ahead))
}

/// The state of a reply before values were copied into it.
struct ReplyCheckpoint {
    was_intact: bool,
    mark: OutputMark,
    reply: ReplyBuilder,
    done: usize,
}

impl ReplyCheckpoint {
    #[inline]
    fn take(
        live: &LiveStore,
        state: &ConnectionState,
        reply: &ReplyBuilder,
        done: usize,
    ) -> ReplyCheckpoint {
        ReplyCheckpoint {
            was_intact: live.version.is_intact(),
            mark: state.output.mark(),
            reply: *reply,
            done,
        }
    }

    /// Returns whether the version was damaged since then, so that the copied values may not be the verified ones.
    #[inline]
    fn is_invalidated(&self, live: &LiveStore) -> bool {
        self.was_intact && !live.version.is_intact()
    }

    #[cold]
    fn restore(self, state: &mut ConnectionState) -> (ReplyBuilder, usize) {
        state.output.rewind(self.mark);
        (self.reply, self.done)
    }
}

#[inline]
fn add(
    state: &mut ConnectionState,
    reply: &mut ReplyBuilder,
    live: &Arc<LiveStore>,
    key: &[u8],
    value: Option<Value<'_>>,
) {
    // SAFETY: callers pass the result of a lookup in the version of `live`.
    let hold = |value: Value<'_>| unsafe { PinnedValue::hold(live, value) };
    reply.add(&mut state.output, state.proto, key.len(), value, hold);
}

#[inline]
fn try_lookup<'a>(live: &'a LiveStore, key: &[u8]) -> Result<Attempt<'a>, Error> {
    if key.is_empty() {
        // No store contains the empty key.
        return Ok(Attempt::Ready(None));
    }
    if live.has_large_values() || is_hooked(key) {
        return Ok(Attempt::WouldBlock);
    }
    live.version.try_get(key)
}

/// Executes consecutive GETs of one store that was in memory when last checked. Returns the number of absent keys, and
/// whether all keys could be read.
pub(in crate::resp) fn get_consecutive(
    state: &mut ConnectionState,
    live: &Arc<LiveStore>,
    keys: &[&[u8]],
) -> (u64, bool) {
    let mut reply = ReplyBuilder::new(KeyQuery::Get, keys.len());
    let checkpoint = ReplyCheckpoint::take(live, state, &reply, 0);
    let mut intact = true;
    let mut one = |state: &mut ConnectionState,
                   key: &[u8],
                   value: Result<Option<Value<'_>>, Error>| match value {
        Ok(value) => add(state, &mut reply, live, key, value),
        Err(error) => {
            intact = false;
            state.refuse(lookup_error(&error));
        }
    };
    if let [key] = keys {
        one(state, key, live.version.get(key));
    } else {
        let mut found = Vec::with_capacity(keys.len());
        live.version.get_many(keys, &mut found);
        for (key, value) in keys.iter().zip(found) {
            one(state, key, value);
        }
    }
    if checkpoint.is_invalidated(live) {
        checkpoint.restore(state);
        return get_consecutive(state, live, keys);
    }
    (reply.absent, intact)
}
