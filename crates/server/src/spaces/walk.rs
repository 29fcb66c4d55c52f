//! An incremental walk over all objects that may belong to a space: those that exist when it is declared, or when the server
//! starts.

use std::ops::ControlFlow;

use larder_join::{Engine, TableInfo};
use larder_space::schema::Definition;
use larder_types::{object_key, object_rows};

pub struct Walk {
    /// Tables that may contain objects, the next one last.
    tables: Vec<Vec<u8>>,
    /// The row after which the next table continues.
    after: Option<Vec<u8>>,
    looked_at: u64,
    /// The number of objects at the start.
    of: u64,
    pub is_of_start: bool,
}

/// The progress of a space's index.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    pub looked_at: u64,
    pub of: u64,
    pub is_walking: bool,
}

impl Walk {
    pub fn of(definition: &Definition, engine: &Engine, is_of_start: bool) -> Walk {
        let tables = tables_with(engine, definition);
        Walk {
            of: tables.iter().map(|table| table.rows).sum(),
            tables: tables.into_iter().map(|table| table.name).collect(),
            after: None,
            looked_at: 0,
            is_of_start,
        }
    }

    pub fn is_over(&self) -> bool {
        self.tables.is_empty()
    }

    pub fn standing(&self) -> Standing {
        Standing {
            looked_at: self.looked_at,
            of: self.of.max(self.looked_at),
            is_walking: true,
        }
    }

    /// Calls `object` with up to `objects_max` keys and bytes. Returns the unused part of `objects_max`.
    pub fn step(
        &mut self,
        definition: &Definition,
        engine: &Engine,
        objects_max: usize,
        object: &mut dyn FnMut(&[u8], &[u8]),
    ) -> usize {
        let mut left = objects_max;
        while left > 0
            && let Some(table) = self.tables.last()
        {
            let lo = match &self.after {
                Some(after) => [after, &[0][..]].concat(),
                None => table.clone(),
            };
            let mut last = None;
            engine.read_base_rows(&lo, &end_of(table), &mut |row, bytes, _| {
                left -= 1;
                last = Some(row.to_vec());
                if let Some(key) = object_key(row)
                    && definition.covers_key(key)
                {
                    object(key, bytes);
                }
                match left {
                    0 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            });
            if left > 0 {
                self.tables.pop();
                last = None;
            }
            self.after = last;
        }
        self.looked_at += (objects_max - left) as u64;
        left
    }
}

/// The tables that may contain objects of a space, sorted by name.
pub(super) fn tables_of(engine: &Engine, definition: &Definition) -> Vec<Vec<u8>> {
    let tables = tables_with(engine, definition).into_iter();
    let mut names: Vec<Vec<u8>> = tables.map(|table| table.name).collect();
    names.sort_unstable();
    names
}

fn tables_with(engine: &Engine, definition: &Definition) -> Vec<TableInfo> {
    let prefixes = &definition.prefixes;
    let may_have = |table: &[u8]| {
        let fits = |prefix: &Vec<u8>| {
            object_rows(prefix)
                .any(|prefix| table.starts_with(&prefix) || prefix.starts_with(table))
        };
        object_key(table).is_some() && (prefixes.is_empty() || prefixes.iter().any(fits))
    };
    let mut tables = engine.tables();
    tables.retain(|table| may_have(&table.name));
    tables
}

/// Returns the upper bound (exclusive) of a table's rows. The table's name ends with `:` or `|`.
pub(super) fn end_of(table: &[u8]) -> Vec<u8> {
    let mut end = table.to_vec();
    if let Some(separator) = end.last_mut() {
        *separator += 1;
    }
    end
}
