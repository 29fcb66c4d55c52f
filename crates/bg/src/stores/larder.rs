//! larder: writes are rows, and reads are ranges of joins over them.
//!
//! | table | row | written by |
//! |---|---|---|
//! | `bg.person\|m` | profile, then profile image | load |
//! | `bg.card\|m` | what lists show of a member: profile, then thumbnail | load |
//! | `bg.friend\|m\|f` | a confirmed friend, on both sides | accept, thaw |
//! | `bg.invite\|m\|i` | an invitation that `m` has not answered | invite, accept, reject |
//! | `bg.created\|m\|r` | a resource that `m` created: the member on whose wall it is | load |
//! | `bg.wall\|m\|r` | a resource on the wall of `m` | load |
//! | `bg.comment\|r\|c` | a comment: its author, then its text | post, delete |
//! | `bg.post\|m\|t\|n` | the `n`th post of `m` | post to feed |
//! | `bg.note\|name` | a note about the stored data | load, and the first run that writes |
//!
//! | output | joins | one range of it is |
//! |---|---|---|
//! | `bg.page\|m\|...` | the person, three counts | a profile as its owner sees it; without the last row, as others see it |
//! | `bg.friends\|m\|f` | friends with their cards | a list of friends |
//! | `bg.requests\|m\|i` | invitations with their senders' cards | a list of requests |
//! | `bg.feed\|m\|t\|a\|n` | friends with their posts | a feed |
//!
//! The first column is the member or resource to which a row belongs, so a server with several cores has the rows of
//! one view on one core. Numbers are hexadecimal with a fixed width, so that they sort. Without images, a card equals
//! the profile, and `bg.person` serves as both.

mod replies;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::resp::common::{self, AnyReply, LOAD_BYTES};
use super::{OpenResult, Options};
use crate::model::content::{self, Owner};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};
use crate::stores::resp::{Call, Pool, Receiver, Server, Text, command, hex};
use replies::{CommentRows, FeedRows, PageRows, PeopleRows, WallRows};

const ADDRESS: &str = "127.0.0.1:7379";
const CONNECTIONS: usize = 1;

/// Notes come first, so that a run that uses the data notices its deletion.
const TABLES: [&str; 9] = [
    "note", "person", "card", "friend", "invite", "created", "wall", "comment", "post",
];

/// Names and definitions. `CARD` stands for the table of cards. The widths determine which rows of a view are adjacent.
const JOINS: [(&str, &str); 7] = [
    ("bg.page.person", "bg.page|<m:8>|1 = copy bg.person|<m:8>"),
    (
        "bg.page.friends",
        "bg.page|<m:8>|2 = count bg.friend|<m:8>|<f:8>",
    ),
    (
        "bg.page.resources",
        "bg.page|<m:8>|3 = count bg.created|<m:8>|<r:16>",
    ),
    (
        "bg.page.invitations",
        "bg.page|<m:8>|4 = count bg.invite|<m:8>|<i:8>",
    ),
    (
        "bg.friends",
        "bg.friends|<m:8>|<f:8> = check bg.friend|<m:8>|<f:8> copy CARD|<f:8>",
    ),
    (
        "bg.requests",
        "bg.requests|<m:8>|<i:8> = check bg.invite|<m:8>|<i:8> copy CARD|<i:8>",
    ),
    (
        "bg.feed",
        "bg.feed|<m:8>|<t:16>|<a:8>|<n:16> = check bg.friend|<m:8>|<a:8> copy bg.post|<a:8>|<t:16>|<n:16>",
    ),
];

struct Larder {
    server: Server,
    connections: usize,
}

struct LarderClient {
    pool: Pool,
    population: Arc<Population>,
}

/// Opens larder. `--set password=...` if the server requires one.
pub fn open(options: &Options) -> OpenResult {
    Ok(Box::new(Larder {
        server: common::server("larder", ADDRESS, options)?,
        connections: options.connections.unwrap_or(CONNECTIONS),
    }))
}

impl Store for Larder {
    fn name(&self) -> &'static str {
        "larder"
    }

    fn processes(&self) -> &'static [&'static str] {
        &["larder"]
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        Box::pin(async move {
            let pool = Pool::connect(Rc::new(self.server.clone()), 1).await?;
            for (name, _) in JOINS {
                // The join need not exist.
                let dropped = pool.call(1, AnyReply, |out| command(out, &[&"JOIN.DROP", &name]));
                if let Err(lost @ Failure::Unknown(_)) = dropped.await {
                    return Err(lost);
                }
            }
            for table in TABLES {
                let (lo, hi) = (format!("bg.{table}|"), format!("bg.{table}}}"));
                pool.call(1, AnyReply, |out| command(out, &[&"RANGEDEL", &lo, &hi]))
                    .await?;
            }
            for (name, definition) in JOINS {
                let definition = definition.replace("CARD", card_table(population));
                pool.call(1, AnyReply, |out| {
                    command(out, &[&"JOIN.CREATE", &name, &definition])
                })
                .await?;
            }
            Ok(())
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(common::read_note(&self.server, format!("bg.note|{name}")))
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        let key = format!("bg.note|{name}");
        Box::pin(common::write_note(&self.server, "SET", key, text))
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        let key = format!("bg.note|{name}");
        Box::pin(common::write_note(&self.server, "SETNX", key, text))
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async move {
            let pool = Pool::connect(Rc::new(self.server.clone()), self.connections).await?;
            Ok(Rc::new(LarderClient { pool, population }) as Rc<dyn Client>)
        })
    }
}

fn card_table(population: &Population) -> &'static str {
    match population.image_size {
        Some(_) => "bg.card",
        None => "bg.person",
    }
}

impl Client for LarderClient {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        Box::pin(async move {
            let mut batch = Batch::default();
            for member in members {
                load_member(&self.population, member, &mut batch);
                if batch.bytes.len() >= LOAD_BYTES {
                    self.send(&mut batch).await?;
                }
            }
            self.send(&mut batch).await
        })
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        let is_own = requester == owner;
        let key = Text::new("bg.page|").member(owner);
        let rows = PageRows::new(self.population.clone(), owner, is_own);
        let call = self.pool.call(1, rows, |out| {
            let end = if is_own { "}" } else { "|4" };
            command(out, &[&"RANGE", &key.then("|"), &key.then(end)]);
        });
        Box::pin(async move { Ok(call.await?.profile()) })
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        self.people("bg.friends|", owner)
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        self.people("bg.requests|", member)
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        self.done(1, |out| set(out, invite(invitee, inviter), &""))
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.done(5, |out| {
            command(out, &[&"MULTI"]);
            command(out, &[&"DEL", &invite(invitee, inviter)]);
            set(out, friend(invitee, inviter), &"");
            set(out, friend(inviter, invitee), &"");
            command(out, &[&"EXEC"]);
        })
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.done(1, |out| command(out, &[&"DEL", &invite(invitee, inviter)]))
    }

    fn thaw_friendship(&self, member: u32, other: u32) -> Reply<'_, ()> {
        // DEL of keys on several cores is not atomic; a transaction is.
        self.done(4, |out| {
            command(out, &[&"MULTI"]);
            command(out, &[&"DEL", &friend(member, other)]);
            command(out, &[&"DEL", &friend(other, member)]);
            command(out, &[&"EXEC"]);
        })
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        let rows = WallRows::new(self.population.clone());
        let call = self.range(rows, Text::new("bg.wall|").member(owner), Some(top));
        Box::pin(async move { Ok(call.await?.resources()) })
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        let rows = CommentRows::new(self.population.clone(), resource);
        let call = self.range(rows, Text::new("bg.comment|").number(resource), None);
        Box::pin(async move { Ok(call.await?.comments()) })
    }

    fn post_comment(&self, member: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        self.done(1, |out| {
            let value = comment_value(&self.population, member, resource, number);
            set(out, comment(resource, number), &value);
        })
    }

    fn delete_comment(&self, _: u32, resource: u64, number: u64) -> Reply<'_, ()> {
        self.done(1, |out| command(out, &[&"DEL", &comment(resource, number)]))
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        self.done(1, |out| {
            let key = Text::new("bg.post|").member(member).then("|");
            let key = key.number(post.time).then("|").number(post.number);
            let contents = self.population.contents();
            let text = contents.generate(Owner::Post(member, post.number), content::POST_SIZE);
            set(out, key, &text);
        })
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        let rows = FeedRows::new(self.population.clone());
        let call = self.range(rows, Text::new("bg.feed|").member(member), Some(top));
        Box::pin(async move { Ok(call.await?.feed()) })
    }
}

impl LarderClient {
    /// Requests all rows that begin with `key` and `|`, or the last ones in descending order.
    fn range<R: Receiver>(&self, rows: R, key: Text, last: Option<u32>) -> Call<R> {
        self.pool.call(1, rows, |out| {
            let (lo, hi) = (key.then("|"), key.then("}"));
            match last {
                None => command(out, &[&"RANGE", &lo, &hi]),
                Some(last) => {
                    let limit = last.to_string();
                    command(out, &[&"RANGE", &lo, &hi, &"LIMIT", &limit, &"REV"]);
                }
            }
        })
    }

    fn people(&self, table: &str, member: u32) -> Reply<'_, People> {
        let rows = PeopleRows::new(self.population.clone());
        let call = self.range(rows, Text::new(table).member(member), None);
        Box::pin(async move { Ok(call.await?.people()) })
    }

    fn done(&self, replies: u32, encode: impl FnOnce(&mut Vec<u8>)) -> Reply<'_, ()> {
        let call = self.pool.call(replies, AnyReply, encode);
        Box::pin(async move { call.await.map(|AnyReply| ()) })
    }

    async fn send(&self, batch: &mut Batch) -> Result<(), Failure> {
        if batch.requests > 0 {
            let encode = |out: &mut Vec<u8>| out.extend_from_slice(&batch.bytes);
            self.pool.call(batch.requests, AnyReply, encode).await?;
            batch.bytes.clear();
            batch.requests = 0;
        }
        Ok(())
    }
}

/// The requests of a load.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    requests: u32,
}

impl Batch {
    fn set(&mut self, key: Text, value: &dyn AsRef<[u8]>) {
        set(&mut self.bytes, key, value);
        self.requests += 1;
    }
}

fn load_member(population: &Population, member: u32, batch: &mut Batch) {
    let contents = population.contents();
    let mut person = contents.generate(Owner::Profile(member), population.profile_size());
    if let Some(size) = population.image_size {
        let thumbnail = contents.generate(Owner::Thumbnail(member), content::THUMBNAIL_SIZE);
        let card = [&person[..], &thumbnail].concat();
        batch.set(Text::new("bg.card|").member(member), &card);
        person.extend_from_slice(&contents.generate(Owner::Image(member), size));
    }
    batch.set(Text::new("bg.person|").member(member), &person);
    for other in population.friends_of(member) {
        batch.set(friend(member, other), &"");
    }
    for inviter in population.inviters_of(member) {
        batch.set(invite(member, inviter), &"");
    }
    for resource in population.resources_of(member) {
        let wall = population.wall(resource);
        let created = Text::new("bg.created|").member(member).then("|");
        batch.set(created.number(resource), &hex::<8>(wall.into()));
        let body = contents.generate(Owner::Resource(resource), content::RESOURCE_SIZE);
        let key = Text::new("bg.wall|").member(wall).then("|");
        batch.set(key.number(resource), &body);
        for number in 0..u64::from(population.comments) {
            let author = population.commenter(resource, number);
            let value = comment_value(population, author, resource, number);
            batch.set(comment(resource, number), &value);
        }
    }
}

fn comment_value(population: &Population, author: u32, resource: u64, number: u64) -> Vec<u8> {
    let contents = population.contents();
    let text = contents.generate(Owner::Comment(resource, number), population.comment_size);
    [&hex::<8>(author.into())[..], &text].concat()
}

fn set(out: &mut Vec<u8>, key: Text, value: &dyn AsRef<[u8]>) {
    command(out, &[&"SET", &key, value]);
}

fn friend(member: u32, other: u32) -> Text {
    Text::new("bg.friend|")
        .member(member)
        .then("|")
        .member(other)
}

fn invite(invitee: u32, inviter: u32) -> Text {
    Text::new("bg.invite|")
        .member(invitee)
        .then("|")
        .member(inviter)
}

fn comment(resource: u64, number: u64) -> Text {
    Text::new("bg.comment|")
        .number(resource)
        .then("|")
        .number(number)
}
