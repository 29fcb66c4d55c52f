//! The catalog: creates, replaces and drops joins. Definitions that conflict with existing ones are rejected (see
//! `lineage`).

use crate::base::key_range::table_name;
use crate::base::pattern::{Element, Pattern};
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::{DefinitionError, Error, text};
use crate::join::{Join, JoinId, TableId};
use crate::language::definition::Definition;
use crate::language::plan;
use crate::tables::lineage::Lineage;
use crate::tables::log::LogEntry;
use crate::tables::pages::Pages;

/// A join's statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinInfo {
    pub name: String,
    pub definition: String,
    /// Currently filled ranges. `filled` and `evicted` count the fills and evictions so far.
    pub ranges: usize,
    pub filled: u64,
    pub evicted: u64,
    pub rows: u64,
    /// Number of times so far that ranges omitted a row because values that it aggregates are not numbers.
    pub left_out: u64,
    /// Number of source ranges whose changes the join tracks.
    pub updaters: usize,
    pub memory_bytes: usize,
}

/// The effect of a definition on an existing join of the same name. If that join has the same definition, nothing
/// changes in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CreateBehavior {
    /// The definition is rejected.
    #[default]
    Refuse,
    /// The existing join stays.
    Keep,
    /// The new definition replaces the existing one in one step.
    Replace,
}

/// The effect of a valid definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionEffect {
    Unchanged,
    /// It creates a join; no join has this name.
    New,
    /// It replaces the join of this name.
    Replaced,
}

/// The effect of dropping a join on the joins that read its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DropBehavior {
    /// The drop is rejected.
    #[default]
    Refuse,
    /// They are dropped too.
    Cascade,
    /// They stay, and read no more rows of it.
    Ignore,
}

fn name_conflict(name: &str) -> DefinitionError {
    let message = format!(
        "join {name:?} already exists with another definition: replace it with OR REPLACE, or drop it first"
    );
    DefinitionError::new(1, message)
}

/// The planned effect of a definition.
enum PlannedDefinition {
    /// The existing join stays.
    Unchanged(JoinId),
    New(Box<Definition>),
    Replaces(JoinId, Box<Definition>),
}

impl Engine {
    /// Creates a join. Its output is empty until it is read. Ranges of other joins that read the output table are
    /// filled again when they are next read. If the join exists with the same definition, this is a no-op.
    ///
    /// # Errors
    /// The position and the reason, if the definition is invalid or conflicts with existing joins or tables.
    pub fn create(
        &mut self,
        name: &str,
        definition: &str,
        now: u64,
    ) -> Result<JoinId, DefinitionError> {
        self.define(name, definition, CreateBehavior::Refuse, now)
    }

    /// Creates a join, or replaces it in one step: every read sees one of the two. A replaced join counts as the
    /// newest.
    ///
    /// # Errors
    /// As [`Engine::create`].
    pub fn define(
        &mut self,
        name: &str,
        definition: &str,
        if_defined: CreateBehavior,
        now: u64,
    ) -> Result<JoinId, DefinitionError> {
        self.begin(now);
        let (definition, replaced) = match self.plan_definition(name, definition, if_defined)? {
            PlannedDefinition::Unchanged(id) => return Ok(id),
            PlannedDefinition::New(definition) => (definition, None),
            PlannedDefinition::Replaces(id, definition) => (definition, Some(id)),
        };
        if let Some(id) = replaced {
            self.remove_join(id);
        }
        Ok(self.add_join(name, *definition))
    }

    /// Checks whether [`Engine::define`] would succeed. Returns the change that it would make.
    ///
    /// # Errors
    /// As [`Engine::define`].
    pub fn check_definition(
        &self,
        name: &str,
        definition: &str,
        if_defined: CreateBehavior,
    ) -> Result<DefinitionEffect, DefinitionError> {
        let planned = self.plan_definition(name, definition, if_defined)?;
        Ok(match planned {
            PlannedDefinition::Unchanged(_) => DefinitionEffect::Unchanged,
            PlannedDefinition::New(_) => DefinitionEffect::New,
            PlannedDefinition::Replaces(..) => DefinitionEffect::Replaced,
        })
    }

    fn plan_definition(
        &self,
        name: &str,
        definition: &str,
        if_defined: CreateBehavior,
    ) -> Result<PlannedDefinition, DefinitionError> {
        let definition = Definition::parse(definition)?;
        let known = self.joins.find_by_name(name);
        match (known, if_defined) {
            (Some(known), _) if known.definition.text.trim() == definition.text.trim() => {
                Ok(PlannedDefinition::Unchanged(known.id))
            }
            (Some(known), CreateBehavior::Keep) => Ok(PlannedDefinition::Unchanged(known.id)),
            (Some(_), CreateBehavior::Refuse) => Err(name_conflict(name)),
            (Some(known), CreateBehavior::Replace) => {
                let mut lineage = self.lineage();
                lineage.without = Some(known.id);
                lineage.admit(&definition)?;
                self.refuse_orphans(known, &definition)?;
                Ok(PlannedDefinition::Replaces(known.id, Box::new(definition)))
            }
            (None, _) => {
                self.lineage().admit(&definition)?;
                Ok(PlannedDefinition::New(Box::new(definition)))
            }
        }
    }

    /// # Errors
    /// The new definition writes another table, and other joins read the table that the old one writes.
    fn refuse_orphans(&self, join: &Join, definition: &Definition) -> Result<(), DefinitionError> {
        let table = &self.tables[join.table].name;
        let readers = self.readers_of(join);
        if table_of(&definition.shape.output) == &**table || readers.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the output of {} is read by {}, and this definition writes another table: keep the table {}, or drop the readers first",
            join.name,
            readers.join(", "),
            text(&table[..table.len() - 1])
        );
        Err(DefinitionError::new(definition.output_column, message))
    }

    /// Returns the names of the joins that read a join's output.
    fn readers_of(&self, join: &Join) -> Vec<String> {
        let live = self.joins.live();
        let readers = live.filter(|reader| reader.tables.contains(&join.table));
        readers.map(|reader| reader.name.clone()).collect()
    }

    fn add_join(&mut self, name: &str, definition: Definition) -> JoinId {
        let table = self.table_for(&definition.shape.output, &definition);
        let order = plan::plan_order(&definition);
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
        self.release_replicas(table);
        if is_maintained {
            for (level, &source) in tables.iter().enumerate() {
                self.tables[source].readers.push((id, level as u8));
            }
        }
        self.order_upstream();
        id
    }

    /// Returns the joins to drop, in order, when the join `name` is dropped: its readers if these are dropped too, then
    /// itself.
    ///
    /// # Errors
    /// No join has this name, or joins read its output and `if_read` rejects that.
    pub fn plan_drop(&self, name: &str, if_read: DropBehavior) -> Result<Vec<String>, Error> {
        let join = self.joins.find_by_name(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        let readers = self.readers_of(join);
        if if_read == DropBehavior::Refuse && !readers.is_empty() {
            let name = name.to_string();
            return Err(Error::JoinIsRead { name, readers });
        }
        let mut names = Vec::new();
        if if_read == DropBehavior::Cascade {
            let downstream = self.lineage().downstream(join.table);
            let live = |id: &JoinId| self.joins.live().find(|join| join.id == *id);
            names.extend(downstream.iter().filter_map(live).map(|it| it.name.clone()));
        }
        names.push(name.to_string());
        Ok(names)
    }

    /// Drops a join and its rows, which become invisible immediately. Joins that read its output read no more rows of
    /// it; [`Engine::plan_drop`] lists them. If steps are bounded (see [`Engine::set_step_rows`]), the next steps free
    /// the memory.
    ///
    /// # Errors
    /// No join has this name.
    pub fn drop_join(&mut self, name: &str) -> Result<(), Error> {
        let join = self.joins.find_by_name(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        self.remove_join(join.id);
        self.order_upstream();
        self.log.record(|| LogEntry::Drop {
            name: name.to_string(),
        });
        Ok(())
    }

    fn remove_join(&mut self, id: JoinId) {
        let Some(join) = self.joins.get(id) else {
            return;
        };
        let (table, sources) = (join.table, join.tables.clone());
        self.discard_downstream(table);
        if self.step_limits.step_rows.is_none() {
            self.discard_fills(id);
        }
        self.tables[table].makers.retain(|&m| m != id);
        self.tables[table].pages = Pages::default();
        for source in sources {
            self.tables[source].readers.retain(|(r, _)| *r != id);
        }
        self.reads.deferred.retry_all();
        self.joins.drop_join(id);
        if self.step_limits.step_rows.is_none() {
            self.free_dropped(usize::MAX);
        }
    }

    /// Returns whether [`Engine::step`] has memory to free: rows of dropped joins, or transient fills.
    pub fn has_garbage(&self) -> bool {
        self.joins.has_dropped() || !self.reads.transient.is_empty()
    }

    /// Lists all joins, oldest first.
    pub fn list(&self) -> Vec<JoinInfo> {
        let infos = self.joins.live().map(|join| JoinInfo {
            name: join.name.clone(),
            definition: join.definition.text.clone(),
            ranges: join.fills.len(),
            filled: join.statistics.filled,
            evicted: join.statistics.evicted,
            rows: join.output.rows.len(),
            left_out: join.statistics.left_out.get(),
            updaters: join.nodes.len(),
            memory_bytes: join.memory_bytes(),
        });
        infos.collect()
    }

    /// Returns the statistics of one join.
    ///
    /// # Errors
    /// No join has this name.
    pub fn info(&self, name: &str) -> Result<JoinInfo, Error> {
        let found = self.list().into_iter().find(|j| j.name == name);
        found.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })
    }

    /// Returns the table of a pattern, and creates it if necessary. A table without rows is split as the pattern
    /// suggests.
    fn table_for(&mut self, pattern: &Pattern, definition: &Definition) -> TableId {
        let table = self.tables.find_or_create(table_of(pattern));
        let state = &mut self.tables[table];
        if state.rows.is_empty() && state.readers.is_empty() {
            state.rows.reset_split(pattern.split(&definition.slots));
        }
        table
    }

    pub(crate) fn lineage(&self) -> Lineage<'_> {
        Lineage {
            tables: &self.tables,
            joins: &self.joins,
            without: None,
        }
    }

    /// Discards everything that was computed from a table.
    pub(crate) fn discard_downstream(&mut self, table: TableId) {
        for id in self.lineage().downstream(table) {
            self.discard_fills(id);
        }
    }

    fn discard_fills(&mut self, id: JoinId) {
        self.set_budget(Budget::unlimited());
        self.with_join(id, |engine, join| {
            engine.finish_lists(join);
            let fills: Vec<u32> = join.fills.iter().map(|(number, _)| number).collect();
            for fill in fills {
                engine.discard(join, fill);
            }
        });
    }

    /// Computes for each join the joins that it depends on, in dependency order.
    fn order_upstream(&mut self) {
        for id in 0..self.joins.next_id() {
            let join = self.joins.get(id);
            let upstream = join.map(|join| self.lineage().upstream(join));
            if let (Some(join), Some(upstream)) = (self.joins.get_mut(id), upstream) {
                join.upstream = upstream;
            }
        }
    }
}

/// Returns the name of a pattern's table, with its separator.
pub(crate) fn table_of(pattern: &Pattern) -> &[u8] {
    let Some(Element::Text(start)) = pattern.elements.first() else {
        unreachable!("invariant 2 of patterns")
    };
    table_name(start).expect("invariant 2 of patterns")
}
