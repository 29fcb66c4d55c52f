//! The catalog: creates and drops joins. What cannot work together is refused (see `lineage`).

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

/// What a definition does to a join of the same name. One with the same text is left as it is, whichever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfDefined {
    /// The definition is refused.
    #[default]
    Refuse,
    /// The join stays as it is.
    Keep,
    /// The new definition takes its place in one step.
    Replace,
}

/// What a definition that is admitted would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    Unchanged,
    /// There is no join of this name.
    New,
    /// The join of this name goes.
    Replaced,
}

/// What the drop of a join does to the joins that read its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfRead {
    /// The drop is refused.
    #[default]
    Refuse,
    /// They are dropped, too.
    Cascade,
    /// They stay, and read nothing of it any more.
    Ignore,
}

fn taken(name: &str) -> DefinitionError {
    let message = format!(
        "a join named {name:?} with another definition is there already: replace it with OR REPLACE, or drop it first"
    );
    DefinitionError::new(1, message)
}

/// What becomes of a definition.
enum Planned {
    /// The join that is there stays.
    Stays(JoinId),
    New(Box<Definition>),
    Replaces(JoinId, Box<Definition>),
}

impl Engine {
    /// Creates a join. Its output is empty until it is read. Ranges that other joins filled from the same table are
    /// filled again with it when next read. If the join is there already, with the same definition, nothing changes.
    ///
    /// # Errors
    /// Where and why the definition cannot be used, by itself or beside what is there.
    pub fn create(
        &mut self,
        name: &str,
        definition: &str,
        now: u64,
    ) -> Result<JoinId, DefinitionError> {
        self.define(name, definition, IfDefined::Refuse, now)
    }

    /// Creates a join, or replaces it in one step: no read sees the table without one of the two. A join that is replaced
    /// counts as the newest.
    ///
    /// # Errors
    /// As [`Engine::create`].
    pub fn define(
        &mut self,
        name: &str,
        definition: &str,
        if_defined: IfDefined,
        now: u64,
    ) -> Result<JoinId, DefinitionError> {
        self.begin(now);
        let (definition, replaced) = match self.plan_definition(name, definition, if_defined)? {
            Planned::Stays(id) => return Ok(id),
            Planned::New(definition) => (definition, None),
            Planned::Replaces(id, definition) => (definition, Some(id)),
        };
        if let Some(id) = replaced {
            self.remove_join(id);
        }
        Ok(self.add_join(name, *definition))
    }

    /// Checks whether [`Engine::define`] would succeed. Returns what it would change.
    ///
    /// # Errors
    /// Those of [`Engine::define`].
    pub fn admits(
        &self,
        name: &str,
        definition: &str,
        if_defined: IfDefined,
    ) -> Result<Admitted, DefinitionError> {
        let planned = self.plan_definition(name, definition, if_defined)?;
        Ok(match planned {
            Planned::Stays(_) => Admitted::Unchanged,
            Planned::New(_) => Admitted::New,
            Planned::Replaces(..) => Admitted::Replaced,
        })
    }

    fn plan_definition(
        &self,
        name: &str,
        definition: &str,
        if_defined: IfDefined,
    ) -> Result<Planned, DefinitionError> {
        let definition = Definition::parse(definition)?;
        let known = self.joins.named(name);
        match (known, if_defined) {
            (Some(known), _) if known.definition.text.trim() == definition.text.trim() => {
                Ok(Planned::Stays(known.id))
            }
            (Some(known), IfDefined::Keep) => Ok(Planned::Stays(known.id)),
            (Some(_), IfDefined::Refuse) => Err(taken(name)),
            (Some(known), IfDefined::Replace) => {
                let mut lineage = self.lineage();
                lineage.without = Some(known.id);
                lineage.admit(&definition)?;
                self.refuse_orphans(known, &definition)?;
                Ok(Planned::Replaces(known.id, Box::new(definition)))
            }
            (None, _) => {
                self.lineage().admit(&definition)?;
                Ok(Planned::New(Box::new(definition)))
            }
        }
    }

    /// # Errors
    /// A definition that is to replace a join makes another table, and joins read the table that it has made.
    fn refuse_orphans(&self, join: &Join, definition: &Definition) -> Result<(), DefinitionError> {
        let table = &self.tables[join.table].name;
        let readers = self.readers_of(join);
        if table_of(&definition.shape.output) == &**table || readers.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the output of {} is read by {}, and this definition makes another table: give it the table {}, or drop the readers first",
            join.name,
            readers.join(", "),
            text(&table[..table.len() - 1])
        );
        Err(DefinitionError::new(definition.output_column, message))
    }

    /// The names of the joins that read what a join makes.
    fn readers_of(&self, join: &Join) -> Vec<String> {
        let live = self.joins.live();
        let readers = live.filter(|reader| reader.tables.contains(&join.table));
        readers.map(|reader| reader.name.clone()).collect()
    }

    fn add_join(&mut self, name: &str, definition: Definition) -> JoinId {
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
        self.release_replicas(table);
        if is_maintained {
            for (level, &source) in tables.iter().enumerate() {
                self.tables[source].readers.push((id, level as u8));
            }
        }
        self.order_upstream();
        id
    }

    /// The joins to drop, in this order, when the join `name` is dropped: itself, after its readers if these are dropped too.
    ///
    /// # Errors
    /// No join has this name, or joins read its output and `if_read` refuses that.
    pub fn plan_drop(&self, name: &str, if_read: IfRead) -> Result<Vec<String>, Error> {
        let join = self.joins.named(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        let readers = self.readers_of(join);
        if if_read == IfRead::Refuse && !readers.is_empty() {
            let name = name.to_string();
            return Err(Error::JoinIsRead { name, readers });
        }
        let mut names = Vec::new();
        if if_read == IfRead::Cascade {
            let downstream = self.lineage().downstream(join.table);
            let live = |id: &JoinId| self.joins.live().find(|join| join.id == *id);
            names.extend(downstream.iter().filter_map(live).map(|it| it.name.clone()));
        }
        names.push(name.to_string());
        Ok(names)
    }

    /// Drops a join and all it has made: nobody sees any of it any more. Joins that read its output read nothing of it from
    /// then on; [`Engine::plan_drop`] says which there are. Where steps are bounded (see [`Engine::set_step_rows`]) its
    /// memory comes back with the next steps.
    ///
    /// # Errors
    /// No join has this name.
    pub fn drop_join(&mut self, name: &str) -> Result<(), Error> {
        let join = self.joins.named(name);
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

    /// The table of a pattern, made and split as the pattern suggests if it has no rows yet.
    fn table_for(&mut self, pattern: &Pattern, definition: &Definition) -> TableId {
        let table = self.tables.named_or_new(table_of(pattern));
        let state = &mut self.tables[table];
        if state.rows.is_empty() && state.readers.is_empty() {
            state.rows.split_anew(pattern.split(&definition.slots));
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

    /// Discards all that was computed from a table.
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

    /// Finds for each join those that it reads from, in the order in which they depend on one another.
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

/// The name of a pattern's table, with its separator.
pub(crate) fn table_of(pattern: &Pattern) -> &[u8] {
    let Some(Element::Text(start)) = pattern.elements.first() else {
        unreachable!("invariant 2 of patterns")
    };
    table_name(start).expect("invariant 2 of patterns")
}
