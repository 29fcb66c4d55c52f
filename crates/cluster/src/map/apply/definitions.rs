//! Tables, joins and settings.

use super::ensure;
use crate::map::{Definition, Map, Settings, What};

pub(super) fn defined(map: &mut Map, what: What, name: &str, text: &str) -> Result<(), String> {
    let number = map.next_definition;
    let definitions = match what {
        What::Table => &mut map.tables,
        What::Join => &mut map.joins,
    };
    ensure(!definitions.contains_key(name), || {
        format!("{name} is defined already; drop it first")
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
