//! Checks the database before anything is read from it. The message of an error contains the statement that corrects
//! it.
//!
//! This module changes nothing: the owner of the database controls its schema, publications and rights.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use crate::catalog::{self, Versions};
use crate::error::{Error, classified, describe_error};
use crate::mapping::{Mapping, SlotKind, ValueKind};
use crate::sql::literal;

/// The result of a check of the database.
#[derive(Debug, Clone)]
pub struct Verified {
    pub tables: Vec<VerifiedTable>,
    pub versions: Versions,
    /// The statement that reads the versions again.
    pub version_query: Arc<str>,
}

/// A mapping and the current state of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedTable {
    pub mapping: Arc<Mapping>,
    /// The table's OID, which the replication stream contains.
    pub number: u32,
    /// The reason why the table can be neither read nor followed; the message contains the correction. Other tables are
    /// not affected.
    pub fault: Option<String>,
}

impl Verified {
    /// Returns whether the publication is the same as in an earlier check and was not replaced in between.
    pub fn is_published_as(&self, before: &Verified) -> bool {
        self.versions.publication == before.versions.publication
    }

    /// Returns the indexes of tables that can be followed, but for which a stream that started before may lack changes,
    /// with the reason.
    pub fn needing_new_stream(&self, before: &Verified) -> Vec<(usize, &'static str)> {
        let tables = self.tables.iter().zip(&before.tables).enumerate();
        let needing = tables.filter_map(|(at, (table, before_then))| {
            let published = |verified: &Verified| verified.versions.published.get(&at).cloned();
            let why = match (&table.fault, &before_then.fault) {
                (Some(_), _) => return None,
                (None, Some(_)) => "can be followed again",
                (None, None) if table != before_then => "was altered",
                _ if published(self) != published(before) => "was published again",
                _ => return None,
            };
            Some((at, why))
        });
        needing.collect()
    }

    /// Returns the tables whose rows may have changed since an earlier check without notification by the stream, and
    /// those that cannot be followed any more.
    pub fn changed_since<'v>(
        &'v self,
        before: &'v Verified,
    ) -> impl Iterator<Item = &'v Mapping> + 'v {
        let (now, then) = (&self.versions.tables, &before.versions.tables);
        let tables = self.tables.iter().zip(&before.tables).enumerate();
        let changed = tables.filter(move |(at, (table, before))| {
            before.fault.is_none() && (table.fault.is_some() || now.get(at) != then.get(at))
        });
        changed.map(|(_, (table, _))| &*table.mapping)
    }

    /// Returns the table of a key, or of the start of a range.
    pub fn table_of(&self, key: &[u8]) -> Option<&VerifiedTable> {
        let mut tables = self.tables.iter();
        tables.find(|table| key.starts_with(&table.mapping.prefix))
    }

    /// Returns the first fault of the tables of these keys.
    pub fn fault_of<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> Option<Error> {
        let fault = keys.find_map(|key| self.table_of(key)?.fault.clone());
        fault.map(Error::Setup)
    }
}

type Row = Vec<Option<String>>;

/// Checks everything. If two checks have the same versions, nothing changed in between.
///
/// # Errors
/// [`Error::Setup`] for the first fault that prevents all tables from being followed.
pub async fn verify(
    client: &Client,
    mappings: &[Mapping],
    publication: &str,
) -> Result<Verified, Error> {
    let (user, version) = verify_server(client).await?;
    let version_query = catalog::statement(mappings, publication, version);
    let versions = fetch_versions(client, &version_query).await?;
    let mut tables = Vec::new();
    for mapping in mappings {
        tables.push(match verify_table(client, mapping, &user).await {
            Err(Error::Setup(fault)) => with_fault(mapping, fault),
            table => table?,
        });
    }
    refuse_if_all_fail(&tables)?;
    let published = fetch_published(client, mappings, publication).await?;
    for table in &mut tables {
        if table.fault.is_none() {
            table.fault = find_publication_fault(&published, &table.mapping, publication);
        }
    }
    refuse_if_all_fail(&tables)?;
    Ok(Verified {
        tables,
        versions,
        version_query: version_query.into(),
    })
}

fn with_fault(mapping: &Mapping, fault: String) -> VerifiedTable {
    VerifiedTable {
        mapping: Arc::new(mapping.clone()),
        number: 0,
        fault: Some(fault),
    }
}

/// Without a table to follow, a slot would only make PostgreSQL retain its log.
fn refuse_if_all_fail(tables: &[VerifiedTable]) -> Result<(), Error> {
    if tables.iter().all(|table| table.fault.is_some()) {
        setup_error(tables[0].fault.clone().unwrap_or_default())
    } else {
        Ok(())
    }
}

async fn fetch_versions(client: &Client, version_query: &str) -> Result<Versions, Error> {
    let messages = client.simple_query(version_query).await;
    let messages = messages.map_err(|error| classified(&error, describe_error(&error)))?;
    let mut versions = Versions::default();
    for message in &messages {
        if let SimpleQueryMessage::Row(row) = message {
            versions.take(row);
        }
    }
    Ok(versions)
}

/// Executes statements and returns the rows of all of them.
async fn rows(client: &Client, sql: &str) -> Result<Vec<Row>, Error> {
    let messages = client
        .simple_query(sql)
        .await
        .map_err(|error| classified(&error, describe_error(&error)))?;
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

fn setup_error<T>(message: String) -> Result<T, Error> {
    Err(Error::Setup(message))
}

/// Checks the server and the role, and returns the role and the server's version.
async fn verify_server(client: &Client) -> Result<(String, u32), Error> {
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
        return setup_error(format!(
            "PostgreSQL is of version {}; larder needs 14 or later",
            version / 10_000
        ));
    }
    if cell(row, 1) != "logical" {
        return setup_error(format!(
            "PostgreSQL's wal_level is {}, so changes cannot be followed; run ALTER SYSTEM SET wal_level = 'logical' and restart PostgreSQL",
            cell(row, 1)
        ));
    }
    if cell(row, 2) != "UTF8" {
        return setup_error(format!(
            "the database's encoding is {}; larder needs UTF8",
            cell(row, 2)
        ));
    }
    if cell(row, 3) == "t" {
        return setup_error(
            "PostgreSQL is a standby, where changes cannot be followed; give postgres.url the primary's address"
                .to_owned(),
        );
    }
    let user = cell(row, 4).to_owned();
    if cell(row, 5) != "t" {
        return setup_error(format!(
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

async fn verify_table(
    client: &Client,
    mapping: &Mapping,
    user: &str,
) -> Result<VerifiedTable, Error> {
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
        return setup_error(format!(
            "there is no table {shown} in PostgreSQL; create it, or correct tables.{name}.table"
        ));
    };
    match cell(row, 1) {
        "r" => {}
        "p" => {
            return setup_error(format!(
                "{shown} is partitioned, which larder cannot follow yet; map its partitions one by one"
            ));
        }
        _ => {
            return setup_error(format!(
                "{shown} is not a table, and only tables can be followed; correct tables.{name}.table"
            ));
        }
    }
    if cell(row, 6) != "p" {
        return setup_error(format!(
            "{shown} is unlogged or temporary, so its changes are not replicated; run ALTER TABLE {shown} SET LOGGED"
        ));
    }
    if cell(row, 4) != "t" {
        return setup_error(format!(
            "the role {user} may not read {shown}; run GRANT SELECT ON {shown} TO {user}"
        ));
    }
    if cell(row, 3) == "t" {
        return setup_error(format!(
            "row security hides rows of {shown} from the role {user}, while replication includes all; run ALTER ROLE {user} BYPASSRLS"
        ));
    }
    if mapping.through && cell(row, 5) != "t" {
        return setup_error(format!(
            "the role {user} may not write {shown}, which tables.{name}.write = \"through\" needs; run GRANT INSERT, UPDATE, DELETE ON {shown} TO {user}"
        ));
    }
    let number: u32 = cell(row, 0).parse().unwrap_or(0);
    let mut mapping = mapping.clone();
    resolve_columns(client, &mut mapping, number).await?;
    let indexes = fetch_indexes(client, number).await?;
    check_unique(&mut mapping, &indexes)?;
    check_identity(&mapping, cell(row, 2), &indexes)?;
    Ok(VerifiedTable {
        mapping: Arc::new(mapping),
        number,
        fault: None,
    })
}

/// A column of a table.
struct Column<'r> {
    /// The OID of the base type, or of an array's element type, with domains resolved.
    number: u32,
    /// The type's name.
    kind: &'r str,
    is_generated: bool,
    /// The separator of elements, for an array.
    delimiter: Option<u8>,
    type_oid: u32,
}

/// Checks that the columns exist, and determines their types.
async fn resolve_columns(client: &Client, mapping: &mut Mapping, number: u32) -> Result<(), Error> {
    // Resolves domains to their base types. For an array, also returns the element type and the separator.
    let found = rows(
        client,
        &format!(
            "WITH RECURSIVE based(num, oid, delimiter) AS (SELECT attnum, atttypid, NULL::\"char\" FROM pg_attribute \
             WHERE attrelid = {number} AND attnum > 0 AND NOT attisdropped \
             UNION ALL SELECT b.num, coalesce(e.oid, t.typbasetype), coalesce(e.typdelim, b.delimiter) FROM based b JOIN pg_type t ON t.oid = b.oid \
             LEFT JOIN pg_type e ON e.typarray = t.oid WHERE t.typtype = 'd' OR e.oid IS NOT NULL AND b.delimiter IS NULL) \
             SELECT attname, b.oid, format_type(atttypid, atttypmod), attgenerated, b.delimiter, atttypid FROM based b \
             JOIN pg_attribute a ON a.attrelid = {number} AND a.attnum = b.num JOIN pg_type t ON t.oid = b.oid \
             WHERE t.typtype <> 'd' AND (b.delimiter IS NOT NULL OR NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid))"
        ),
    )
    .await?;
    let found: BTreeMap<&str, Column<'_>> = found
        .iter()
        .map(|row| {
            let column = Column {
                number: cell(row, 1).parse().unwrap_or(0),
                kind: cell(row, 2),
                is_generated: !cell(row, 3).is_empty(),
                delimiter: cell(row, 4).bytes().next(),
                type_oid: cell(row, 5).parse().unwrap_or(0),
            };
            (cell(row, 0), column)
        })
        .collect();
    let (shown, name) = (mapping.shown(), mapping.name.clone());
    let column = |column: &str, key: &str| {
        let Some(found_column) = found.get(column) else {
            return setup_error(format!(
                "{shown} has no column {column}; it has {}; correct tables.{name}.{key}",
                found.keys().copied().collect::<Vec<_>>().join(", ")
            ));
        };
        if found_column.is_generated {
            return setup_error(format!(
                "the column {column} of {shown} is generated, and PostgreSQL does not replicate such columns; make it a plain one, filled by a trigger"
            ));
        }
        Ok(found_column)
    };
    for slot in &mut mapping.slots {
        let found = column(&slot.column, "pattern or .columns")?;
        let kind = found.kind;
        slot.type_oid = found.type_oid;
        let number = found.number * u32::from(found.delimiter.is_none());
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
                return setup_error(format!(
                    "the column {} of {shown} is of type {kind}, which cannot be a slot of a key; text, varchar, smallint, integer, bigint and uuid can: for a time, use a bigint such as microseconds since 1970",
                    slot.column
                ));
            }
        };
        if slot.kind == SlotKind::Uuid && slot.width.is_some_and(|width| width != 36) {
            return setup_error(format!(
                "the column {} of {shown} is a uuid, which takes 36 bytes; write <{}:36> in tables.{name}.pattern",
                slot.column, slot.name
            ));
        }
    }
    for value in &mut mapping.values {
        let found = column(&value.column, "value")?;
        value.type_oid = found.type_oid;
        value.delimiter = found.delimiter;
        value.kind = match found.number {
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

async fn fetch_indexes(client: &Client, number: u32) -> Result<Vec<Index>, Error> {
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

/// Checks that no two rows can have the same key.
fn check_unique(mapping: &mut Mapping, indexes: &[Index]) -> Result<(), Error> {
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
        None => setup_error(format!(
            "rows of {0} may have the same {1}, and then the same key; run CREATE UNIQUE INDEX ON {0} ({1}), or put more columns into tables.{2}.pattern",
            mapping.shown(),
            slots.join(", "),
            mapping.name
        )),
    }
}

/// Checks that updates and deletes contain the key of the previous row.
fn check_identity(mapping: &Mapping, identity: &str, indexes: &[Index]) -> Result<(), Error> {
    let replica_identity = match identity {
        "f" => return Ok(()),
        "d" => indexes.iter().find(|index| index.is_primary),
        "i" => indexes.iter().find(|index| index.is_identity),
        _ => None,
    };
    let has = |column: &str| {
        replica_identity.is_some_and(|index| index.columns.iter().any(|other| other == column))
    };
    match mapping.slots.iter().find(|slot| !has(&slot.column)) {
        None => Ok(()),
        Some(slot) => setup_error(format!(
            "updates and deletes of {0} do not include the old value of column {1}; run ALTER TABLE {0} REPLICA IDENTITY FULL",
            mapping.shown(),
            slot.column
        )),
    }
}

/// Returns the tables of the publication.
async fn fetch_published(
    client: &Client,
    mappings: &[Mapping],
    publication: &str,
) -> Result<Vec<Row>, Error> {
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
        return setup_error(format!(
            "there is no publication {publication}; run CREATE PUBLICATION {publication} FOR TABLE {}",
            tables.join(", ")
        ));
    };
    if cell(row, 0) != "t" {
        return setup_error(format!(
            "the publication {publication} does not publish all changes; run ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"
        ));
    }
    rows(
        client,
        &format!(
            "SELECT schemaname, tablename, to_jsonb(p)->>'rowfilter', to_jsonb(p)->>'attnames' \
             FROM pg_publication_tables p WHERE pubname = {}",
            literal(publication)
        ),
    )
    .await
}

/// Returns the reason why the publication lacks changes of a table.
fn find_publication_fault(
    published: &[Row],
    mapping: &Mapping,
    publication: &str,
) -> Option<String> {
    let shown = mapping.shown();
    let mut rows = published.iter();
    let row = rows.find(|row| cell(row, 0) == mapping.schema && cell(row, 1) == mapping.table);
    let Some(row) = row else {
        return Some(format!(
            "the publication {publication} does not have the table {shown}; run ALTER PUBLICATION {publication} ADD TABLE {shown}"
        ));
    };
    if row[2].is_some() {
        return Some(format!(
            "the publication {publication} publishes only some rows of {shown}; add the table again without WHERE: ALTER PUBLICATION {publication} SET TABLE ..."
        ));
    }
    let columns: Vec<String> = serde_json::from_str(row[3].as_ref()?).unwrap_or_default();
    let missing = mapping
        .columns()
        .find(|column| !columns.iter().any(|other| other == column))?;
    Some(format!(
        "the publication {publication} does not publish the column {missing} of {shown}; add the table again without a list of columns: ALTER PUBLICATION {publication} SET TABLE ..."
    ))
}
