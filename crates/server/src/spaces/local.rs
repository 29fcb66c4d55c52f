//! What one core has of all spaces: their definitions, and an index of each over the objects that the core owns.
//!
//! ```text
//!  a change of an object ─► note ──────────────────────────► index: in the same turn
//!  a slot's rows come or go ─► behind: keys to look at ─┐
//!  a space is declared, or the server starts ─► walk ───┴──► index: some in each turn
//! ```
//!
//! 1. Where there are no spaces, a change costs one look at a flag.
//! 2. What is behind is looked at before a search begins, and so is a walk since the start of the server: those who write had their answers before.
//!    The walk of a space that was just declared is not waited for; FT.INFO tells how far it is.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_join::{Engine, LogEntry};
use larder_space::index::SpaceIndex;
use larder_space::object::Object;
use larder_types::{OBJECT_MARK, object_key, object_row};

use super::{Catalog, Declared};

/// An index of so many objects or more is given back to the system by a thread of its own, since that takes a while.
const LARGE: u64 = 4096;

/// Of one core.
#[derive(Default)]
pub struct Spaces {
    is_any: Cell<bool>,
    all: RefCell<All>,
}

#[derive(Default)]
pub struct All {
    pub catalog: Arc<Catalog>,
    pub spaces: BTreeMap<String, Space>,
    /// Keys of objects that are to be looked at: their rows came into the engine, or left it.
    behind: VecDeque<Vec<u8>>,
    /// Objects whose bytes could not be read.
    unread: u64,
}

/// One space.
pub struct Space {
    pub declared: Arc<Declared>,
    pub index: SpaceIndex,
    walk: Option<Walk>,
}

/// Objects that are there when a space is declared, or when the server starts.
struct Walk {
    /// Tables that may have some, the next one last.
    tables: Vec<Vec<u8>>,
    /// The row of the next one to go on behind.
    after: Option<Vec<u8>>,
    looked_at: u64,
    /// How many there were when it began.
    of: u64,
    is_of_start: bool,
}

/// What is left to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behind {
    Nothing,
    /// For a space that was just declared.
    Walk,
    /// What a search must wait for.
    Owed,
}

/// How far the index of a space is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    pub looked_at: u64,
    pub of: u64,
    pub is_walking: bool,
}

/// What there is of a space, at about one moment.
#[derive(Debug, Clone)]
pub struct Figures {
    pub name: String,
    pub objects: u64,
    /// Of its indexes.
    pub memory_bytes: u64,
    /// Fields that did not fit.
    pub failures: u64,
    /// Objects that are still to be looked at.
    pub left: u64,
}

/// Adds what another core has of the same spaces.
pub fn add_figures(all: &mut Vec<Figures>, others: &[Figures]) {
    for other in others {
        let Some(own) = all.iter_mut().find(|own| own.name == other.name) else {
            all.push(other.clone());
            continue;
        };
        own.objects += other.objects;
        own.memory_bytes += other.memory_bytes;
        own.failures += other.failures;
        own.left += other.left;
    }
}

impl Spaces {
    pub fn figures(&self) -> Vec<Figures> {
        let all = self.all.borrow();
        let figures = all.spaces.iter().map(|(name, space)| {
            let standing = space.standing();
            Figures {
                name: name.clone(),
                objects: space.index.len(),
                memory_bytes: space.index.memory_bytes() as u64,
                failures: space.index.failures().count,
                left: standing.of - standing.looked_at,
            }
        });
        figures.collect()
    }

    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.get()
    }

    pub fn read(&self) -> Ref<'_, All> {
        self.all.borrow()
    }

    /// Goes on with these spaces. `at_start`: their objects are not new.
    pub fn follow(&self, catalog: &Arc<Catalog>, engine: &Engine, at_start: bool) {
        let all = &mut *self.all.borrow_mut();
        if Arc::ptr_eq(&all.catalog, catalog) {
            return;
        }
        all.catalog = catalog.clone();
        let mut before = std::mem::take(&mut all.spaces);
        for (name, declared) in catalog.spaces() {
            let kept = before
                .remove(name)
                .map(|space| space.altered(declared, engine));
            let space = match kept {
                Some(Ok(space)) => space,
                other => {
                    if let Some(Err(replaced)) = other {
                        give_back(*replaced);
                    }
                    Space::new(declared, engine, at_start)
                }
            };
            all.spaces.insert(name.to_owned(), space);
        }
        before
            .into_values()
            .for_each(|dropped| give_back(dropped.index));
        self.is_any.set(!all.spaces.is_empty());
        if !self.is_any.get() {
            all.behind = VecDeque::new();
        }
    }

    /// Takes in changes of rows.
    pub fn note(&self, changes: &[LogEntry], engine: &Engine) {
        let all = &mut *self.all.borrow_mut();
        for change in changes {
            match change {
                LogEntry::Put { key, value } => {
                    if let Some(key) = object_key(key) {
                        all.put(key, value);
                    }
                }
                LogEntry::Remove { key } => {
                    if let Some(key) = object_key(key) {
                        all.remove(key);
                    }
                }
                LogEntry::RemoveRange { lo, hi } if covers_objects(lo, hi) => {
                    for space in all.spaces.values_mut() {
                        space.begin_anew(lo, hi, engine);
                    }
                }
                _ => {}
            }
        }
    }

    /// Rows of these objects came into the engine, or left it.
    pub fn note_moved(&self, rows: impl Iterator<Item = Box<[u8]>>) {
        let keys = rows.filter_map(|row| object_key(&row).map(<[u8]>::to_vec));
        self.all.borrow_mut().behind.extend(keys);
    }

    /// Looks at so many objects that are left; says what is left then.
    pub fn look_at_some(&self, engine: &Engine, objects_max: usize) -> Behind {
        let all = &mut *self.all.borrow_mut();
        let mut left = objects_max;
        while left > 0
            && let Some(key) = all.behind.pop_front()
        {
            left -= 1;
            match engine.base_row(&object_row(&key)) {
                Some((bytes, _)) => all.put(&key, bytes),
                None => all.remove(&key),
            }
        }
        for space in all.spaces.values_mut() {
            if left == 0 {
                break;
            }
            left = space.walk_on(engine, left, &mut all.unread);
        }
        all.behind()
    }
}

impl All {
    pub fn behind(&self) -> Behind {
        if !self.behind.is_empty() {
            return Behind::Owed;
        }
        let walks = self.spaces.values().filter_map(|space| space.walk.as_ref());
        let owed = |walk: &Walk| match walk.is_of_start {
            true => Behind::Owed,
            false => Behind::Walk,
        };
        walks.map(owed).max().unwrap_or(Behind::Nothing)
    }

    fn put(&mut self, key: &[u8], bytes: &[u8]) {
        let mut decoded = None;
        let covering = self.spaces.values_mut();
        for space in covering.filter(|space| space.declared.definition.covers_key(key)) {
            match decoded.get_or_insert_with(|| Object::decode(bytes)) {
                Ok(object) => space.index.put(key, object),
                Err(_) => {
                    self.unread += 1;
                    space.index.remove(key);
                }
            }
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let covering = self.spaces.values_mut();
        for space in covering.filter(|space| space.declared.definition.covers_key(key)) {
            space.index.remove(key);
        }
    }
}

impl Space {
    fn new(declared: &Arc<Declared>, engine: &Engine, at_start: bool) -> Space {
        // After a start nobody knows which objects were passed over when the space was declared.
        let walks = declared.scans || at_start;
        Space {
            index: SpaceIndex::new(declared.definition.clone()),
            walk: walks.then(|| Walk::of(declared, engine, at_start)),
            declared: declared.clone(),
        }
    }

    /// The same space as it is declared now; or else the index of one that was dropped, and another of its name is declared.
    fn altered(
        mut self,
        declared: &Arc<Declared>,
        engine: &Engine,
    ) -> Result<Space, Box<SpaceIndex>> {
        if self.declared.created != declared.created {
            return Err(Box::new(self.index));
        }
        if self.declared.version != declared.version {
            self.index.alter(declared.definition.clone());
            if declared.scans {
                let is_owed = self.walk.is_some_and(|walk| walk.is_of_start);
                self.walk = Some(Walk::of(declared, engine, is_owed));
            }
            self.declared = declared.clone();
        }
        Ok(self)
    }

    /// Rows went that may be objects of this space: what is left is walked again.
    fn begin_anew(&mut self, lo: &[u8], hi: &[u8], engine: &Engine) {
        let prefixes = &self.declared.definition.prefixes;
        let is_of_range = |prefix: &Vec<u8>| {
            let prefix = object_row(prefix);
            prefix.as_slice() < hi && (prefix.as_slice() >= lo || lo.starts_with(&prefix))
        };
        if !prefixes.is_empty() && !prefixes.iter().any(is_of_range) {
            return;
        }
        let new = SpaceIndex::new(self.declared.definition.clone());
        give_back(std::mem::replace(&mut self.index, new));
        self.walk = Some(Walk::of(&self.declared, engine, true));
    }

    pub fn standing(&self) -> Standing {
        match &self.walk {
            None => Standing::default(),
            Some(walk) => Standing {
                looked_at: walk.looked_at,
                of: walk.of.max(walk.looked_at),
                is_walking: true,
            },
        }
    }

    /// Looks at so many objects at most; says how many more could be.
    fn walk_on(&mut self, engine: &Engine, objects_max: usize, unread: &mut u64) -> usize {
        let Some(walk) = &mut self.walk else {
            return objects_max;
        };
        let mut left = objects_max;
        let definition = self.declared.definition.clone();
        while left > 0
            && let Some(table) = walk.tables.last()
        {
            let lo = match &walk.after {
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
                    match Object::decode(bytes) {
                        Ok(object) => self.index.put(key, &object),
                        Err(_) => *unread += 1,
                    }
                }
                match left {
                    0 => std::ops::ControlFlow::Break(()),
                    _ => std::ops::ControlFlow::Continue(()),
                }
            });
            if left > 0 {
                walk.tables.pop();
                last = None;
            }
            walk.after = last;
        }
        walk.looked_at += (objects_max - left) as u64;
        if walk.tables.is_empty() {
            self.walk = None;
        }
        left
    }
}

impl Walk {
    fn of(declared: &Declared, engine: &Engine, is_of_start: bool) -> Walk {
        let prefixes = &declared.definition.prefixes;
        let may_have = |table: &[u8]| {
            let fits = |prefix: &Vec<u8>| {
                let prefix = object_row(prefix);
                table.starts_with(&prefix) || prefix.starts_with(table)
            };
            table.first() == Some(&OBJECT_MARK)
                && (prefixes.is_empty() || prefixes.iter().any(fits))
        };
        let mut tables = engine.tables();
        tables.retain(|table| may_have(&table.name));
        Walk {
            of: tables.iter().map(|table| table.rows).sum(),
            tables: tables.into_iter().map(|table| table.name).collect(),
            after: None,
            looked_at: 0,
            is_of_start,
        }
    }
}

/// What all rows of a table come before; its name ends with `:` or `|`.
fn end_of(table: &[u8]) -> Vec<u8> {
    let mut end = table.to_vec();
    if let Some(separator) = end.last_mut() {
        *separator += 1;
    }
    end
}

fn covers_objects(lo: &[u8], hi: &[u8]) -> bool {
    lo.first().is_none_or(|first| *first == OBJECT_MARK) && hi > &[OBJECT_MARK][..]
}

fn give_back(index: SpaceIndex) {
    if index.len() >= LARGE {
        std::thread::spawn(move || drop(index));
    }
}
