//! What of an object an answer has: names and values, in order.

use serde_json::Value;

use super::request::{Content, Search, SortBy};
use crate::object::{Object, document};
use crate::schema::Definition;

/// None of what the object does not have. A document whole is `$`, before it what it is sorted by.
pub fn content(
    search: &Search,
    definition: &Definition,
    object: &Object,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let arrays = search.returns_arrays();
    match (&search.content, object) {
        (Content::Nothing, _) => Vec::new(),
        (Content::All, Object::Hash(hash)) => hash
            .fields
            .iter()
            .map(|field| (field.name.clone(), field.value.clone()))
            .collect(),
        (Content::All, Object::Json(document)) => {
            let first = search.order.first().and_then(|first| match first.by {
                SortBy::Key => None,
                SortBy::Attribute(id) => definition.attribute(id),
            });
            let sorted = first.and_then(|attribute| {
                let values = attribute.path.as_ref()?.select(&document.root);
                Some((
                    attribute.name.clone().into_bytes(),
                    json_text(&values, false)?,
                ))
            });
            let root = json_text(&[&document.root], arrays).map(|text| (b"$".to_vec(), text));
            sorted.into_iter().chain(root).collect()
        }
        (Content::Fields(fields), object) => {
            let values = fields.iter().filter_map(|field| {
                let value = match (object, &field.path) {
                    (Object::Hash(hash), _) => hash.get(field.identifier.as_bytes())?.to_vec(),
                    (Object::Json(document), Some(path)) => {
                        json_text(&path.select(&document.root), arrays)?
                    }
                    (Object::Json(_), None) => return None,
                };
                Some((field.name.clone().into_bytes(), value))
            });
            values.collect()
        }
    }
}

/// The first value, a string as it is and others as JSON; or an array of all.
fn json_text(values: &[&Value], as_array: bool) -> Option<Vec<u8>> {
    match (values, as_array) {
        ([], _) => None,
        (values, true) => Some(serde_json::to_vec(values).expect("names are strings")),
        ([Value::String(text), ..], false) => Some(text.clone().into_bytes()),
        ([value, ..], false) => Some(document::print(value)),
    }
}
