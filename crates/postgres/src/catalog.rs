//! Versions of the catalog rows that concern mapped tables.
//!
//! Rows of PostgreSQL's catalogs determine whether the replication stream contains a change: the publication, its
//! tables and schemas, a table's replica identity, its columns. A row that was changed and changed back looks the same
//! as before, but changes committed in between were not sent. Its `xmin` (the transaction that wrote it) or its OID is
//! different, however, so these are compared.
//!
//! 1. Versions are read before the contents of the catalogs. A change during a check therefore has another version at
//!    the next check.
//! 2. Other transactions may be in progress when the publication or its contents change, because adding a table takes
//!    no lock that blocks writers. The versions of the publication and its contents detect this case. A table's version
//!    covers the changes that lock the table against all writers.

use std::collections::BTreeMap;

use tokio_postgres::SimpleQueryRow;

use crate::mapping::Mapping;
use crate::sql::literal;

/// The first version of PostgreSQL whose publications can contain schemas.
const HAS_SCHEMAS: u32 = 150_000;

/// The versions found by one check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// The version of the settings that determine which kinds of changes are sent, for all tables.
    pub publication: String,
    /// The versions of the settings that determine whether a table's changes are sent, and for which rows and columns,
    /// by the index of the mapping.
    pub published: BTreeMap<usize, String>,
    /// The versions of the tables, by the index of the mapping.
    pub tables: BTreeMap<usize, String>,
}

impl Versions {
    /// Adds a row of the result of [`statement`].
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

/// Returns the statement that reads the versions from a server of version `server`. Each row of its result contains the
/// index of a mapping (null for the publication), whether it is the version of the published contents, and the version.
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
    let schemas = if server >= HAS_SCHEMAS {
        "UNION ALL SELECT l.at, true, concat('schema ', s.oid, ' ', s.xmin) FROM pg_publication_namespace s \
             JOIN published p ON p.oid = s.pnpubid JOIN lineage l ON l.namespace = s.pnnspid"
    } else {
        ""
    };
    // A partition may also be published through its ancestors.
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
