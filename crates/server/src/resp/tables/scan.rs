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

use super::super::state::State;
use super::super::subject::is_of_table;
use super::range::successor;
use super::{number, syntax};
use crate::catalog::Snapshot;
use crate::error::show;
use crate::glob::Glob;
use crate::tables::objects::Kind;
use crate::tables::{Cursors, Refusal, Unanswered, complete};

const COUNT_DEFAULT: i64 = 10;
const COUNT_MAX: i64 = 10_000;
/// Maximum number of keys that KEYS reads.
const KEYS_MAX: usize = 10_000;
/// Number of keys of each core from which RANDOMKEY chooses one.
const RANDOM_KEYS: usize = 64;

/// Returns the literal prefix of a pattern.
pub(super) fn literal(pattern: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &&u8| !b"*?[]\\".contains(byte);
    pattern.iter().take_while(is_plain).copied().collect()
}

fn option_of<'a>(request: &Request<'a>, name: &[u8]) -> Option<&'a [u8]> {
    let at = (2..request.len())
        .step_by(2)
        .find(|&at| request.arg(at).eq_ignore_ascii_case(name))?;
    request.get(at + 1)
}

fn pattern_of<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    option_of(request, b"MATCH")
}

/// Returns the table that a pattern names, with its separator.
fn table_of(pattern: &[u8]) -> Option<&[u8]> {
    let end = pattern
        .iter()
        .position(|&byte| byte == b'|' || byte == b':')?;
    let name = &pattern[..=end];
    (!name.iter().any(|byte| b"*?[]\\".contains(byte))).then_some(name)
}

/// Returns the table that contains all keys of a pattern, if there is one.
fn walked_table(pattern: &[u8]) -> Option<Vec<u8>> {
    table_of(pattern)
        .filter(|name| !is_plain(name))
        .map(<[u8]>::to_vec)
}

/// Returns whether a SCAN reads tables: its pattern names no store, there are no stores, or it selects objects.
pub(in crate::resp) fn scans_tables(snapshot: &Snapshot, request: Request<'_>) -> bool {
    let kind = option_of(&request, b"TYPE").and_then(Kind::named);
    if kind.is_some_and(|kind| kind != Kind::Text) {
        return true;
    }
    match pattern_of(&request).and_then(table_of) {
        Some(name) => is_of_table(snapshot, name),
        None => snapshot.iter().next().is_none(),
    }
}

/// A key found by a walk, and the kind of its value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Walked {
    pub key: Vec<u8>,
    pub kind: Kind,
}

impl Walked {
    /// Encodes a key for another node. The kind precedes the key of an object, and any key that begins with the mark.
    pub fn encode(&self) -> Cow<'_, [u8]> {
        match self.kind {
            Kind::Text if self.key.first() != Some(&OBJECT_MARK) => (&self.key).into(),
            kind => [&[OBJECT_MARK, kind as u8], &self.key[..]].concat().into(),
        }
    }

    pub fn decode(bytes: Vec<u8>) -> Walked {
        let (kind, key) = match &bytes[..] {
            [OBJECT_MARK, kind, key @ ..] if *kind == Kind::Json as u8 => (Kind::Json, key),
            [OBJECT_MARK, kind, key @ ..] if *kind == Kind::Text as u8 => (Kind::Text, key),
            [OBJECT_MARK, _, key @ ..] => (Kind::Hash, key),
            _ => (Kind::Text, &bytes[..]),
        };
        let key = key.to_vec();
        Walked { key, kind }
    }
}

/// The parsed arguments of a SCAN or KEYS.
#[derive(Clone)]
pub(super) struct Walk {
    from: Vec<u8>,
    /// The prefix of the keys.
    beginning: Vec<u8>,
    count: usize,
    pattern: Option<Glob>,
    /// The only table to read, with its separator.
    pub only: Option<Vec<u8>>,
    /// The kinds of values to return.
    kinds: Vec<Kind>,
}

impl Walk {
    pub fn parse(request: Request<'_>, cursors: &Cursors) -> Result<Walk, Refusal> {
        let invalid = || (Code::BadRequest, "invalid cursor".to_owned());
        let cursor = std::str::from_utf8(request.arg(1)).ok();
        let cursor: u64 = cursor
            .and_then(|text| text.parse().ok())
            .ok_or_else(invalid)?;
        let walk = Walk::options(request)?;
        let from = match cursor {
            0 => Vec::new(),
            _ => cursors.get(cursor).ok_or_else(|| {
                let message = format!("cursor {cursor} {}", cursors.advice());
                (Code::BadRequest, message)
            })?,
        };
        Ok(Walk { from, ..walk })
    }

    /// Parses the options after the cursor.
    fn options(request: Request<'_>) -> Result<Walk, Refusal> {
        let (mut count, mut kinds) = (COUNT_DEFAULT, Kind::ALL.to_vec());
        let mut at = 2;
        while let Some(option) = request.get(at) {
            let value = request.get(at + 1).ok_or_else(syntax)?;
            match option.to_ascii_uppercase().as_slice() {
                b"MATCH" => {}
                b"TYPE" => kinds = Kind::named(value).into_iter().collect(),
                b"COUNT" => count = number(value)?.min(COUNT_MAX),
                _ => return Err(syntax()),
            }
            at += 2;
        }
        if count <= 0 {
            return Err(syntax());
        }
        let pattern = pattern_of(&request);
        let glob = pattern.map(Glob::parse).transpose()?;
        let texts_max = glob.as_ref().map_or(usize::MAX, Glob::texts_max);
        Ok(Walk {
            from: Vec::new(),
            beginning: pattern.map(literal).unwrap_or_default(),
            count: (count as usize).min(texts_max),
            pattern: glob,
            only: pattern.and_then(walked_table),
            kinds,
        })
    }

    /// Parses this node's part of a walk over several nodes. A key takes the place of the cursor.
    pub fn of_part(request: Request<'_>) -> Result<Walk, Refusal> {
        let walk = Walk::options(request)?;
        Ok(Walk {
            from: request.arg(1).to_vec(),
            ..walk
        })
    }

    /// Returns the request for another node's part.
    pub fn part(&self) -> Vec<Vec<u8>> {
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
    pub fn of_all(pattern: &[u8]) -> Result<Walk, Refusal> {
        let glob = Glob::parse(pattern)?;
        Ok(Walk {
            from: Vec::new(),
            beginning: literal(pattern),
            count: KEYS_MAX.min(glob.texts_max()),
            pattern: Some(glob),
            only: walked_table(pattern),
            kinds: Kind::ALL.to_vec(),
        })
    }

    /// Returns the walks of RANDOMKEY: one that starts at a random key, and one over all keys in case the first finds
    /// none.
    pub fn random() -> [Walk; 2] {
        let mut random = Random::new(RandomState::new().build_hasher().finish());
        let from = (0..2).map(|_| b' ' + random.below(95) as u8).collect();
        [from, Vec::new()].map(|from| Walk {
            from,
            beginning: Vec::new(),
            count: RANDOM_KEYS,
            pattern: None,
            only: None,
            kinds: Kind::ALL.to_vec(),
        })
    }

    /// Filters the keys found for a KEYS by its pattern.
    ///
    /// # Errors
    /// There are more keys than KEYS may read.
    pub fn all(&self, keys: Vec<Walked>) -> Result<Vec<Vec<u8>>, Refusal> {
        if keys.len() > self.count {
            let message = format!(
                "more than {} keys begin with '{}', which KEYS would all look at; give a longer beginning, or use SCAN",
                self.count,
                show(&self.beginning)
            );
            return Err((Code::BadRequest, message));
        }
        let keys = keys.into_iter().map(|walked| walked.key);
        let pattern = self.pattern.as_ref();
        let fits = |key: &Vec<u8>| pattern.is_none_or(|glob| glob.matches(key));
        Ok(keys.filter(fits).collect())
    }

    /// Returns an engine's next keys, one more than the reply contains if there are that many.
    pub fn keys(&self, engine: &mut Engine, now: u64) -> Result<Vec<Walked>, Unanswered> {
        let names: Vec<Vec<u8>> = match &self.only {
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
        let mut keys: Vec<Walked> = Vec::new();
        for name in names {
            // Plain keys are added below. Without `only`, `beginning` has no separator, or is a prefix of plain keys.
            if is_plain(&name) || (self.only.is_none() && !name.starts_with(&self.beginning)) {
                continue;
            }
            let first = match self.only {
                Some(_) => &self.beginning,
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
                let kind = Kind::Text;
                keys.push(Walked { key, kind });
                ControlFlow::Continue(())
            });
            complete(outcome)?;
            if engine.has_objects() {
                let limits = Limits {
                    keys_only: false,
                    ..limits
                };
                let [lo, hi] = [&lo, &hi].map(|key| [&[OBJECT_MARK], &key[..]].concat());
                let outcome = engine.range(&lo, &hi, limits, now, &mut |row, object| {
                    let key = row_key(row).to_vec();
                    let kind = Kind::of_object(object);
                    keys.push(Walked { key, kind });
                    ControlFlow::Continue(())
                });
                complete(outcome)?;
                keys[before..].sort_unstable();
                keys.truncate(self.count + 1);
            }
            if keys.len() > self.count {
                break;
            }
        }
        if self.only.is_none() {
            self.plain_keys(engine, now, PLAIN_TEXT, &mut keys)?;
            self.plain_keys(engine, now, NAMELESS, &mut keys)?;
        }
        Ok(keys)
    }

    /// Merges the plain keys of one table, of texts or of objects, into `keys`.
    fn plain_keys(
        &self,
        engine: &mut Engine,
        now: u64,
        table: &[u8],
        keys: &mut Vec<Walked>,
    ) -> Result<(), Unanswered> {
        let first = [table, &self.beginning].concat();
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
                Kind::Text
            } else {
                Kind::of_object(value)
            };
            keys.push(Walked { key, kind });
            ControlFlow::Continue(())
        });
        complete(outcome)?;
        if keys.len() == before {
            return Ok(());
        }
        keys.sort_unstable();
        keys.truncate(self.count + 1);
        Ok(())
    }

    /// Removes the keys that are not returned from the sorted keys, and returns the next cursor.
    pub fn next(&self, keys: &mut Vec<Walked>, cursors: &mut Cursors) -> u64 {
        let next = match keys.get(self.count) {
            Some(next) => cursors.keep(next.key.clone()),
            None => 0,
        };
        keys.truncate(self.count);
        let pattern = self.pattern.as_ref();
        keys.retain(|walked| {
            self.kinds.contains(&walked.kind)
                && pattern.is_none_or(|glob| glob.matches(&walked.key))
        });
        next
    }

    pub fn answer(&self, encoder: &mut Encoder<'_>, cursor: u64, keys: &[Walked]) {
        encoder.array(2);
        encoder.text(&cursor.to_string());
        encoder.array(keys.len());
        keys.iter().for_each(|walked| encoder.bulk(&walked.key));
    }
}

pub(super) fn answer_keys(encoder: &mut Encoder<'_>, keys: &[Vec<u8>]) {
    encoder.array(keys.len());
    keys.iter().for_each(|key| encoder.bulk(key));
}

/// Returns a random index below `count`, which must be positive.
pub(super) fn draw(count: usize) -> usize {
    Random::new(RandomState::new().build_hasher().finish()).index(count)
}

pub(super) fn answer_random(encoder: &mut Encoder<'_>, keys: &[Walked]) {
    if keys.is_empty() {
        encoder.null()
    } else {
        encoder.bulk(&keys[draw(keys.len())].key)
    }
}

/// Executes RANDOMKEY on a server with one core.
pub(super) fn random_key(state: &mut State) -> Result<(), Unanswered> {
    let tables = state.tables();
    let mut keys = Vec::new();
    for walk in Walk::random() {
        keys = tables.read(|engine, now| walk.keys(engine, now))?;
        if !keys.is_empty() {
            break;
        }
    }
    answer_random(&mut state.encoder(), &keys);
    Ok(())
}

/// Appends this node's part, for another node.
pub(super) fn answer_part(encoder: &mut Encoder<'_>, keys: &[Walked]) {
    encoder.array(keys.len());
    keys.iter()
        .for_each(|walked| encoder.bulk(&walked.encode()));
}

/// Executes KEYS on a server with one core.
pub(super) fn keys(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let tables = state.tables();
    let walk = Walk::of_all(request.arg(1))?;
    let keys = tables.read(|engine, now| walk.keys(engine, now))?;
    answer_keys(&mut state.encoder(), &walk.all(keys)?);
    Ok(())
}

/// Rejects a pattern of a store's keys.
pub(super) fn refuse_store(snapshot: &Snapshot, pattern: &[u8]) -> Result<(), Refusal> {
    match table_of(pattern) {
        Some(name) if !is_of_table(snapshot, name) => {
            let store = show(&name[..name.len() - 1]);
            let message = format!("{store} is a store; SCAN 0 MATCH {store}:* walks its keys");
            Err((Code::BadRequest, message))
        }
        _ => Ok(()),
    }
}

pub(super) fn scan(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let tables = state.tables();
    if state.is_of_node {
        let walk = Walk::of_part(request)?;
        let keys = tables.read(|engine, now| walk.keys(engine, now))?;
        answer_part(&mut state.encoder(), &keys);
        return Ok(());
    }
    let walk = Walk::parse(request, &tables.handle().cursors())?;
    let mut keys = tables.read(|engine, now| walk.keys(engine, now))?;
    let cursor = walk.next(&mut keys, &mut tables.handle().cursors());
    walk.answer(&mut state.encoder(), cursor, &keys);
    Ok(())
}
