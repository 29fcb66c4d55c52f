//! Changes of tables, joins, spaces and settings.

use super::ensure;
use crate::map::{Definition, DefinitionKind, Map, Settings, SpaceSet};

pub(super) fn define(
    map: &mut Map,
    kind: DefinitionKind,
    name: &str,
    text: &str,
    replace: bool,
) -> Result<(), String> {
    let number = map.next_definition;
    let definitions = match kind {
        DefinitionKind::Table => &mut map.tables,
        DefinitionKind::Join => &mut map.joins,
    };
    ensure(replace || !definitions.contains_key(name), || {
        format!("{name} already has another definition; replace it, or drop it first")
    })?;
    let text = text.to_owned();
    definitions.insert(name.to_owned(), Definition { text, number });
    map.next_definition += 1;
    Ok(())
}

pub(super) fn drop_definition(
    map: &mut Map,
    kind: DefinitionKind,
    name: &str,
) -> Result<(), String> {
    let definitions = match kind {
        DefinitionKind::Table => &mut map.tables,
        DefinitionKind::Join => &mut map.joins,
    };
    let was = definitions.remove(name);
    ensure(was.is_some(), || {
        format!("there is no definition of {name}")
    })
}

pub(super) fn set_spaces(map: &mut Map, sets: &[SpaceSet]) -> Result<(), String> {
    ensure(!sets.is_empty(), || "the change names no space".into())?;
    for set in sets {
        ensure(map.spaces.get(&set.name) == set.before.as_ref(), || {
            format!(
                "the definition of {} has changed meanwhile; read it again",
                set.name
            )
        })?;
        match &set.record {
            Some(record) => map.spaces.insert(set.name.clone(), record.clone()),
            None => map.spaces.remove(&set.name),
        };
    }
    Ok(())
}

pub(super) fn change_settings(map: &mut Map, settings: &Settings) -> Result<(), String> {
    if let Some(wrong) = settings.out_of_bounds() {
        return Err(wrong);
    }
    ensure(map.settings != *settings, || {
        "the map already has these settings".into()
    })?;
    map.settings = settings.clone();
    Ok(())
}
