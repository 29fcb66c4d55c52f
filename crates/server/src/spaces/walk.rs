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
    examined: u64,
    /// The number of objects at the start.
    total: u64,
    pub is_startup: bool,
}

/// The progress of a space's index.
#[derive(Debug, Clone, Copy, Default)]
pub struct WalkProgress {
    pub examined: u64,
    pub total: u64,
    pub is_walking: bool,
}

impl Walk {
    pub fn new(definition: &Definition, engine: &Engine, is_of_start: bool) -> Walk {
        let tables = find_tables(engine, definition);
        Walk {
            total: tables.iter().map(|table| table.rows).sum(),
            tables: tables.into_iter().map(|table| table.name).collect(),
            after: None,
            examined: 0,
            is_startup: is_of_start,
        }
    }

    pub fn is_done(&self) -> bool {
        self.tables.is_empty()
    }

    pub fn progress(&self) -> WalkProgress {
        WalkProgress {
            examined: self.examined,
            total: self.total.max(self.examined),
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
            engine.read_base_rows(&lo, &table_end(table), &mut |row, bytes, _| {
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
        self.examined += (objects_max - left) as u64;
        left
    }
}

/// The tables that may contain objects of a space, sorted by name.
pub(super) fn sorted_table_names(engine: &Engine, definition: &Definition) -> Vec<Vec<u8>> {
    let tables = find_tables(engine, definition).into_iter();
    let mut names: Vec<Vec<u8>> = tables.map(|table| table.name).collect();
    names.sort_unstable();
    names
}

fn find_tables(engine: &Engine, definition: &Definition) -> Vec<TableInfo> {
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
pub(super) fn table_end(table: &[u8]) -> Vec<u8> {
    let mut end = table.to_vec();
    if let Some(separator) = end.last_mut() {
        *separator += 1;
    }
    end
}
