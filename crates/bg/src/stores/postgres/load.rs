//! Loads by COPY, in PostgreSQL's binary format.
//!
//! A range is loaded in one transaction, which first deletes existing rows of the range. Loading it again therefore has
//! the same result.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use futures::SinkExt;
use tokio_postgres::{CopyInSink, Transaction};

use super::pool;
use super::schema::{self, Layout, Rows};
use super::sql::Sql;
use crate::model::content::{Owner, RESOURCE_SIZE, THUMBNAIL_SIZE};
use crate::stores::contract::Failure;

impl Sql {
    pub async fn load(&self, members: Range<u32>) -> Result<(), Failure> {
        let mut loader = self.loader.lock().await;
        if loader.as_ref().is_none_or(|client| client.is_closed()) {
            *loader = Some(self.connect_loader().await?);
        }
        let client = loader.as_mut().expect("just connected");
        self.load_atomically(client, members)
            .await
            .map_err(pool::failure)
    }

    /// Loads have no time limit for statements.
    async fn connect_loader(&self) -> Result<tokio_postgres::Client, Failure> {
        let client = pool::connect(&self.config).await?;
        let unlimited = client.batch_execute("SET statement_timeout = 0").await;
        unlimited.map_err(pool::failure)?;
        Ok(client)
    }

    async fn load_atomically(
        &self,
        client: &mut tokio_postgres::Client,
        members: Range<u32>,
    ) -> Result<(), tokio_postgres::Error> {
        let population = &self.population;
        let transaction = client.transaction().await?;
        let (first, end) = (members.start, members.end);
        let resources = u64::from(population.resources);
        let (first_resource, end_resource) =
            (u64::from(first) * resources, u64::from(end) * resources);
        transaction
            .batch_execute(&format!(
                "DELETE FROM members WHERE id >= {first} AND id < {end};
                 DELETE FROM friendships WHERE member >= {first} AND member < {end};
                 DELETE FROM invitations WHERE invitee >= {first} AND invitee < {end};
                 DELETE FROM resources WHERE id >= {first_resource} AND id < {end_resource};
                 DELETE FROM comments WHERE resource >= {first_resource} AND resource < {end_resource};
                 DELETE FROM posts WHERE author >= {first} AND author < {end};"
            ))
            .await?;

        let counts = self.layout == Layout::Aggregate;
        let columns = if counts {
            "id, profile, thumbnail, image, friends, invitations, resources"
        } else {
            "id, profile, thumbnail, image"
        };
        let mut copy = CopyWriter::begin(&transaction, "members", columns).await?;
        for member in members.clone() {
            let image = population.image_size;
            copy.row(if counts { 7 } else { 4 });
            copy.int(member);
            copy.content(
                self,
                Owner::Profile(member),
                Some(population.profile_size()),
            );
            let thumbnail = image.map(|_| THUMBNAIL_SIZE);
            copy.content(self, Owner::Thumbnail(member), thumbnail);
            copy.content(self, Owner::Image(member), image);
            if counts {
                copy.bigint(population.friends_of(member).count() as u64);
                copy.bigint(population.inviters_of(member).count() as u64);
                copy.bigint(resources);
            }
            copy.send_when_large().await?;
        }
        copy.end().await?;

        let mut copy = CopyWriter::begin(&transaction, "friendships", "member, friend").await?;
        for member in members.clone() {
            for friend in population.friends_of(member) {
                if self.rows == Rows::Two || member < friend {
                    copy.pair(member, friend);
                }
            }
            copy.send_when_large().await?;
        }
        copy.end().await?;

        let mut copy = CopyWriter::begin(&transaction, "invitations", "invitee, inviter").await?;
        for member in members.clone() {
            for inviter in population.inviters_of(member) {
                copy.pair(member, inviter);
            }
            copy.send_when_large().await?;
        }
        copy.end().await?;

        let mut copy =
            CopyWriter::begin(&transaction, "resources", "id, creator, wall, body").await?;
        for resource in first_resource..end_resource {
            copy.row(4);
            copy.bigint(resource);
            copy.int(population.creator(resource));
            copy.int(population.wall(resource));
            copy.content(self, Owner::Resource(resource), Some(RESOURCE_SIZE));
            copy.send_when_large().await?;
        }
        copy.end().await?;

        let columns = "resource, number, creator, body";
        let mut copy = CopyWriter::begin(&transaction, "comments", columns).await?;
        for resource in first_resource..end_resource {
            for number in 0..u64::from(population.comments) {
                copy.row(4);
                copy.bigint(resource);
                copy.bigint(number);
                copy.int(population.creator(resource));
                let comment = Owner::Comment(resource, number);
                copy.content(self, comment, Some(population.comment_size));
            }
            copy.send_when_large().await?;
        }
        copy.end().await?;
        transaction.commit().await
    }

    pub async fn finish_load(&self) -> Result<(), Failure> {
        let client = self.connect_loader().await?;
        for statement in schema::finish_statements(self.rows) {
            client
                .batch_execute(statement)
                .await
                .map_err(pool::failure)?;
        }
        Ok(())
    }
}

/// A COPY in progress. Rows are accumulated and sent in large pieces.
struct CopyWriter {
    sink: std::pin::Pin<Box<CopyInSink<Bytes>>>,
    rows: BytesMut,
}

const LARGE: usize = 256 * 1024;

impl CopyWriter {
    async fn begin(
        transaction: &Transaction<'_>,
        table: &str,
        columns: &str,
    ) -> Result<CopyWriter, tokio_postgres::Error> {
        let text = format!("COPY {table} ({columns}) FROM STDIN (FORMAT binary)");
        let sink = transaction.copy_in(&text).await?;
        let mut rows = BytesMut::with_capacity(LARGE + LARGE / 4);
        rows.put_slice(b"PGCOPY\n\xff\r\n\0");
        rows.put_u32(0); // flags
        rows.put_u32(0); // size of the header's extension
        Ok(CopyWriter {
            sink: Box::pin(sink),
            rows,
        })
    }

    fn row(&mut self, columns: u16) {
        self.rows.put_u16(columns);
    }

    fn int(&mut self, value: u32) {
        self.rows.put_u32(4);
        self.rows.put_u32(value);
    }

    fn bigint(&mut self, value: u64) {
        self.rows.put_u32(8);
        self.rows.put_u64(value);
    }

    fn pair(&mut self, member: u32, other: u32) {
        self.row(2);
        self.int(member);
        self.int(other);
    }

    /// Writes a content, or NULL without a size.
    fn content(&mut self, sql: &Sql, owner: Owner, size: Option<usize>) {
        let Some(size) = size else {
            self.rows.put_i32(-1);
            return;
        };
        self.rows.put_u32(size as u32);
        let begin = self.rows.len();
        self.rows.resize(begin + size, 0);
        let into = &mut self.rows[begin..];
        sql.population.contents().fill(owner, into);
    }

    async fn send_when_large(&mut self) -> Result<(), tokio_postgres::Error> {
        if self.rows.len() >= LARGE {
            let rows = self.rows.split().freeze();
            self.rows.reserve(LARGE + LARGE / 4);
            self.sink.send(rows).await?;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<(), tokio_postgres::Error> {
        self.rows.put_i16(-1);
        self.sink.send(self.rows.split().freeze()).await?;
        self.sink.as_mut().finish().await?;
        Ok(())
    }
}
