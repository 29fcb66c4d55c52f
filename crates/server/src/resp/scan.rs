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

/// Redis's patterns: `*`, `?`, `[abc]`, `[^a-z]` and `\` before a character that is meant as such.
/// Takes time of at most the pattern's length times the text's.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit: one character further.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match (text.get(t), pattern.get(p)) {
            (None, None) => return true,
            (Some(&byte), Some(_)) => {
                if let Some(len) = one(&pattern[p..], byte) {
                    p += len;
                    t += 1;
                    continue;
                }
            }
            _ => {}
        }
        match star {
            Some((after, from)) if from < text.len() => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

/// Length of the pattern's first element, if it fits the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', ..] => {
            let negated = pattern.get(1) == Some(&b'^');
            let (mut at, mut inside) = (1 + usize::from(negated), false);
            loop {
                match &pattern[at.min(pattern.len())..] {
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', escaped, ..] => {
                        inside |= *escaped == byte;
                        at += 2;
                    }
                    [from, b'-', to, ..] => {
                        let (low, high) = (from.min(to), from.max(to));
                        inside |= (low..=high).contains(&&byte);
                        at += 3;
                    }
                    [single, ..] => {
                        inside |= *single == byte;
                        at += 1;
                    }
                }
            }
            (inside != negated).then_some(at)
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_redis() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a:*", "a:1", true),
            ("a:*", "b:1", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxbxxa", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("", "a", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                fits,
                "{pattern} {text}"
            );
        }
        assert!(!matches(&b"*a".repeat(50), &[b'b'; 10_000]));
    }
}
