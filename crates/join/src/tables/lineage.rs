//! Lineage: the dependencies between tables and joins, and the definitions that they rule out.
//!
//! 1. No join reads its own output, directly or through other joins.
//! 2. A join that is maintained on writes (`push` or `auto`) reads only sources that report their changes.
//! 3. A table has either rows that clients write or rows that joins compute, never both.

use crate::error::{DefinitionError, text};
use crate::join::joins::Joins;
use crate::join::{Join, JoinId, TableId};
use crate::language::definition::Definition;
use crate::language::grammar::JoinMode;
use crate::tables::catalog::table_of;
use crate::tables::table::Tables;

#[derive(Clone, Copy)]
pub struct Lineage<'a> {
    pub tables: &'a Tables,
    pub joins: &'a Joins,
    /// A join to ignore, because a new definition is about to replace it.
    pub without: Option<JoinId>,
}

impl<'a> Lineage<'a> {
    /// Checks that a definition is compatible with the existing tables and joins.
    ///
    /// # Errors
    /// The conflict, and how to resolve it.
    pub fn admit(self, definition: &Definition) -> Result<(), DefinitionError> {
        self.refuse_occupied(definition)?;
        self.refuse_cycle(definition)?;
        self.refuse_unmaintainable(definition)
    }

    fn refuse_occupied(self, definition: &Definition) -> Result<(), DefinitionError> {
        let Some(table) = self.tables.named(table_of(&definition.shape.output)) else {
            return Ok(());
        };
        let state = &self.tables[table];
        if state.makers.is_empty() && (!state.rows.is_empty() || state.supplied.is_some()) {
            let name = text(&state.name[..state.name.len() - 1]);
            return Err(DefinitionError::new(
                definition.output_column,
                format!(
                    "table {name} contains base rows: give the output another table, or remove the rows"
                ),
            ));
        }
        Ok(())
    }

    fn refuse_cycle(self, definition: &Definition) -> Result<(), DefinitionError> {
        let output = table_of(&definition.shape.output);
        for source in &definition.sources {
            let mut path = vec![text(&output[..output.len() - 1])];
            if self.leads_to(table_of(&source.pattern), output, &mut path) {
                path.reverse();
                return Err(DefinitionError::new(
                    source.column,
                    format!(
                        "this join is cyclic: its output leads back to its source ({})",
                        path.join(" <- ")
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns whether rows of `table` depend on rows of `output`. Appends the path.
    fn leads_to(self, table: &[u8], output: &[u8], path: &mut Vec<String>) -> bool {
        path.push(text(&table[..table.len() - 1]));
        if table == output {
            return true;
        }
        let mut sources = self.tables.named(table).into_iter().flat_map(|table| {
            let makers = self.makers(table);
            makers.flat_map(|join| join.tables.iter().copied())
        });
        if sources.any(|source| self.leads_to(&self.tables[source].name, output, path)) {
            return true;
        }
        path.pop();
        false
    }

    fn refuse_unmaintainable(self, definition: &Definition) -> Result<(), DefinitionError> {
        if definition.is_maintained() {
            for source in &definition.sources {
                let Some(table) = self.tables.named(table_of(&source.pattern)) else {
                    continue;
                };
                let mut makers = self.makers(table);
                if let Some(join) = makers.find(|join| join.definition.mode != JoinMode::Push) {
                    return Err(DefinitionError::new(
                        source.column,
                        format!(
                            "{} is computed by join {}, whose mode {} does not report changes: make it push, or this join pull or snapshot",
                            source.pattern.text,
                            join.name,
                            join.definition.mode.name()
                        ),
                    ));
                }
            }
        }
        if definition.mode != JoinMode::Push
            && let Some(table) = self.tables.named(table_of(&definition.shape.output))
            && let readers = self.tables[table].readers.iter()
            && let Some(join) = readers
                .filter(|(reader, _)| Some(*reader) != self.without)
                .filter_map(|(reader, _)| self.joins.get(*reader))
                .find(|join| join.definition.is_maintained())
        {
            return Err(DefinitionError::new(
                definition.output_column,
                format!(
                    "join {} reads this output and needs its changes, which a {} join does not report: make this join push",
                    join.name,
                    definition.mode.name()
                ),
            ));
        }
        Ok(())
    }

    /// Returns the joins that compute a table, oldest first.
    pub fn makers(self, table: TableId) -> impl Iterator<Item = &'a Join> {
        let makers = self.tables[table].makers.iter();
        makers
            .filter(move |&&maker| Some(maker) != self.without)
            .filter_map(move |&maker| self.joins.get(maker))
    }

    /// Returns the joins that `join` depends on, directly or through others, in dependency order.
    pub fn upstream(self, join: &Join) -> Vec<JoinId> {
        let mut upstream = Vec::new();
        self.add_upstream(join, &mut upstream);
        upstream
    }

    fn add_upstream(self, join: &Join, upstream: &mut Vec<JoinId>) {
        for &table in &join.tables {
            for maker in self.makers(table) {
                if !upstream.contains(&maker.id) {
                    self.add_upstream(maker, upstream);
                    upstream.push(maker.id);
                }
            }
        }
    }

    /// Returns the joins that depend on a table, directly or through others. Joins furthest downstream come first,
    /// because they pin the rows that they were computed from.
    pub fn downstream(self, table: TableId) -> Vec<JoinId> {
        let mut tables = vec![table];
        let mut joins: Vec<&Join> = Vec::new();
        while let Some(table) = tables.pop() {
            for join in self.joins.all() {
                if join.tables.contains(&table) && !joins.iter().any(|known| known.id == join.id) {
                    joins.push(join);
                    tables.push(join.table);
                }
            }
        }
        joins.sort_by_key(|join| std::cmp::Reverse(join.upstream.len()));
        joins.into_iter().map(|join| join.id).collect()
    }
}
