//! What of an object an answer has: names and values, in order.

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};
use serde_json::Value;

use super::request::{Content, Search, SortBy};
use crate::object::{Object, ObjectView, document};
use crate::schema::Definition;

/// Names and values.
pub type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

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

/// What [`encode_content`] makes of the content of an object that is bytes, without the fields that have expired.
///
/// # Errors
/// The bytes are no object.
pub fn encoded_content(
    search: &Search,
    definition: &Definition,
    bytes: &[u8],
    now_ms: u64,
) -> Result<Vec<u8>, Malformed> {
    let is_there = |expiry: Option<u64>| expiry.is_none_or(|at| at > now_ms);
    let (ObjectView::Hash(view), Content::All) = (ObjectView::new(bytes)?, &search.content) else {
        let mut object = Object::decode(bytes)?;
        if let Object::Hash(hash) = &mut object {
            hash.expire(now_ms);
        }
        return Ok(encode_content(&content(search, definition, &object)));
    };
    let count = view
        .fields()
        .filter(|(_, _, expiry)| is_there(*expiry))
        .count();
    let mut out = Vec::with_capacity(4 + 8 * count + bytes.len());
    put_count(&mut out, count);
    for (name, value, expiry) in view.fields() {
        if is_there(expiry) {
            put_bytes(&mut out, name);
            put_bytes(&mut out, value);
        }
    }
    Ok(out)
}

pub fn encode_content(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_count(&mut out, pairs.len());
    for (name, value) in pairs {
        put_bytes(&mut out, name);
        put_bytes(&mut out, value);
    }
    out
}

/// Names and values, of bytes as [`encode_content`] writes them, or of none.
///
/// # Errors
/// It does not write such bytes.
pub fn decode_content(bytes: &[u8]) -> Result<Pairs<'_>, Malformed> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut reader = WireReader::new(bytes);
    let count = reader.count(8)?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        pairs.push((reader.bytes()?, reader.bytes()?));
    }
    reader.end()?;
    Ok(pairs)
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
