//! Tables whose rows a database or another external source owns. A read that needs an absent part reports it
//! ([`Needs::elsewhere`](crate::Needs)); the caller supplies it and retries.
//!
//! 1. The engine has rows of such a table only inside supplied ranges. A change outside is ignored: the row arrives
//!    with its range.
//! 2. Each of several engines keeps the rows that it reads, and receives all changes. The rows that one read is
//!    computed from therefore reflect one state of the database, and no engine waits for another.

use crate::base::key_range::{Flow, KeyRange, table_name};
use crate::engine::Engine;
use crate::error::Error;
use crate::join::TableId;
use crate::memory::evict::{RangeHolder, Victim};

impl Engine {
    /// Declares that a table's rows come from an external source. `table` is its name with the separator: `post|`.
    ///
    /// # Errors
    /// The name has no separator, or the table is computed or has rows.
    pub fn declare_external(&mut self, table: &[u8]) -> Result<(), Error> {
        if table_name(table) != Some(table) {
            return Err(Error::NoTable {
                key: table.to_vec(),
            });
        }
        let number = self.tables.find_or_create(table);
        let state = &mut self.tables[number];
        if !state.makers.is_empty() || !state.rows.is_empty() {
            return Err(Error::NoTable {
                key: table.to_vec(),
            });
        }
        state.supplied.get_or_insert_default();
        Ok(())
    }

    /// Supplies all rows of a range. Parts of it that are already present stay as they are, because changes keep them
    /// fresh.
    pub fn supply(&mut self, range: &KeyRange, rows: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) {
        let Some(table) = self.tables.of_key(&range.lo) else {
            return;
        };
        let Some(supplied) = &mut self.tables[table].supplied else {
            return;
        };
        let gaps = supplied.read(range);
        for gap in &gaps {
            let serial = self.memory.next_serial();
            let supplied = self.tables[table].supplied.as_mut().expect("seen above");
            let number = supplied.insert(gap, serial);
            let of = RangeHolder::Supplied(table);
            self.memory.clock.add(Victim {
                number,
                serial,
                holder: of,
            });
        }
        for (key, value) in rows {
            if gaps.iter().any(|g| g.contains(&key)) {
                self.tables[table].rows.put_bytes(&key, &value);
            }
        }
    }

    /// Drops supplied ranges whose rows changed without notification, and what was computed from them.
    pub fn discard_supplied(&mut self, range: &KeyRange) {
        let Some(table) = self.tables.of_key(&range.lo) else {
            return;
        };
        let Some(supplied) = &self.tables[table].supplied else {
            return;
        };
        let numbers = supplied.overlapping(range);
        if !numbers.is_empty() {
            self.discard_downstream(table);
        }
        for number in numbers {
            self.evict_supplied(table, number);
        }
    }

    pub(crate) fn evict_supplied(&mut self, table: TableId, number: u32) {
        let state = &mut self.tables[table];
        let Some(supplied) = &mut state.supplied else {
            return;
        };
        let range = supplied.remove(number);
        state.rows.remove_range(&range.lo, &range.hi);
    }

    /// Returns whether the key's table has its rows from an external source.
    pub fn is_supplied(&self, key: &[u8]) -> bool {
        let table = self.tables.of_key(key);
        table.is_some_and(|table| self.tables[table].supplied.is_some())
    }

    /// Returns whether the key's row would be present if it existed. Always true for other tables.
    pub fn is_loaded(&self, key: &[u8]) -> bool {
        let table = self.tables.of_key(key);
        table.is_none_or(|table| {
            let supplied = self.tables[table].supplied.as_ref();
            supplied.is_none_or(|supplied| supplied.holds(key))
        })
    }

    /// Number of a table's rows that are present.
    pub fn supplied_rows(&self, table: &[u8]) -> u64 {
        let Some(table) = self.tables.named(table) else {
            return 0;
        };
        let mut rows = 0;
        let state = &self.tables[table];
        let all = KeyRange::prefix(&state.name);
        let _ = state.rows.read(&all.lo, &all.hi, false, &mut |_, _| {
            rows += 1;
            Flow::Continue(())
        });
        rows
    }
}
