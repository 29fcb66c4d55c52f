//! Lookups in stores: at once from memory, or by a disk thread while other connections go on.
//!
//! ```text
//!  keys ─ resolve ─► targets ─ begin ─► from memory ──────────────► reply
//!                                 │ would wait, or output full
//!                                 ▼
//!                               ReadJob ─ start_reads ─► disk threads ─ deliver ─► reply
//! ```
//!
//! The targets hold the stores of one snapshot, so a reply never mixes versions, however long it takes; between them there
//! may be replies to keys of tables (see `mixed`).
//! What was copied out of the map counts only if its version is whole afterwards; else it is looked up again, by position.
//! Stores of large values are read by disk threads also when they are in memory: checking a value's
//! checksum may take longer than other connections should wait.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use larder_batch::{Attempt, Error, Value};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;
use tokio::task::JoinHandle;

use super::output::{LARGE_VALUE_BYTES, Mark, Output};
use super::state::State;
use crate::catalog::{LiveStore, Lookup, Snapshot};
use crate::pinned_value::PinnedValue;

/// Lookups of one command that wait for the disk at the same time.
const READS_MAX: usize = 16;
/// Values from here on are read one at a time, so that a command does not fill the memory with them.
const READ_AHEAD_BYTES_MAX: usize = 1 << 20;
/// Keys of one store that are looked up together.
const BATCH: usize = 64;
/// Bytes of values that are looked up together, about.
const BATCH_BYTES: u64 = 256 << 10;

/// What is asked about each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Get,
    MGet,
    Exists,
    StrLen,
    GetRange {
        start: i64,
        end: i64,
    },
    MemoryUsage,
    Type,
    /// TTL, EXPIRETIME and their kin: a store's key never expires.
    Ttl,
}

/// The error reply to a key that names no store that can be read.
pub(super) type Refusal = (Code, String);

/// The store and the key in it that a Redis key means.
#[inline]
pub(super) fn resolve<'s, 'k>(
    snapshot: &'s Snapshot,
    redis_key: &'k [u8],
) -> Result<(&'s Arc<LiveStore>, &'k [u8]), Refusal> {
    let Some(colon) = redis_key.iter().position(|&byte| byte == b':') else {
        return Err(no_colon(redis_key));
    };
    match snapshot.lookup(&redis_key[..colon]) {
        Lookup::Live(live) => Ok((live, &redis_key[colon + 1..])),
        other => Err(unreadable(&other, &redis_key[..colon])),
    }
}

#[cold]
fn no_colon(redis_key: &[u8]) -> Refusal {
    let shown = show(redis_key);
    (
        Code::BadRequest,
        format!("key '{shown}' names no store; write store:key, such as pymk:42"),
    )
}

/// Why a store cannot be read.
#[cold]
pub(super) fn unreadable(lookup: &Lookup<'_>, name: &[u8]) -> Refusal {
    match lookup {
        Lookup::Unavailable(why) if why.corrupted => (Code::Corrupted, why.reason.clone()),
        Lookup::Unavailable(why) => (Code::NoLiveVersion, why.reason.clone()),
        _ => {
            let shown = show(name);
            (
                Code::NoSuchStore,
                format!("no store is named '{shown}'; STORE.LIST lists those there are"),
            )
        }
    }
}

/// Bytes for people: as text, shortened.
pub(super) fn show(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 128;
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

/// The error reply to a failed lookup.
pub(super) fn failure(error: &Error) -> Refusal {
    let code = if matches!(error, Error::Corrupted { .. }) {
        Code::Corrupted
    } else {
        Code::Io
    };
    (code, error.to_string())
}

/// How many keys of a store are looked up together: `most`, or fewer where values are so large that
/// the replies would exceed what one connection may hold.
#[inline]
pub(super) fn together(live: &LiveStore, most: usize) -> usize {
    let manifest = live.version.manifest();
    let value_bytes = manifest.value_bytes / manifest.record_count.max(1);
    match value_bytes {
        0..=4096 => most,
        _ => ((BATCH_BYTES / value_bytes) as usize).clamp(1, most),
    }
}

/// The reply to a command as it grows.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub ask: Ask,
    pub asked: u64,
    pub absent: u64,
    /// Elements of the array that has not been begun yet.
    array: Option<usize>,
}

impl Answer {
    pub fn new(ask: Ask, keys: usize) -> Answer {
        Answer {
            ask,
            asked: 0,
            absent: 0,
            array: (ask == Ask::MGet).then_some(keys),
        }
    }

    /// Adds one key's answer. `hold` is called for large values only.
    #[inline]
    pub fn add<T: Deref<Target = [u8]>>(
        &mut self,
        output: &mut Output,
        proto: Proto,
        key_len: usize,
        value: Option<T>,
        hold: impl FnOnce(T) -> PinnedValue,
    ) {
        self.begin(output, proto);
        let Some(value) = value else {
            self.absent += 1;
            return self.add_absent(output, proto);
        };
        match self.ask {
            Ask::Get | Ask::MGet if value.len() < LARGE_VALUE_BYTES => {
                output.encoder(proto).bulk(&value)
            }
            Ask::Get | Ask::MGet => output.pinned(proto, hold(value)),
            Ask::Exists => {}
            Ask::StrLen => output.encoder(proto).count(value.len() as u64),
            Ask::MemoryUsage => output.encoder(proto).count((key_len + value.len()) as u64),
            Ask::Type => output.encoder(proto).simple("string"),
            Ask::Ttl => output.encoder(proto).integer(-1),
            Ask::GetRange { start, end } => {
                let range = range_of(start, end, value.len());
                if range.len() < LARGE_VALUE_BYTES {
                    output.encoder(proto).bulk(&value[range]);
                } else {
                    output.pinned(proto, hold(value).slice(range));
                }
            }
        }
    }

    /// Adds the reply to a key that is of no store.
    fn add_reply(&mut self, output: &mut Output, proto: Proto, reply: &[u8]) {
        self.begin(output, proto);
        let is_absent = reply == b"$-1\r\n" || reply == b"_\r\n";
        self.absent += u64::from(is_absent);
        output.tail.extend_from_slice(reply);
    }

    fn begin(&mut self, output: &mut Output, proto: Proto) {
        self.asked += 1;
        if let Some(len) = self.array.take() {
            output.encoder(proto).array(len);
        }
    }

    fn add_absent(&self, output: &mut Output, proto: Proto) {
        let mut encoder = output.encoder(proto);
        match self.ask {
            Ask::Get | Ask::MGet | Ask::MemoryUsage => encoder.null(),
            Ask::Exists => {}
            Ask::StrLen => encoder.integer(0),
            Ask::GetRange { .. } => encoder.bulk(b""),
            Ask::Type => encoder.simple("none"),
            Ask::Ttl => encoder.integer(-2),
        }
    }

    fn finish(&self, output: &mut Output, proto: Proto) {
        if self.ask == Ask::Exists {
            output.encoder(proto).count(self.asked - self.absent);
        }
    }
}

/// Redis's reading of GETRANGE: both ends included, negative ones from the end, clamped.
pub(super) fn range_of(start: i64, end: i64, len: usize) -> Range<usize> {
    let signed = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |at: i64| {
        if at < 0 {
            signed.saturating_add(at)
        } else {
            at
        }
    };
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let (start, end) = (place(start).max(0), place(end).max(0).min(signed - 1));
    if start > end || len == 0 {
        return 0..0;
    }
    start as usize..end as usize + 1
}

/// Answers a command about `keys`, or as much of it as memory allows: then the rest is a job.
pub(super) fn read<'k>(
    state: &mut State,
    snapshot: &Snapshot,
    ask: Ask,
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
    let mark = state.output.mark();
    let mut answer = Answer::new(ask, targets.len());
    let mut done = 0;
    let mut found = Vec::new();
    while done < targets.len() && state.has_room() {
        let live = targets[done].0;
        let rest = &targets[done..];
        let same = rest
            .iter()
            .take(together(live, BATCH))
            .take_while(|(other, _)| Arc::ptr_eq(other, live))
            .count();
        let batch = &rest[..same];
        let before = Before::now(live, state, &answer, done);
        if same > 1
            && live.version.is_resident()
            && !live.has_large_values()
            && !batch.iter().any(|(_, key)| is_hooked(key))
        {
            let keys: Vec<&[u8]> = batch.iter().map(|(_, key)| *key).collect();
            live.version.get_many(&keys, &mut found);
        } else {
            match attempt(live, batch[0].1) {
                Ok(Attempt::Ready(value)) => found.push(Ok(value)),
                Ok(Attempt::WouldBlock) => break,
                Err(error) => found.push(Err(error)),
            }
        }
        for (value, (live, key)) in found.drain(..).zip(batch) {
            match value {
                Ok(value) => add(state, &mut answer, live, key, value),
                Err(error) => {
                    state.output.rewind(mark);
                    state.refuse(failure(&error));
                    return None;
                }
            }
            done += 1;
        }
        if before.is_lost(live) {
            (answer, done) = before.undo(state);
        }
    }
    if let Some((live, _)) = targets.first() {
        state.series = Some(state.core.store_series(live.name.as_str()));
    }
    if done == targets.len() {
        answer.finish(&mut state.output, state.proto);
        state.keys = (answer.asked, answer.absent);
        return None;
    }
    let owned = targets[done..]
        .iter()
        .map(|(live, key)| Target::Key((*live).clone(), Box::from(*key)));
    Some(ReadJob {
        answer,
        targets: owned.collect(),
        mark: Some(mark),
        failed: false,
        read_ahead: together(targets[done].0, READS_MAX),
    })
}

/// A reply as it was before values were copied into it.
struct Before {
    whole: bool,
    mark: Mark,
    answer: Answer,
    done: usize,
}

impl Before {
    #[inline]
    fn now(live: &LiveStore, state: &State, answer: &Answer, done: usize) -> Before {
        Before {
            whole: live.version.is_whole(),
            mark: state.output.mark(),
            answer: *answer,
            done,
        }
    }

    /// Whether what was copied since may not be what was checked.
    #[inline]
    fn is_lost(&self, live: &LiveStore) -> bool {
        self.whole && !live.version.is_whole()
    }

    #[cold]
    fn undo(self, state: &mut State) -> (Answer, usize) {
        state.output.rewind(self.mark);
        (self.answer, self.done)
    }
}

#[inline]
fn add(
    state: &mut State,
    answer: &mut Answer,
    live: &Arc<LiveStore>,
    key: &[u8],
    value: Option<Value<'_>>,
) {
    // SAFETY: callers pass what a lookup in the version of `live` returned.
    let hold = |value: Value<'_>| unsafe { PinnedValue::hold(live, value) };
    answer.add(&mut state.output, state.proto, key.len(), value, hold);
}

#[inline]
fn attempt<'a>(live: &'a LiveStore, key: &[u8]) -> Result<Attempt<'a>, Error> {
    if key.is_empty() {
        // No store holds the empty key.
        return Ok(Attempt::Ready(None));
    }
    if live.has_large_values() || is_hooked(key) {
        return Ok(Attempt::WouldBlock);
    }
    live.version.try_get(key)
}

/// Answers consecutive GETs of one store, all of whose version was in memory when last looked.
/// Returns how many keys were absent, and whether all could be read.
pub(super) fn get_run(state: &mut State, live: &Arc<LiveStore>, keys: &[&[u8]]) -> (u64, bool) {
    let mut answer = Answer::new(Ask::Get, keys.len());
    let before = Before::now(live, state, &answer, 0);
    let mut intact = true;
    let mut one =
        |state: &mut State, key: &[u8], value: Result<Option<Value<'_>>, Error>| match value {
            Ok(value) => add(state, &mut answer, live, key, value),
            Err(error) => {
                intact = false;
                state.refuse(failure(&error));
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
    if before.is_lost(live) {
        before.undo(state);
        return get_run(state, live, keys);
    }
    (answer.absent, intact)
}

/// What is still to be answered.
pub(super) enum Target {
    Key(Arc<LiveStore>, Box<[u8]>),
    /// The reply to a key of a table, which has been read.
    Row(Vec<u8>),
}

/// A command whose remaining keys wait for the disk, or for the client to take what it asked for.
pub(super) struct ReadJob {
    pub answer: Answer,
    targets: VecDeque<Target>,
    /// Where the reply began; `None` once part of it may have been sent.
    mark: Option<Mark>,
    failed: bool,
    read_ahead: usize,
}

/// The value, or of GETRANGE the part that was asked for.
pub(super) type DiskRead = JoinHandle<Result<Option<PinnedValue>, Error>>;

/// What a job needs next.
pub(super) enum Need {
    Nothing,
    /// The client must take some of its replies.
    Room,
    Disk,
}

impl ReadJob {
    /// A command about so many keys, which are to be added in their order.
    pub fn new(state: &State, ask: Ask, keys: usize) -> ReadJob {
        ReadJob {
            answer: Answer::new(ask, keys),
            targets: VecDeque::with_capacity(keys),
            mark: Some(state.output.mark()),
            failed: false,
            read_ahead: READS_MAX,
        }
    }

    pub fn add(&mut self, target: Target) {
        self.targets.push_back(target);
    }

    /// Counts keys that are of no store, and how many of them there are.
    pub fn count_rows(&mut self, asked: u64, present: u64) {
        self.answer.asked += asked;
        self.answer.absent += asked.saturating_sub(present);
    }

    /// From now on, a failure can no longer replace the whole reply.
    pub fn reply_has_left(&mut self) {
        self.mark = None;
    }

    /// Answers what memory holds.
    pub fn advance(&mut self, state: &mut State) -> Need {
        while let Some(target) = self.targets.front() {
            if !state.has_room() {
                return Need::Room;
            }
            let (live, key) = match target {
                Target::Key(live, key) => (live, key),
                Target::Row(reply) => {
                    self.answer.add_reply(&mut state.output, state.proto, reply);
                    self.targets.pop_front();
                    continue;
                }
            };
            let before = Before::now(live, state, &self.answer, 0);
            let found = match attempt(live, key) {
                Ok(Attempt::WouldBlock) => return Need::Disk,
                Ok(Attempt::Ready(value)) => Ok(value),
                Err(error) => Err(error),
            };
            match found {
                Ok(value) => {
                    add(state, &mut self.answer, live, key, value);
                    if before.is_lost(live) {
                        (self.answer, _) = before.undo(state);
                        continue;
                    }
                }
                Err(error) => self.fail(state, &error),
            }
            self.targets.pop_front();
        }
        if !self.failed {
            self.answer.finish(&mut state.output, state.proto);
            state.keys = (self.answer.asked, self.answer.absent);
        }
        Need::Nothing
    }

    /// Sends the next lookups to the disk threads, the first of those that wait among them.
    pub fn start_reads(&self) -> Vec<DiskRead> {
        let next = self.targets.iter().take(self.read_ahead);
        let next = next.map_while(|target| match target {
            Target::Key(live, key) => Some((live, key)),
            Target::Row(_) => None,
        });
        next.map(|(live, key)| {
            let (live, key, ask) = (live.clone(), key.clone(), self.answer.ask);
            tokio::task::spawn_blocking(move || {
                run_hook(&key);
                let found = PinnedValue::find(&live, |version| version.get(&key))?;
                Ok(found.map(|value| match ask {
                    // Here, where copying a large part holds nobody up.
                    Ask::GetRange { start, end } => {
                        let range = range_of(start, end, value.len());
                        value.slice(range)
                    }
                    _ => value,
                }))
            })
        })
        .collect()
    }

    /// Takes the answer to the next lookup.
    pub fn deliver(&mut self, state: &mut State, found: Result<Option<PinnedValue>, Error>) {
        let Some(Target::Key(live, key)) = self.targets.pop_front() else {
            return;
        };
        let before = Before::now(&live, state, &self.answer, 0);
        let is_answered = matches!(self.answer.ask, Ask::Get | Ask::MGet | Ask::GetRange { .. });
        match found {
            // What lies in the map takes no memory, however long it is.
            Ok(Some(value))
                if is_answered && value.memory_bytes() > state.core.clients.limits.answer() =>
            {
                let refusal = state.core.clients.limits.too_long();
                self.refuse(state, refusal);
            }
            Ok(value) => {
                let borrowed = value.as_ref().is_some_and(PinnedValue::is_borrowed);
                let len = value.as_ref().map_or(0, |value| value.len());
                self.read_ahead = if len >= READ_AHEAD_BYTES_MAX {
                    1
                } else {
                    READS_MAX
                };
                if let Ask::GetRange { start, end } = &mut self.answer.ask {
                    // The part has been cut out; the command has one key.
                    (*start, *end) = (0, -1);
                }
                self.answer
                    .add(&mut state.output, state.proto, key.len(), value, |value| {
                        value
                    });
                if borrowed && !live.version.is_whole() {
                    (self.answer, _) = before.undo(state);
                    self.fail(state, &live.version.lost());
                }
            }
            Err(error) => self.fail(state, &error),
        }
    }

    fn fail(&mut self, state: &mut State, error: &Error) {
        self.refuse(state, failure(error));
    }

    fn refuse(&mut self, state: &mut State, refusal: Refusal) {
        if let Some(mark) = self.mark {
            state.output.rewind(mark);
        }
        state.refuse(refusal);
        // Once part of an array has been sent, the damaged element says so in its place.
        let in_array =
            self.mark.is_none() && self.answer.ask == Ask::MGet && self.answer.array.is_none();
        if !in_array {
            self.failed = true;
            self.targets.clear();
        }
    }
}

type DiskHook = (
    Box<dyn Fn(&[u8]) -> bool + Send + Sync>,
    Box<dyn Fn(&[u8]) + Send + Sync>,
);

static DISK_HOOK: OnceLock<DiskHook> = OnceLock::new();

/// For tests: keys of which `is_cold` says so are looked up by a disk thread, which calls `on_read`
/// first. Does nothing in release builds, and when called a second time.
#[doc(hidden)]
pub fn set_disk_hook(
    is_cold: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    on_read: impl Fn(&[u8]) + Send + Sync + 'static,
) {
    let _ = DISK_HOOK.set((Box::new(is_cold), Box::new(on_read)));
}

#[inline]
pub(super) fn is_hooked(key: &[u8]) -> bool {
    cfg!(debug_assertions) && DISK_HOOK.get().is_some_and(|(is_cold, _)| is_cold(key))
}

fn run_hook(key: &[u8]) {
    if cfg!(debug_assertions)
        && let Some((is_cold, on_read)) = DISK_HOOK.get()
        && is_cold(key)
    {
        on_read(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_redis_reads_them() {
        for (start, end, expected) in [
            (0, 3, 0..4),
            (-3, -1, 8..11),
            (0, -1, 0..11),
            (10, 100, 10..11),
            (5, 2, 0..0),
            (-1, -5, 0..0),
            (-100, 1, 0..2),
            (20, 30, 0..0),
            (0, i64::MIN, 0..1),
        ] {
            assert_eq!(range_of(start, end, 11), expected, "{start} {end}");
        }
        assert_eq!(range_of(0, -1, 0), 0..0);
    }
}
