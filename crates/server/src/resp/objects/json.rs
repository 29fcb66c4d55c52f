//! `JSON.*`: documents, and the values that paths select in them.
//!
//! For a path that begins with `$`, the reply is an array with an element for each value. Any other path (`.`, `a.b`)
//! selects one value, and the reply is that of this value. Three sizes are limited: the text of a command's values, the
//! values that a path traverses, and the resulting document. A request that exceeds a limit is rejected before any
//! memory is allocated for it.

use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};
use larder_space::base::number::Number;
use larder_space::object::document::{self, SetRule, Spacing};
use larder_space::object::{Document, Object, ObjectKind, ObjectView, Path};
use larder_types::integer;
use serde_json::Value;

use super::super::state::ConnectionState;
use super::access::{NewState, change, read};
use super::hash::syntax_error;
use super::rows::{OBJECT_BYTES_MAX, wrong_type};
use crate::tables::{NoReply, Refusal};

fn bad_request(message: impl Into<String>) -> Refusal {
    (Code::BadRequest, message.into())
}

pub(super) fn document_refusal(refusal: larder_space::error::Refusal) -> Refusal {
    bad_request(refusal.to_string())
}

fn no_key() -> Refusal {
    bad_request("could not perform this operation on a key that doesn't exist")
}

pub(super) fn parse_text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes)
        .map_err(|_| bad_request("the argument is not UTF-8, so it is neither JSON nor a path"))
}

/// Parses a path argument. The default is the root in the legacy syntax.
pub(super) fn parse_path(argument: Option<&[u8]>) -> Result<Path, Refusal> {
    Path::parse(parse_text(argument.unwrap_or(b"."))?).map_err(document_refusal)
}

pub(super) fn parse_json(argument: &[u8]) -> Result<Value, Refusal> {
    check_document_size(argument.len())?;
    document::parse(argument).map_err(document_refusal)
}

fn check_document_size(bytes: usize) -> Result<(), Refusal> {
    if bytes > OBJECT_BYTES_MAX {
        Err(bad_request(format!(
            "the document would exceed the maximum size of an object, {OBJECT_BYTES_MAX} bytes"
        )))
    } else {
        Ok(())
    }
}

fn parse_number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or_else(|| bad_request("value is not an integer or out of range"))
}

/// Rejects a change if all values that a path selects grow by this many bytes and the result is too large.
fn check_growth(path: &Path, root: &Value, bytes: usize) -> Result<(), Refusal> {
    let count = path.count(root).map_err(document_refusal)?;
    check_document_size(count.saturating_mul(bytes))
}

/// Reads a document, if it exists.
fn read_document(
    state: &mut ConnectionState,
    key: &[u8],
    answer: impl FnOnce(Option<Document>, &mut super::access::BoundedReply<'_>) -> Result<(), Refusal>,
) -> Result<(), NoReply> {
    read(state, key, |view, _, to| match view {
        None => answer(None, to),
        Some(ObjectView::Hash(_)) => Err(wrong_type()),
        Some(ObjectView::Json(text)) => {
            answer(Some(Document::parse(text).map_err(document_refusal)?), to)
        }
    })
}

/// Changes an existing document.
fn edit<T>(
    state: &mut ConnectionState,
    key: &[u8],
    path: &Path,
    growth: usize,
    decide: impl FnOnce(&mut Document) -> Result<T, Refusal>,
) -> Result<T, NoReply> {
    change(state, key, ObjectKind::Json, |before, _| {
        let Some(Object::Json(mut document)) = before else {
            return Err(no_key());
        };
        check_growth(path, &document.root, growth)?;
        let answer = decide(&mut document)?;
        Ok((answer, NewState::Replaced(Object::Json(document))))
    })
}

/// Appends the results of a path: all of them for a `$` path, else the first.
fn write_each<T>(
    encoder: &mut Encoder<'_>,
    path: &Path,
    found: &[Option<T>],
    one: impl Fn(&mut Encoder<'_>, &T),
) {
    let mut answer = |found: Option<&Option<T>>| match found {
        Some(Some(value)) => one(encoder, value),
        _ => encoder.null(),
    };
    if path.is_legacy() {
        return answer(found.first());
    }
    encoder.array(found.len());
    for value in found {
        match value {
            Some(value) => one(encoder, value),
            None => encoder.null(),
        }
    }
}

fn write_count(encoder: &mut Encoder<'_>, count: &usize) {
    encoder.count(*count as u64);
}

pub fn set(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let rule = match request.get(4).map(<[u8]>::to_ascii_uppercase).as_deref() {
        None => SetRule::Always,
        Some(b"NX") if request.len() == 5 => SetRule::Absent,
        Some(b"XX") if request.len() == 5 => SetRule::Present,
        Some(_) => return Err(syntax_error().into()),
    };
    let path = parse_path(Some(request.arg(2)))?;
    let value = parse_json(request.arg(3))?;
    let is_set = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let after = set_in(before.as_ref(), &path, value, request.arg(3).len(), rule)?;
        let is_set = after.is_some();
        let new_state = after.map_or(NewState::Unchanged, |document| {
            NewState::Replaced(Object::Json(document))
        });
        Ok((is_set, new_state))
    })?;
    if is_set {
        state.encoder().ok()
    } else {
        state.encoder().null()
    }
    Ok(())
}

/// Returns the document after a value, whose text has `bytes` bytes, has been set.
pub(super) fn set_in(
    before: Option<&Object>,
    path: &Path,
    value: Value,
    bytes: usize,
    rule: SetRule,
) -> Result<Option<Document>, Refusal> {
    let before = match before {
        Some(Object::Json(document)) => Some(document),
        Some(Object::Hash(_)) => return Err(wrong_type()),
        None => None,
    };
    if let Some(document) = before {
        check_growth(path, &document.root, bytes)?;
    }
    Document::set(before, path, value, rule).map_err(document_refusal)
}

pub fn merge(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let patch = parse_json(request.arg(3))?;
    let is_done = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let before = match &before {
            Some(Object::Json(document)) => Some(document),
            _ => None,
        };
        if let Some(document) = before {
            check_growth(&path, &document.root, request.arg(3).len())?;
        }
        let after = Document::merge(before, &path, &patch).map_err(document_refusal)?;
        let is_done = after.is_some();
        let new_state = match after {
            // A null patch at the root removes the document.
            Some(document) if path.is_root() && patch.is_null() && document.root.is_null() => {
                NewState::Removed
            }
            Some(document) => NewState::Replaced(Object::Json(document)),
            None => NewState::Unchanged,
        };
        Ok((is_done, new_state))
    })?;
    if is_done {
        state.encoder().ok()
    } else {
        state.encoder().null()
    }
    Ok(())
}

/// Executes JSON.DEL and JSON.FORGET.
pub fn delete(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    let removed = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let Some(Object::Json(mut document)) = before else {
            return Ok((0, NewState::Unchanged));
        };
        if path.is_root() {
            return Ok((1, NewState::Removed));
        }
        path.count(&document.root).map_err(document_refusal)?;
        Ok(match document.delete(&path) {
            0 => (0, NewState::Unchanged),
            removed => (removed, NewState::Replaced(Object::Json(document))),
        })
    })?;
    state.encoder().count(removed as u64);
    Ok(())
}

pub fn get(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let (mut spacing, mut paths, mut at) = (Spacing::default(), Vec::new(), 2);
    while let Some(word) = request.get(at) {
        at += 2;
        let value = || request.get(at - 1).ok_or_else(syntax_error);
        match word.to_ascii_uppercase().as_slice() {
            b"INDENT" => spacing.indent = value()?,
            b"NEWLINE" => spacing.newline = value()?,
            b"SPACE" => spacing.space = value()?,
            b"NOESCAPE" => at -= 1,
            _ => {
                paths.push(parse_path(Some(word))?);
                at -= 1;
            }
        }
    }
    if paths.is_empty() {
        paths.push(parse_path(None)?);
    }
    let limits = state.core.clients.limits;
    read_document(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        let out = print_paths(&document, &paths, spacing, limits.reply_bytes())?;
        match out {
            Some(out) => to.bulk(&out),
            None => Err(limits.reply_too_long()),
        }
    })
}

/// Returns the values that paths select, as JSON. `None` if the text would exceed `bytes_max`.
fn print_paths(
    document: &Document,
    paths: &[Path],
    spacing: Spacing<'_>,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>, Refusal> {
    let mut values = Vec::with_capacity(paths.len());
    let arrays = paths.iter().any(|path| !path.is_legacy());
    // Nested matches appear several times in the reply, so the total size is checked before the values are cloned.
    let mut bytes = 0_usize;
    for path in paths {
        path.count(&document.root).map_err(document_refusal)?;
        let mut found = path.select(&document.root);
        if !arrays {
            found.truncate(1);
        }
        for value in &found {
            bytes = bytes.saturating_add(document::print(value).len());
            if bytes > bytes_max {
                return Ok(None);
            }
        }
        let value = match (arrays, found.first()) {
            (true, _) => Value::Array(found.into_iter().cloned().collect()),
            (false, Some(first)) => (*first).clone(),
            (false, None) => {
                return Err(bad_request(format!(
                    "Path '{}' does not exist",
                    path.text()
                )));
            }
        };
        values.push((path.text().to_owned(), value));
    }
    let value = match <[_; 1]>::try_from(values) {
        Ok([(_, one)]) => one,
        Err(several) => Value::Object(several.into_iter().collect()),
    };
    let is_plain = [spacing.indent, spacing.newline, spacing.space]
        .concat()
        .is_empty();
    let out = if is_plain {
        document::print(&value)
    } else {
        let widest = spacing.indent.len() * (document::DEPTH_MAX + 2)
            + spacing.newline.len()
            + spacing.space.len();
        // The number of places for spacing is less than the number of bytes.
        if bytes.saturating_mul(1 + widest) > bytes_max.saturating_mul(4) {
            return Ok(None);
        }
        document::print_spaced(&value, spacing)
    };
    Ok(Some(out).filter(|out| out.len() <= bytes_max))
}

/// Executes JSON.MGET for the keys of this core: returns the values that the path selects in each document, or null if
/// there is none.
pub fn get_several(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let last = request.len() - 1;
    let path = parse_path(Some(request.arg(last)))?;
    let limits = state.core.clients.limits;
    let mark = state.output.mark();
    state.encoder().array(last - 1);
    let mut done = Ok(());
    for at in 1..last {
        done = read(state, request.arg(at), |view, _, to| {
            let document = match view {
                Some(ObjectView::Json(text)) => Document::parse(text).map_err(document_refusal)?,
                _ => return to.value(None),
            };
            let paths = std::slice::from_ref(&path);
            match print_paths(&document, paths, Spacing::default(), limits.reply_bytes()) {
                Ok(Some(out)) => to.bulk(&out),
                Ok(None) => Err(limits.reply_too_long()),
                // A legacy path without a match.
                Err(_) => to.value(None),
            }
        });
        if let Err(NoReply::Refused((Code::WrongType, _))) = done {
            state.encoder().null();
            done = Ok(());
        }
        if done.is_err() {
            break;
        }
    }
    if done.is_err() {
        state.output.rewind(mark);
    }
    done
}

pub fn types(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    read_document(state, request.arg(1), |document, to| {
        if to.proto() == Proto::Resp3 {
            to.encoder().array(1);
        }
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(document_refusal)?;
        let types: Vec<_> = document.types(&path).into_iter().map(Some).collect();
        write_each(&mut to.encoder(), &path, &types, |encoder, name| {
            encoder.text(name)
        });
        Ok(())
    })
}

/// Executes JSON.NUMINCRBY, or JSON.NUMMULTBY if `multiplies`.
pub fn change_numbers(
    state: &mut ConnectionState,
    request: Request<'_>,
    multiplies: bool,
) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let by = Number::parse(request.arg(3)).ok_or_else(|| bad_request("value is not a number"))?;
    let done = edit(state, request.arg(1), &path, 0, |document| {
        let operate = |before| {
            if multiplies {
                document::multiply(before, by)
            } else {
                document::add(before, by)
            }
        };
        document
            .change_numbers(&path, operate)
            .map_err(document_refusal)
    })?;
    let mut encoder = state.encoder();
    if encoder.proto == Proto::Resp3 {
        encoder.array(done.len());
        for value in done {
            match value.as_ref().map(|value| (value.as_i64(), value.as_f64())) {
                Some((Some(integer), _)) => encoder.integer(integer),
                Some((None, Some(double))) => encoder.double(double),
                _ => encoder.null(),
            }
        }
        return Ok(());
    }
    let printed = if path.is_legacy() {
        done.into_iter().next().flatten().unwrap_or(Value::Null)
    } else {
        Value::Array(done.into_iter().map(Option::unwrap_or_default).collect())
    };
    encoder.bulk(&document::print(&printed));
    Ok(())
}

pub fn append_string(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let has_path = request.len() == 4;
    let path = parse_path(request.get(2).filter(|_| has_path))?;
    let value = request.arg(request.len() - 1);
    let Value::String(text) = parse_json(value)? else {
        return Err(bad_request("the value is not a JSON string: enclose it in quotes").into());
    };
    let lengths = edit(state, request.arg(1), &path, value.len(), |document| {
        document
            .append_string(&path, &text)
            .map_err(document_refusal)
    })?;
    write_each(&mut state.encoder(), &path, &lengths, write_count);
    Ok(())
}

pub fn toggle(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let flags = edit(state, request.arg(1), &path, 0, |document| {
        document.toggle(&path).map_err(document_refusal)
    })?;
    write_each(&mut state.encoder(), &path, &flags, |encoder, flag| {
        if path.is_legacy() {
            encoder.text(if *flag { "true" } else { "false" })
        } else {
            encoder.integer(i64::from(*flag))
        }
    });
    Ok(())
}

pub fn clear(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    let cleared = edit(state, request.arg(1), &path, 0, |document| {
        Ok(document.clear(&path))
    })?;
    state.encoder().count(cleared as u64);
    Ok(())
}

/// Parses the arguments from `at` on as values. Also returns their total size in bytes.
fn parse_values(request: Request<'_>, at: usize) -> Result<(Vec<Value>, usize), Refusal> {
    let bytes = request.args().skip(at).map(|text| text.len() + 1).sum();
    check_document_size(bytes)?;
    let values: Result<Vec<Value>, Refusal> = request.args().skip(at).map(parse_json).collect();
    Ok((values?, bytes))
}

pub fn append_elements(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let (values, bytes) = parse_values(request, 3)?;
    let lengths = edit(state, request.arg(1), &path, bytes, |document| {
        document
            .append_elements(&path, &values)
            .map_err(document_refusal)
    })?;
    write_each(&mut state.encoder(), &path, &lengths, write_count);
    Ok(())
}

pub fn insert_elements(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let index = parse_number(request.arg(3))?;
    let (values, bytes) = parse_values(request, 4)?;
    let lengths = edit(state, request.arg(1), &path, bytes, |document| {
        document
            .insert_elements(&path, index, &values)
            .map_err(document_refusal)
    })?;
    write_each(&mut state.encoder(), &path, &lengths, write_count);
    Ok(())
}

pub fn pop_elements(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    let index = match request.get(3) {
        None => -1,
        Some(text) => parse_number(text)?,
    };
    let popped = edit(state, request.arg(1), &path, 0, |document| {
        document
            .pop_elements(&path, index)
            .map_err(document_refusal)
    })?;
    write_each(
        &mut state.encoder(),
        &path,
        &popped,
        |encoder, element| match element {
            Some(element) => encoder.bulk(&document::print(element)),
            None => encoder.null(),
        },
    );
    Ok(())
}

pub fn trim_elements(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let (start, stop) = (parse_number(request.arg(3))?, parse_number(request.arg(4))?);
    let lengths = edit(state, request.arg(1), &path, 0, |document| {
        document
            .trim_elements(&path, start, stop)
            .map_err(document_refusal)
    })?;
    write_each(&mut state.encoder(), &path, &lengths, write_count);
    Ok(())
}

pub fn index_of(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(Some(request.arg(2)))?;
    let value = parse_json(request.arg(3))?;
    let bound = |at| request.get(at).map_or(Ok(0), parse_number);
    let (start, stop) = (bound(4)?, bound(5)?);
    read_document(state, request.arg(1), |document, to| {
        let document = document.ok_or_else(no_key)?;
        path.count(&document.root).map_err(document_refusal)?;
        let found = document.index_of_element(&path, &value, start, stop);
        let found = found.map_err(document_refusal)?;
        write_each(&mut to.encoder(), &path, &found, |encoder, at| {
            encoder.integer(*at)
        });
        Ok(())
    })
}

/// Executes JSON.STRLEN, JSON.ARRLEN and JSON.OBJLEN.
pub fn lengths(
    state: &mut ConnectionState,
    request: Request<'_>,
    of: &'static str,
) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    read_document(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(document_refusal)?;
        let lengths = document.lengths(&path, of).map_err(document_refusal)?;
        write_each(&mut to.encoder(), &path, &lengths, write_count);
        Ok(())
    })
}

pub fn names(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let path = parse_path(request.get(2))?;
    read_document(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(document_refusal)?;
        let names = document.names(&path).map_err(document_refusal)?;
        write_each(&mut to.encoder(), &path, &names, |encoder, names| {
            encoder.array(names.len());
            names.iter().for_each(|name| encoder.text(name));
        });
        Ok(())
    })
}
