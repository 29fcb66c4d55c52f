//! Connections of one worker, each with every statement prepared.
//!
//! A statement goes to the connection with the fewest under way, and right behind those: the connection's answers come in order, and
//! an answer that nobody waits for any more (a timeout) is read and dropped by the driver.

use std::cell::Cell;

use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use super::schema::Query;
use crate::stores::contract::Failure;
use crate::stores::links::{Link, Links};

pub struct Pool {
    config: Config,
    /// By [`Query`] as a number.
    texts: Vec<String>,
    links: Links<Connection>,
}

struct Connection {
    client: Client,
    /// The session behind it has no prepared statements any more, or it became a standby's: another one is needed.
    is_useless: Cell<bool>,
    /// By [`Query`] as a number.
    statements: Vec<Statement>,
}

impl Link for Connection {
    fn is_lost(&self) -> bool {
        self.is_useless.get() || self.client.is_closed()
    }
}

impl Pool {
    /// With every connection open.
    pub async fn open(
        config: Config,
        texts: Vec<String>,
        connections: usize,
    ) -> Result<Pool, Failure> {
        let pool = Pool {
            config,
            texts,
            links: Links::new(connections),
        };
        pool.links.open_all(|| pool.prepare()).await?;
        Ok(pool)
    }

    pub async fn rows(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let connection = self.links.enter(|| self.prepare()).await?;
        let statement = &connection.statements[query as usize];
        let rows = connection.client.query(statement, parameters).await;
        rows.map_err(|error| connection.failure(error))
    }

    /// How many rows changed.
    pub async fn change(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let connection = self.links.enter(|| self.prepare()).await?;
        let statement = &connection.statements[query as usize];
        let changed = connection.client.execute(statement, parameters).await;
        changed.map_err(|error| connection.failure(error))
    }

    async fn prepare(&self) -> Result<Connection, Failure> {
        let client = connect(&self.config).await?;
        let mut statements = Vec::with_capacity(self.texts.len());
        for text in &self.texts {
            // What was not asked cannot have happened.
            let statement = client.prepare(text).await.map_err(|error| {
                Failure::Refused(format!(
                    "{}; is the population loaded in this layout?",
                    describe(&error)
                ))
            })?;
            statements.push(statement);
        }
        Ok(Connection {
            client,
            is_useless: Cell::new(false),
            statements,
        })
    }
}

impl Connection {
    /// As [`failure`]; notes that the next call needs another connection where this one can no longer do what it is for. That is so behind a connection
    /// pooler that gave it another session, and where a primary was demoted.
    fn failure(&self, error: Error) -> Failure {
        let useless = [
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ];
        if error.code().is_some_and(|code| useless.contains(code)) {
            self.is_useless.set(true);
        }
        failure(error)
    }
}

/// # Errors
///
/// Refused: nothing was asked of anybody.
pub async fn connect(config: &Config) -> Result<Client, Failure> {
    let (client, connection) = config
        .connect(NoTls)
        .await
        .map_err(|error| Failure::Refused(format!("cannot connect: {}", describe(&error))))?;
    // It ends when the client is dropped or the connection is lost; calls then learn of it.
    tokio::spawn(connection);
    Ok(client)
}

/// A statement that PostgreSQL answers with an error was rolled back, being its own transaction. A session that it ended, or
/// that is gone, may have committed before.
pub fn failure(error: Error) -> Failure {
    let said_no = |error: &DbError| error.parsed_severity() == Some(Severity::Error);
    match error.as_db_error().is_some_and(said_no) {
        true => Failure::Refused(describe(&error)),
        false => Failure::Unknown(describe(&error)),
    }
}

fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} ({})", error.message(), error.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
