//! Redis, in its most efficient layout: every action is one command or one script, and therefore one round trip and
//! atomic.
//!
//! | key | type | contents |
//! |---|---|---|
//! | `bg:member:m` | hash | `person`: profile, then image; `friends`, `resources`, `invitations`: counts |
//! | `bg:card:m` | string | what lists show of a member: profile, then thumbnail |
//! | `bg:friends:m`, `bg:invitations:m` | set | members |
//! | `bg:wall:m` | sorted set | resources, in the order of their numbers |
//! | `bg:resource:r` | string | the body of a resource |
//! | `bg:comments:r` | hash | by number: author, then text |
//! | `bg:posts:m`, `bg:feed:m` | sorted set | `time\|author\|number`: a member's own posts, and the friends' |
//! | `bg:post:time\|author\|number` | string | the text of a post |
//! | `bg:note:name` | string | a note about the stored data |
//!
//! Members and resources are decimal numbers, which Redis stores compactly; feed entries sort as text.
//!
//! Views of lists use `SORT ... BY nosort GET`, Redis's own join. Counts are fields of the profile's hash, so a profile
//! is one `HMGET`. Scripts change counts together with the sets, and only if the sets changed. Posting fills the feeds,
//! because views of feeds are far more frequent. Scripts compute key names, which works on one server, but not on a
//! cluster.

mod replies;
mod scripts;

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
use crate::stores::resp::{Pool, Receiver, Server, Text, command, hex};
use replies::{CommentFields, FeedPosts, PeopleCards, PersonFields, Sha, WallBodies};
use scripts::{SCRIPTS, Script};

const ADDRESS: &str = "127.0.0.1:6379";
const CONNECTIONS: usize = 1;

struct Redis {
    server: Server,
    connections: usize,
}

struct RedisClient {
    pool: Pool,
    population: Arc<Population>,
    /// Indexed by [`Script`].
    scripts: Vec<String>,
}

/// Opens Redis. `--set password=...` if the server requires one.
pub fn open(options: &Options) -> OpenResult {
    Ok(Box::new(Redis {
        server: common::server("redis", ADDRESS, options)?,
        connections: options.connections.unwrap_or(CONNECTIONS),
    }))
}

impl Store for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn processes(&self) -> &'static [&'static str] {
        &["redis-server", "valkey-server"]
    }

    /// Empties the database.
    fn create<'a>(&'a self, _: &'a Population) -> Reply<'a, ()> {
        Box::pin(async {
            let pool = Pool::connect(Rc::new(self.server.clone()), 1).await?;
            pool.call(1, AnyReply, |out| command(out, &[&"FLUSHDB"]))
                .await?;
            Ok(())
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(common::read_note(&self.server, format!("bg:note:{name}")))
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        let key = format!("bg:note:{name}");
        Box::pin(common::write_note(&self.server, "SET", key, text))
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        let key = format!("bg:note:{name}");
        Box::pin(common::write_note(&self.server, "SETNX", key, text))
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async {
            let pool = Pool::connect(Rc::new(self.server.clone()), self.connections).await?;
            let mut scripts = Vec::new();
            for script in SCRIPTS {
                let loaded = pool.call(1, Sha::default(), |out| {
                    command(out, &[&"SCRIPT", &"LOAD", &script]);
                });
                scripts.push(loaded.await?.0);
            }
            Ok(Rc::new(RedisClient {
                pool,
                population,
                scripts,
            }) as Rc<dyn Client>)
        })
    }
}

impl Client for RedisClient {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut bytes, mut requests) = (Vec::new(), 0);
            let end = members.end;
            for member in members {
                load_member(&self.population, member, &mut |parts| {
                    command(&mut bytes, parts);
                    requests += 1;
                });
                if bytes.len() >= LOAD_BYTES || member + 1 == end {
                    let encode = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
                    self.pool.call(requests, AnyReply, encode).await?;
                    bytes.clear();
                    requests = 0;
                }
            }
            Ok(())
        })
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        let is_own = requester == owner;
        let key = Text::new("bg:member:").decimal(owner.into());
        let fields = PersonFields::new(self.population.clone(), owner, is_own);
        let call = self.pool.call(1, fields, |out| {
            if is_own {
                let all: [&dyn AsRef<[u8]>; 6] = [
                    &"HMGET",
                    &key,
                    &"person",
                    &"friends",
                    &"resources",
                    &"invitations",
                ];
                command(out, &all);
            } else {
                command(out, &[&"HMGET", &key, &"person", &"friends", &"resources"]);
            }
        });
        Box::pin(async move { Ok(call.await?.profile()) })
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        self.people(Text::new("bg:friends:").decimal(owner.into()))
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        self.people(Text::new("bg:invitations:").decimal(member.into()))
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        self.script(Script::Invite, invitee, inviter)
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.script(Script::Accept, invitee, inviter)
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.script(Script::Reject, invitee, inviter)
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        self.script(Script::Thaw, member, friend)
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        let key = Text::new("bg:wall:").decimal(owner.into());
        let bodies = WallBodies::new(self.population.clone());
        let call = self.sorted(bodies, key, Some(top), "bg:resource:*");
        Box::pin(async move { Ok(call.await?.resources()) })
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        let key = Text::new("bg:comments:").decimal(resource);
        let fields = CommentFields::new(self.population.clone(), resource);
        let call = self
            .pool
            .call(1, fields, |out| command(out, &[&"HGETALL", &key]));
        Box::pin(async move { Ok(call.await?.comments()) })
    }

    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        let key = Text::new("bg:comments:").decimal(resource);
        let value = comment_value(&self.population, member, resource, comment);
        self.done(|out| command(out, &[&"HSET", &key, &comment.to_string(), &value]))
    }

    fn delete_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        let key = Text::new("bg:comments:").decimal(resource);
        self.done(|out| command(out, &[&"HDEL", &key, &comment.to_string()]))
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        let entry = Text::new("").number(post.time).then("|").member(member);
        let entry = entry.then("|").number(post.number);
        let contents = self.population.contents();
        let text = contents.generate(Owner::Post(member, post.number), content::POST_SIZE);
        Box::pin(async move {
            let author = member.to_string();
            self.run(Script::Post, &[&author, &entry, &text]).await
        })
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        let key = Text::new("bg:feed:").decimal(member.into());
        let posts = FeedPosts::new(self.population.clone());
        let call = self.sorted(posts, key, Some(top), "bg:post:*");
        Box::pin(async move { Ok(call.await?.feed()) })
    }
}

impl RedisClient {
    fn people(&self, key: Text) -> Reply<'_, People> {
        let cards = PeopleCards::new(self.population.clone());
        let call = self.sorted(cards, key, None, "bg:card:*");
        Box::pin(async move { Ok(call.await?.people()) })
    }

    /// Requests elements, and the values of `pattern` for them. For a sorted set, only the last ones, in descending
    /// order.
    fn sorted<R: Receiver>(
        &self,
        receiver: R,
        key: Text,
        last: Option<u32>,
        pattern: &str,
    ) -> crate::stores::resp::Call<R> {
        self.pool.call(1, receiver, |out| match last {
            None => command(
                out,
                &[
                    &"SORT", &key, &"BY", &"nosort", &"GET", &"#", &"GET", &pattern,
                ],
            ),
            Some(last) => {
                let last = last.to_string();
                let parts: [&dyn AsRef<[u8]>; 12] = [
                    &"SORT", &key, &"BY", &"nosort", &"LIMIT", &"0", &last, &"GET", &"#", &"GET",
                    &pattern, &"DESC",
                ];
                command(out, &parts);
            }
        })
    }

    fn script(&self, script: Script, member: u32, other: u32) -> Reply<'_, ()> {
        Box::pin(async move {
            let (member, other) = (member.to_string(), other.to_string());
            self.run(script, &[&member, &other]).await
        })
    }

    /// Runs a script by its hash. A restarted server, or a promoted replica, does not know the hash and executes
    /// nothing. It then receives the script itself, and keeps it.
    async fn run(&self, script: Script, arguments: &[&dyn AsRef<[u8]>]) -> Result<(), Failure> {
        let eval = |how: &[&dyn AsRef<[u8]>]| {
            let parts = [how, &[&"0"], arguments].concat();
            self.pool.call(1, AnyReply, |out| command(out, &parts))
        };
        let known = eval(&[&"EVALSHA", &self.scripts[script as usize]]).await;
        match known {
            Err(Failure::Refused(why)) if why.starts_with("NOSCRIPT") => {
                let again = eval(&[&"EVAL", &SCRIPTS[script as usize]]).await;
                again.map(|AnyReply| ())
            }
            known => known.map(|AnyReply| ()),
        }
    }

    fn done(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Reply<'_, ()> {
        let call = self.pool.call(1, AnyReply, encode);
        Box::pin(async move { call.await.map(|AnyReply| ()) })
    }
}

/// Receives the parts of a command.
type Request<'a> = dyn FnMut(&[&dyn AsRef<[u8]>]) + 'a;

/// Passes the requests that load one member to `request`.
fn load_member(population: &Population, member: u32, request: &mut Request<'_>) {
    let contents = population.contents();
    let mut person = contents.generate(Owner::Profile(member), population.profile_size());
    let mut card = person.clone();
    if let Some(size) = population.image_size {
        card.extend_from_slice(
            &contents.generate(Owner::Thumbnail(member), content::THUMBNAIL_SIZE),
        );
        person.extend_from_slice(&contents.generate(Owner::Image(member), size));
    }
    request(&[&"SET", &Text::new("bg:card:").decimal(member.into()), &card]);

    let add = |key: Text, others: &[u32], request: &mut Request<'_>| {
        if others.is_empty() {
            return;
        }
        let others: Vec<String> = others.iter().map(u32::to_string).collect();
        let mut parts: Vec<&dyn AsRef<[u8]>> = vec![&"SADD", &key];
        parts.extend(others.iter().map(|other| other as &dyn AsRef<[u8]>));
        request(&parts);
    };
    let friends: Vec<u32> = population.friends_of(member).collect();
    let inviters: Vec<u32> = population.inviters_of(member).collect();
    add(
        Text::new("bg:friends:").decimal(member.into()),
        &friends,
        request,
    );
    add(
        Text::new("bg:invitations:").decimal(member.into()),
        &inviters,
        request,
    );
    let counts = [friends.len(), population.resources as usize, inviters.len()];
    let [friends, resources, inviters] = counts.map(|count| count.to_string());
    let parts: [&dyn AsRef<[u8]>; 10] = [
        &"HSET",
        &Text::new("bg:member:").decimal(member.into()),
        &"person",
        &person,
        &"friends",
        &friends,
        &"resources",
        &resources,
        &"invitations",
        &inviters,
    ];
    request(&parts);

    for resource in population.resources_of(member) {
        let wall = Text::new("bg:wall:").decimal(population.wall(resource).into());
        let number = resource.to_string();
        request(&[&"ZADD", &wall, &number, &number]);
        let body = contents.generate(Owner::Resource(resource), content::RESOURCE_SIZE);
        request(&[&"SET", &Text::new("bg:resource:").decimal(resource), &body]);
        for number in 0..u64::from(population.comments) {
            let author = population.commenter(resource, number);
            let value = comment_value(population, author, resource, number);
            let key = Text::new("bg:comments:").decimal(resource);
            request(&[&"HSET", &key, &number.to_string(), &value]);
        }
    }
}

fn comment_value(population: &Population, author: u32, resource: u64, number: u64) -> Vec<u8> {
    let owner = Owner::Comment(resource, number);
    let text = population
        .contents()
        .generate(owner, population.comment_size);
    [&hex::<8>(author.into())[..], &text].concat()
}
