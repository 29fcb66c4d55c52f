//! Information about tables, for statistics and snapshots.

use crate::engine::Engine;

/// A table's name and row count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// The prefix of the table's keys, with the separator: `post|`.
    pub name: Vec<u8>,
    /// Number of base rows.
    pub rows: u64,
    /// True if joins compute the table.
    pub computed: bool,
    /// True if its rows come from a database. `rows` then counts those in memory.
    pub supplied: bool,
}

impl Engine {
    /// Lists the tables with rows or joins, in name order.
    pub fn tables(&self) -> Vec<TableInfo> {
        let known = self.tables.iter().filter(|table| {
            !table.rows.is_empty() || !table.makers.is_empty() || !table.readers.is_empty()
        });
        let mut tables: Vec<TableInfo> = known
            .map(|table| TableInfo {
                name: table.name.to_vec(),
                rows: table.rows.len(),
                computed: !table.makers.is_empty(),
                supplied: table.supplied.is_some(),
            })
            .collect();
        tables.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        tables
    }

    /// Returns whether there may be objects. `false` means that there are none.
    #[inline]
    pub fn has_objects(&self) -> bool {
        self.tables.have_objects
    }

    /// Returns whether joins compute the key's table, or `None` if no such table is known: it has no rows, no joins and
    /// no rows in a database.
    pub fn table_of(&self, key: &[u8]) -> Option<bool> {
        let table = &self.tables[self.tables.of_key(key)?];
        let computed = !table.makers.is_empty();
        let is_known = computed
            || table.supplied.is_some()
            || !table.rows.is_empty()
            || !table.readers.is_empty();
        is_known.then_some(computed)
    }
}
