//! Executes each action as one statement.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::Postgres;
use super::pool::StatementPool;
use super::schema::{Layout, Query, Rows};
use crate::model::content::{Owner, POST_SIZE};
use crate::model::population::Population;
use crate::stores::contract::{Failure, Post};

/// One worker's access to PostgreSQL.
pub struct Sql {
    pub(super) config: tokio_postgres::Config,
    pub(super) layout: Layout,
    pub(super) rows: Rows,
    pub(super) population: Arc<Population>,
    pub(super) loader: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
    pool: StatementPool,
}

/// A member's row, as returned by [`Query::OwnProfile`] and [`Query::OtherProfile`].
pub struct ProfileRow {
    row: Row,
    pub friends: u64,
    pub invitations: Option<u64>,
    pub resources: u64,
}

impl ProfileRow {
    pub fn attributes(&self) -> &[u8] {
        let Raw(bytes) = self.row.get(0);
        bytes
    }

    pub fn image(&self) -> Option<&[u8]> {
        let image = self.row.get::<_, Option<Raw>>(1);
        image.map(|Raw(bytes)| bytes)
    }
}

/// The bytes of a column, without a copy, whatever its type.
pub struct Raw<'a>(pub &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(
        _: &Type,
        bytes: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(bytes))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

pub fn number(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column) as u64
}

pub fn member(row: &Row, column: usize) -> u32 {
    row.get::<_, i32>(column) as u32
}

pub fn post(row: &Row) -> Post {
    Post {
        author: member(row, 0),
        number: number(row, 1),
        time: number(row, 2),
    }
}

/// Converts to SQL's `int`. `create` rejects populations with more members.
fn id(member: u32) -> i32 {
    member as i32
}

impl Sql {
    pub async fn connect(postgres: &Postgres, population: Arc<Population>) -> Result<Sql, Failure> {
        let (layout, rows) = (postgres.layout, postgres.rows);
        let texts = Query::ALL.map(|query| query.sql(layout, rows)).into();
        Ok(Sql {
            config: postgres.config.clone(),
            layout,
            rows,
            population,
            loader: tokio::sync::Mutex::default(),
            pool: StatementPool::open(postgres.config.clone(), texts, postgres.connections).await?,
        })
    }

    pub fn population(&self) -> &Population {
        &self.population
    }

    pub async fn profile(&self, owner: u32, own: bool) -> Result<ProfileRow, Failure> {
        let query = if own {
            Query::OwnProfile
        } else {
            Query::OtherProfile
        };
        let mut rows = self.pool.rows(query, &[&id(owner)]).await?;
        let row = rows
            .pop()
            .ok_or_else(|| Failure::Refused(format!("member {owner} does not exist")))?;
        Ok(ProfileRow {
            friends: number(&row, 2),
            resources: number(&row, 3),
            invitations: row.get::<_, Option<i64>>(4).map(|count| count as u64),
            row,
        })
    }

    /// Returns rows of number, profile and thumbnail.
    pub async fn friends(&self, owner: u32) -> Result<Vec<Row>, Failure> {
        self.pool.rows(Query::Friends, &[&id(owner)]).await
    }

    /// Returns rows of number, profile and thumbnail.
    pub async fn invitations(&self, member: u32) -> Result<Vec<Row>, Failure> {
        self.pool.rows(Query::Invitations, &[&id(member)]).await
    }

    pub async fn invite(&self, inviter: u32, invitee: u32) -> Result<(), Failure> {
        self.change_relation(Query::Invite, inviter, invitee, "no such member")
            .await
    }

    pub async fn accept(&self, invitee: u32, inviter: u32) -> Result<(), Failure> {
        self.change_relation(Query::Accept, invitee, inviter, "no such invitation")
            .await
    }

    pub async fn reject(&self, invitee: u32, inviter: u32) -> Result<(), Failure> {
        self.change_relation(Query::Reject, invitee, inviter, "no such invitation")
            .await
    }

    pub async fn thaw(&self, member: u32, friend: u32) -> Result<(), Failure> {
        self.change_relation(Query::Thaw, member, friend, "no such friendship")
            .await
    }

    async fn change_relation(
        &self,
        query: Query,
        member: u32,
        other: u32,
        rejection: &str,
    ) -> Result<(), Failure> {
        self.execute_write(query, &[&id(member), &id(other)], rejection)
            .await
    }

    /// Executes a write, which is refused if it changes nothing.
    async fn execute_write(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
        rejection: &str,
    ) -> Result<(), Failure> {
        match self.pool.change(query, parameters).await? {
            0 => Err(Failure::Refused(rejection.to_owned())),
            _ => Ok(()),
        }
    }

    /// Returns rows of number and body.
    pub async fn top_resources(&self, owner: u32, top: u32) -> Result<Vec<Row>, Failure> {
        self.pool
            .rows(Query::TopResources, &[&id(owner), &i64::from(top)])
            .await
    }

    /// Returns rows of number and body.
    pub async fn comments(&self, resource: u64) -> Result<Vec<Row>, Failure> {
        self.pool.rows(Query::Comments, &[&(resource as i64)]).await
    }

    pub async fn comment(&self, member: u32, resource: u64, number: u64) -> Result<(), Failure> {
        let body = self.text(
            Owner::Comment(resource, number),
            self.population().comment_size,
        );
        let (resource, number) = (resource as i64, number as i64);
        let parameters: [&(dyn ToSql + Sync); 4] = [&resource, &number, &id(member), &body];
        self.execute_write(Query::PostComment, &parameters, "not inserted")
            .await
    }

    pub async fn delete_comment(&self, resource: u64, number: u64) -> Result<(), Failure> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&(resource as i64), &(number as i64)];
        self.execute_write(Query::DeleteComment, &parameters, "no such comment")
            .await
    }

    pub async fn post(&self, author: u32, post: Post) -> Result<(), Failure> {
        let body = self.text(Owner::Post(author, post.number), POST_SIZE);
        let (number, time) = (post.number as i64, post.time as i64);
        let parameters: [&(dyn ToSql + Sync); 4] = [&id(author), &number, &time, &body];
        self.execute_write(Query::Post, &parameters, "not inserted")
            .await
    }

    /// Returns rows of author, number, time and body.
    pub async fn feed(&self, member: u32, top: u32) -> Result<Vec<Row>, Failure> {
        self.pool
            .rows(Query::Feed, &[&id(member), &i64::from(top)])
            .await
    }

    fn text(&self, owner: Owner, size: usize) -> String {
        let bytes = self.population.contents().generate(owner, size);
        String::from_utf8(bytes).expect("texts are letters")
    }
}
