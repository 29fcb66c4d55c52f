//! The tables of an engine, by number and by name.
//!
//! 1. A table is never removed: its number is valid for the engine's lifetime.
//! 2. A computed table has no base rows. A table with rows from a database is not computed.

use std::ops::{Index, IndexMut};

use larder_types::object_key;

use crate::base::hash::ByteMap;
use crate::base::key_range::{is_successor, table_name};
use crate::base::rows::{Rows, ValuesOnDisk};
use crate::error::Error;
use crate::join::{JoinId, TableId};
use crate::tables::pages::Pages;
use crate::tables::replicas::Replicas;
use crate::tables::supplied_ranges::SuppliedRanges;

#[derive(Default)]
pub struct Tables {
    list: Vec<TableState>,
    names: ByteMap<TableId>,
    /// True if some of them hold objects.
    pub have_objects: bool,
    /// The storage of long values of base rows.
    on_disk: Option<ValuesOnDisk>,
}

#[derive(Default)]
pub struct TableState {
    /// With its separator: `post|`.
    pub name: Box<[u8]>,
    /// Base rows. The rows of a computed table are stored with its joins.
    pub rows: Rows,
    /// The joins that compute it, oldest first. If two have a row with the same key, the older join's row is visible.
    pub makers: Vec<JoinId>,
    /// The way in which their rows are read together.
    pub pages: Pages,
    /// The joins that read it, with the level of the source.
    pub readers: Vec<(JoinId, u8)>,
    /// Number of subscriptions to its rows.
    pub subscriptions: u32,
    /// The ranges in memory, of a table with rows from a database.
    pub supplied: Option<SuppliedRanges>,
    /// Copies of other shards' rows that joins read.
    pub replicas: Option<Box<Replicas>>,
}

impl Tables {
    /// Returns the table with this name, which includes the separator.
    #[inline]
    pub fn named(&self, name: &[u8]) -> Option<TableId> {
        self.names.get(name).copied()
    }

    /// Returns the table of a key or of a key prefix.
    #[inline]
    pub fn of_key(&self, key: &[u8]) -> Option<TableId> {
        self.named(table_name(key)?)
    }

    /// Returns the table with this name, and creates it if necessary.
    pub fn find_or_create(&mut self, name: &[u8]) -> TableId {
        if let Some(table) = self.named(name) {
            return table;
        }
        let table = self.list.len() as TableId;
        self.have_objects |= object_key(name).is_some();
        let mut rows = Rows::default();
        if let Some(on_disk) = &self.on_disk {
            rows.keep_on_disk(on_disk.clone());
        }
        self.list.push(TableState {
            name: name.into(),
            rows,
            ..TableState::default()
        });
        self.names.insert(name.into(), table);
        table
    }

    /// Stores long values of base rows on disk, for rows that are written from now on.
    pub fn keep_values_on_disk(&mut self, on_disk: ValuesOnDisk) {
        for table in &mut self.list {
            table.rows.keep_on_disk(on_disk.clone());
        }
        self.on_disk = Some(on_disk);
    }

    /// Returns the table that a range lies in, if it exists.
    ///
    /// # Errors
    /// The range is in no table, or in several.
    pub fn of_range(&self, lo: &[u8], hi: &[u8]) -> Result<Option<TableId>, Error> {
        let name = table_name(lo).ok_or_else(|| Error::NoTable { key: lo.to_vec() })?;
        if lo < hi && !hi.starts_with(name) && !is_successor(name, hi) {
            return Err(Error::ManyTables {
                lo: lo.to_vec(),
                hi: hi.to_vec(),
            });
        }
        Ok(self.named(name))
    }

    /// Iterates over all tables with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (TableId, &TableState)> {
        (0..).zip(self.iter())
    }

    pub fn iter(&self) -> impl Iterator<Item = &TableState> {
        self.list.iter()
    }

    pub fn memory_bytes(&self) -> usize {
        let bytes = |table: &TableState| table.rows.memory_bytes() + table.supplied_bytes();
        self.list.iter().map(bytes).sum()
    }
}

impl Index<TableId> for Tables {
    type Output = TableState;

    #[inline]
    fn index(&self, table: TableId) -> &TableState {
        &self.list[table as usize]
    }
}

impl IndexMut<TableId> for Tables {
    #[inline]
    fn index_mut(&mut self, table: TableId) -> &mut TableState {
        &mut self.list[table as usize]
    }
}

impl TableState {
    /// Returns whether joins or subscriptions depend on the table's rows.
    #[inline]
    pub fn is_read(&self) -> bool {
        !self.readers.is_empty() || self.subscriptions > 0
    }

    fn supplied_bytes(&self) -> usize {
        let replicas = self.replicas.as_ref().map_or(0, |g| g.memory_bytes());
        replicas
            + self
                .supplied
                .as_ref()
                .map_or(0, SuppliedRanges::memory_bytes)
    }
}
