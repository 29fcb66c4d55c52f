//! Changes of tables, joins, spaces and settings.

use super::ensure;
use crate::map::{Definition, Map, Settings, SpaceSet, What};

pub(super) fn defined(
    map: &mut Map,
    what: What,
    name: &str,
    text: &str,
    replace: bool,
) -> Result<(), String> {
    let number = map.next_definition;
    let definitions = match what {
        What::Table => &mut map.tables,
        What::Join => &mut map.joins,
    };
    ensure(replace || !definitions.contains_key(name), || {
        format!("{name} is defined already, in another way; replace it, or drop it first")
    })?;
    let text = text.to_owned();
    definitions.insert(name.to_owned(), Definition { text, number });
    map.next_definition += 1;
    Ok(())
}

pub(super) fn undefined(map: &mut Map, what: What, name: &str) -> Result<(), String> {
    let definitions = match what {
        What::Table => &mut map.tables,
        What::Join => &mut map.joins,
    };
    let was = definitions.remove(name);
    ensure(was.is_some(), || {
        format!("there is no definition of {name}")
    })
}

pub(super) fn spaces_set(map: &mut Map, sets: &[SpaceSet]) -> Result<(), String> {
    ensure(!sets.is_empty(), || "no name is to change".into())?;
    for set in sets {
        ensure(map.spaces.get(&set.name) == set.before.as_ref(), || {
            format!("what {} stands for has changed meanwhile", set.name)
        })?;
        match &set.record {
            Some(record) => map.spaces.insert(set.name.clone(), record.clone()),
            None => map.spaces.remove(&set.name),
        };
    }
    Ok(())
}

pub(super) fn settings_changed(map: &mut Map, settings: &Settings) -> Result<(), String> {
    if let Some(wrong) = settings.out_of_bounds() {
        return Err(wrong);
    }
    ensure(map.settings != *settings, || {
        "the settings are these already".into()
    })?;
    map.settings = settings.clone();
    Ok(())
}
