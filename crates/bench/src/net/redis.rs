//! Timelines in Redis, maintained by the client: a set of followers, and sorted sets of posts and of timelines.

use larder_protocol::resp::client::{argument, argument_with, request_head};

use super::drive::{digits, number};
use super::resp::{self, Replies};
use super::timelines::{Pipe, System, TimelineContext};
use super::workload::ReadChecksum;
use crate::Result;

const MEMBERS: usize = 256;

#[derive(Default)]
pub struct Redis {
    replies: Replies,
}

fn key(out: &mut Vec<u8>, table: u8, user: u32) {
    argument_with(out, 10, |out| {
        out.extend_from_slice(&[table, b'|']);
        digits(out, user.into(), 8);
    });
}

fn user(out: &mut Vec<u8>, user: u32) {
    argument_with(out, 8, |out| digits(out, user.into(), 8));
}

/// Appends a timeline's score, the time, and its member, `time|poster tweet`.
fn member(out: &mut Vec<u8>, time: &[u8], poster: u32) {
    argument(out, time);
    argument_with(out, 25, |out| {
        out.extend_from_slice(time);
        out.push(b'|');
        digits(out, poster.into(), 8);
        out.extend_from_slice(b" tweet");
    });
}

impl System for Redis {
    fn reply_len(&mut self, bytes: &[u8], _awaited: TimelineContext) -> Result<Option<usize>> {
        self.replies.size(bytes)
    }

    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]) {
        for some in followers.chunks(MEMBERS) {
            request_head(&mut pipe.out, 2 + some.len());
            argument(&mut pipe.out, b"SADD");
            key(&mut pipe.out, b's', poster);
            some.iter()
                .for_each(|&follower| user(&mut pipe.out, follower));
            pipe.push_context(TimelineContext::Done);
        }
    }

    fn copies(&self) -> bool {
        true
    }

    fn subscribe(&mut self, pipe: &mut Pipe, follower: u32, poster: u32) {
        let out = &mut pipe.out;
        request_head(out, 3);
        argument(out, b"SADD");
        key(out, b's', poster);
        user(out, follower);
        request_head(out, 4);
        argument(out, b"ZRANGE");
        key(out, b'p', poster);
        argument(out, b"0");
        argument(out, b"-1");
        pipe.push_context(TimelineContext::Done);
        pipe.push_context(TimelineContext::Posts {
            user: follower,
            poster,
        });
    }

    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64) {
        let out = &mut pipe.out;
        request_head(out, 4);
        argument(out, b"ZADD");
        key(out, b'p', poster);
        argument_with(out, 10, |out| digits(out, time, 10));
        argument_with(out, 16, |out| {
            digits(out, time, 10);
            out.extend_from_slice(b" tweet");
        });
        request_head(out, 2);
        argument(out, b"SMEMBERS");
        key(out, b's', poster);
        pipe.push_context(TimelineContext::Done);
        pipe.push_context(TimelineContext::Followers { poster, time });
    }

    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64) {
        let out = &mut pipe.out;
        request_head(out, 4);
        argument(out, b"ZRANGEBYSCORE");
        key(out, b't', user);
        argument_with(out, 10, |out| digits(out, since, 10));
        argument_with(out, 11, |out| {
            out.push(b'(');
            digits(out, until, 10);
        });
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
                for row in resp::bulks(reply) {
                    seen.row(user, number(&row[..10]), number(&row[11..19]) as u32);
                }
            }
            TimelineContext::Followers { poster, time } => {
                let mut posted = Vec::with_capacity(10);
                digits(&mut posted, time, 10);
                for follower in resp::bulks(reply) {
                    let out = &mut pipe.out;
                    request_head(out, 4);
                    argument(out, b"ZADD");
                    argument_with(out, 10, |out| {
                        out.extend_from_slice(b"t|");
                        out.extend_from_slice(follower);
                    });
                    member(out, &posted, poster);
                    pipe.push_context(TimelineContext::Done);
                }
            }
            TimelineContext::Posts { user, poster } => {
                // One request for all rows, because they belong to one timeline.
                let posts = resp::bulks(reply).count();
                if posts > 0 {
                    request_head(&mut pipe.out, 2 + 2 * posts);
                    argument(&mut pipe.out, b"ZADD");
                    key(&mut pipe.out, b't', user);
                    for post in resp::bulks(reply) {
                        member(&mut pipe.out, &post[..10], poster);
                    }
                    pipe.push_context(TimelineContext::Done);
                }
            }
        }
        Ok(())
    }
}
