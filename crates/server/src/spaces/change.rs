//! Changes of the names of spaces by a command, applied atomically.

use larder_protocol::errors::Code;
use larder_space::copies::Regions;
use larder_space::schema::Definition;

use super::record::{self, Named};
use super::{Catalog, Declared};
use crate::error::Refusal;

/// Maximum number of spaces and aliases together.
const NAMES_MAX: usize = 4096;

/// The number of words before the arguments of FT.ALTER: the command and the name.
const ALTER: usize = 2;

/// A requested change.
#[derive(Debug, Clone)]
pub enum Change {
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
        before: Before,
        cuts: Box<Regions>,
    },
    /// Changes the layout of a space, if the space is still as it was when this was decided.
    LayOut {
        space: String,
        before: Before,
        definition: Box<Definition>,
        /// `None`: cut by hash according to its clauses.
        regions: Option<Box<Regions>>,
    },
}

/// The state of a space on which a decision is based: the versions of its definition and of its regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    version: u64,
    regions: Option<u64>,
}

impl Before {
    pub fn of(declared: &Declared) -> Before {
        Before {
            version: declared.version,
            regions: declared.regions.as_ref().map(|regions| regions.version),
        }
    }
}

/// The error for a decision that is based on an outdated state of the space.
pub const HAS_CHANGED: &str = "the space has changed meanwhile";

/// The new value of a name; `None` removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    pub record: Option<Vec<u8>>,
}

/// An error about a space.
pub fn refused(message: impl Into<String>) -> Refusal {
    (Code::BadRequest, message.into())
}

/// The error for an unknown name, with the wording that search clients expect.
pub fn unknown(name: &str) -> Refusal {
    refused(format!(
        "{}: no such index",
        crate::error::show(name.as_bytes())
    ))
}

/// Like [`unknown`], for commands where clients expect `Unknown index name`; the code supplies the first word.
pub fn unknown_name() -> Refusal {
    (Code::NoSuchSpace, "index name".to_owned())
}

impl Change {
    /// Computes the resulting records. `created` is a number that no space has used.
    ///
    /// # Errors
    /// The reason why the change cannot be made.
    pub fn decide(&self, catalog: &Catalog, created: u64) -> Result<Vec<Set>, Refusal> {
        let set = |name: &str, record: Option<Vec<u8>>| Set {
            name: name.to_owned(),
            record,
        };
        match self {
            Change::Create(definition) => {
                let name = &definition.name;
                match catalog.named(name) {
                    Some(Named::Space(_)) => return Err(refused("Index already exists")),
                    Some(Named::Alias(space)) => {
                        return Err(refused(format!(
                            "Index already exists: the name is an alias of {space}"
                        )));
                    }
                    None => ensure_room(catalog)?,
                }
                let scans = !definition.skip_initial_scan;
                let record = record::of_space(definition, created, scans, None);
                Ok(vec![set(name, Some(record))])
            }
            Change::Alter(name, arguments) => {
                let (name, declared) = by_any_name(catalog, name)?;
                let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                let altered = declared.definition.parse_alter(&arguments);
                let (definition, scans) =
                    altered.map_err(|refusal| refused(refusal.behind(ALTER).to_string()))?;
                definition
                    .ensure_effective(Some(&declared.definition))
                    .map_err(|refusal| refused(refusal.to_string()))?;
                let scans = scans.unwrap_or(declared.scans);
                let record = record::of_space(
                    &definition,
                    declared.created,
                    scans,
                    declared.regions.as_deref(),
                );
                Ok(vec![set(name, Some(record))])
            }
            Change::Drop(name) => {
                let (name, _) = by_any_name(catalog, name)?;
                let aliases = catalog.aliases(name).map(|alias| set(alias, None));
                Ok(aliases.chain([set(name, None)]).collect())
            }
            Change::AddAlias { alias, space } => {
                let space = own_name(catalog, space)?;
                match catalog.named(alias) {
                    Some(Named::Space(_)) => {
                        Err(refused("Alias already exists: a space has this name"))
                    }
                    Some(Named::Alias(_)) => Err(refused("Alias already exists")),
                    None => {
                        ensure_room(catalog)?;
                        Ok(vec![set(alias, Some(record::of_alias(space)))])
                    }
                }
            }
            Change::UpdateAlias { alias, space } => {
                let space = own_name(catalog, space)?;
                match catalog.named(alias) {
                    Some(Named::Space(_)) => {
                        Err(refused("Alias already exists: a space has this name"))
                    }
                    Some(Named::Alias(_)) => Ok(vec![set(alias, Some(record::of_alias(space)))]),
                    None => {
                        ensure_room(catalog)?;
                        Ok(vec![set(alias, Some(record::of_alias(space)))])
                    }
                }
            }
            Change::Cut {
                space,
                before,
                cuts,
            } => {
                let declared = unchanged(catalog, space, before)?;
                let (definition, created) = (&declared.definition, declared.created);
                if !cuts.fit(definition) {
                    return Err(refused(HAS_CHANGED));
                }
                let record = record::of_space(definition, created, declared.scans, Some(cuts));
                Ok(vec![set(space, Some(record))])
            }
            Change::LayOut {
                space,
                before,
                definition,
                regions,
            } => {
                let declared = unchanged(catalog, space, before)?;
                let (created, scans) = (declared.created, declared.scans);
                let record = record::of_space(definition, created, scans, regions.as_deref());
                Ok(vec![set(space, Some(record))])
            }
            Change::RemoveAlias(alias) => match catalog.named(alias) {
                Some(Named::Alias(_)) => Ok(vec![set(alias, None)]),
                _ => Err(refused("Alias does not exist")),
            },
        }
    }
}

fn ensure_room(catalog: &Catalog) -> Result<(), Refusal> {
    if catalog.names() < NAMES_MAX {
        Ok(())
    } else {
        Err(refused(format!(
            "there are {NAMES_MAX} spaces and aliases: drop some with FT.DROPINDEX or FT.ALIASDEL"
        )))
    }
}

/// Returns a space if it is unchanged since `before`.
fn unchanged<'a>(
    catalog: &'a Catalog,
    name: &str,
    before: &Before,
) -> Result<&'a Declared, Refusal> {
    match catalog.named(name) {
        Some(Named::Space(declared)) if Before::of(declared) == *before => Ok(declared),
        Some(Named::Space(_)) => Err(refused(HAS_CHANGED)),
        _ => Err(unknown_name()),
    }
}

/// Returns a space by its name or an alias, with its own name.
fn by_any_name<'a>(
    catalog: &'a Catalog,
    name: &'a str,
) -> Result<(&'a str, &'a Declared), Refusal> {
    let name = match catalog.named(name) {
        Some(Named::Alias(space)) => space,
        _ => name,
    };
    match catalog.named(name) {
        Some(Named::Space(declared)) => Ok((name, declared)),
        _ => Err(unknown_name()),
    }
}

fn own_name<'a>(catalog: &Catalog, name: &'a str) -> Result<&'a str, Refusal> {
    match catalog.named(name) {
        Some(Named::Space(_)) => Ok(name),
        _ => Err(refused("Unknown index name (or name is an alias itself)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(name: &str) -> Change {
        let words = [name, "SCHEMA", "city", "TAG"];
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Change::Create(Box::new(Definition::parse_create(&words).expect("it fits")))
    }

    fn after(catalog: Catalog, change: &Change) -> Catalog {
        let sets = change.decide(&catalog, 1).expect("it is made");
        catalog.with(&sets)
    }

    #[test]
    fn a_space_is_known_by_its_name_and_its_aliases_until_it_goes() {
        let alias = |alias: &str, space: &str| Change::AddAlias {
            alias: alias.into(),
            space: space.into(),
        };
        let why = |catalog: &Catalog, change: &Change| change.decide(catalog, 1).unwrap_err().1;
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
        let update = Change::UpdateAlias {
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
        let catalog = after(catalog, &Change::Alter("inns".into(), add.to_vec()));
        let altered = catalog.space("bars").expect("it is there");
        assert_eq!(altered.definition.attributes.len(), 2);
        assert_eq!(
            why(&catalog, &Change::Alter("inns".into(), add.to_vec())),
            "Duplicate field in schema - stars: name it otherwise with AS (argument 4)"
        );
        // By its alias, which is removed with it.
        let catalog = after(catalog, &Change::Drop("inns".into()));
        assert_eq!(
            catalog.spaces().map(|(name, _)| name).collect::<Vec<_>>(),
            ["hotels"]
        );
        assert_eq!(catalog.names(), 1);
        assert_eq!(why(&catalog, &Change::Drop("bars".into())), "index name");
        assert_eq!(
            why(&catalog, &Change::RemoveAlias("inns".into())),
            "Alias does not exist"
        );
    }

    #[test]
    fn a_catalog_is_made_again_of_its_records() {
        let catalog = after(Catalog::default(), &create("hotels"));
        let (again, unread) = Catalog::read(catalog.records());
        assert!(unread.is_empty());
        assert!(catalog.records().eq(again.records()));
        let (none, unread) = Catalog::read([("x", &b"\x09"[..])].into_iter());
        assert!(none.names() == 0 && unread[0].0 == "x");
    }
}
