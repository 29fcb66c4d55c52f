//! The spaces that there are, and their aliases, at one moment. It never changes: a change makes another.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::copies::Regions;
use larder_space::schema::Definition;

use super::change::Set;
use super::record::{self, Named};

/// A space as it was declared.
#[derive(Debug)]
pub struct Declared {
    pub definition: Arc<Definition>,
    /// The same as long as the space is there, whatever it is altered to.
    pub created: u64,
    /// Objects that are there when this is declared are to be looked at.
    pub scans: bool,
    /// Another of each definition.
    pub version: u64,
    /// Another of each definition by which objects are something else: not where only the indexes are others.
    pub columns: u64,
    /// Its subspaces as they are cut now, if it has any.
    pub regions: Option<Arc<Regions>>,
}

/// Names with their records, and what these say.
#[derive(Debug, Default)]
pub struct Catalog {
    names: BTreeMap<String, (Arc<[u8]>, Named)>,
    /// In a cluster: the map's words for it.
    pub in_map: BTreeMap<String, String>,
}

impl Catalog {
    /// Reads records. Of one that cannot be read the name is given, and why.
    pub fn read<'a>(
        records: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> (Catalog, Vec<(String, String)>) {
        let (mut catalog, mut unread) = (Catalog::default(), Vec::new());
        for (name, bytes) in records {
            match record::read(bytes) {
                Ok(named) => {
                    let entry = (Arc::from(bytes), named);
                    catalog.names.insert(name.to_owned(), entry);
                }
                Err(why) => unread.push((name.to_owned(), why)),
            }
        }
        (catalog, unread)
    }

    /// As this with some names changed, whose records were made here.
    pub fn with(&self, sets: &[Set]) -> Catalog {
        let mut names = self.names.clone();
        for set in sets {
            let named = set
                .record
                .as_deref()
                .map(|bytes| (bytes, record::read(bytes)));
            match named {
                Some((bytes, Ok(named))) => {
                    names.insert(set.name.clone(), (Arc::from(bytes), named));
                }
                _ => drop(names.remove(&set.name)),
            }
        }
        Catalog {
            names,
            in_map: BTreeMap::new(),
        }
    }

    /// How many names there are.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    pub fn records(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let names = self.names.iter();
        names.map(|(name, (record, _))| (name.as_str(), &**record))
    }

    pub fn record(&self, name: &str) -> Option<&[u8]> {
        self.names.get(name).map(|(record, _)| &**record)
    }

    pub fn named(&self, name: &str) -> Option<&Named> {
        self.names.get(name).map(|(_, named)| named)
    }

    /// The space of this name or alias.
    pub fn space(&self, name: &str) -> Option<&Arc<Declared>> {
        match self.named(name)? {
            Named::Space(declared) => Some(declared),
            Named::Alias(space) => match self.named(space)? {
                Named::Space(declared) => Some(declared),
                Named::Alias(_) => None,
            },
        }
    }

    /// All spaces, by their names.
    pub fn spaces(&self) -> impl Iterator<Item = (&str, &Arc<Declared>)> {
        self.names
            .iter()
            .filter_map(|(name, (_, named))| match named {
                Named::Space(declared) => Some((name.as_str(), declared)),
                Named::Alias(_) => None,
            })
    }

    pub fn aliases<'a>(&'a self, space: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.names.iter();
        names.filter_map(move |(name, (_, named))| match named {
            Named::Alias(of) if of == space => Some(name.as_str()),
            _ => None,
        })
    }
}
