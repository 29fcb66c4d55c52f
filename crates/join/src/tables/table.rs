//! The tables of an engine, by number and by name.
//!
//! 1. A table is never taken away: its number is good for as long as the engine is.
//! 2. A table that joins compute has no base rows; one whose rows come from elsewhere is computed by no join.

use std::ops::{Index, IndexMut};

use larder_types::object_key;

use crate::base::hash::ByteMap;
use crate::base::key_range::{is_successor, table_name};
use crate::base::rows::{Rows, ValuesOnDisk};
use crate::error::Error;
use crate::join::{JoinId, TableId};
use crate::tables::pages::Pages;
use crate::tables::replicas::Replicas;
use crate::tables::supplied::Supplied;

#[derive(Default)]
pub struct Tables {
    list: Vec<TableState>,
    names: ByteMap<TableId>,
    /// Some of them keep objects.
    pub have_objects: bool,
    /// Where base rows' long values are kept.
    on_disk: Option<ValuesOnDisk>,
}

#[derive(Default)]
pub struct TableState {
    /// With its separator: `post|`.
    pub name: Box<[u8]>,
    /// Base rows; a computed table's rows are with its joins.
    pub rows: Rows,
    /// The joins that compute it, oldest first: of two rows with one key the older join's is seen.
    pub makers: Vec<JoinId>,
    /// How they are read together.
    pub pages: Pages,
    /// The joins that read it, with the level of the source.
    pub readers: Vec<(JoinId, u8)>,
    /// How many want to be told of its rows' changes.
    pub subscriptions: u32,
    /// The parts that are here, of a table whose rows come from elsewhere.
    pub supplied: Option<Supplied>,
    /// Rows of other shards that joins read.
    pub replicas: Option<Box<Replicas>>,
}

impl Tables {
    /// The table of a name, which has its separator.
    #[inline]
    pub fn named(&self, name: &[u8]) -> Option<TableId> {
        self.names.get(name).copied()
    }

    /// The table of a key, or of all keys that begin so.
    #[inline]
    pub fn of_key(&self, key: &[u8]) -> Option<TableId> {
        self.named(table_name(key)?)
    }

    /// The table of a name, made if it is not there.
    pub fn named_or_new(&mut self, name: &[u8]) -> TableId {
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

    /// Keeps long values of base rows on disk, of those that are written from now on.
    pub fn keep_values_on_disk(&mut self, on_disk: ValuesOnDisk) {
        for table in &mut self.list {
            table.rows.keep_on_disk(on_disk.clone());
        }
        self.on_disk = Some(on_disk);
    }

    /// The table that a range lies in, if it is known.
    ///
    /// # Errors
    /// The range is in no table or in several.
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

    /// All tables, each with its number.
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
    /// Whether changes of its rows must be applied to something.
    #[inline]
    pub fn is_read(&self) -> bool {
        !self.readers.is_empty() || self.subscriptions > 0
    }

    fn supplied_bytes(&self) -> usize {
        let replicas = self.replicas.as_ref().map_or(0, |g| g.memory_bytes());
        replicas + self.supplied.as_ref().map_or(0, Supplied::memory_bytes)
    }
}
