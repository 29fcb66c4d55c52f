//! What of an object an answer has: names and values, in order.
//!
//! On its way to a reply it is a count of pairs (4 bytes, little-endian) and their names and values as bulk strings of the Redis protocol (`$5`, CR LF, the bytes, CR
//! LF), so that the reply takes them as they are.

use larder_types::wire::{Malformed, put_count};
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
    // A head takes some four bytes more than a length in an object does.
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 2 + 64);
    put_count(&mut out, 0);
    let mut count = 0_u32;
    for (name, value, expiry) in view.fields() {
        if is_there(expiry) {
            put_bulk(&mut out, name);
            put_bulk(&mut out, value);
            count += 1;
        }
    }
    out[..4].copy_from_slice(&count.to_le_bytes());
    Ok(out)
}

pub fn encode_content(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_count(&mut out, pairs.len());
    for (name, value) in pairs {
        put_bulk(&mut out, name);
        put_bulk(&mut out, value);
    }
    out
}

fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    let (mut digits, mut at, mut left) = ([0; 20], 20, bytes.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.push(b'$');
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
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

/// How many pairs there are, and their bulk strings, of bytes as [`encode_content`] writes them, or of none. Those of another node are looked at with
/// [`decode_content`] first.
///
/// # Errors
/// There is no count.
pub fn bulks_of_content(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    if bytes.is_empty() {
        return Ok((0, bytes));
    }
    let (count, bulks) = bytes
        .split_first_chunk()
        .ok_or(Malformed("the content of a row is cut short"))?;
    Ok((u32::from_le_bytes(*count) as usize, bulks))
}

/// Names and values, of bytes as [`encode_content`] writes them, or of none.
///
/// # Errors
/// It does not write such bytes.
pub fn decode_content(bytes: &[u8]) -> Result<Pairs<'_>, Malformed> {
    let (count, mut bulks) = bulks_of_content(bytes)?;
    let cut = || Malformed("the content of a row is no bulk strings");
    let mut pairs = Vec::new();
    for _ in 0..count {
        let name = take_bulk(&mut bulks).ok_or_else(cut)?;
        pairs.push((name, take_bulk(&mut bulks).ok_or_else(cut)?));
    }
    match bulks.is_empty() {
        true => Ok(pairs),
        false => Err(cut()),
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
