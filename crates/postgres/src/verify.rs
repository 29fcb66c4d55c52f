//! Looks at the database before anything is read from it: what is missing is said with the statement that mends it.
//!
//! Nothing is changed here: a database's schema, publications and rights are its owner's.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use crate::catalog::{self, Versions};
use crate::error::{Error, said};
use crate::mapping::{Mapping, SlotKind, ValueKind};
use crate::sql::literal;

/// The database as it was looked at.
#[derive(Debug, Clone)]
pub struct Verified {
    pub tables: Vec<VerifiedTable>,
    pub versions: Versions,
    /// What asks for the versions again.
    pub look: Arc<str>,
}

/// A mapping as its table is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedTable {
    pub mapping: Arc<Mapping>,
    /// The table's number, which the replication stream tells.
    pub number: u32,
}

impl Verified {
    /// Whether the publication and the tables are as they were at an earlier look, and have been in between: no change was left out.
    pub fn is_published_as(&self, before: &Verified) -> bool {
        self.versions.publication == before.versions.publication && self.tables == before.tables
    }

    /// The tables that are not, or may not have been in between, what they were at an earlier look.
    pub fn changed_since<'v>(
        &'v self,
        before: &'v Verified,
    ) -> impl Iterator<Item = &'v Mapping> + 'v {
        let (now, before) = (&self.versions.tables, &before.versions.tables);
        let changed = move |(at, _): &(usize, &VerifiedTable)| now.get(at) != before.get(at);
        let tables = self.tables.iter().enumerate().filter(changed);
        tables.map(|(_, table)| &*table.mapping)
    }
}

type Row = Vec<Option<String>>;

/// Looks at everything. The same versions twice mean that nothing changed in between.
///
/// # Errors
/// [`Error::Setup`] for the first thing that must be set right.
pub async fn verify(
    client: &Client,
    mappings: &[Mapping],
    publication: &str,
) -> Result<Verified, Error> {
    let (user, version) = server(client).await?;
    let look = catalog::statement(mappings, publication, version);
    let versions = versions(client, &look).await?;
    let mut tables = Vec::new();
    for mapping in mappings {
        tables.push(table(client, mapping, &user).await?);
    }
    published(client, mappings, publication).await?;
    Ok(Verified {
        tables,
        versions,
        look: look.into(),
    })
}

async fn versions(client: &Client, look: &str) -> Result<Versions, Error> {
    let messages = client.simple_query(look).await;
    let messages = messages.map_err(|error| Error::Unreachable(said(&error)))?;
    let mut versions = Versions::default();
    for message in &messages {
        if let SimpleQueryMessage::Row(row) = message {
            versions.take(row);
        }
    }
    Ok(versions)
}

/// Runs statements; hands out the rows of all.
async fn rows(client: &Client, sql: &str) -> Result<Vec<Row>, Error> {
    let messages = client
        .simple_query(sql)
        .await
        .map_err(|error| Error::Unreachable(said(&error)))?;
    let row = |row: SimpleQueryRow| {
        (0..row.len())
            .map(|at| row.get(at).map(str::to_owned))
            .collect()
    };
    Ok(messages
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(found) => Some(row(found)),
            _ => None,
        })
        .collect())
}

fn cell(row: &Row, at: usize) -> &str {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

fn setup<T>(message: String) -> Result<T, Error> {
    Err(Error::Setup(message))
}

/// Checks the server and the role; tells the role and the server's version.
async fn server(client: &Client) -> Result<(String, u32), Error> {
    let found = rows(
        client,
        "SELECT current_setting('server_version_num'), current_setting('wal_level'), \
         current_setting('server_encoding'), pg_is_in_recovery(), current_user, \
         (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)",
    )
    .await?;
    let Some(row) = found.first() else {
        return Err(Error::Unreachable("PostgreSQL answered nothing".to_owned()));
    };
    let version: u32 = cell(row, 0).parse().unwrap_or(0);
    if version < 140_000 {
        return setup(format!(
            "PostgreSQL is of version {}; larder needs 14 or later",
            version / 10_000
        ));
    }
    if cell(row, 1) != "logical" {
        return setup(format!(
            "PostgreSQL's wal_level is {}, so changes cannot be followed; run ALTER SYSTEM SET wal_level = 'logical' and restart PostgreSQL",
            cell(row, 1)
        ));
    }
    if cell(row, 2) != "UTF8" {
        return setup(format!(
            "the database's encoding is {}; larder needs UTF8",
            cell(row, 2)
        ));
    }
    if cell(row, 3) == "t" {
        return setup(
            "PostgreSQL is a standby, where changes cannot be followed; give postgres.url the primary's address"
                .to_owned(),
        );
    }
    let user = cell(row, 4).to_owned();
    if cell(row, 5) != "t" {
        return setup(format!(
            "the role {user} may not follow changes; run ALTER ROLE {user} REPLICATION"
        ));
    }
    Ok((user, version))
}

struct Index {
    columns: Vec<String>,
    is_primary: bool,
    is_identity: bool,
}

async fn table(client: &Client, mapping: &Mapping, user: &str) -> Result<VerifiedTable, Error> {
    let shown = mapping.shown();
    let name = &mapping.name;
    let found = rows(
        client,
        &format!(
            "SELECT c.oid, c.relkind, c.relreplident, row_security_active(c.oid), \
             has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), \
             has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'), \
             c.relpersistence \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = {} AND c.relname = {}",
            literal(&mapping.schema),
            literal(&mapping.table)
        ),
    )
    .await?;
    let Some(row) = found.first() else {
        return setup(format!(
            "there is no table {shown} in PostgreSQL; create it, or correct tables.{name}.table"
        ));
    };
    match cell(row, 1) {
        "r" => {}
        "p" => {
            return setup(format!(
                "{shown} is partitioned, which larder cannot follow yet; map its partitions one by one"
            ));
        }
        _ => {
            return setup(format!(
                "{shown} is not a table, and only tables can be followed; correct tables.{name}.table"
            ));
        }
    }
    if cell(row, 6) != "p" {
        return setup(format!(
            "{shown} is unlogged or temporary, so its changes are not told; run ALTER TABLE {shown} SET LOGGED"
        ));
    }
    if cell(row, 4) != "t" {
        return setup(format!(
            "the role {user} may not read {shown}; run GRANT SELECT ON {shown} TO {user}"
        ));
    }
    if cell(row, 3) == "t" {
        return setup(format!(
            "row security hides rows of {shown} from the role {user}, while replication tells of all; run ALTER ROLE {user} BYPASSRLS"
        ));
    }
    if mapping.through && cell(row, 5) != "t" {
        return setup(format!(
            "the role {user} may not write {shown}, which tables.{name}.write = \"through\" needs; run GRANT INSERT, UPDATE, DELETE ON {shown} TO {user}"
        ));
    }
    let number: u32 = cell(row, 0).parse().unwrap_or(0);
    let mut mapping = mapping.clone();
    columns(client, &mut mapping, number).await?;
    let indexes = indexes(client, number).await?;
    unique(&mut mapping, &indexes)?;
    identity(&mapping, cell(row, 2), &indexes)?;
    Ok(VerifiedTable {
        mapping: Arc::new(mapping),
        number,
    })
}

/// Checks that the columns are there, and learns what they hold.
async fn columns(client: &Client, mapping: &mut Mapping, number: u32) -> Result<(), Error> {
    let found = rows(
        client,
        &format!(
            "SELECT attname, atttypid, format_type(atttypid, atttypmod), attgenerated FROM pg_attribute \
             WHERE attrelid = {number} AND attnum > 0 AND NOT attisdropped"
        ),
    )
    .await?;
    let found: BTreeMap<&str, (u32, &str, &str)> = found
        .iter()
        .map(|row| {
            let number = cell(row, 1).parse().unwrap_or(0);
            (cell(row, 0), (number, cell(row, 2), cell(row, 3)))
        })
        .collect();
    let (shown, name) = (mapping.shown(), mapping.name.clone());
    let column = |column: &str, key: &str| {
        let Some((number, kind, generated)) = found.get(column) else {
            return setup(format!(
                "{shown} has no column {column}; it has {}; correct tables.{name}.{key}",
                found.keys().copied().collect::<Vec<_>>().join(", ")
            ));
        };
        if !generated.is_empty() {
            return setup(format!(
                "the column {column} of {shown} is generated, and PostgreSQL does not replicate such columns; make it a plain one, filled by a trigger"
            ));
        }
        Ok((*number, kind.to_string()))
    };
    for slot in &mut mapping.slots {
        let (number, kind) = column(&slot.column, "pattern or .columns")?;
        slot.kind = match number {
            25 | 1043 => SlotKind::Text,
            21 => SlotKind::Integer {
                max: i64::from(i16::MAX),
            },
            23 => SlotKind::Integer {
                max: i64::from(i32::MAX),
            },
            20 => SlotKind::Integer { max: i64::MAX },
            2950 => SlotKind::Uuid,
            _ => {
                return setup(format!(
                    "the column {} of {shown} is of type {kind}, which cannot be a slot of a key; text, varchar, smallint, integer, bigint and uuid can: for a time, use a bigint such as microseconds since 1970",
                    slot.column
                ));
            }
        };
        if slot.kind == SlotKind::Uuid && slot.width.is_some_and(|width| width != 36) {
            return setup(format!(
                "the column {} of {shown} is a uuid, which takes 36 bytes; write <{}:36> in tables.{name}.pattern",
                slot.column, slot.name
            ));
        }
    }
    for value in &mut mapping.values {
        let (number, _) = column(&value.column, "value")?;
        value.kind = match number {
            17 => ValueKind::Bytes,
            20 | 21 | 23 => ValueKind::Integer,
            700 | 701 | 1700 => ValueKind::Number,
            16 => ValueKind::Boolean,
            114 | 3802 => ValueKind::Json,
            _ => ValueKind::Text,
        };
    }
    Ok(())
}

async fn indexes(client: &Client, number: u32) -> Result<Vec<Index>, Error> {
    let found = rows(
        client,
        &format!(
            "SELECT indisprimary, indisreplident, array_to_json(ARRAY(SELECT a.attname FROM unnest(indkey[0:indnkeyatts-1]) k \
             JOIN pg_attribute a ON a.attrelid = indrelid AND a.attnum = k)) FROM pg_index \
             WHERE indrelid = {number} AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL \
             ORDER BY indisprimary DESC, indexrelid"
        ),
    )
    .await?;
    let index = |row: &Row| Index {
        columns: serde_json::from_str(cell(row, 2)).unwrap_or_default(),
        is_primary: cell(row, 0) == "t",
        is_identity: cell(row, 1) == "t",
    };
    Ok(found.iter().map(index).collect())
}

/// Two rows never have one key.
fn unique(mapping: &mut Mapping, indexes: &[Index]) -> Result<(), Error> {
    let slots: Vec<&str> = mapping.slots.iter().map(|slot| &*slot.column).collect();
    let within = |index: &&Index| {
        index
            .columns
            .iter()
            .all(|column| slots.contains(&column.as_str()))
    };
    match indexes.iter().find(within) {
        Some(index) => {
            mapping.unique.clone_from(&index.columns);
            Ok(())
        }
        None => setup(format!(
            "rows of {0} may have the same {1}, and then the same key; run CREATE UNIQUE INDEX ON {0} ({1}), or put more columns into tables.{2}.pattern",
            mapping.shown(),
            slots.join(", "),
            mapping.name
        )),
    }
}

/// An update or delete tells the key of the row as it was.
fn identity(mapping: &Mapping, identity: &str, indexes: &[Index]) -> Result<(), Error> {
    let told = match identity {
        "f" => return Ok(()),
        "d" => indexes.iter().find(|index| index.is_primary),
        "i" => indexes.iter().find(|index| index.is_identity),
        _ => None,
    };
    let has =
        |column: &str| told.is_some_and(|index| index.columns.iter().any(|other| other == column));
    match mapping.slots.iter().find(|slot| !has(&slot.column)) {
        None => Ok(()),
        Some(slot) => setup(format!(
            "updates and deletes of {0} do not tell the column {1} of the row as it was; run ALTER TABLE {0} REPLICA IDENTITY FULL",
            mapping.shown(),
            slot.column
        )),
    }
}

async fn published(client: &Client, mappings: &[Mapping], publication: &str) -> Result<(), Error> {
    let found = rows(
        client,
        &format!(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = {}",
            literal(publication)
        ),
    )
    .await?;
    let mut tables: Vec<String> = mappings.iter().map(Mapping::shown).collect();
    tables.sort_unstable();
    tables.dedup();
    let Some(row) = found.first() else {
        return setup(format!(
            "there is no publication {publication}; run CREATE PUBLICATION {publication} FOR TABLE {}",
            tables.join(", ")
        ));
    };
    if cell(row, 0) != "t" {
        return setup(format!(
            "the publication {publication} does not tell of all changes; run ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"
        ));
    }
    let found = rows(
        client,
        &format!(
            "SELECT schemaname, tablename, to_jsonb(p)->>'rowfilter', to_jsonb(p)->>'attnames' \
             FROM pg_publication_tables p WHERE pubname = {}",
            literal(publication)
        ),
    )
    .await?;
    for mapping in mappings {
        let shown = mapping.shown();
        let row = found
            .iter()
            .find(|row| cell(row, 0) == mapping.schema && cell(row, 1) == mapping.table);
        let Some(row) = row else {
            return setup(format!(
                "the publication {publication} does not have the table {shown}; run ALTER PUBLICATION {publication} ADD TABLE {shown}"
            ));
        };
        if row[2].is_some() {
            return setup(format!(
                "the publication {publication} tells of some rows of {shown} only; add the table again without WHERE: ALTER PUBLICATION {publication} SET TABLE ..."
            ));
        }
        if let Some(columns) = &row[3] {
            let columns: Vec<String> = serde_json::from_str(columns).unwrap_or_default();
            let missing = mapping
                .columns()
                .find(|column| !columns.iter().any(|other| other == column));
            if let Some(column) = missing {
                return setup(format!(
                    "the publication {publication} does not tell of the column {column} of {shown}; add the table again without a list of columns: ALTER PUBLICATION {publication} SET TABLE ..."
                ));
            }
        }
    }
    Ok(())
}
