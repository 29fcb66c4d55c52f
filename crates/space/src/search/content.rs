//! The returned content of an object: names and values, in order.
//!
//! Until the reply is written, the content is encoded as a count of pairs (4 bytes, little-endian), followed by the
//! names and values as bulk strings of the Redis protocol (`$5`, CR LF, the bytes, CR LF). The reply copies them
//! unchanged.

use larder_types::wire::Malformed;
use serde_json::Value;

use super::request::{Content, ReturnField, Search, SortBy};
use crate::object::{Object, ObjectView, document};
use crate::schema::Definition;

/// Names and values.
pub type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Returns the content of an object, without fields that the object does not have. A complete document is the pair `$`,
/// preceded by its sort key.
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

/// Appends the content of an encoded object, without expired fields. `head` writes the number of pairs, and their bulk
/// strings follow.
///
/// # Errors
/// The bytes are not an encoded object. Nothing was appended.
pub fn put_content(
    search: &Search,
    definition: &Definition,
    bytes: &[u8],
    now_ms: u64,
    out: &mut Vec<u8>,
    head: impl FnOnce(&mut Vec<u8>, usize),
) -> Result<(), Malformed> {
    match (ObjectView::new(bytes)?, &search.content) {
        (ObjectView::Hash(view), Content::All) => {
            let count = if view.expires() {
                view.fields_at(now_ms).count()
            } else {
                view.count()
            };
            out.reserve(bytes.len() + 8 * count + 32);
            head(out, count);
            for (name, value, _) in view.fields_at(now_ms) {
                put_bulk(out, name);
                put_bulk(out, value);
            }
        }
        (ObjectView::Hash(view), Content::Fields(fields)) => {
            let value = |field: &ReturnField| {
                let found = view.get_at(field.identifier.as_bytes(), now_ms);
                found.map(|(value, _)| value)
            };
            head(out, fields.iter().filter_map(value).count());
            for field in fields {
                if let Some(value) = value(field) {
                    put_bulk(out, field.name.as_bytes());
                    put_bulk(out, value);
                }
            }
        }
        _ => {
            let object = Object::decode(bytes)?;
            let pairs = content(search, definition, &object);
            head(out, pairs.len());
            for (name, value) in &pairs {
                put_bulk(out, name);
                put_bulk(out, value);
            }
        }
    }
    Ok(())
}

#[inline]
fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    let size = bytes.len();
    match size {
        0..10 => out.extend_from_slice(&[b'$', digit(size), b'\r', b'\n']),
        10..100 => out.extend_from_slice(&[b'$', digit(size / 10), digit(size), b'\r', b'\n']),
        _ => {
            out.push(b'$');
            out.extend_from_slice(size.to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn take_bulk<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let digits = bytes.iter().position(|byte| *byte == b'\r')?;
    let size: usize = std::str::from_utf8(bytes.get(1..digits)?)
        .ok()?
        .parse()
        .ok()?;
    let (head, rest) = bytes.split_at_checked(digits + 2)?;
    let (text, rest) = rest.split_at_checked(size)?;
    *bytes = rest.strip_prefix(b"\r\n")?;
    (head[0] == b'$' && head.ends_with(b"\n")).then_some(text)
}

/// Splits encoded content (see [`put_content`]) into the number of pairs and their bulk strings. Empty bytes have no
/// pairs. Verify content from another node with [`decode_content`] first.
///
/// # Errors
/// The count is incomplete.
pub fn bulks_of_content(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    if bytes.is_empty() {
        return Ok((0, bytes));
    }
    let (count, bulks) = bytes
        .split_first_chunk()
        .ok_or(Malformed("the content of a row is cut short"))?;
    Ok((u32::from_le_bytes(*count) as usize, bulks))
}

/// Decodes the content that [`put_content`] encoded with a count. Empty bytes have no pairs.
///
/// # Errors
/// The bytes are not encoded content.
pub fn decode_content(bytes: &[u8]) -> Result<Pairs<'_>, Malformed> {
    let (count, mut bulks) = bulks_of_content(bytes)?;
    let cut = || Malformed("the content of a row is not a sequence of bulk strings");
    let mut pairs = Vec::new();
    for _ in 0..count {
        let name = take_bulk(&mut bulks).ok_or_else(cut)?;
        pairs.push((name, take_bulk(&mut bulks).ok_or_else(cut)?));
    }
    if bulks.is_empty() {
        Ok(pairs)
    } else {
        Err(cut())
    }
}

/// Returns the first value (a string unquoted, other values as JSON), or all values as an array.
fn json_text(values: &[&Value], as_array: bool) -> Option<Vec<u8>> {
    match (values, as_array) {
        ([], _) => None,
        (values, true) => Some(serde_json::to_vec(values).expect("names are strings")),
        ([Value::String(text), ..], false) => Some(text.clone().into_bytes()),
        ([value, ..], false) => Some(document::print(value)),
    }
}
