//! Timelines in larder: computed by the join, or by the client with larder as a plain ordered cache.
//!
//! Rows: `s|user|poster`, `p|poster|time`, `t|user|time|poster`. If the client fans out, it stores `s|poster|user`
//! instead.

use larder_protocol::resp::client::{argument, argument_with, request_head};

use super::drive::{digits, number};
use super::resp::{self, Replies};
use super::timelines::{Pipe, System, TimelineContext};
use super::workload::ReadChecksum;
use crate::Result;

const TWEET: &[u8] = b"tweet";
const USER_ROWS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Join,
    Pull,
    Auto,
    ClientPush,
}

pub struct Larder {
    mode: Mode,
    replies: Replies,
}

impl Larder {
    pub fn new(mode: Mode) -> Larder {
        Larder {
            mode,
            replies: Replies::default(),
        }
    }

    /// Returns the declaration of the timeline, if the mode uses a join.
    pub fn join(&self) -> Option<String> {
        let word = match self.mode {
            Mode::Join => "push",
            Mode::Pull => "pull",
            Mode::Auto => "auto",
            Mode::ClientPush => return None,
        };
        Some(format!(
            "t|<user:8>|<time:10>|<poster:8> = {word} check s|<user>|<poster> copy p|<poster>|<time>"
        ))
    }

    fn subscription(&self, out: &mut Vec<u8>, user: u32, poster: u32) {
        let (first, second) = match self.mode {
            Mode::ClientPush => (poster, user),
            _ => (user, poster),
        };
        argument_with(out, 19, |out| {
            out.extend_from_slice(b"s|");
            digits(out, first.into(), 8);
            out.push(b'|');
            digits(out, second.into(), 8);
        });
        argument(out, b"1");
    }
}

fn table(out: &mut Vec<u8>, table: u8, user: u32) {
    out.extend_from_slice(&[table, b'|']);
    digits(out, user.into(), 8);
}

fn bound(out: &mut Vec<u8>, name: u8, user: u32, time: u64) {
    argument_with(out, 21, |out| {
        table(out, name, user);
        out.push(b'|');
        digits(out, time, 10);
    });
}

/// Appends a request for all keys of a table that begin with a user.
fn all_of(out: &mut Vec<u8>, name: u8, user: u32) {
    request_head(out, 4);
    argument(out, b"RANGE");
    for end in [b'|', b'}'] {
        argument_with(out, 11, |out| {
            table(out, name, user);
            out.push(end);
        });
    }
    argument(out, b"KEYSONLY");
}

fn set_timeline(pipe: &mut Pipe, user: &[u8], time: &[u8], poster: u32) {
    let out = &mut pipe.out;
    request_head(out, 3);
    argument(out, b"SET");
    argument_with(out, 30, |out| {
        out.extend_from_slice(b"t|");
        out.extend_from_slice(user);
        out.push(b'|');
        out.extend_from_slice(time);
        out.push(b'|');
        digits(out, poster.into(), 8);
    });
    argument(out, TWEET);
    pipe.push_context(TimelineContext::Done);
}

impl System for Larder {
    fn reply_len(&mut self, bytes: &[u8], _awaited: TimelineContext) -> Result<Option<usize>> {
        self.replies.size(bytes)
    }

    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]) {
        for some in followers.chunks(USER_ROWS) {
            request_head(&mut pipe.out, 1 + 2 * some.len());
            argument(&mut pipe.out, b"MSET");
            for &user in some {
                self.subscription(&mut pipe.out, user, poster);
            }
            pipe.push_context(TimelineContext::Done);
        }
    }

    fn copies(&self) -> bool {
        self.mode == Mode::ClientPush
    }

    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32) {
        request_head(&mut pipe.out, 3);
        argument(&mut pipe.out, b"SET");
        self.subscription(&mut pipe.out, user, poster);
        pipe.push_context(TimelineContext::Done);
        if self.mode == Mode::ClientPush {
            all_of(&mut pipe.out, b'p', poster);
            pipe.push_context(TimelineContext::Posts { user, poster });
        }
    }

    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64) {
        request_head(&mut pipe.out, 3);
        argument(&mut pipe.out, b"SET");
        bound(&mut pipe.out, b'p', poster, time);
        argument(&mut pipe.out, TWEET);
        pipe.push_context(TimelineContext::Done);
        if self.mode == Mode::ClientPush {
            all_of(&mut pipe.out, b's', poster);
            pipe.push_context(TimelineContext::Followers { poster, time });
        }
    }

    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64) {
        request_head(&mut pipe.out, 3);
        argument(&mut pipe.out, b"RANGE");
        bound(&mut pipe.out, b't', user, since);
        bound(&mut pipe.out, b't', user, until);
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
            TimelineContext::Check { user, .. } => {
                for key in resp::bulks(reply).step_by(2) {
                    seen.row(user, number(&key[11..21]), number(&key[22..30]) as u32);
                }
            }
            TimelineContext::Followers { poster, time } => {
                let mut posted = Vec::with_capacity(10);
                digits(&mut posted, time, 10);
                for key in resp::bulks(reply) {
                    set_timeline(pipe, &key[11..19], &posted, poster);
                }
            }
            TimelineContext::Posts { user, poster } => {
                let mut reader = Vec::with_capacity(8);
                digits(&mut reader, user.into(), 8);
                for key in resp::bulks(reply) {
                    set_timeline(pipe, &reader, &key[11..21], poster);
                }
            }
        }
        Ok(())
    }
}
