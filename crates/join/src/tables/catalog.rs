//! The catalog: creates and drops joins, and refuses those that cannot work together.

use crate::base::key_range::table_name;
use crate::base::pattern::{Element, Pattern};
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::{DefinitionError, Error, text};
use crate::join::{Join, JoinId, TableId};
use crate::language::definition::Definition;
use crate::language::grammar::Mode;
use crate::language::plan;
use crate::tables::log::LogEntry;
use crate::tables::pages::Pages;

/// A join, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinInfo {
    pub name: String,
    pub definition: String,
    /// Ranges that are filled, and how many were filled and evicted so far.
    pub ranges: usize,
    pub filled: u64,
    pub evicted: u64,
    pub rows: u64,
    /// How often a row could not be shown so far, since values that it adds up are no numbers: ranges leave it out.
    pub left_out: u64,
    /// Source ranges whose changes are listened to.
    pub updaters: usize,
    pub memory_bytes: usize,
}

impl Engine {
    /// Creates a join. Its output is empty until it is read. Ranges that other joins filled from the same table are
    /// filled again with it when next read.
    ///
    /// # Errors
    /// Where and why the definition cannot be used, by itself or beside what is there.
    pub fn create(
        &mut self,
        name: &str,
        definition: &str,
        now: u64,
    ) -> Result<JoinId, DefinitionError> {
        self.begin(now);
        let definition = Definition::parse(definition)?;
        if self.joins.named(name).is_some() {
            return Err(DefinitionError::new(
                1,
                format!("a join named {name:?} is there already: drop it first"),
            ));
        }
        self.refuse_occupied(&definition)?;
        self.refuse_cycle(&definition)?;
        self.refuse_unheard(&definition)?;
        let table = self.table_for(&definition.shape.output, &definition);
        let order = plan::order(&definition);
        let tables: Vec<TableId> = order
            .iter()
            .map(|&s| self.table_for(&definition.sources[s].pattern.clone(), &definition))
            .collect();
        self.discard_downstream(table);
        let id = self.joins.next_id();
        self.log.record(|| LogEntry::Create {
            name: name.to_string(),
            definition: definition.text.clone(),
        });
        let is_maintained = definition.is_maintained();
        let join = Join::new(id, name, definition, order, table, tables.clone());
        self.joins.add(join);
        self.tables[table].makers.push(id);
        self.tables[table].pages = Pages::default();
        self.release_guests(table);
        if is_maintained {
            for (level, &source) in tables.iter().enumerate() {
                self.tables[source].readers.push((id, level as u8));
            }
        }
        self.order_upstream();
        Ok(id)
    }

    /// Drops a join and all it has made: nobody sees any of it any more. Where steps are bounded (see
    /// [`Engine::set_step_rows`]) its memory comes back with the next steps.
    ///
    /// # Errors
    /// No join has this name.
    pub fn drop_join(&mut self, name: &str) -> Result<(), Error> {
        let join = self.joins.named(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        let (id, table, sources) = (join.id, join.table, join.tables.clone());
        self.discard_downstream(table);
        if self.pace.step_rows.is_none() {
            self.discard_fills(id);
        }
        self.tables[table].makers.retain(|&m| m != id);
        self.tables[table].pages = Pages::default();
        for source in sources {
            self.tables[source].readers.retain(|(r, _)| *r != id);
        }
        self.reads.deferred.retry_all();
        self.joins.drop_join(id);
        if self.pace.step_rows.is_none() {
            self.forget_dropped(usize::MAX);
        }
        self.order_upstream();
        self.log.record(|| LogEntry::Drop {
            name: name.to_string(),
        });
        Ok(())
    }

    /// Whether [`Engine::step`] has something to forget: what dropped joins made, or what was computed for one read.
    pub fn has_leftovers(&self) -> bool {
        self.joins.has_dropped() || !self.reads.transient.is_empty()
    }

    /// All joins, oldest first.
    pub fn list(&self) -> Vec<JoinInfo> {
        let infos = self.joins.live().map(|join| JoinInfo {
            name: join.name.clone(),
            definition: join.definition.text.clone(),
            ranges: join.status.len(),
            filled: join.filled,
            evicted: join.evicted,
            rows: join.output.rows.len(),
            left_out: join.left_out.get(),
            updaters: join.leaves.len() + join.inner.len(),
            memory_bytes: join.memory_bytes(),
        });
        infos.collect()
    }

    /// What there is to say about one join.
    ///
    /// # Errors
    /// No join has this name.
    pub fn info(&self, name: &str) -> Result<JoinInfo, Error> {
        let found = self.list().into_iter().find(|j| j.name == name);
        found.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })
    }

    /// An output cannot share a table with base rows.
    fn refuse_occupied(&self, definition: &Definition) -> Result<(), DefinitionError> {
        let Some(table) = self.tables.named(table_of(&definition.shape.output)) else {
            return Ok(());
        };
        let state = &self.tables[table];
        if state.makers.is_empty() && (!state.rows.is_empty() || state.supplied.is_some()) {
            let name = text(&state.name[..state.name.len() - 1]);
            return Err(DefinitionError::new(
                definition.output_column,
                format!(
                    "table {name} holds rows of its own: give the output another table, or remove the rows"
                ),
            ));
        }
        Ok(())
    }

    /// A join that reads, directly or through others, what it makes would never end.
    fn refuse_cycle(&self, definition: &Definition) -> Result<(), DefinitionError> {
        let output = table_of(&definition.shape.output);
        for source in &definition.sources {
            let mut path = vec![text(&output[..output.len() - 1])];
            if self.leads_to(table_of(&source.pattern), output, &mut path) {
                path.reverse();
                return Err(DefinitionError::new(
                    source.column,
                    format!(
                        "this join would never end: its output leads back to its source ({})",
                        path.join(" <- ")
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Whether rows of `table` are made from `output`.
    fn leads_to(&self, table: &[u8], output: &[u8], path: &mut Vec<String>) -> bool {
        path.push(text(&table[..table.len() - 1]));
        if table == output {
            return true;
        }
        if let Some(number) = self.tables.named(table) {
            for &maker in &self.tables[number].makers {
                let Some(join) = self.joins.get(maker) else {
                    continue;
                };
                for &source in &join.tables {
                    if self.leads_to(&self.tables[source].name.clone(), output, path) {
                        return true;
                    }
                }
            }
        }
        path.pop();
        false
    }

    /// A join that writes keep fresh must hear of its sources' changes.
    fn refuse_unheard(&self, definition: &Definition) -> Result<(), DefinitionError> {
        if definition.is_maintained() {
            for source in &definition.sources {
                let Some(table) = self.tables.named(table_of(&source.pattern)) else {
                    continue;
                };
                let makers = self.tables[table]
                    .makers
                    .iter()
                    .filter_map(|&m| self.joins.get(m));
                if let Some(join) = makers.into_iter().find(|j| j.definition.mode != Mode::Push) {
                    return Err(DefinitionError::new(
                        source.column,
                        format!(
                            "{} is made by join {}, which is {} and cannot tell when its rows change: make it push, or this join pull or snapshot",
                            source.pattern.text,
                            join.name,
                            join.definition.mode.name()
                        ),
                    ));
                }
            }
        }
        if definition.mode != Mode::Push
            && let Some(table) = self.tables.named(table_of(&definition.shape.output))
            && let readers = self.tables[table].readers.iter()
            && let Some(join) = readers
                .filter_map(|(reader, _)| self.joins.get(*reader))
                .find(|join| join.definition.is_maintained())
        {
            return Err(DefinitionError::new(
                definition.output_column,
                format!(
                    "join {} reads this output and must hear of changes, which a {} join cannot tell: make this join push",
                    join.name,
                    definition.mode.name()
                ),
            ));
        }
        Ok(())
    }

    /// The table of a pattern, made and split as the pattern suggests if it has no rows yet.
    fn table_for(&mut self, pattern: &Pattern, definition: &Definition) -> TableId {
        let table = self.tables.named_or_new(table_of(pattern));
        let state = &mut self.tables[table];
        if state.rows.is_empty() && state.readers.is_empty() {
            state.rows.split_anew(pattern.split(&definition.slots));
        }
        table
    }

    /// Discards all that was computed from a table.
    pub(crate) fn discard_downstream(&mut self, table: TableId) {
        for id in self.downstream(table) {
            self.discard_fills(id);
        }
    }

    fn discard_fills(&mut self, id: JoinId) {
        self.budget = Budget::unlimited();
        self.with_join(id, |engine, join| {
            engine.finish_lists(join);
            let fills: Vec<u32> = join.fills.iter().map(|(number, _)| number).collect();
            for fill in fills {
                engine.discard(join, fill);
            }
        });
    }

    /// Finds for each join those that it reads from, in the order in which they depend on one another.
    fn order_upstream(&mut self) {
        for id in 0..self.joins.next_id() {
            let mut upstream = Vec::new();
            if let Some(join) = self.joins.get(id) {
                for &table in &join.tables {
                    self.add_upstream(table, &mut upstream);
                }
            }
            if let Some(join) = self.joins.get_mut(id) {
                join.upstream = upstream;
            }
        }
    }

    fn add_upstream(&self, table: TableId, upstream: &mut Vec<JoinId>) {
        for &maker in &self.tables[table].makers {
            if upstream.contains(&maker) {
                continue;
            }
            let Some(join) = self.joins.get(maker) else {
                continue;
            };
            for &source in &join.tables {
                self.add_upstream(source, upstream);
            }
            upstream.push(maker);
        }
    }
}

fn table_of(pattern: &Pattern) -> &[u8] {
    let Some(Element::Text(start)) = pattern.elements.first() else {
        unreachable!("invariant 2 of patterns")
    };
    table_name(start).expect("invariant 2 of patterns")
}
