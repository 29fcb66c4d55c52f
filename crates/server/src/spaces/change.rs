//! Changes of the names of spaces by a command, applied atomically.

use larder_protocol::errors::Code;
use larder_space::copies::Regions;
use larder_space::schema::Definition;

use super::record::{self, NameRecord};
use super::{Catalog, DeclaredSpace};
use crate::error::Refusal;

/// Maximum number of spaces and aliases together.
const NAMES_MAX: usize = 4096;

/// The number of words before the arguments of FT.ALTER: the command and the name.
const ALTER: usize = 2;

/// A requested change.
#[derive(Debug, Clone)]
pub enum SpaceChange {
    Create(Box<Definition>),
    /// The arguments of FT.ALTER after the name.
    Alter(String, Vec<Vec<u8>>),
    Drop(String),
    AddAlias {
        alias: String,
        space: String,
    },
    /// The alias may refer to another space so far.
    UpdateAlias {
        alias: String,
        space: String,
    },
    RemoveAlias(String),
    /// Changes the cuts of a space's subspaces, if the space is still as it was when this was decided.
    Cut {
        space: String,
        before: SpaceVersion,
        cuts: Box<Regions>,
    },
    /// Changes the layout of a space, if the space is still as it was when this was decided.
    LayOut {
        space: String,
        before: SpaceVersion,
        definition: Box<Definition>,
        /// `None`: cut by hash according to its clauses.
        regions: Option<Box<Regions>>,
    },
}

/// The state of a space on which a decision is based: the versions of its definition and of its regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceVersion {
    version: u64,
    regions: Option<u64>,
}

impl SpaceVersion {
    pub fn of(declared: &DeclaredSpace) -> SpaceVersion {
        SpaceVersion {
            version: declared.version,
            regions: declared.regions.as_ref().map(|regions| regions.version),
        }
    }
}

/// The error for a decision that is based on an outdated state of the space.
pub const HAS_CHANGED: &str = "the space was changed concurrently";

/// The new value of a name; `None` removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameUpdate {
    pub name: String,
    pub record: Option<Vec<u8>>,
}

/// An error about a space.
pub fn bad_request(message: impl Into<String>) -> Refusal {
    (Code::BadRequest, message.into())
}

/// The error for an unknown name, with the wording that search clients expect.
pub fn unknown_index(name: &str) -> Refusal {
    bad_request(format!(
        "{}: no such index",
        crate::error::show(name.as_bytes())
    ))
}

/// Like [`unknown`], for commands where clients expect `Unknown index name`; the code supplies the first word.
pub fn unknown_name() -> Refusal {
    (Code::NoSuchSpace, "index name".to_owned())
}

impl SpaceChange {
    /// Computes the resulting records. `created` is a number that no space has used.
    ///
    /// # Errors
    /// The reason why the change cannot be made.
    pub fn plan(&self, catalog: &Catalog, created: u64) -> Result<Vec<NameUpdate>, Refusal> {
        let set = |name: &str, record: Option<Vec<u8>>| NameUpdate {
            name: name.to_owned(),
            record,
        };
        match self {
            SpaceChange::Create(definition) => {
                let name = &definition.name;
                match catalog.find(name) {
                    Some(NameRecord::Space(_)) => return Err(bad_request("Index already exists")),
                    Some(NameRecord::Alias(space)) => {
                        return Err(bad_request(format!(
                            "Index already exists: the name is an alias of {space}"
                        )));
                    }
                    None => ensure_room(catalog)?,
                }
                let scans = !definition.skip_initial_scan;
                let record = record::encode_space(definition, created, scans, None);
                Ok(vec![set(name, Some(record))])
            }
            SpaceChange::Alter(name, arguments) => {
                let (name, declared) = resolve_name(catalog, name)?;
                let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                let altered = declared.definition.parse_alter(&arguments);
                let (definition, scans) = altered
                    .map_err(|refusal| bad_request(refusal.shift_argument(ALTER).to_string()))?;
                definition
                    .ensure_effective(Some(&declared.definition))
                    .map_err(|refusal| bad_request(refusal.to_string()))?;
                let scans = scans.unwrap_or(declared.scans);
                let record = record::encode_space(
                    &definition,
                    declared.created,
                    scans,
                    declared.regions.as_deref(),
                );
                Ok(vec![set(name, Some(record))])
            }
            SpaceChange::Drop(name) => {
                let (name, _) = resolve_name(catalog, name)?;
                let aliases = catalog.aliases(name).map(|alias| set(alias, None));
                Ok(aliases.chain([set(name, None)]).collect())
            }
            SpaceChange::AddAlias { alias, space } => {
                let space = check_space_name(catalog, space)?;
                match catalog.find(alias) {
                    Some(NameRecord::Space(_)) => {
                        Err(bad_request("Alias already exists: a space has this name"))
                    }
                    Some(NameRecord::Alias(_)) => Err(bad_request("Alias already exists")),
                    None => {
                        ensure_room(catalog)?;
                        Ok(vec![set(alias, Some(record::encode_alias(space)))])
                    }
                }
            }
            SpaceChange::UpdateAlias { alias, space } => {
                let space = check_space_name(catalog, space)?;
                match catalog.find(alias) {
                    Some(NameRecord::Space(_)) => {
                        Err(bad_request("Alias already exists: a space has this name"))
                    }
                    Some(NameRecord::Alias(_)) => {
                        Ok(vec![set(alias, Some(record::encode_alias(space)))])
                    }
                    None => {
                        ensure_room(catalog)?;
                        Ok(vec![set(alias, Some(record::encode_alias(space)))])
                    }
                }
            }
            SpaceChange::Cut {
                space,
                before,
                cuts,
            } => {
                let declared = find_unchanged(catalog, space, before)?;
                let (definition, created) = (&declared.definition, declared.created);
                if !cuts.match_definition(definition) {
                    return Err(bad_request(HAS_CHANGED));
                }
                let record = record::encode_space(definition, created, declared.scans, Some(cuts));
                Ok(vec![set(space, Some(record))])
            }
            SpaceChange::LayOut {
                space,
                before,
                definition,
                regions,
            } => {
                let declared = find_unchanged(catalog, space, before)?;
                let (created, scans) = (declared.created, declared.scans);
                let record = record::encode_space(definition, created, scans, regions.as_deref());
                Ok(vec![set(space, Some(record))])
            }
            SpaceChange::RemoveAlias(alias) => match catalog.find(alias) {
                Some(NameRecord::Alias(_)) => Ok(vec![set(alias, None)]),
                _ => Err(bad_request("Alias does not exist")),
            },
        }
    }
}

fn ensure_room(catalog: &Catalog) -> Result<(), Refusal> {
    if catalog.name_count() < NAMES_MAX {
        Ok(())
    } else {
        Err(bad_request(format!(
            "there are {NAMES_MAX} spaces and aliases: drop some with FT.DROPINDEX or FT.ALIASDEL"
        )))
    }
}

/// Returns a space if it is unchanged since `before`.
fn find_unchanged<'a>(
    catalog: &'a Catalog,
    name: &str,
    before: &SpaceVersion,
) -> Result<&'a DeclaredSpace, Refusal> {
    match catalog.find(name) {
        Some(NameRecord::Space(declared)) if SpaceVersion::of(declared) == *before => Ok(declared),
        Some(NameRecord::Space(_)) => Err(bad_request(HAS_CHANGED)),
        _ => Err(unknown_name()),
    }
}

/// Returns a space by its name or an alias, with its own name.
fn resolve_name<'a>(
    catalog: &'a Catalog,
    name: &'a str,
) -> Result<(&'a str, &'a DeclaredSpace), Refusal> {
    let name = match catalog.find(name) {
        Some(NameRecord::Alias(space)) => space,
        _ => name,
    };
    match catalog.find(name) {
        Some(NameRecord::Space(declared)) => Ok((name, declared)),
        _ => Err(unknown_name()),
    }
}

fn check_space_name<'a>(catalog: &Catalog, name: &'a str) -> Result<&'a str, Refusal> {
    match catalog.find(name) {
        Some(NameRecord::Space(_)) => Ok(name),
        _ => Err(bad_request(
            "Unknown index name (or name is an alias itself)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(name: &str) -> SpaceChange {
        let words = [name, "SCHEMA", "city", "TAG"];
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        SpaceChange::Create(Box::new(Definition::parse_create(&words).expect("it fits")))
    }

    fn after(catalog: Catalog, change: &SpaceChange) -> Catalog {
        let sets = change.plan(&catalog, 1).expect("it is made");
        catalog.with_updates(&sets)
    }

    #[test]
    fn a_space_is_found_by_its_name_and_aliases_until_it_is_dropped() {
        let alias = |alias: &str, space: &str| SpaceChange::AddAlias {
            alias: alias.into(),
            space: space.into(),
        };
        let why = |catalog: &Catalog, change: &SpaceChange| change.plan(catalog, 1).unwrap_err().1;
        let catalog = after(Catalog::default(), &create("hotels"));
        assert_eq!(why(&catalog, &create("hotels")), "Index already exists");
        let catalog = after(catalog, &alias("inns", "hotels"));
        assert!(why(&catalog, &create("inns")).starts_with("Index already exists"));
        assert_eq!(
            why(&catalog, &alias("inns", "hotels")),
            "Alias already exists"
        );
        assert!(why(&catalog, &alias("beds", "inns")).contains("alias itself"));
        let catalog = after(catalog, &create("bars"));
        let update = SpaceChange::UpdateAlias {
            alias: "inns".into(),
            space: "bars".into(),
        };
        let catalog = after(catalog, &update);
        let named = |catalog: &Catalog, name: &str| {
            catalog.space(name).map(|it| it.definition.name.clone())
        };
        assert_eq!(named(&catalog, "inns").as_deref(), Some("bars"));
        assert_eq!(catalog.aliases("bars").collect::<Vec<_>>(), ["inns"]);
        let add = [&b"SCHEMA"[..], b"ADD", b"stars", b"NUMERIC"].map(<[u8]>::to_vec);
        let catalog = after(catalog, &SpaceChange::Alter("inns".into(), add.to_vec()));
        let altered = catalog.space("bars").expect("it is there");
        assert_eq!(altered.definition.attributes.len(), 2);
        assert_eq!(
            why(&catalog, &SpaceChange::Alter("inns".into(), add.to_vec())),
            "Duplicate field in schema - stars: name it otherwise with AS (argument 4)"
        );
        // By its alias, which is removed with it.
        let catalog = after(catalog, &SpaceChange::Drop("inns".into()));
        assert_eq!(
            catalog.spaces().map(|(name, _)| name).collect::<Vec<_>>(),
            ["hotels"]
        );
        assert_eq!(catalog.name_count(), 1);
        assert_eq!(
            why(&catalog, &SpaceChange::Drop("bars".into())),
            "index name"
        );
        assert_eq!(
            why(&catalog, &SpaceChange::RemoveAlias("inns".into())),
            "Alias does not exist"
        );
    }

    #[test]
    fn a_catalog_is_restored_from_its_records() {
        let catalog = after(Catalog::default(), &create("hotels"));
        let (decoded, unread) = Catalog::decode(catalog.records());
        assert!(unread.is_empty());
        assert!(catalog.records().eq(decoded.records()));
        let (none, unread) = Catalog::decode([("x", &b"\x09"[..])].into_iter());
        assert!(none.name_count() == 0 && unread[0].0 == "x");
    }
}
