//! Newp in Redis: a page takes separate reads in two rounds, because the comments determine whose karma to read.
//!
//! As in the paper: a string for each article and comment, a list of an article's comments, a set of its voters, and a
//! counter for each author. Alternatively, with the minimum number of requests: the comments of an article in one hash,
//! and all karmas with one MGET.

use std::collections::VecDeque;

use larder_protocol::resp::client::{Token, argument, argument_with, request_head};

use super::drive::{Pipe, Store, digits, number as decimal};
use super::newp_larder::TEXT;
use super::pages::{self, Operation, author};
use super::resp::{self, Replies};
use super::workload::ReadChecksum;
use crate::Result;

pub struct RedisPages {
    pub users: u32,
    /// Use the minimum number of requests.
    pub few: bool,
    /// The numbers of the comments whose karmas each MGET in flight requests.
    karma_requests: VecDeque<Vec<u32>>,
    replies: Replies,
}

#[derive(Clone, Copy)]
pub enum RedisContext {
    Done,
    Article {
        article: u32,
    },
    Score {
        article: u32,
    },
    Comments {
        article: u32,
    },
    Comment {
        article: u32,
        number: u32,
        commenter: u32,
    },
    Karma {
        article: u32,
        number: u32,
    },
    Karmas {
        article: u32,
    },
}

/// `table|article`: 9 bytes.
fn key(out: &mut Vec<u8>, table: u8, id: u32) {
    argument_with(out, 9, |out| {
        out.extend_from_slice(&[table, b'|']);
        digits(out, id.into(), 7);
    });
}

/// `number|commenter`: 12 bytes.
fn comment(out: &mut Vec<u8>, number: u32, commenter: u32) {
    digits(out, number.into(), 4);
    out.push(b'|');
    digits(out, commenter.into(), 7);
}

fn comment_key(out: &mut Vec<u8>, article: u32, number: u32) {
    argument_with(out, 14, |out| {
        out.extend_from_slice(b"c|");
        digits(out, article.into(), 7);
        out.push(b'|');
        digits(out, number.into(), 4);
    });
}

fn read(bytes: &[u8]) -> (u32, u32) {
    (decimal(&bytes[..4]) as u32, decimal(&bytes[5..12]) as u32)
}

fn integer(reply: &[u8]) -> u64 {
    match Token::first(reply) {
        Some((Token::Integer(number), _)) => number as u64,
        _ => 0,
    }
}

impl RedisPages {
    pub fn new(users: u32, few: bool) -> RedisPages {
        RedisPages {
            users,
            few,
            karma_requests: VecDeque::new(),
            replies: Replies::default(),
        }
    }

    fn request(pipe: &mut Pipe<RedisContext>, verb: &[u8], words: usize, awaited: RedisContext) {
        request_head(&mut pipe.out, 1 + words);
        argument(&mut pipe.out, verb);
        pipe.push_context(awaited);
    }

    /// The second round of a page.
    fn karmas(
        &mut self,
        pipe: &mut Pipe<RedisContext>,
        article: u32,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) {
        if !self.few {
            for (number, commenter) in resp::bulks(reply).map(read) {
                Self::request(
                    pipe,
                    b"GET",
                    1,
                    RedisContext::Comment {
                        article,
                        number,
                        commenter,
                    },
                );
                comment_key(&mut pipe.out, article, number);
                Self::request(pipe, b"GET", 1, RedisContext::Karma { article, number });
                key(&mut pipe.out, b'k', commenter);
            }
            return;
        }
        let comments: Vec<(u32, u32)> = resp::bulks(reply).step_by(2).map(read).collect();
        if comments.is_empty() {
            return;
        }
        Self::request(
            pipe,
            b"MGET",
            comments.len(),
            RedisContext::Karmas { article },
        );
        for &(number, commenter) in &comments {
            pages::comment(seen, article, number, commenter);
            key(&mut pipe.out, b'k', commenter);
        }
        self.karma_requests
            .push_back(comments.iter().map(|comment| comment.0).collect());
    }
}

impl Store for RedisPages {
    type Operation = Operation;
    type Context = RedisContext;

    fn start(&mut self, pipe: &mut Pipe<RedisContext>, operation: Operation) {
        match operation {
            Operation::Article { article } => {
                Self::request(pipe, b"SET", 2, RedisContext::Done);
                key(&mut pipe.out, b'a', article);
                argument(&mut pipe.out, TEXT);
            }
            Operation::Vote { article, voter } => {
                Self::request(pipe, b"SADD", 2, RedisContext::Done);
                key(&mut pipe.out, b'v', article);
                argument_with(&mut pipe.out, 7, |out| digits(out, voter.into(), 7));
                Self::request(pipe, b"INCR", 1, RedisContext::Done);
                key(&mut pipe.out, b'k', author(self.users, article));
            }
            Operation::Comment {
                article,
                number,
                commenter,
            } if self.few => {
                Self::request(pipe, b"HSET", 3, RedisContext::Done);
                key(&mut pipe.out, b'h', article);
                argument_with(&mut pipe.out, 12, |out| comment(out, number, commenter));
                argument(&mut pipe.out, TEXT);
            }
            Operation::Comment {
                article,
                number,
                commenter,
            } => {
                Self::request(pipe, b"SET", 2, RedisContext::Done);
                comment_key(&mut pipe.out, article, number);
                argument(&mut pipe.out, TEXT);
                Self::request(pipe, b"RPUSH", 2, RedisContext::Done);
                key(&mut pipe.out, b'l', article);
                argument_with(&mut pipe.out, 12, |out| comment(out, number, commenter));
            }
            Operation::Read { article } => {
                Self::request(pipe, b"GET", 1, RedisContext::Article { article });
                key(&mut pipe.out, b'a', article);
                Self::request(pipe, b"SCARD", 1, RedisContext::Score { article });
                key(&mut pipe.out, b'v', article);
                let awaited = RedisContext::Comments { article };
                if self.few {
                    Self::request(pipe, b"HGETALL", 1, awaited);
                    key(&mut pipe.out, b'h', article);
                } else {
                    Self::request(pipe, b"LRANGE", 3, awaited);
                    key(&mut pipe.out, b'l', article);
                    argument(&mut pipe.out, b"0");
                    argument(&mut pipe.out, b"-1");
                }
            }
        }
    }

    fn reply_len(&mut self, bytes: &[u8], _: RedisContext) -> Result<Option<usize>> {
        self.replies.size(bytes)
    }

    fn reply(
        &mut self,
        pipe: &mut Pipe<RedisContext>,
        awaited: RedisContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        // A single bulk string, or nil.
        let value = || resp::bulk(reply).unwrap_or_default();
        match awaited {
            RedisContext::Done => {}
            RedisContext::Article { article } if value() == TEXT => pages::text(seen, article),
            RedisContext::Article { article } => {
                return Err(format!("article {article} has no text").into());
            }
            RedisContext::Score { article } => pages::score(seen, article, integer(reply)),
            RedisContext::Comments { article } => self.karmas(pipe, article, reply, seen),
            RedisContext::Comment {
                article,
                number,
                commenter,
            } if value() == TEXT => {
                pages::comment(seen, article, number, commenter);
            }
            RedisContext::Comment { .. } => return Err("a comment has no text".into()),
            RedisContext::Karma { article, number } => {
                pages::commenters_karma(seen, article, number, decimal(value()));
            }
            RedisContext::Karmas { article } => {
                let asked = self.karma_requests.pop_front().unwrap_or_default();
                for (number, karma) in asked.into_iter().zip(resp::bulks(reply)) {
                    pages::commenters_karma(seen, article, number, decimal(karma));
                }
            }
        }
        Ok(())
    }
}
