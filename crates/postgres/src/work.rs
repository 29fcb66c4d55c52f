//! The operations on pooled connections: loads, writes and heartbeats.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use tokio_postgres::error::SqlState;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use larder_types::KeyRange;

use crate::catalog::Versions;
use crate::connect::Pool;
use crate::error::{Error, describe_error};
use crate::mapping::Mapping;
use crate::merge::{Loaded, Row};
use crate::pgoutput::Cell;
use crate::snapshot::{Lsn, Snapshot, parse_lsn};
use crate::sql::{LOAD_BEGIN, LOAD_END, Write};

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of changed rows.
    pub rows: u64,
    /// The sum after an increment.
    pub sum: Option<i64>,
}

/// A committed write, and the transaction or position at which the stream includes it.
pub struct CommittedWrite {
    pub written: Written,
    pub xid: Option<u32>,
    pub lsn: Lsn,
}

/// Loads ranges, each with the mapping and the OID of its table.
pub async fn load(
    pool: &Pool,
    ranges: Vec<(KeyRange, Arc<Mapping>, u32)>,
    rows_max: u64,
) -> Result<Loaded, Error> {
    let mut sql = LOAD_BEGIN.to_owned();
    let mut selected = Vec::new();
    for (range, mapping, number) in &ranges {
        if let Some(select) = mapping.select(range, rows_max) {
            // Checks that the table that is read is the one whose changes are followed.
            sql.push_str(&format!(
                "SELECT {}::regclass::oid;{select}",
                crate::sql::literal(&mapping.qualified())
            ));
            selected.push((range, mapping, *number));
        }
    }
    sql.push_str(LOAD_END);
    let connection = pool.get().await?;
    let loaded = read(connection.client(), &sql, &selected, rows_max).await;
    match &loaded {
        Ok(_) => connection.release(),
        // Its transaction may still be open, so the connection is closed.
        Err(_) => drop(connection),
    }
    loaded
}

async fn read(
    client: &tokio_postgres::Client,
    sql: &str,
    selected: &[(&KeyRange, &Arc<Mapping>, u32)],
    rows_max: u64,
) -> Result<Loaded, Error> {
    let failed = |error: tokio_postgres::Error| {
        match error.as_db_error() {
        Some(db) if *db.code() == SqlState::QUERY_CANCELED => Error::Refused(
            "the load took longer than postgres.statement_timeout_seconds: an index that begins with the columns of the pattern's first slots makes it fast"
                .to_owned(),
        ),
        Some(_) => Error::Setup(format!("PostgreSQL refused a load: {}", describe_error(&error))),
        None => Error::Unreachable(format!("the connection to PostgreSQL broke: {}", describe_error(&error))),
    }
    };
    let mut messages = pin!(client.simple_query_raw(sql).await.map_err(failed)?);
    // The statements are BEGIN, SET, the snapshot, two for each range, the position, and COMMIT.
    let mut statement = 0;
    let (mut snapshot, mut lsn) = (None, None);
    let mut rows: Vec<Row> = Vec::new();
    let mut count = 0;
    while let Some(message) = messages.next().await {
        let row = match message.map_err(failed)? {
            SimpleQueryMessage::CommandComplete(_) => {
                statement += 1;
                continue;
            }
            SimpleQueryMessage::Row(row) => row,
            _ => continue,
        };
        if statement == 2 {
            snapshot = row.get(0).and_then(Snapshot::parse);
        } else if statement == 3 + 2 * selected.len() {
            lsn = row.get(0).and_then(parse_lsn);
        } else if let Some((range, mapping, number)) = selected.get((statement - 3) / 2) {
            if statement % 2 == 1 {
                if row.get(0).and_then(|text| text.parse().ok()) != Some(*number) {
                    return Err(Error::Setup(format!(
                        "the table {} was replaced by another one",
                        mapping.shown()
                    )));
                }
                continue;
            }
            count += 1;
            if count > rows_max {
                return Err(Error::Refused(format!(
                    "the range holds more than {rows_max} rows of {}, which postgres.load_rows_max allows; read a narrower one",
                    mapping.shown()
                )));
            }
            if let Some(row) = to_row(mapping, &row)?.filter(|(key, _)| range.contains(key)) {
                rows.push(row);
            }
        }
    }
    match (snapshot, lsn) {
        (Some(snapshot), Some(lsn)) => Ok(Loaded {
            snapshot,
            lsn,
            rows,
        }),
        _ => Err(Error::Unreachable(
            "PostgreSQL returned no snapshot for a load".to_owned(),
        )),
    }
}

/// Converts a result row to a key and a value.
fn to_row(mapping: &Mapping, row: &SimpleQueryRow) -> Result<Option<Row>, Error> {
    let cell = |at: usize| match row.get(at) {
        Some(text) => Cell::Text(Bytes::copy_from_slice(text.as_bytes())),
        None => Cell::Null,
    };
    let slots: Vec<Cell> = (0..mapping.slots.len()).map(cell).collect();
    let values = mapping.slots.len()..mapping.slots.len() + mapping.values.len();
    let values: Vec<Cell> = values.map(cell).collect();
    let key = mapping.key_of(&slots).map_err(|misfit| {
        let table = mapping.shown();
        let row: Vec<String> = mapping
            .slots
            .iter()
            .enumerate()
            .map(|(at, slot)| format!("{} = {}", slot.column, row.get(at).unwrap_or("null")))
            .collect();
        Error::Refused(format!(
            "a row of {table} cannot be a key of {}: {misfit}; correct or remove it ({}), and keep such rows out with a CHECK constraint",
            mapping.pattern,
            row.join(", ")
        ))
    })?;
    Ok(mapping.value_of(&values).map(|value| (key, value)))
}

/// Executes a write atomically.
pub async fn write(
    pool: &Pool,
    mappings: &[Arc<Mapping>],
    write: &Write,
) -> Result<CommittedWrite, Error> {
    let mapping = |key: &[u8]| {
        let mut mappings = mappings.iter();
        let found = mappings.find(|mapping| key.starts_with(&mapping.prefix));
        found.ok_or_else(|| Error::Refused("the key belongs to no table in PostgreSQL".to_owned()))
    };
    let mut statements = Vec::new();
    match write {
        Write::Set { rows, when } => {
            for (key, value) in rows {
                let statement = mapping(key)?.set(key, value, *when);
                statements.push(statement.map_err(Error::Refused)?);
            }
        }
        Write::Remove { keys } => {
            for key in keys {
                statements.extend(mapping(key)?.remove(key));
            }
        }
        Write::Increment { key, by } => {
            let statement = mapping(key)?.increment(key, *by);
            statements.push(statement.map_err(Error::Refused)?);
        }
    }
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {} SELECT pg_current_xact_id_if_assigned()::text; COMMIT; SELECT pg_current_wal_insert_lsn()::text",
        statements.concat()
    );
    let connection = pool.get().await?;
    let messages = connection.client().simple_query(&sql).await;
    let messages = messages.map_err(|error| match error.as_db_error() {
        Some(db) if *db.code() == SqlState::NUMERIC_VALUE_OUT_OF_RANGE => {
            Error::Refused("value is not an integer or out of range".to_owned())
        }
        Some(_) => Error::Refused(format!(
            "PostgreSQL refused the write: {}",
            describe_error(&error)
        )),
        None => Error::Unknown(format!(
            "the connection to PostgreSQL broke: {}; the write may have been executed",
            describe_error(&error)
        )),
    })?;
    connection.release();
    let mut statement = 0;
    let mut committed = CommittedWrite {
        written: Written { rows: 0, sum: None },
        xid: None,
        lsn: Lsn::MAX,
    };
    for message in messages {
        match message {
            SimpleQueryMessage::CommandComplete(rows) => {
                if (1..=statements.len()).contains(&statement) {
                    committed.written.rows += rows;
                }
                statement += 1;
            }
            SimpleQueryMessage::Row(row) => {
                let text = row.get(0);
                if statement <= statements.len() {
                    committed.written.sum = text.and_then(|text| text.parse().ok());
                } else if statement == statements.len() + 1 {
                    let xid: Option<u64> = text.and_then(|text| text.parse().ok());
                    committed.xid = xid.map(|xid| xid as u32);
                } else if let Some(lsn) = text.and_then(parse_lsn) {
                    committed.lsn = lsn;
                }
            }
            _ => {}
        }
    }
    Ok(committed)
}

/// The state of PostgreSQL.
pub struct Beat {
    pub lsn: Lsn,
    /// Contains the transactions that have ended.
    pub snapshot: Snapshot,
    pub versions: Versions,
}

/// Queries the state of PostgreSQL. `version_query` is the statement that reads the versions of its catalogs, or empty.
pub async fn beat(pool: &Pool, version_query: &str) -> Result<Beat, Error> {
    let sql = format!(
        "SELECT pg_current_wal_insert_lsn()::text, pg_current_snapshot()::text; {version_query}"
    );
    let mut rows = rows(pool, &sql).await?.into_iter();
    let row = rows.next();
    let found = row.and_then(|row| Some((parse_lsn(row.get(0)?)?, Snapshot::parse(row.get(1)?)?)));
    let (lsn, snapshot) =
        found.ok_or_else(|| Error::Unreachable("PostgreSQL returned no position".to_owned()))?;
    let mut versions = Versions::default();
    rows.for_each(|row| versions.take(&row));
    Ok(Beat {
        lsn,
        snapshot,
        versions,
    })
}

/// Writes a message to PostgreSQL's log. Its commit flushes all earlier commits, so that the stream advances past them.
pub async fn nudge(pool: &Pool) -> Result<(), Error> {
    rows(pool, "SELECT pg_logical_emit_message(true, 'larder', '')").await?;
    Ok(())
}

pub async fn rows(pool: &Pool, sql: &str) -> Result<Vec<SimpleQueryRow>, Error> {
    let connection = pool.get().await?;
    let messages = connection.client().simple_query(sql).await;
    let messages = messages.map_err(|error| {
        Error::Unreachable(format!(
            "the connection to PostgreSQL broke: {}",
            describe_error(&error)
        ))
    })?;
    connection.release();
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(rows.collect())
}
