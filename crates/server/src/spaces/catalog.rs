//! An immutable snapshot of all spaces and aliases. A change creates a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::copies::Regions;
use larder_space::schema::Definition;

use super::change::NameUpdate;
use super::record::{self, NameRecord};

/// A space as declared.
#[derive(Debug)]
pub struct DeclaredSpace {
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
    names: BTreeMap<String, (Arc<[u8]>, NameRecord)>,
    /// In a cluster: the records as text in the map.
    pub map_records: BTreeMap<String, String>,
}

impl Catalog {
    /// Decodes records. Also returns the names of those that cannot be decoded, with the reason.
    pub fn decode<'a>(
        records: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> (Catalog, Vec<(String, String)>) {
        let (mut catalog, mut unread) = (Catalog::default(), Vec::new());
        for (name, bytes) in records {
            match record::decode(bytes) {
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
    pub fn with_updates(&self, sets: &[NameUpdate]) -> Catalog {
        let mut names = self.names.clone();
        for set in sets {
            let named = set
                .record
                .as_deref()
                .map(|bytes| (bytes, record::decode(bytes)));
            match named {
                Some((bytes, Ok(named))) => {
                    names.insert(set.name.clone(), (Arc::from(bytes), named));
                }
                _ => drop(names.remove(&set.name)),
            }
        }
        Catalog {
            names,
            map_records: BTreeMap::new(),
        }
    }

    /// The number of names.
    pub fn name_count(&self) -> usize {
        self.names.len()
    }

    pub fn records(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let names = self.names.iter();
        names.map(|(name, (record, _))| (name.as_str(), &**record))
    }

    pub fn record(&self, name: &str) -> Option<&[u8]> {
        self.names.get(name).map(|(record, _)| &**record)
    }

    pub fn find(&self, name: &str) -> Option<&NameRecord> {
        self.names.get(name).map(|(_, named)| named)
    }

    /// Returns the space of this name or alias.
    pub fn space(&self, name: &str) -> Option<&Arc<DeclaredSpace>> {
        match self.find(name)? {
            NameRecord::Space(declared) => Some(declared),
            NameRecord::Alias(space) => match self.find(space)? {
                NameRecord::Space(declared) => Some(declared),
                NameRecord::Alias(_) => None,
            },
        }
    }

    /// All spaces, sorted by name.
    pub fn spaces(&self) -> impl Iterator<Item = (&str, &Arc<DeclaredSpace>)> {
        self.names
            .iter()
            .filter_map(|(name, (_, named))| match named {
                NameRecord::Space(declared) => Some((name.as_str(), declared)),
                NameRecord::Alias(_) => None,
            })
    }

    pub fn aliases<'a>(&'a self, space: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.names.iter();
        names.filter_map(move |(name, (_, named))| match named {
            NameRecord::Alias(of) if of == space => Some(name.as_str()),
            _ => None,
        })
    }
}
