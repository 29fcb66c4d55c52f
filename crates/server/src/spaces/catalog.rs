//! An immutable snapshot of all spaces and aliases. A change creates a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::copies::Regions;
use larder_space::schema::Definition;

use super::change::Set;
use super::record::{self, Named};

/// A space as declared.
#[derive(Debug)]
pub struct Declared {
    pub definition: Arc<Definition>,
    /// A number that stays the same for the lifetime of the space, through all alterations.
    pub created: u64,
    /// Objects that exist when the space is declared are indexed.
    pub scans: bool,
    /// Differs for each definition.
    pub version: u64,
    /// Differs for definitions that map objects to different columns, but not for those that differ only in their indexes.
    pub columns: u64,
    /// Its subspaces with their current cuts, if it has any.
    pub regions: Option<Arc<Regions>>,
}

/// Names with their records, encoded and decoded.
#[derive(Debug, Default)]
pub struct Catalog {
    names: BTreeMap<String, (Arc<[u8]>, Named)>,
    /// In a cluster: the records as text in the map.
    pub in_map: BTreeMap<String, String>,
}

impl Catalog {
    /// Decodes records. Also returns the names of those that cannot be decoded, with the reason.
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

    /// Returns a copy with some names changed. The records were created by this server.
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

    /// The number of names.
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

    /// Returns the space of this name or alias.
    pub fn space(&self, name: &str) -> Option<&Arc<Declared>> {
        match self.named(name)? {
            Named::Space(declared) => Some(declared),
            Named::Alias(space) => match self.named(space)? {
                Named::Space(declared) => Some(declared),
                Named::Alias(_) => None,
            },
        }
    }

    /// All spaces, sorted by name.
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
