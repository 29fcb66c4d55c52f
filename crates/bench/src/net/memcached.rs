//! Timelines in memcached, maintained by the client, as in the paper: three strings for each user, to which the client
//! appends.
//!
//! A check reads a complete timeline, and the client selects the requested rows. Empty strings are created before the
//! clock starts, because memcached rejects an append to an absent key.

use super::drive::{digits, number};
use super::timelines::{Pipe, System, TimelineContext};
use super::workload::ReadChecksum;
use crate::Result;

/// `time` and `tweet`; `time|poster` and `tweet`.
const POST_BYTES: usize = 15;
const ROW_BYTES: usize = 24;

pub struct Memcached;

fn key(out: &mut Vec<u8>, table: u8, user: u32) {
    out.extend_from_slice(&[table, b'|']);
    digits(out, user.into(), 8);
}

fn get(out: &mut Vec<u8>, table: u8, user: u32) {
    out.extend_from_slice(b"get ");
    key(out, table, user);
    out.extend_from_slice(b"\r\n");
}

/// Appends a `set` or `append` of a string of `size` bytes, which `write` writes.
fn store(
    pipe: &mut Pipe,
    verb: &str,
    (table, user): (u8, u32),
    size: usize,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let out = &mut pipe.out;
    out.extend_from_slice(verb.as_bytes());
    out.push(b' ');
    key(out, table, user);
    out.extend_from_slice(b" 0 0 ");
    out.extend_from_slice(size.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
    write(out);
    out.extend_from_slice(b"\r\n");
    pipe.push_context(TimelineContext::Done);
}

fn row(out: &mut Vec<u8>, time: &[u8], poster: u32) {
    out.extend_from_slice(time);
    out.push(b'|');
    digits(out, poster.into(), 8);
    out.extend_from_slice(b"tweet");
}

/// Returns the string in a complete reply to `get`.
fn value(reply: &[u8]) -> &[u8] {
    let line = reply
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let end = reply.len().saturating_sub(b"\r\nEND\r\n".len());
    reply.get(line..end).unwrap_or_default()
}

impl System for Memcached {
    fn reply_len(&mut self, bytes: &[u8], awaited: TimelineContext) -> Result<Option<usize>> {
        let Some(line) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let words = &bytes[..line];
        let size = match (words, awaited) {
            (b"STORED\r", TimelineContext::Done) | (b"END\r", _) => line + 1,
            _ if words.starts_with(b"VALUE ") => {
                let digits = words[..line - 1].rsplit(|&byte| byte == b' ').next();
                line + 1 + number(digits.unwrap_or_default()) as usize + b"\r\nEND\r\n".len()
            }
            _ => {
                return Err(
                    format!("memcached answered {:?}", String::from_utf8_lossy(words)).into(),
                );
            }
        };
        Ok((bytes.len() >= size).then_some(size))
    }

    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]) {
        store(pipe, "set", (b's', poster), 8 * followers.len(), |out| {
            followers
                .iter()
                .for_each(|&user| digits(out, user.into(), 8));
        });
        for table in [b'p', b't'] {
            store(pipe, "set", (table, poster), 0, |_| {});
        }
    }

    fn copies(&self) -> bool {
        true
    }

    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32) {
        store(pipe, "append", (b's', poster), 8, |out| {
            digits(out, user.into(), 8)
        });
        get(&mut pipe.out, b'p', poster);
        pipe.push_context(TimelineContext::Posts { user, poster });
    }

    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64) {
        store(pipe, "append", (b'p', poster), POST_BYTES, |out| {
            digits(out, time, 10);
            out.extend_from_slice(b"tweet");
        });
        get(&mut pipe.out, b's', poster);
        pipe.push_context(TimelineContext::Followers { poster, time });
    }

    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64) {
        get(&mut pipe.out, b't', user);
        pipe.push_context(TimelineContext::Check { user, since, until });
    }

    fn reply(
        &mut self,
        pipe: &mut Pipe,
        awaited: TimelineContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        match awaited {
            TimelineContext::Done => {}
            TimelineContext::Check { user, since, until } => {
                for row in value(reply).chunks_exact(ROW_BYTES) {
                    let time = number(&row[..10]);
                    if time >= since && time < until {
                        seen.row(user, time, number(&row[11..19]) as u32);
                    }
                }
            }
            TimelineContext::Followers { poster, time } => {
                let mut posted = Vec::with_capacity(10);
                digits(&mut posted, time, 10);
                for follower in value(reply).chunks_exact(8) {
                    let follower = number(follower) as u32;
                    store(pipe, "append", (b't', follower), ROW_BYTES, |out| {
                        row(out, &posted, poster);
                    });
                }
            }
            TimelineContext::Posts { user, poster } => {
                let posts = value(reply).chunks_exact(POST_BYTES);
                let size = posts.len() * ROW_BYTES;
                if size > 0 {
                    store(pipe, "append", (b't', user), size, |out| {
                        posts.for_each(|post| row(out, &post[..10], poster));
                    });
                }
            }
        }
        Ok(())
    }
}
