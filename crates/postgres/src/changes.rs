//! Translates messages of the replication stream to changes of rows.

use std::collections::HashMap;
use std::sync::Arc;

use larder_types::KeyRange;

use crate::mapping::{Mapping, Misfit};
use crate::pgoutput::{Cell, Message, Old, Relation};

/// A change of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Some columns of a row's value changed; the others were not sent.
    Patch {
        key: Vec<u8>,
        patch: Patch,
    },
    Remove {
        key: Vec<u8>,
    },
    /// All rows of a table were removed.
    Clear {
        prefix: Vec<u8>,
    },
    /// Rows of this range changed in a way that cannot be expressed as a change.
    Forget {
        range: KeyRange,
    },
}

/// The changed columns of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    mapping: Arc<Mapping>,
    cells: Vec<Cell>,
}

impl Patch {
    /// Returns the new value of a row with the value `before`. `None` if `before` is not a value of this table.
    pub fn apply(&self, before: &[u8]) -> Option<Vec<u8>> {
        self.mapping.patched(before, &self.cells)
    }

    fn bytes(&self) -> usize {
        let bytes = |cell: &Cell| match cell {
            Cell::Text(text) => text.len(),
            Cell::Null | Cell::Unchanged => 0,
        };
        self.cells.iter().map(bytes).sum()
    }
}

impl Change {
    /// Returns the keys that the change concerns.
    pub fn range(&self) -> KeyRange {
        match self {
            Change::Put { key, .. } | Change::Patch { key, .. } | Change::Remove { key } => {
                KeyRange::point(key)
            }
            Change::Clear { prefix } => KeyRange::prefix(prefix),
            Change::Forget { range } => range.clone(),
        }
    }

    /// Returns the bytes of its key and its values.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Put { key, value } => key.len() + value.len(),
            Change::Patch { key, patch } => key.len() + patch.bytes(),
            Change::Remove { key } => key.len(),
            Change::Clear { prefix } => prefix.len(),
            Change::Forget { range } => range.lo.len() + range.hi.len(),
        }
    }
}

/// A mapping that no longer matches its table, because the table was altered after the last check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Altered {
    pub mapping: Arc<Mapping>,
    pub why: String,
}

/// A mapped table as the stream describes it.
struct MappedRelation {
    mapping: Arc<Mapping>,
    /// Positions of the columns of the slots and of the value in the stream's rows.
    slots: Vec<usize>,
    values: Vec<usize>,
}

/// Translates messages. Each connection has its own translator, because a new stream describes its tables again.
pub struct Translator {
    /// By the table's OID.
    mappings: HashMap<u32, Vec<Arc<Mapping>>>,
    relations: HashMap<u32, Vec<MappedRelation>>,
    /// True if a table was described again since [`Translator::take_redescribed`] was last called.
    is_redescribed: bool,
}

impl Translator {
    /// Creates a translator. `mappings` contains the OIDs of their tables.
    pub fn new(mappings: impl Iterator<Item = (u32, Arc<Mapping>)>) -> Translator {
        let mut by_number: HashMap<u32, Vec<Arc<Mapping>>> = HashMap::new();
        for (number, mapping) in mappings {
            by_number.entry(number).or_default().push(mapping);
        }
        Translator {
            mappings: by_number,
            relations: HashMap::new(),
            is_redescribed: false,
        }
    }

    /// Returns whether a table was described again since the last call. The stream does so after a change of the
    /// table's description or of the publication.
    pub fn take_redescribed(&mut self) -> bool {
        std::mem::take(&mut self.is_redescribed)
    }

    /// Calls `each` with the changes in a message, and `misfit` with rows that cannot be represented. Returns the
    /// mappings that no longer match their table; the caller must exclude them.
    pub fn translate(
        &mut self,
        message: &Message,
        each: &mut dyn FnMut(Change),
        misfit: &mut dyn FnMut(&Mapping, &Misfit),
    ) -> Vec<Altered> {
        match message {
            Message::Relation(relation) => return self.describe(relation),
            Message::Insert { relation, new } => {
                for relation in self.relations_of(*relation) {
                    relation.put(&Old::Same, new, true, each, misfit);
                }
            }
            Message::Update { relation, old, new } => {
                for relation in self.relations_of(*relation) {
                    relation.put(old, new, false, each, misfit);
                }
            }
            Message::Delete { relation, old } => {
                for relation in self.relations_of(*relation) {
                    let (Old::Key(cells) | Old::Row(cells)) = old else {
                        continue;
                    };
                    match relation.key_of(cells) {
                        Ok(key) => each(Change::Remove { key }),
                        // The row was not represented before.
                        Err(_) => each(relation.invalidate()),
                    }
                }
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    for mapping in self.mappings.get(relation).into_iter().flatten() {
                        each(Change::Clear {
                            prefix: mapping.prefix.clone(),
                        });
                    }
                }
            }
            Message::Other => {}
        }
        Vec::new()
    }

    /// Stops translating changes of a mapping.
    pub fn exclude(&mut self, name: &str) {
        for mappings in self.mappings.values_mut() {
            mappings.retain(|mapping| mapping.name != name);
        }
        for relations in self.relations.values_mut() {
            relations.retain(|relations| relations.mapping.name != name);
        }
    }

    fn relations_of(&self, relation: u32) -> &[MappedRelation] {
        self.relations.get(&relation).map_or(&[], Vec::as_slice)
    }

    fn describe(&mut self, relation: &Relation) -> Vec<Altered> {
        let mut altered = self.find_renamed(relation);
        let mut relations = Vec::new();
        let mappings = self.mappings.get(&relation.oid);
        for mapping in mappings.into_iter().flatten() {
            match MappedRelation::of(mapping, relation) {
                Ok(relation) => relations.push(relation),
                Err(why) => altered.push(Altered {
                    mapping: mapping.clone(),
                    why,
                }),
            }
        }
        let is_mapped = !relations.is_empty();
        let before = self.relations.insert(relation.oid, relations);
        self.is_redescribed |= is_mapped && before.is_some();
        altered
    }

    /// Returns the mappings whose table was renamed, or whose table name now belongs to another table.
    fn find_renamed(&self, relation: &Relation) -> Vec<Altered> {
        let all = self.mappings.iter();
        let all = all.flat_map(|(number, all)| all.iter().map(|mapping| (*number, mapping)));
        let find_renamed = all.filter(|(number, mapping)| {
            let has_name = mapping.schema == relation.schema && mapping.table == relation.table;
            has_name != (*number == relation.oid)
        });
        let altered = find_renamed.map(|(number, mapping)| Altered {
            mapping: mapping.clone(),
            why: if number == relation.oid {
                format!("it is called {}.{} now", relation.schema, relation.table)
            } else {
                "another table has its name now".to_owned()
            },
        });
        altered.collect()
    }
}

impl MappedRelation {
    /// Finds the columns of a mapping in a table's rows.
    ///
    /// # Errors
    /// The reason why the table does not match the mapping.
    fn of(mapping: &Arc<Mapping>, relation: &Relation) -> Result<MappedRelation, String> {
        let place = |column: &str, type_oid: u32| {
            let mut columns = relation.columns.iter();
            let found = columns.position(|other| other.name == column);
            let place =
                found.ok_or_else(|| format!("the column {column} is no longer replicated"))?;
            if relation.columns[place].type_oid == type_oid || type_oid == 0 {
                Ok(place)
            } else {
                Err(format!("the column {column} has another type now"))
            }
        };
        let identity = |column: &str, type_oid: u32| {
            let place = place(column, type_oid)?;
            if relation.columns[place].is_identity {
                Ok(place)
            } else {
                Err(format!(
                    "updates and deletes no longer include the column {column}"
                ))
            }
        };
        let slots = mapping.slots.iter();
        let slots = slots.map(|slot| identity(&slot.column, slot.type_oid));
        let values = mapping.values.iter();
        let values = values.map(|value| place(&value.column, value.type_oid));
        Ok(MappedRelation {
            mapping: mapping.clone(),
            slots: slots.collect::<Result<_, _>>()?,
            values: values.collect::<Result<_, _>>()?,
        })
    }

    fn pick(cells: &[Cell], places: &[usize]) -> Vec<Cell> {
        let cell = |place: &usize| cells.get(*place).cloned().unwrap_or(Cell::Null);
        places.iter().map(cell).collect()
    }

    fn key_of(&self, cells: &[Cell]) -> Result<Vec<u8>, Misfit> {
        self.mapping.key_of(&Self::pick(cells, &self.slots))
    }

    /// Returns the change for a row that cannot be represented. Reads of its range must report it, and loads will find
    /// it.
    fn invalidate(&self) -> Change {
        Change::Forget {
            range: KeyRange::prefix(&self.mapping.prefix),
        }
    }

    /// Completes the new row with cells of the old one that were not sent again; `None` if there are none.
    fn complete_row(&self, old: &Old, new: &[Cell]) -> Option<Vec<Cell>> {
        if !new.contains(&Cell::Unchanged) {
            return None;
        }
        let mut new = new.to_vec();
        match old {
            Old::Same => return None,
            Old::Row(old) => {
                for (cell, old) in new.iter_mut().zip(old) {
                    if *cell == Cell::Unchanged {
                        cell.clone_from(old);
                    }
                }
            }
            Old::Key(old) => {
                for slot in &self.slots {
                    if let (Some(cell @ Cell::Unchanged), Some(old)) =
                        (new.get_mut(*slot), old.get(*slot))
                    {
                        cell.clone_from(old);
                    }
                }
            }
        }
        Some(new)
    }

    /// Translates an insert or an update.
    fn put(
        &self,
        old: &Old,
        new: &[Cell],
        is_new: bool,
        each: &mut dyn FnMut(Change),
        misfit: &mut dyn FnMut(&Mapping, &Misfit),
    ) {
        let complete_row = self.complete_row(old, new);
        let new = complete_row.as_deref().unwrap_or(new);
        let before = match old {
            Old::Same => None,
            Old::Key(cells) | Old::Row(cells) => Some(self.key_of(cells)),
        };
        let key = match self.key_of(new) {
            Ok(key) => key,
            Err(why) => {
                misfit(&self.mapping, &why);
                return each(self.invalidate());
            }
        };
        let moved = match before {
            None => false,
            Some(Ok(before)) if before == key => false,
            Some(Ok(before)) => {
                each(Change::Remove { key: before });
                true
            }
            // The row was not represented before.
            Some(Err(_)) => return each(self.invalidate()),
        };
        let values = Self::pick(new, &self.values);
        if let Some(value) = self.mapping.value_of(&values) {
            return each(Change::Put { key, value });
        }
        if moved || is_new {
            // The value was not sent, and the row that had it has another key.
            let range = Change::Remove { key }.range();
            return each(Change::Forget { range });
        }
        if values.iter().any(|cell| *cell != Cell::Unchanged) {
            let patch = Patch {
                mapping: self.mapping.clone(),
                cells: values,
            };
            each(Change::Patch { key, patch });
        }
    }
}
