//! The connections of one worker, each with every statement prepared.
//!
//! A statement is sent on the connection with the fewest statements in progress, without waiting for those. The results
//! of a connection arrive in order. The driver reads and discards a result whose caller has stopped waiting (a
//! timeout).

use std::cell::Cell;

use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use super::schema::Query;
use crate::stores::contract::Failure;
use crate::stores::links::{Link, Links};

pub struct StatementPool {
    config: Config,
    /// Indexed by [`Query`].
    texts: Vec<String>,
    links: Links<Connection>,
}

struct Connection {
    client: Client,
    /// The server's session has lost the prepared statements, or the server has become a standby. Another connection is
    /// needed.
    is_unusable: Cell<bool>,
    /// Indexed by [`Query`].
    statements: Vec<Statement>,
}

impl Link for Connection {
    fn is_lost(&self) -> bool {
        self.is_unusable.get() || self.client.is_closed()
    }
}

impl StatementPool {
    /// Opens all connections.
    pub async fn open(
        config: Config,
        texts: Vec<String>,
        connections: usize,
    ) -> Result<StatementPool, Failure> {
        let pool = StatementPool {
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
        let connection = self.links.acquire(|| self.prepare()).await?;
        let statement = &connection.statements[query as usize];
        let rows = connection.client.query(statement, parameters).await;
        rows.map_err(|error| connection.failure(error))
    }

    /// Executes a statement. Returns the number of changed rows.
    pub async fn change(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let connection = self.links.acquire(|| self.prepare()).await?;
        let statement = &connection.statements[query as usize];
        let changed = connection.client.execute(statement, parameters).await;
        changed.map_err(|error| connection.failure(error))
    }

    async fn prepare(&self) -> Result<Connection, Failure> {
        let client = connect(&self.config).await?;
        let mut statements = Vec::with_capacity(self.texts.len());
        for text in &self.texts {
            // The statement was not sent, so it cannot have been executed.
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
            is_unusable: Cell::new(false),
            statements,
        })
    }
}

impl Connection {
    /// Converts an error like [`failure`]. Also records that the next call needs another connection if this one has
    /// become unusable: a connection pooler has assigned another session, or the primary was demoted.
    fn failure(&self, error: Error) -> Failure {
        let unusable_codes = [
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ];
        if error
            .code()
            .is_some_and(|code| unusable_codes.contains(code))
        {
            self.is_unusable.set(true);
        }
        failure(error)
    }
}

/// Opens a connection.
///
/// # Errors
///
/// Refused, because nothing was sent.
pub async fn connect(config: &Config) -> Result<Client, Failure> {
    let (client, connection) = config
        .connect(NoTls)
        .await
        .map_err(|error| Failure::Refused(format!("cannot connect: {}", describe(&error))))?;
    // The task ends when the client is dropped or the connection is lost. Calls then fail.
    tokio::spawn(connection);
    Ok(client)
}

/// Converts an error. A statement that failed with a PostgreSQL error was rolled back, since it is a transaction of its
/// own. If the session ended or was lost, it may have been committed before.
pub fn failure(error: Error) -> Failure {
    let is_error = |error: &DbError| error.parsed_severity() == Some(Severity::Error);
    if error.as_db_error().is_some_and(is_error) {
        Failure::Refused(describe(&error))
    } else {
        Failure::Unknown(describe(&error))
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
