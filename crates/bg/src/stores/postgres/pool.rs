//! Connections of one worker, each with every statement prepared.
//!
//! A statement goes to the connection with the fewest under way, and right behind those: the connection's answers come in order, and
//! an answer that nobody waits for any more (a timeout) is read and dropped by the driver.
//!
//! A lost connection is opened again by the next call that is given it, at most every [`PAUSE`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use super::schema::Query;
use crate::store::Failure;

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

pub struct Pool {
    config: Config,
    /// By [`Query`] as a number.
    texts: Vec<String>,
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    connection: RefCell<Option<Rc<Connection>>>,
    under_way: Cell<usize>,
    /// When it was last tried to open.
    opening: Mutex<Option<Instant>>,
}

struct Connection {
    client: Client,
    /// By [`Query`] as a number.
    statements: Vec<Statement>,
}

impl Pool {
    /// With every connection open.
    pub async fn open(
        config: Config,
        texts: Vec<String>,
        connections: usize,
    ) -> Result<Pool, Failure> {
        let slots = (0..connections.max(1)).map(|_| Slot::default()).collect();
        let pool = Pool {
            config,
            texts,
            slots,
        };
        for slot in &pool.slots {
            pool.live(slot).await?;
        }
        Ok(pool)
    }

    pub async fn rows(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let (connection, _entered) = self.enter().await?;
        let statement = &connection.statements[query as usize];
        let rows = connection.client.query(statement, parameters).await;
        rows.map_err(failure)
    }

    /// How many rows changed.
    pub async fn change(
        &self,
        query: Query,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let (connection, _entered) = self.enter().await?;
        let statement = &connection.statements[query as usize];
        let changed = connection.client.execute(statement, parameters).await;
        changed.map_err(failure)
    }

    async fn enter(&self) -> Result<(Rc<Connection>, Entered<'_>), Failure> {
        let slot = self.slots.iter().min_by_key(|slot| slot.under_way.get());
        let slot = slot.expect("at least one");
        slot.under_way.set(slot.under_way.get() + 1);
        let entered = Entered(slot);
        Ok((self.live(slot).await?, entered))
    }

    async fn live(&self, slot: &Slot) -> Result<Rc<Connection>, Failure> {
        if let Some(connection) = slot.live() {
            return Ok(connection);
        }
        let mut tried = slot.opening.lock().await;
        if let Some(connection) = slot.live() {
            return Ok(connection);
        }
        if let Some(tried) = *tried {
            tokio::time::sleep(PAUSE.saturating_sub(tried.elapsed())).await;
        }
        *tried = Some(Instant::now());
        let connection = Rc::new(self.prepare().await?);
        *slot.connection.borrow_mut() = Some(connection.clone());
        Ok(connection)
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
        Ok(Connection { client, statements })
    }
}

impl Slot {
    fn live(&self) -> Option<Rc<Connection>> {
        let connection = self.connection.borrow();
        connection
            .as_ref()
            .filter(|connection| !connection.client.is_closed())
            .cloned()
    }
}

/// Counts a call as under way.
struct Entered<'a>(&'a Slot);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
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
