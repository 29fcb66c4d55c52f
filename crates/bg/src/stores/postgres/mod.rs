//! PostgreSQL, in two of the report's layouts.
//!
//! ```text
//!   Client (this file) ──► sql.rs: an action as one statement ──► pool.rs: the least busy connection
//!                          schema.rs: tables and statements       load.rs: COPY
//! ```
//!
//! With `--set layout=basic`, queries count friends, invitations and resources by an index. With `layout=aggregate`,
//! the member's row contains the counts, which change together with the counted rows. `--set rows=2` stores a
//! friendship once for each of the two members, `rows=1` once for both.
//!
//! # One statement per action
//!
//! A statement uses one snapshot, and is one transaction. Every read therefore shows one instant, and every write is
//! atomic, at the default isolation level (read committed), without the round trips of `BEGIN` and `COMMIT`. Since no
//! transaction stays open between two messages, the calls of many emulated threads can be pipelined on one connection.

mod load;
mod pool;
mod schema;
mod sql;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use schema::{Layout, Rows};
use tokio_postgres::error::SqlState;

pub use schema::{PUT_NOTE, PUT_NOTE_IF_ABSENT};
pub use sql::{ProfileRow, Raw, Sql, member, number};

use super::settings::Settings;
use super::{OpenResult, Options};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};

/// The address and the layout of PostgreSQL.
#[derive(Clone)]
pub struct Postgres {
    config: tokio_postgres::Config,
    layout: Layout,
    rows: Rows,
    connections: usize,
}

pub fn open(options: &Options) -> OpenResult {
    let mut settings = Settings::new(options);
    let postgres = Postgres::new(options, &mut settings)?;
    settings.finish("postgres")?;
    Ok(Box::new(postgres))
}

impl Postgres {
    /// Parses the options.
    ///
    /// # Errors
    ///
    /// The address or a setting is invalid.
    pub fn new(options: &Options, settings: &mut Settings<'_>) -> Result<Postgres, String> {
        let address = options.address.as_deref();
        let address = address.unwrap_or("postgres://postgres@127.0.0.1:5432/postgres");
        let mut config: tokio_postgres::Config = address
            .parse()
            .map_err(|error| format!("--at {address}: not a PostgreSQL address ({error}); an example is postgres://user@host:port/database"))?;
        let given = config.get_options().unwrap_or_default().to_owned();
        // Use plans that are valid for every member. Compiling takes milliseconds, for statements that take
        // microseconds.
        config.options(format!(
            "{given} -c search_path=bg -c plan_cache_mode=force_generic_plan -c jit=off"
        ));
        config.application_name("bg");
        config.connect_timeout(std::time::Duration::from_secs(10));
        Ok(Postgres {
            config,
            layout: settings.choice(
                "layout",
                &[("basic", Layout::Basic), ("aggregate", Layout::Aggregate)],
            )?,
            rows: settings.choice("rows", &[("2", Rows::Two), ("1", Rows::One)])?,
            connections: options.connections.unwrap_or(DEFAULT_CONNECTIONS),
        })
    }

    /// Sets the time limit after which the server ends a statement.
    pub fn limit_statements(&mut self, limit: std::time::Duration) {
        let given = self.config.get_options().unwrap_or_default().to_owned();
        let limit = limit.as_millis();
        self.config
            .options(format!("{given} -c statement_timeout={limit}"));
    }

    pub async fn create(&self, population: &Population) -> Result<(), Failure> {
        if i32::try_from(population.members).is_err() {
            let members = population.members;
            return Err(Failure::Refused(format!(
                "{members} members exceed the range of PostgreSQL's int"
            )));
        }
        let client = pool::connect(&self.config).await?;
        let text = schema::create_statements(self.layout, population);
        client.batch_execute(&text).await.map_err(pool::failure)
    }

    pub async fn note(&self, name: &str) -> Result<Option<String>, Failure> {
        let client = pool::connect(&self.config).await?;
        match client.query_opt(schema::NOTE, &[&name]).await {
            Ok(row) => Ok(row.map(|row| row.get(0))),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
            Err(error) => Err(pool::failure(error)),
        }
    }

    /// Writes a note with [`schema::PUT_NOTE`] or [`schema::PUT_NOTE_IF_ABSENT`].
    pub async fn put_note(&self, how: &str, name: &str, text: &str) -> Result<(), Failure> {
        let client = pool::connect(&self.config).await?;
        let put = client.execute(how, &[&name, &text]).await;
        put.map(|_| ()).map_err(pool::failure)
    }

    /// Formats the settings that determine the contents of tables.
    pub fn layout(&self) -> String {
        let layout = match self.layout {
            Layout::Basic => "basic",
            Layout::Aggregate => "aggregate",
        };
        let rows = match self.rows {
            Rows::One => 1,
            Rows::Two => 2,
        };
        format!("layout={layout} rows={rows}")
    }

    pub async fn connect(&self, population: Arc<Population>) -> Result<Sql, Failure> {
        Sql::connect(self, population).await
    }
}

/// The number of connections of each worker. Statements are pipelined, so a few server processes keep its cores busy.
/// Twice as many connections reduced the throughput by a fifth (two cores, 32 threads).
const DEFAULT_CONNECTIONS: usize = 4;

impl Store for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn layout(&self) -> String {
        format!("postgres {}", self.layout())
    }

    fn processes(&self) -> &'static [&'static str] {
        &["postgres", "postmaster"]
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        Box::pin(self.create(population))
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(self.note(name))
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(self.put_note(schema::PUT_NOTE, name, text))
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(self.put_note(schema::PUT_NOTE_IF_ABSENT, name, text))
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async { Ok(Rc::new(self.connect(population).await?) as Rc<dyn Client>) })
    }
}

impl Client for Sql {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        Box::pin(self.load(members))
    }

    fn finish_load(&self) -> Reply<'_, ()> {
        Box::pin(self.finish_load())
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        Box::pin(async move {
            let row = self.profile(owner, requester == owner).await?;
            let mut profile = Profile {
                friends: row.friends,
                invitations: row.invitations,
                resources: row.resources,
                wrong: 0,
            };
            profile.check(self.population(), owner, row.attributes(), row.image());
            Ok(profile)
        })
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        Box::pin(async move { Ok(self.people(&self.friends(owner).await?)) })
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        Box::pin(async move { Ok(self.people(&self.invitations(member).await?)) })
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        Box::pin(self.invite(inviter, invitee))
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.accept(invitee, inviter))
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.reject(invitee, inviter))
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        Box::pin(self.thaw(member, friend))
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        Box::pin(async move {
            let mut resources = Resources::default();
            for row in self.top_resources(owner, top).await? {
                let Raw(body) = row.get(1);
                resources.push(self.population(), sql::number(&row, 0), body);
            }
            Ok(resources)
        })
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        Box::pin(async move {
            let mut comments = Comments::default();
            for row in self.comments(resource).await? {
                let Raw(body) = row.get(1);
                comments.push(self.population(), resource, sql::number(&row, 0), body);
            }
            Ok(comments)
        })
    }

    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        Box::pin(self.comment(member, resource, comment))
    }

    fn delete_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        Box::pin(self.delete_comment(resource, comment))
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        Box::pin(self.post(member, post))
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        Box::pin(async move {
            let mut feed = Feed::default();
            for row in self.feed(member, top).await? {
                let (post, Raw(body)) = (sql::post(&row), row.get(3));
                feed.push(self.population(), post, body);
            }
            Ok(feed)
        })
    }
}

impl Sql {
    fn people(&self, rows: &[tokio_postgres::Row]) -> People {
        let mut people = People::default();
        for row in rows {
            let (Raw(profile), thumbnail) = (row.get(1), row.get::<_, Option<Raw>>(2));
            let thumbnail = thumbnail.map(|Raw(bytes)| bytes);
            people.push(self.population(), sql::member(row, 0), profile, thumbnail);
        }
        people
    }
}
