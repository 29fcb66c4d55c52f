//! SCAN: the keys of one store, block after block, on a disk thread.
//!
//! A cursor is the version's number (its low 15 bits) over the position in it: nothing is kept between
//! calls, and a cursor from before a swap is refused rather than taken for a place in another version.

use std::sync::Arc;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::dispatch::{integer, not_an_integer};
use super::reads::{failure, resolve};
use super::state::State;
use crate::catalog::{LiveStore, Snapshot};
use crate::glob::matches;

const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: i64 = 10_000;
const POSITION_BITS: u32 = 48;
const VERSION_MASK: u64 = 0x7fff;

/// A SCAN that has been understood.
pub(super) struct ScanJob {
    live: Arc<LiveStore>,
    cursor: u64,
    count: usize,
    /// Of whole Redis keys; `None` matches all.
    pattern: Option<Box<[u8]>>,
}

/// Understands a SCAN, or answers what is wrong with it.
pub(super) fn scan(
    state: &mut State,
    snapshot: &Snapshot,
    request: Request<'_>,
) -> Option<ScanJob> {
    let cursor = std::str::from_utf8(request.arg(1))
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    let Some(cursor) = cursor else {
        state.error(Code::BadRequest, "invalid cursor");
        return None;
    };
    let (mut pattern, mut count, mut strings) = (None, COUNT_DEFAULT, true);
    let mut at = 2;
    while let Some(option) = request.get(at) {
        let Some(value) = request.get(at + 1) else {
            state.error(Code::Syntax, "syntax error");
            return None;
        };
        match option.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = Some(value),
            b"TYPE" => strings = value.eq_ignore_ascii_case(b"string"),
            b"COUNT" => match integer(value) {
                None => return not_an_integer(state),
                Some(..=0) => {
                    state.error(Code::Syntax, "syntax error");
                    return None;
                }
                Some(wanted) => count = wanted.min(COUNT_MAX) as usize,
            },
            _ => {
                state.error(Code::Syntax, "syntax error");
                return None;
            }
        }
        at += 2;
    }
    let live = store_of(state, snapshot, pattern)?;
    if !strings {
        answer(state, 0, &[]);
        return None;
    }
    let cursor = match cursor {
        0 => 0,
        _ if cursor >> POSITION_BITS == live.version_id.0 & VERSION_MASK => {
            cursor & ((1 << POSITION_BITS) - 1)
        }
        _ => {
            let message = format!(
                "cursor {cursor} is of another version of store {}; begin again with cursor 0",
                live.name
            );
            state.error(Code::BadRequest, &message);
            return None;
        }
    };
    Some(ScanJob {
        live,
        cursor,
        count,
        pattern: pattern.map(Box::from),
    })
}

/// The store that the pattern names, or the only one there is.
fn store_of(
    state: &mut State,
    snapshot: &Snapshot,
    pattern: Option<&[u8]>,
) -> Option<Arc<LiveStore>> {
    let literal = pattern.filter(|pattern| {
        let name = pattern
            .split(|byte| *byte == b':')
            .next()
            .unwrap_or_default();
        name.len() < pattern.len() && !name.iter().any(|byte| b"*?[]\\".contains(byte))
    });
    if let Some(pattern) = literal {
        return match resolve(snapshot, pattern) {
            Ok((live, _)) => Some(live.clone()),
            Err(refusal) => {
                state.refuse(refusal);
                None
            }
        };
    }
    let mut stores = snapshot.iter();
    match (stores.next(), stores.next()) {
        (None, _) => answer(state, 0, &[]),
        (Some(only), None) => return Some(only.clone()),
        _ => state.error(
            Code::BadRequest,
            "SCAN walks one store at a time: add MATCH store:*; STORE.LIST lists the stores",
        ),
    }
    None
}

impl ScanJob {
    pub async fn run(&mut self, state: &mut State) {
        state.series = Some(state.core.store_series(self.live.name.as_str()));
        let (live, cursor, count) = (self.live.clone(), self.cursor, self.count);
        let page = tokio::task::spawn_blocking(move || live.version.scan(cursor, count)).await;
        match page {
            Err(error) => state.error(Code::Io, &error.to_string()),
            Ok(Err(larder_batch::Error::Limit { .. })) => {
                state.error(Code::BadRequest, "invalid cursor");
            }
            Ok(Err(error)) => state.refuse(failure(&error)),
            Ok(Ok(page)) => {
                let prefix = format!("{}:", self.live.name).into_bytes();
                let mut keys: Vec<Vec<u8>> = page
                    .keys
                    .iter()
                    .map(|key| [&prefix[..], key].concat())
                    .collect();
                if let Some(pattern) = &self.pattern {
                    keys.retain(|key| matches(pattern, key));
                }
                let next = match page.next_cursor {
                    0 => 0,
                    position => (self.live.version_id.0 & VERSION_MASK) << POSITION_BITS | position,
                };
                answer(state, next, &keys);
            }
        }
    }
}

fn answer(state: &mut State, cursor: u64, keys: &[Vec<u8>]) {
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text(&cursor.to_string());
    encoder.array(keys.len());
    for key in keys {
        encoder.bulk(key);
    }
}
