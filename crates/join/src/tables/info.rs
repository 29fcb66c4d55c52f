//! What there is to say about tables, for those who show or save them.

use crate::engine::Engine;

/// A table, for people and snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// With its separator, as every key of it begins: `post|`.
    pub name: Vec<u8>,
    /// Base rows.
    pub rows: u64,
    /// Whether joins compute it.
    pub computed: bool,
    /// Whether its rows come from elsewhere; `rows` counts those that are here.
    pub supplied: bool,
}

impl Engine {
    /// The tables that have rows or joins, in the order of their names.
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

    /// Whether there may be objects: `false` is certain.
    #[inline]
    pub fn has_objects(&self) -> bool {
        self.tables.have_objects
    }

    /// Whether a key's table has rows, or joins, or rows elsewhere; and whether joins compute it.
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
