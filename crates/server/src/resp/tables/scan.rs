//! SCAN and KEYS of tables and objects, in key order, over one table or all base rows. Tables that PostgreSQL holds are
//! included only if the pattern names them, because they must be loaded completely.
//!
//! A cursor is a number that identifies the next key. The server remembers the most recent cursors.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;

use larder_join::{Engine, Limits};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use larder_types::{NAMELESS, OBJECT_MARK, PLAIN_TEXT, Random, is_plain, row_key};

use super::super::objects::ValueType;
use super::super::state::ConnectionState;
use super::super::subject::is_of_table;
use super::range::successor;
use super::{parse_integer, syntax_error};
use crate::catalog::Snapshot;
use crate::error::show;
use crate::glob::Glob;
use crate::tables::{Cursors, NoReply, Refusal, require_done};

const COUNT_DEFAULT: i64 = 10;
const COUNT_MAX: i64 = 10_000;
/// Maximum number of keys that KEYS reads.
const KEYS_MAX: usize = 10_000;
/// Number of keys of each core from which RANDOMKEY chooses one.
const RANDOM_KEYS: usize = 64;

/// Returns the literal prefix of a pattern.
pub(super) fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &&u8| !b"*?[]\\".contains(byte);
    pattern.iter().take_while(is_plain).copied().collect()
}

fn find_option<'a>(request: &Request<'a>, name: &[u8]) -> Option<&'a [u8]> {
    let at = (2..request.len())
        .step_by(2)
        .find(|&at| request.arg(at).eq_ignore_ascii_case(name))?;
    request.get(at + 1)
}

fn find_pattern<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    find_option(request, b"MATCH")
}

/// Returns the table that a pattern names, with its separator.
fn table_name(pattern: &[u8]) -> Option<&[u8]> {
    let end = pattern
        .iter()
        .position(|&byte| byte == b'|' || byte == b':')?;
    let name = &pattern[..=end];
    (!name.iter().any(|byte| b"*?[]\\".contains(byte))).then_some(name)
}

/// Returns the table that contains all keys of a pattern, if there is one.
fn single_table(pattern: &[u8]) -> Option<Vec<u8>> {
    table_name(pattern)
        .filter(|name| !is_plain(name))
        .map(<[u8]>::to_vec)
}

/// Returns whether a SCAN reads tables: its pattern names no store, there are no stores, or it selects objects.
pub(in crate::resp) fn scans_tables(snapshot: &Snapshot, request: Request<'_>) -> bool {
    let kind = find_option(&request, b"TYPE").and_then(ValueType::from_name);
    if kind.is_some_and(|kind| kind != ValueType::Text) {
        return true;
    }
    match find_pattern(&request).and_then(table_name) {
        Some(name) => is_of_table(snapshot, name),
        None => snapshot.iter().next().is_none(),
    }
}

/// A key found by a walk, and the kind of its value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundKey {
    pub key: Vec<u8>,
    pub kind: ValueType,
}

impl FoundKey {
    /// Encodes a key for another node. The kind precedes the key of an object, and any key that begins with the mark.
    pub fn encode(&self) -> Cow<'_, [u8]> {
        match self.kind {
            ValueType::Text if self.key.first() != Some(&OBJECT_MARK) => (&self.key).into(),
            kind => [&[OBJECT_MARK, kind as u8], &self.key[..]].concat().into(),
        }
    }

    pub fn decode(bytes: Vec<u8>) -> FoundKey {
        let (kind, key) = match &bytes[..] {
            [OBJECT_MARK, kind, key @ ..] if *kind == ValueType::Json as u8 => {
                (ValueType::Json, key)
            }
            [OBJECT_MARK, kind, key @ ..] if *kind == ValueType::Text as u8 => {
                (ValueType::Text, key)
            }
            [OBJECT_MARK, _, key @ ..] => (ValueType::Hash, key),
            _ => (ValueType::Text, &bytes[..]),
        };
        let key = key.to_vec();
        FoundKey { key, kind }
    }
}

/// The parsed arguments of a SCAN or KEYS.
#[derive(Clone)]
pub(super) struct KeyWalk {
    from: Vec<u8>,
    /// The prefix of the keys.
    prefix: Vec<u8>,
    count: usize,
    pattern: Option<Glob>,
    /// The only table to read, with its separator.
    pub only_table: Option<Vec<u8>>,
    /// The kinds of values to return.
    kinds: Vec<ValueType>,
}

impl KeyWalk {
    pub fn parse(request: Request<'_>, cursors: &Cursors) -> Result<KeyWalk, Refusal> {
        let invalid = || (Code::BadRequest, "invalid cursor".to_owned());
        let cursor = std::str::from_utf8(request.arg(1)).ok();
        let cursor: u64 = cursor
            .and_then(|text| text.parse().ok())
            .ok_or_else(invalid)?;
        let walk = KeyWalk::options(request)?;
        let from = match cursor {
            0 => Vec::new(),
            _ => cursors.get(cursor).ok_or_else(|| {
                let message = format!("cursor {cursor} {}", cursors.unknown_cursor_hint());
                (Code::BadRequest, message)
            })?,
        };
        Ok(KeyWalk { from, ..walk })
    }

    /// Parses the options after the cursor.
    fn options(request: Request<'_>) -> Result<KeyWalk, Refusal> {
        let (mut count, mut kinds) = (COUNT_DEFAULT, ValueType::ALL.to_vec());
        let mut at = 2;
        while let Some(option) = request.get(at) {
            let value = request.get(at + 1).ok_or_else(syntax_error)?;
            match option.to_ascii_uppercase().as_slice() {
                b"MATCH" => {}
                b"TYPE" => kinds = ValueType::from_name(value).into_iter().collect(),
                b"COUNT" => count = parse_integer(value)?.min(COUNT_MAX),
                _ => return Err(syntax_error()),
            }
            at += 2;
        }
        if count <= 0 {
            return Err(syntax_error());
        }
        let pattern = find_pattern(&request);
        let glob = pattern.map(Glob::parse).transpose()?;
        let texts_max = glob.as_ref().map_or(usize::MAX, Glob::texts_max);
        Ok(KeyWalk {
            from: Vec::new(),
            prefix: pattern.map(literal_prefix).unwrap_or_default(),
            count: (count as usize).min(texts_max),
            pattern: glob,
            only_table: pattern.and_then(single_table),
            kinds,
        })
    }

    /// Parses this node's part of a walk over several nodes. A key takes the place of the cursor.
    pub fn parse_part(request: Request<'_>) -> Result<KeyWalk, Refusal> {
        let walk = KeyWalk::options(request)?;
        Ok(KeyWalk {
            from: request.arg(1).to_vec(),
            ..walk
        })
    }

    /// Returns the request for another node's part.
    pub fn part_args(&self) -> Vec<Vec<u8>> {
        let mut args = vec![b"SCAN".to_vec(), self.from.clone(), b"COUNT".to_vec()];
        args.push(self.count.to_string().into_bytes());
        if let Some(pattern) = &self.pattern {
            args.extend([b"MATCH".to_vec(), pattern.pattern().to_vec()]);
        }
        args
    }

    /// Creates a walk over all keys that match a pattern.
    ///
    /// # Errors
    /// The pattern is too long.
    pub fn all_matching(pattern: &[u8]) -> Result<KeyWalk, Refusal> {
        let glob = Glob::parse(pattern)?;
        Ok(KeyWalk {
            from: Vec::new(),
            prefix: literal_prefix(pattern),
            count: KEYS_MAX.min(glob.texts_max()),
            pattern: Some(glob),
            only_table: single_table(pattern),
            kinds: ValueType::ALL.to_vec(),
        })
    }

    /// Returns the walks of RANDOMKEY: one that starts at a random key, and one over all keys in case the first finds
    /// none.
    pub fn random() -> [KeyWalk; 2] {
        let mut random = Random::new(RandomState::new().build_hasher().finish());
        let from = (0..2).map(|_| b' ' + random.below(95) as u8).collect();
        [from, Vec::new()].map(|from| KeyWalk {
            from,
            prefix: Vec::new(),
            count: RANDOM_KEYS,
            pattern: None,
            only_table: None,
            kinds: ValueType::ALL.to_vec(),
        })
    }

    /// Filters the keys found for a KEYS by its pattern.
    ///
    /// # Errors
    /// There are more keys than KEYS may read.
    pub fn filter_keys(&self, keys: Vec<FoundKey>) -> Result<Vec<Vec<u8>>, Refusal> {
        if keys.len() > self.count {
            let message = format!(
                "more than {} keys begin with '{}', and KEYS would read them all; use a pattern with a longer literal prefix, or SCAN",
                self.count,
                show(&self.prefix)
            );
            return Err((Code::BadRequest, message));
        }
        let keys = keys.into_iter().map(|found| found.key);
        let pattern = self.pattern.as_ref();
        let fits = |key: &Vec<u8>| pattern.is_none_or(|glob| glob.matches(key));
        Ok(keys.filter(fits).collect())
    }

    /// Returns an engine's next keys, one more than the reply contains if there are that many.
    pub fn read_keys(&self, engine: &mut Engine, now: u64) -> Result<Vec<FoundKey>, NoReply> {
        let names: Vec<Vec<u8>> = match &self.only_table {
            Some(name) => vec![name.clone()],
            None => {
                let all = engine
                    .tables()
                    .into_iter()
                    .filter(|t| !t.computed && !t.supplied);
                let mut names: Vec<Vec<u8>> =
                    all.map(|table| row_key(&table.name).to_vec()).collect();
                names.sort_unstable();
                names.dedup();
                names
            }
        };
        let mut keys: Vec<FoundKey> = Vec::new();
        for name in names {
            // Plain keys are added below. Without `only_table`, `prefix` has no separator, or is a prefix of plain keys.
            if is_plain(&name) || (self.only_table.is_none() && !name.starts_with(&self.prefix)) {
                continue;
            }
            let first = match self.only_table {
                Some(_) => &self.prefix,
                None => &name,
            };
            let hi = successor(first);
            if self.from >= hi {
                continue;
            }
            let lo = self.from.clone().max(first.clone());
            let limits = Limits {
                limit: Some((self.count + 1 - keys.len()) as u64),
                keys_only: true,
                ..Limits::default()
            };
            let before = keys.len();
            let outcome = engine.range(&lo, &hi, limits, now, &mut |key, _| {
                let key = key.to_vec();
                let kind = ValueType::Text;
                keys.push(FoundKey { key, kind });
                ControlFlow::Continue(())
            });
            require_done(outcome)?;
            if engine.has_objects() {
                let limits = Limits {
                    keys_only: false,
                    ..limits
                };
                let [lo, hi] = [&lo, &hi].map(|key| [&[OBJECT_MARK], &key[..]].concat());
                let outcome = engine.range(&lo, &hi, limits, now, &mut |row, object| {
                    let key = row_key(row).to_vec();
                    let kind = ValueType::of_object(object);
                    keys.push(FoundKey { key, kind });
                    ControlFlow::Continue(())
                });
                require_done(outcome)?;
                keys[before..].sort_unstable();
                keys.truncate(self.count + 1);
            }
            if keys.len() > self.count {
                break;
            }
        }
        if self.only_table.is_none() {
            self.merge_plain_keys(engine, now, PLAIN_TEXT, &mut keys)?;
            self.merge_plain_keys(engine, now, NAMELESS, &mut keys)?;
        }
        Ok(keys)
    }

    /// Merges the plain keys of one table, of texts or of objects, into `keys`.
    fn merge_plain_keys(
        &self,
        engine: &mut Engine,
        now: u64,
        table: &[u8],
        keys: &mut Vec<FoundKey>,
    ) -> Result<(), NoReply> {
        let first = [table, &self.prefix].concat();
        let lo = [table, &self.from].concat().max(first.clone());
        let hi = successor(&first);
        if lo >= hi {
            return Ok(());
        }
        let limits = Limits {
            limit: Some(self.count as u64 + 1),
            ..Limits::default()
        };
        let before = keys.len();
        let outcome = engine.range(&lo, &hi, limits, now, &mut |row, value| {
            let key = row_key(row).to_vec();
            let kind = if table == PLAIN_TEXT {
                ValueType::Text
            } else {
                ValueType::of_object(value)
            };
            keys.push(FoundKey { key, kind });
            ControlFlow::Continue(())
        });
        require_done(outcome)?;
        if keys.len() == before {
            return Ok(());
        }
        keys.sort_unstable();
        keys.truncate(self.count + 1);
        Ok(())
    }

    /// Removes the keys that are not returned from the sorted keys, and returns the next cursor.
    pub fn take_page(&self, keys: &mut Vec<FoundKey>, cursors: &mut Cursors) -> u64 {
        let next = match keys.get(self.count) {
            Some(next) => cursors.store(next.key.clone()),
            None => 0,
        };
        keys.truncate(self.count);
        let pattern = self.pattern.as_ref();
        keys.retain(|found| {
            self.kinds.contains(&found.kind) && pattern.is_none_or(|glob| glob.matches(&found.key))
        });
        next
    }

    pub fn encode_page(&self, encoder: &mut Encoder<'_>, cursor: u64, keys: &[FoundKey]) {
        encoder.array(2);
        encoder.text(&cursor.to_string());
        encoder.array(keys.len());
        keys.iter().for_each(|found| encoder.bulk(&found.key));
    }
}

pub(super) fn encode_keys(encoder: &mut Encoder<'_>, keys: &[Vec<u8>]) {
    encoder.array(keys.len());
    keys.iter().for_each(|key| encoder.bulk(key));
}

/// Returns a random index below `count`, which must be positive.
pub(super) fn random_index(count: usize) -> usize {
    Random::new(RandomState::new().build_hasher().finish()).index(count)
}

pub(super) fn encode_random_key(encoder: &mut Encoder<'_>, keys: &[FoundKey]) {
    if keys.is_empty() {
        encoder.null()
    } else {
        encoder.bulk(&keys[random_index(keys.len())].key)
    }
}

/// Executes RANDOMKEY on a server with one core.
pub(in crate::resp) fn random_key(state: &mut ConnectionState) -> Result<(), NoReply> {
    let tables = state.tables();
    let mut keys = Vec::new();
    for walk in KeyWalk::random() {
        keys = tables.read(|engine, now| walk.read_keys(engine, now))?;
        if !keys.is_empty() {
            break;
        }
    }
    encode_random_key(&mut state.encoder(), &keys);
    Ok(())
}

/// Appends this node's part, for another node.
pub(super) fn encode_part(encoder: &mut Encoder<'_>, keys: &[FoundKey]) {
    encoder.array(keys.len());
    keys.iter().for_each(|found| encoder.bulk(&found.encode()));
}

/// Executes KEYS on a server with one core.
pub(in crate::resp) fn keys(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let walk = KeyWalk::all_matching(request.arg(1))?;
    let keys = tables.read(|engine, now| walk.read_keys(engine, now))?;
    encode_keys(&mut state.encoder(), &walk.filter_keys(keys)?);
    Ok(())
}

/// Rejects a pattern of a store's keys.
pub(super) fn refuse_store(snapshot: &Snapshot, pattern: &[u8]) -> Result<(), Refusal> {
    match table_name(pattern) {
        Some(name) if !is_of_table(snapshot, name) => {
            let store = show(&name[..name.len() - 1]);
            let message =
                format!("{store} is a store; use SCAN 0 MATCH {store}:* to list its keys");
            Err((Code::BadRequest, message))
        }
        _ => Ok(()),
    }
}

pub(in crate::resp) fn scan(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let tables = state.tables();
    if state.executes_part {
        let walk = KeyWalk::parse_part(request)?;
        let keys = tables.read(|engine, now| walk.read_keys(engine, now))?;
        encode_part(&mut state.encoder(), &keys);
        return Ok(());
    }
    let walk = KeyWalk::parse(request, &tables.handle().cursors())?;
    let mut keys = tables.read(|engine, now| walk.read_keys(engine, now))?;
    let cursor = walk.take_page(&mut keys, &mut tables.handle().cursors());
    walk.encode_page(&mut state.encoder(), cursor, &keys);
    Ok(())
}
