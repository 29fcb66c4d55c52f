//! Tables whose rows come from elsewhere, such as a database. A read that needs a part which is not here says so
//! ([`Needs::elsewhere`](crate::Needs)); the caller supplies it and asks again.
//!
//! 1. Rows of such a table are here only inside ranges that were supplied. A change outside is not applied: the row
//!    comes when its range does.
//! 2. Of several engines each keeps what it reads itself, and is told of all changes: what one read is computed from is
//!    of one moment of the database, and no engine waits for another.

use crate::base::key_range::{Flow, KeyRange, table_name};
use crate::engine::Engine;
use crate::error::Error;
use crate::join::TableId;
use crate::memory::evict::{Holder, Victim};

impl Engine {
    /// Says that a table's rows come from elsewhere. `table` is its name with the separator: `post|`.
    ///
    /// # Errors
    /// The name has no separator, or the table is computed or has rows.
    pub fn supply_from_elsewhere(&mut self, table: &[u8]) -> Result<(), Error> {
        if table_name(table) != Some(table) {
            return Err(Error::NoTable {
                key: table.to_vec(),
            });
        }
        let number = self.tables.named_or_new(table);
        let state = &mut self.tables[number];
        if !state.makers.is_empty() || !state.rows.is_empty() {
            return Err(Error::NoTable {
                key: table.to_vec(),
            });
        }
        state.supplied.get_or_insert_default();
        Ok(())
    }

    /// Supplies all rows of a range. Parts of it that are here already stay as they are: changes kept them fresh.
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
            let of = Holder::Supplied(table);
            self.memory.clock.add(Victim { number, serial, of });
        }
        for (key, value) in rows {
            if gaps.iter().any(|g| g.contains(&key)) {
                self.tables[table].rows.put_bytes(&key, &value);
            }
        }
    }

    /// Forgets that ranges are here: they changed in ways that were not told. What was computed from them goes too.
    pub fn forget_supplied(&mut self, range: &KeyRange) {
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
        let range = supplied.forget(number);
        state.rows.remove_range(&range.lo, &range.hi);
    }

    /// Whether a key's table has its rows from elsewhere.
    pub fn is_supplied(&self, key: &[u8]) -> bool {
        let table = self.tables.of_key(key);
        table.is_some_and(|table| self.tables[table].supplied.is_some())
    }

    /// Whether the row of a key would be here if there were one. A table whose rows do not come from elsewhere has them here.
    pub fn is_here(&self, key: &[u8]) -> bool {
        let table = self.tables.of_key(key);
        table.is_none_or(|table| {
            let supplied = self.tables[table].supplied.as_ref();
            supplied.is_none_or(|supplied| supplied.holds(key))
        })
    }

    /// The rows of a table that are here.
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
