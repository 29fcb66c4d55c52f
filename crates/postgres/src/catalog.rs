//! Versions of what PostgreSQL's catalogs say about mapped tables.
//!
//! Whether a change is told to us is decided by rows of the catalogs: the publication, its tables and schemas, a table's
//! identity, its columns. Such a row that was changed and changed back looks as before, and what was committed in between was
//! not told. But it has another `xmin` (the transaction that wrote it), or another number: these are what is compared.
//!
//! 1. Versions are read before the catalogs are looked at. So whatever changes while one looks has another version at the next look.
//! 2. The versions of the publication and of what it publishes cover what other transactions may be in the midst of: to add a table takes
//!    no lock that a writer would wait for. A table's version covers what nobody can write the table under.

use std::collections::BTreeMap;

use tokio_postgres::SimpleQueryRow;

use crate::mapping::Mapping;
use crate::sql::literal;

/// The first PostgreSQL whose publications can have schemas.
const HAS_SCHEMAS: u32 = 150_000;

/// What was found at one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of what decides which kinds of changes are told, of all tables.
    pub publication: String,
    /// Of what decides whether a table's changes are told, and of which of its rows and columns, by the place of its mapping.
    pub published: BTreeMap<usize, String>,
    /// Of each table, by the place of its mapping.
    pub tables: BTreeMap<usize, String>,
}

impl Versions {
    /// Takes a row of what [`statement`] answers.
    pub fn take(&mut self, row: &SimpleQueryRow) {
        let version = row.get(2).unwrap_or_default();
        let is_publication = row.get(1) == Some("t");
        match row.get(0).and_then(|at| at.parse().ok()) {
            Some(at) if is_publication => drop(self.published.insert(at, version.to_owned())),
            Some(at) => drop(self.tables.insert(at, version.to_owned())),
            None => version.clone_into(&mut self.publication),
        }
    }
}

/// The statement that reads them from a server of this version, one row each: the place of a mapping, or none for the publication; whether it
/// is the version of what is published; the version.
pub fn statement(mappings: &[Mapping], publication: &str, server: u32) -> String {
    let names: Vec<String> = mappings
        .iter()
        .enumerate()
        .map(|(at, mapping)| {
            format!(
                "({at}, {}, {})",
                literal(&mapping.schema),
                literal(&mapping.table)
            )
        })
        .collect();
    let schemas = match server >= HAS_SCHEMAS {
        true => {
            "UNION ALL SELECT l.at, true, concat('schema ', s.oid, ' ', s.xmin) FROM pg_publication_namespace s \
             JOIN published p ON p.oid = s.pnpubid JOIN lineage l ON l.namespace = s.pnnspid"
        }
        false => "",
    };
    // A partition is told of through its ancestors, too.
    format!(
        "WITH RECURSIVE mapped(at, oid, namespace) AS (SELECT m.at, c.oid, c.relnamespace FROM (VALUES {names}) m(at, schema, name) \
         JOIN pg_namespace n ON n.nspname = m.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = m.name), \
         lineage(at, oid, namespace) AS (SELECT at, oid, namespace FROM mapped UNION SELECT m.at, c.oid, c.relnamespace \
         FROM mapped m CROSS JOIN LATERAL pg_partition_ancestors(m.oid) a JOIN pg_class c ON c.oid = a.relid), \
         types(at, oid) AS (SELECT m.at, a.atttypid FROM mapped m JOIN pg_attribute a ON a.attrelid = m.oid WHERE a.attnum > 0 \
         UNION SELECT y.at, b.oid FROM types y JOIN pg_type t ON t.oid = y.oid JOIN pg_type b ON b.oid IN (t.typelem, t.typbasetype)), \
         published(oid, version) AS (SELECT oid, concat(oid, ' ', xmin) FROM pg_publication WHERE pubname = {publication}), \
         versions(at, publishes, version) AS (SELECT NULL::int, true, version FROM published \
         UNION ALL SELECT l.at, true, concat('table ', r.oid, ' ', r.xmin) FROM pg_publication_rel r \
         JOIN published p ON p.oid = r.prpubid JOIN lineage l ON l.oid = r.prrelid {schemas} \
         UNION ALL SELECT l.at, true, concat('parent ', i.inhrelid, ' ', i.inhparent, ' ', i.xmin) FROM pg_inherits i \
         JOIN lineage l ON l.oid = i.inhrelid \
         UNION ALL SELECT l.at, false, concat('class ', c.oid, ' ', c.xmin, ' ', c.relfilenode) FROM lineage l JOIN pg_class c ON c.oid = l.oid \
         UNION ALL SELECT m.at, false, concat('column ', a.attnum, ' ', a.xmin) FROM mapped m JOIN pg_attribute a ON a.attrelid = m.oid \
         WHERE a.attnum > 0 \
         UNION ALL SELECT y.at, false, concat('label ', e.oid, ' ', e.xmin) FROM types y JOIN pg_enum e ON e.enumtypid = y.oid \
         UNION ALL SELECT m.at, false, concat('index ', i.indexrelid, ' ', i.xmin) FROM mapped m JOIN pg_index i ON i.indrelid = m.oid \
         WHERE i.indisprimary OR i.indisreplident) \
         SELECT at, publishes, string_agg(version, ',' ORDER BY version) FROM versions GROUP BY at, publishes",
        names = names.join(", "),
        publication = literal(publication),
    )
}
