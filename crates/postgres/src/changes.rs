//! From messages of the replication stream to changes of rows.

use std::collections::HashMap;
use std::sync::Arc;

use crate::mapping::{Mapping, Misfit};
use crate::pgoutput::{Cell, Message, Old, Relation};
use crate::range::Range;

/// What happened to rows.
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
    /// All rows of a table went.
    Clear {
        prefix: Vec<u8>,
    },
    /// Rows of this range changed in a way that cannot be told.
    Forget {
        range: Range,
    },
}

/// The columns that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    mapping: Arc<Mapping>,
    cells: Vec<Cell>,
}

impl Patch {
    /// The new value of a row that had this one. `None` if it was no value of this table's.
    pub fn apply(&self, before: &[u8]) -> Option<Vec<u8>> {
        self.mapping.patched(before, &self.cells)
    }
}

impl Change {
    /// The keys that it concerns.
    pub fn range(&self) -> Range {
        match self {
            Change::Put { key, .. } | Change::Patch { key, .. } | Change::Remove { key } => {
                let mut hi = key.clone();
                hi.push(0);
                Range {
                    lo: key.clone(),
                    hi,
                }
            }
            Change::Clear { prefix } => Range::prefix(prefix),
            Change::Forget { range } => range.clone(),
        }
    }
}

/// What is wrong with a table since it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Altered {
    pub table: String,
    pub why: String,
}

/// A mapped table as the stream tells of it.
struct Known {
    mapping: Arc<Mapping>,
    /// Where the stream's rows have the slots' columns and the value's.
    slots: Vec<usize>,
    values: Vec<usize>,
}

/// Translates messages. Each connection has its own: the stream describes its tables anew.
pub struct Translator {
    /// By the table's number in PostgreSQL.
    mappings: HashMap<u32, Vec<Arc<Mapping>>>,
    known: HashMap<u32, Vec<Known>>,
    /// A table was described once more since it was last asked.
    is_described_again: bool,
}

impl Translator {
    /// `mappings` with the numbers of their tables.
    pub fn new(mappings: impl Iterator<Item = (u32, Arc<Mapping>)>) -> Translator {
        let mut by_number: HashMap<u32, Vec<Arc<Mapping>>> = HashMap::new();
        for (number, mapping) in mappings {
            by_number.entry(number).or_default().push(mapping);
        }
        Translator {
            mappings: by_number,
            known: HashMap::new(),
            is_described_again: false,
        }
    }

    /// Whether a table was described once more since this was last asked: the stream does so behind a change of its
    /// description, and of the publication.
    pub fn take_described_again(&mut self) -> bool {
        std::mem::take(&mut self.is_described_again)
    }

    /// Tells `each` what a message does to rows, and of rows that cannot be rows here.
    ///
    /// # Errors
    /// A table is not any more as it was when it was looked at.
    pub fn translate(
        &mut self,
        message: &Message,
        each: &mut dyn FnMut(Change),
        misfit: &mut dyn FnMut(&Mapping, &Misfit),
    ) -> Result<(), Altered> {
        match message {
            Message::Relation(relation) => self.describe(relation)?,
            Message::Insert { relation, new } => {
                for known in self.of(*relation) {
                    known.put(&Old::Same, new, true, each, misfit);
                }
            }
            Message::Update { relation, old, new } => {
                for known in self.of(*relation) {
                    known.put(old, new, false, each, misfit);
                }
            }
            Message::Delete { relation, old } => {
                for known in self.of(*relation) {
                    let (Old::Key(cells) | Old::Row(cells)) = old else {
                        continue;
                    };
                    match known.key_of(cells) {
                        Ok(key) => each(Change::Remove { key }),
                        // It was no row here.
                        Err(_) => each(known.forget()),
                    }
                }
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    for known in self.mappings.get(relation).into_iter().flatten() {
                        each(Change::Clear {
                            prefix: known.prefix.clone(),
                        });
                    }
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    fn of(&self, relation: u32) -> &[Known] {
        self.known.get(&relation).map_or(&[], Vec::as_slice)
    }

    fn describe(&mut self, relation: &Relation) -> Result<(), Altered> {
        self.refuse_renamed(relation)?;
        let mappings = self.mappings.get(&relation.oid);
        let mut known = Vec::new();
        for mapping in mappings.into_iter().flatten() {
            let altered = |why: String| Altered {
                table: mapping.shown(),
                why,
            };
            let place = |column: &str| {
                let mut columns = relation.columns.iter();
                let found = columns.position(|other| other.name == column);
                found.ok_or_else(|| {
                    altered(format!("the column {column} is not replicated any more"))
                })
            };
            let identity = |column: &str| {
                let place = place(column)?;
                match relation.columns[place].is_identity {
                    true => Ok(place),
                    false => Err(altered(format!(
                        "updates and deletes do not tell the column {column} any more"
                    ))),
                }
            };
            let slots = mapping.slots.iter().map(|slot| identity(&slot.column));
            let values = mapping.values.iter().map(|value| place(&value.column));
            known.push(Known {
                mapping: mapping.clone(),
                slots: slots.collect::<Result<_, _>>()?,
                values: values.collect::<Result<_, _>>()?,
            });
        }
        let is_mapped = !known.is_empty();
        let before = self.known.insert(relation.oid, known);
        self.is_described_again |= is_mapped && before.is_some();
        Ok(())
    }

    /// A mapped table has its name still, and no other table has it.
    fn refuse_renamed(&self, relation: &Relation) -> Result<(), Altered> {
        for (number, mapping) in &self.mappings {
            let named = |mapping: &&Arc<Mapping>| {
                mapping.schema == relation.schema && mapping.table == relation.table
            };
            let is_it = *number == relation.oid;
            if let Some(mapping) = mapping.iter().find(|mapping| named(mapping) != is_it) {
                return Err(Altered {
                    table: mapping.shown(),
                    why: "another table has its name now".to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl Known {
    fn pick(cells: &[Cell], places: &[usize]) -> Vec<Cell> {
        let cell = |place: &usize| cells.get(*place).cloned().unwrap_or(Cell::Null);
        places.iter().map(cell).collect()
    }

    fn key_of(&self, cells: &[Cell]) -> Result<Vec<u8>, Misfit> {
        self.mapping.key_of(&Self::pick(cells, &self.slots))
    }

    /// A row that cannot be one here: reads that include it must be told, and loads tell them.
    fn forget(&self) -> Change {
        Change::Forget {
            range: Range::prefix(&self.mapping.prefix),
        }
    }

    /// An insert or an update.
    fn put(
        &self,
        old: &Old,
        new: &[Cell],
        is_new: bool,
        each: &mut dyn FnMut(Change),
        misfit: &mut dyn FnMut(&Mapping, &Misfit),
    ) {
        let mut new = new.to_vec();
        if let Old::Row(old) = old {
            // The old row has what the new one left out.
            for (cell, old) in new.iter_mut().zip(old) {
                if *cell == Cell::Unchanged {
                    cell.clone_from(old);
                }
            }
        }
        if let Old::Key(old) = old {
            for slot in &self.slots {
                if let (Some(cell @ Cell::Unchanged), Some(old)) =
                    (new.get_mut(*slot), old.get(*slot))
                {
                    cell.clone_from(old);
                }
            }
        }
        let before = match old {
            Old::Same => None,
            Old::Key(cells) | Old::Row(cells) => Some(self.key_of(cells)),
        };
        let key = match self.key_of(&new) {
            Ok(key) => key,
            Err(why) => {
                misfit(&self.mapping, &why);
                return each(self.forget());
            }
        };
        let moved = match before {
            None => false,
            Some(Ok(before)) if before == key => false,
            Some(Ok(before)) => {
                each(Change::Remove { key: before });
                true
            }
            // It was no row here until now.
            Some(Err(_)) => return each(self.forget()),
        };
        let values = Self::pick(&new, &self.values);
        if let Some(value) = self.mapping.value_of(&values) {
            return each(Change::Put { key, value });
        }
        if moved || is_new {
            // What the value holds was not sent, and the row that had it is elsewhere.
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
