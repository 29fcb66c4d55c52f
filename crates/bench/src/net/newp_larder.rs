//! Newp in larder: six joins, four of which fill one table. A page is one range of it.

use larder_protocol::resp::client::{argument, argument_with, request_head};

use super::drive::{Pipe, Store, digits, number};
use super::pages::{self, Operation, author};
use super::resp::{self, Replies};
use super::workload::ReadChecksum;
use crate::Result;

pub const TEXT: &[u8] = b"as long as a headline is";

pub const JOINS: [(&str, &str); 6] = [
    (
        "score",
        "p|<author:7>|<seq:7> = count v|<author>|<seq>|<voter:7>",
    ),
    ("karma", "k|<author:7> = count v|<author>|<seq:7>|<voter:7>"),
    (
        "page.article",
        "m|<author:7>|<seq:7>|a = copy a|<author>|<seq>",
    ),
    (
        "page.score",
        "m|<author:7>|<seq:7>|b = copy p|<author>|<seq>",
    ),
    (
        "page.comment",
        "m|<author:7>|<seq:7>|c|<number:4>|<commenter:7> = copy c|<author>|<seq>|<number>|<commenter>",
    ),
    (
        "page.karma",
        "m|<author:7>|<seq:7>|k|<number:4>|<commenter:7> = check c|<author>|<seq>|<number>|<commenter> copy k|<commenter>",
    ),
];

pub struct OnePage {
    users: u32,
    replies: Replies,
}

#[derive(Clone, Copy)]
pub enum LarderContext {
    Done,
    Page { article: u32 },
}

/// `table|author|seq`: 17 bytes.
fn key(out: &mut Vec<u8>, table: u8, users: u32, article: u32) {
    out.extend_from_slice(&[table, b'|']);
    digits(out, author(users, article).into(), 7);
    out.push(b'|');
    digits(out, (article / users).into(), 7);
}

impl OnePage {
    pub fn new(users: u32) -> OnePage {
        OnePage {
            users,
            replies: Replies::default(),
        }
    }

    fn set(
        &self,
        pipe: &mut Pipe<LarderContext>,
        size: usize,
        value: &[u8],
        key: impl FnOnce(&mut Vec<u8>),
    ) {
        request_head(&mut pipe.out, 3);
        argument(&mut pipe.out, b"SET");
        argument_with(&mut pipe.out, size, key);
        argument(&mut pipe.out, value);
        pipe.push_context(LarderContext::Done);
    }
}

impl Store for OnePage {
    type Operation = Operation;
    type Context = LarderContext;

    fn start(&mut self, pipe: &mut Pipe<LarderContext>, operation: Operation) {
        let users = self.users;
        match operation {
            Operation::Article { article } => {
                self.set(pipe, 17, TEXT, |out| key(out, b'a', users, article));
            }
            Operation::Vote { article, voter } => self.set(pipe, 25, b"1", |out| {
                key(out, b'v', users, article);
                out.push(b'|');
                digits(out, voter.into(), 7);
            }),
            Operation::Comment {
                article,
                number,
                commenter,
            } => self.set(pipe, 30, TEXT, |out| {
                key(out, b'c', users, article);
                out.push(b'|');
                digits(out, number.into(), 4);
                out.push(b'|');
                digits(out, commenter.into(), 7);
            }),
            Operation::Read { article } => {
                let out = &mut pipe.out;
                request_head(out, 3);
                argument(out, b"RANGE");
                for end in [b'|', b'}'] {
                    argument_with(out, 18, |out| {
                        key(out, b'm', users, article);
                        out.push(end);
                    });
                }
                pipe.push_context(LarderContext::Page { article });
            }
        }
    }

    fn reply_len(&mut self, bytes: &[u8], _: LarderContext) -> Result<Option<usize>> {
        self.replies.size(bytes)
    }

    fn reply(
        &mut self,
        _: &mut Pipe<LarderContext>,
        awaited: LarderContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        let LarderContext::Page { article } = awaited else {
            return Ok(());
        };
        let mut rows = resp::bulks(reply);
        while let Some((key, value)) = rows.next().zip(rows.next()) {
            let rest = &key[18..];
            match rest[0] {
                b'a' => pages::text(seen, article),
                b'b' => pages::score(seen, article, number(value)),
                _ => {
                    let (comment, commenter) =
                        (number(&rest[2..6]) as u32, number(&rest[7..14]) as u32);
                    match rest[0] {
                        b'c' => pages::comment(seen, article, comment, commenter),
                        _ => pages::commenters_karma(seen, article, comment, number(value)),
                    }
                }
            }
        }
        Ok(())
    }
}
