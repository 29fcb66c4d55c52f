//! PostgreSQL behind memcached: the report's CASQL.
//!
//! Each view except the feed is cached as one entry under a key of its own. `--set consistency=` selects how entries
//! are kept correct:
//!
//! | | writer | reader on a miss | staleness |
//! |---|---|---|---|
//! | `invalidate` | commits, then deletes the entries | reads, then stores | possibly long: a reader may read before a commit and store after the deletion |
//! | `ttl` | commits | reads, then stores for `--set ttl=...ms` | up to the TTL |
//! | `lease` | see `lease.rs` | see `lease.rs` | none |
//!
//! memcached counts in seconds. With `ttl`, an entry therefore begins with its expiry in milliseconds, by the clock
//! that the clients share. The TTL starts before the database is queried.

mod entry;
mod lease;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::try_join_all;

use super::memcached::{Cache, Entry, Memcached, StoreCondition};
use super::postgres::{self, Postgres, Sql};
use super::settings::Settings;
use super::{OpenResult, Options};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};
use lease::Lookup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    Invalidate,
    Ttl,
    Lease,
}

struct Casql {
    postgres: Postgres,
    memcached: String,
    consistency: Consistency,
    ttl: Duration,
}

pub fn open(options: &Options) -> OpenResult {
    let mut settings = Settings::new(options);
    let choices = [
        ("lease", Consistency::Lease),
        ("invalidate", Consistency::Invalidate),
        ("ttl", Consistency::Ttl),
    ];
    let mut casql = Casql {
        consistency: settings.choice("consistency", &choices)?,
        ttl: settings.duration("ttl", Duration::from_secs(30))?,
        memcached: settings
            .text("memcached")
            .unwrap_or("127.0.0.1:11211")
            .to_owned(),
        postgres: Postgres::new(options, &mut settings)?,
    };
    settings.finish("postgres+memcached")?;
    if casql.consistency == Consistency::Lease {
        casql.postgres.limit_statements(lease::STATEMENT_LIMIT);
    }
    Ok(Box::new(casql))
}

/// The number of connections of each worker to memcached. With several, a long list does not delay a short reply.
const CONNECTIONS: usize = 2;

impl Store for Casql {
    fn name(&self) -> &'static str {
        "postgres+memcached"
    }

    /// A cache that was filled in another mode, or not emptied by a load, is not usable.
    fn layout(&self) -> String {
        let consistency = match self.consistency {
            Consistency::Invalidate => "invalidate",
            Consistency::Ttl => "ttl",
            Consistency::Lease => "lease",
        };
        format!(
            "postgres+memcached {} memcached={} consistency={consistency}",
            self.postgres.layout(),
            self.memcached
        )
    }

    fn processes(&self) -> &'static [&'static str] {
        &["postgres", "postmaster", "memcached"]
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        Box::pin(async {
            self.postgres.create(population).await?;
            let cache = Memcached::connect(&self.memcached, 1).await?;
            cache.flush().await
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(self.postgres.note(name))
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(self.postgres.put_note(postgres::PUT_NOTE, name, text))
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(
            self.postgres
                .put_note(postgres::PUT_NOTE_IF_ABSENT, name, text),
        )
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async {
            let cached = CachedSql {
                cache: Memcached::connect(&self.memcached, CONNECTIONS).await?,
                sql: self.postgres.connect(population).await?,
                consistency: self.consistency,
                ttl: self.ttl,
            };
            Ok(Rc::new(CasqlClient(Rc::new(cached))) as Rc<dyn Client>)
        })
    }
}

struct CasqlClient(Rc<CachedSql>);

struct CachedSql {
    sql: Sql,
    cache: Memcached,
    consistency: Consistency,
    ttl: Duration,
}

impl CachedSql {
    /// Returns an entry from the cache, or creates it from the database with `read`.
    async fn view(
        &self,
        key: &str,
        read: impl AsyncFnOnce(&Sql) -> Result<Vec<u8>, Failure>,
    ) -> Result<Bytes, Failure> {
        match self.consistency {
            Consistency::Lease => self.view_leased(key, read).await,
            Consistency::Invalidate => {
                if let Ok(Some(found)) = self.cache.get(key).await {
                    return Ok(found.value);
                }
                let value = read(&self.sql).await?;
                let entry = Entry {
                    value: &value,
                    flags: lease::VALUE,
                    seconds: lease::VALUE_SECONDS,
                };
                // An unreachable cache is equivalent to an empty one.
                let _ = self.cache.store(key, &entry, StoreCondition::Always).await;
                Ok(value.into())
            }
            Consistency::Ttl => self.view_with_ttl(key, read).await,
        }
    }

    async fn view_leased(
        &self,
        key: &str,
        read: impl AsyncFnOnce(&Sql) -> Result<Vec<u8>, Failure>,
    ) -> Result<Bytes, Failure> {
        match lease::lookup(&self.cache, key).await {
            Ok(Lookup::Value(value)) => Ok(value),
            Ok(Lookup::Reserved(cas)) => {
                let value = read(&self.sql).await;
                let _ = match &value {
                    Ok(value) => lease::fill(&self.cache, key, cas, value).await,
                    Err(_) => self.cache.delete(key, Some(cas)).await.map(|_| ()),
                };
                value.map(Bytes::from)
            }
            Ok(Lookup::Busy) | Err(_) => read(&self.sql).await.map(Bytes::from),
        }
    }

    async fn view_with_ttl(
        &self,
        key: &str,
        read: impl AsyncFnOnce(&Sql) -> Result<Vec<u8>, Failure>,
    ) -> Result<Bytes, Failure> {
        let now = milliseconds();
        if let Ok(Some(found)) = self.cache.get(key).await
            && let Some((ends, _)) = found.value.split_first_chunk()
            && now < u64::from_le_bytes(*ends)
        {
            return Ok(found.value.slice(8..));
        }
        let ends = milliseconds() + self.ttl.as_millis() as u64;
        let value = read(&self.sql).await?;
        let mut stamped = Vec::with_capacity(8 + value.len());
        stamped.extend(ends.to_le_bytes());
        stamped.extend(&value);
        let entry = Entry {
            value: &stamped,
            flags: lease::VALUE,
            seconds: self.ttl.as_secs() as u32 + 2,
        };
        let _ = self.cache.store(key, &entry, StoreCondition::Always).await;
        Ok(value.into())
    }

    async fn write(&self, write: Write) -> Result<(), Failure> {
        match self.consistency {
            Consistency::Ttl => write.run(&self.sql).await,
            Consistency::Invalidate => {
                let written = write.run(&self.sql).await;
                if !matches!(written, Err(Failure::Refused(_))) {
                    let keys = write.keys();
                    let deleted = keys.iter().map(|key| self.cache.delete(key, None));
                    try_join_all(deleted).await.map_err(|why| {
                        Failure::Unknown(format!(
                            "written, but the cache entry was not deleted: {why}"
                        ))
                    })?;
                }
                written
            }
            Consistency::Lease => {
                let quarantine = lease::quarantine(&self.cache, write.keys()).await?;
                let written = write.run(&self.sql).await;
                if !matches!(written, Err(Failure::Unknown(_))) {
                    // A marker that cannot be released expires, and no reader gets a stale value meanwhile.
                    let _ = lease::release(&self.cache, quarantine).await;
                }
                written
            }
        }
    }
}

fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a clock after 1970").as_millis() as u64
}

#[derive(Clone, Copy)]
enum Write {
    Invite {
        inviter: u32,
        invitee: u32,
    },
    Accept {
        invitee: u32,
        inviter: u32,
    },
    Reject {
        invitee: u32,
        inviter: u32,
    },
    Thaw {
        member: u32,
        friend: u32,
    },
    Comment {
        member: u32,
        resource: u64,
        number: u64,
    },
    DeleteComment {
        resource: u64,
        number: u64,
    },
}

impl Write {
    async fn run(self, sql: &Sql) -> Result<(), Failure> {
        match self {
            Write::Invite { inviter, invitee } => sql.invite(inviter, invitee).await,
            Write::Accept { invitee, inviter } => sql.accept(invitee, inviter).await,
            Write::Reject { invitee, inviter } => sql.reject(invitee, inviter).await,
            Write::Thaw { member, friend } => sql.thaw(member, friend).await,
            Write::Comment {
                member,
                resource,
                number,
            } => sql.comment(member, resource, number).await,
            Write::DeleteComment { resource, number } => sql.delete_comment(resource, number).await,
        }
    }

    /// Returns the keys of every entry that the write may change.
    fn keys(self) -> Vec<String> {
        match self {
            Write::Invite { invitee, .. } | Write::Reject { invitee, .. } => {
                vec![profile_key(invitee), invitations_key(invitee)]
            }
            Write::Accept { invitee, inviter } => vec![
                profile_key(invitee),
                profile_key(inviter),
                friends_key(invitee),
                friends_key(inviter),
                invitations_key(invitee),
            ],
            Write::Thaw { member, friend } => vec![
                profile_key(member),
                profile_key(friend),
                friends_key(member),
                friends_key(friend),
            ],
            Write::Comment { resource, .. } | Write::DeleteComment { resource, .. } => {
                vec![comments_key(resource)]
            }
        }
    }
}

fn profile_key(member: u32) -> String {
    format!("bg:p:{member}")
}

fn friends_key(member: u32) -> String {
    format!("bg:f:{member}")
}

fn invitations_key(member: u32) -> String {
    format!("bg:i:{member}")
}

fn comments_key(resource: u64) -> String {
    format!("bg:c:{resource}")
}

impl CasqlClient {
    /// Continues to the end even if the caller stops waiting. Otherwise a commit could remain unknown to the cache.
    fn write(&self, write: Write) -> Reply<'_, ()> {
        let cached = self.0.clone();
        Box::pin(async move {
            let task = tokio::task::spawn_local(async move { cached.write(write).await });
            let ended = task.await;
            ended.unwrap_or_else(|error| Err(Failure::Unknown(error.to_string())))
        })
    }

    fn population(&self) -> &Population {
        self.0.sql.population()
    }
}

impl Client for CasqlClient {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        Box::pin(self.0.sql.load(members))
    }

    fn finish_load(&self) -> Reply<'_, ()> {
        Box::pin(async {
            self.0.sql.finish_load().await?;
            self.0.cache.flush().await
        })
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        Box::pin(async move {
            let read =
                async |sql: &Sql| Ok(entry::encode_profile(&sql.profile(owner, true).await?));
            let found = self.0.view(&profile_key(owner), read).await?;
            entry::decode_profile(&found, self.population(), owner, requester == owner)
        })
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        Box::pin(async move {
            let read = async |sql: &Sql| Ok(entry::encode_people(&sql.friends(owner).await?));
            let found = self.0.view(&friends_key(owner), read).await?;
            entry::decode_people(&found, self.population())
        })
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        Box::pin(async move {
            let read = async |sql: &Sql| Ok(entry::encode_people(&sql.invitations(member).await?));
            let found = self.0.view(&invitations_key(member), read).await?;
            entry::decode_people(&found, self.population())
        })
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        self.write(Write::Invite { inviter, invitee })
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.write(Write::Accept { invitee, inviter })
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        self.write(Write::Reject { invitee, inviter })
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        self.write(Write::Thaw { member, friend })
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        Box::pin(async move {
            let read =
                async |sql: &Sql| Ok(entry::encode_texts(&sql.top_resources(owner, top).await?));
            let found = self.0.view(&format!("bg:t:{owner}:{top}"), read).await?;
            entry::decode_resources(&found, self.population())
        })
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        Box::pin(async move {
            let read = async |sql: &Sql| Ok(entry::encode_texts(&sql.comments(resource).await?));
            let found = self.0.view(&comments_key(resource), read).await?;
            entry::decode_comments(&found, self.population(), resource)
        })
    }

    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        self.write(Write::Comment {
            member,
            resource,
            number: comment,
        })
    }

    fn delete_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        self.write(Write::DeleteComment {
            resource,
            number: comment,
        })
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        self.0.sql.post_to_feed(member, post)
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        self.0.sql.view_feed(member, top)
    }
}
