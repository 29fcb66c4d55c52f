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

use super::super::state::State;
use super::access::{Becomes, change, read};
use super::hash::syntax;
use crate::tables::objects::{OBJECT_BYTES_MAX, wrong_type};
use crate::tables::{Refusal, Unanswered};

fn bad(message: impl Into<String>) -> Refusal {
    (Code::BadRequest, message.into())
}

pub(super) fn refused(refusal: larder_space::error::Refusal) -> Refusal {
    bad(refusal.to_string())
}

fn no_key() -> Refusal {
    bad("could not perform this operation on a key that doesn't exist")
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| bad("this is no UTF-8, so it is no JSON and no path"))
}

/// Parses a path argument. The default is the root in the legacy syntax.
pub(super) fn path(argument: Option<&[u8]>) -> Result<Path, Refusal> {
    Path::parse(text(argument.unwrap_or(b"."))?).map_err(refused)
}

pub(super) fn json(argument: &[u8]) -> Result<Value, Refusal> {
    refuse_large(argument.len())?;
    document::parse(argument).map_err(refused)
}

fn refuse_large(bytes: usize) -> Result<(), Refusal> {
    if bytes > OBJECT_BYTES_MAX {
        Err(bad(format!(
            "the document would have more than the {OBJECT_BYTES_MAX} bytes that an object may have"
        )))
    } else {
        Ok(())
    }
}

fn number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or_else(|| bad("value is not an integer or out of range"))
}

/// Rejects a change if all values that a path selects grow by this many bytes and the result is too large.
fn refuse_growth(path: &Path, root: &Value, bytes: usize) -> Result<(), Refusal> {
    let count = path.count(root).map_err(refused)?;
    refuse_large(count.saturating_mul(bytes))
}

/// Reads a document, if it exists.
fn look(
    state: &mut State,
    key: &[u8],
    answer: impl FnOnce(Option<Document>, &mut super::access::Answer<'_>) -> Result<(), Refusal>,
) -> Result<(), Unanswered> {
    read(state, key, |view, _, to| match view {
        None => answer(None, to),
        Some(ObjectView::Hash(_)) => Err(wrong_type()),
        Some(ObjectView::Json(text)) => answer(Some(Document::parse(text).map_err(refused)?), to),
    })
}

/// Changes an existing document.
fn edit<T>(
    state: &mut State,
    key: &[u8],
    path: &Path,
    growth: usize,
    decide: impl FnOnce(&mut Document) -> Result<T, Refusal>,
) -> Result<T, Unanswered> {
    change(state, key, ObjectKind::Json, |before, _| {
        let Some(Object::Json(mut document)) = before else {
            return Err(no_key());
        };
        refuse_growth(path, &document.root, growth)?;
        let answer = decide(&mut document)?;
        Ok((answer, Becomes::This(Object::Json(document))))
    })
}

/// Appends the results of a path: all of them for a `$` path, else the first.
fn each<T>(
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

fn count(encoder: &mut Encoder<'_>, count: &usize) {
    encoder.count(*count as u64);
}

pub fn set(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let rule = match request.get(4).map(<[u8]>::to_ascii_uppercase).as_deref() {
        None => SetRule::Always,
        Some(b"NX") if request.len() == 5 => SetRule::Absent,
        Some(b"XX") if request.len() == 5 => SetRule::Present,
        Some(_) => return Err(syntax().into()),
    };
    let path = path(Some(request.arg(2)))?;
    let value = json(request.arg(3))?;
    let is_set = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let after = set_in(before.as_ref(), &path, value, request.arg(3).len(), rule)?;
        let is_set = after.is_some();
        let becomes = after.map_or(Becomes::AsItWas, |document| {
            Becomes::This(Object::Json(document))
        });
        Ok((is_set, becomes))
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
        refuse_growth(path, &document.root, bytes)?;
    }
    Document::set(before, path, value, rule).map_err(refused)
}

pub fn merge(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let patch = json(request.arg(3))?;
    let is_done = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let before = match &before {
            Some(Object::Json(document)) => Some(document),
            _ => None,
        };
        if let Some(document) = before {
            refuse_growth(&path, &document.root, request.arg(3).len())?;
        }
        let after = Document::merge(before, &path, &patch).map_err(refused)?;
        let is_done = after.is_some();
        let becomes = match after {
            // A null patch at the root removes the document.
            Some(document) if path.is_root() && patch.is_null() && document.root.is_null() => {
                Becomes::Gone
            }
            Some(document) => Becomes::This(Object::Json(document)),
            None => Becomes::AsItWas,
        };
        Ok((is_done, becomes))
    })?;
    if is_done {
        state.encoder().ok()
    } else {
        state.encoder().null()
    }
    Ok(())
}

/// Executes JSON.DEL and JSON.FORGET.
pub fn delete(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    let gone = change(state, request.arg(1), ObjectKind::Json, |before, _| {
        let Some(Object::Json(mut document)) = before else {
            return Ok((0, Becomes::AsItWas));
        };
        if path.is_root() {
            return Ok((1, Becomes::Gone));
        }
        path.count(&document.root).map_err(refused)?;
        Ok(match document.delete(&path) {
            0 => (0, Becomes::AsItWas),
            gone => (gone, Becomes::This(Object::Json(document))),
        })
    })?;
    state.encoder().count(gone as u64);
    Ok(())
}

pub fn get(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let (mut spacing, mut paths, mut at) = (Spacing::default(), Vec::new(), 2);
    while let Some(word) = request.get(at) {
        at += 2;
        let value = || request.get(at - 1).ok_or_else(syntax);
        match word.to_ascii_uppercase().as_slice() {
            b"INDENT" => spacing.indent = value()?,
            b"NEWLINE" => spacing.newline = value()?,
            b"SPACE" => spacing.space = value()?,
            b"NOESCAPE" => at -= 1,
            _ => {
                paths.push(path(Some(word))?);
                at -= 1;
            }
        }
    }
    if paths.is_empty() {
        paths.push(path(None)?);
    }
    let limits = state.core.clients.limits;
    look(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        let out = print_paths(&document, &paths, spacing, limits.answer())?;
        match out {
            Some(out) => to.bulk(&out),
            None => Err(limits.too_long()),
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
        path.count(&document.root).map_err(refused)?;
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
                return Err(bad(format!("Path '{}' does not exist", path.text())));
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
pub fn get_several(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let last = request.len() - 1;
    let path = path(Some(request.arg(last)))?;
    let limits = state.core.clients.limits;
    let mark = state.output.mark();
    state.encoder().array(last - 1);
    let mut done = Ok(());
    for at in 1..last {
        done = read(state, request.arg(at), |view, _, to| {
            let document = match view {
                Some(ObjectView::Json(text)) => Document::parse(text).map_err(refused)?,
                _ => return to.value(None),
            };
            let paths = std::slice::from_ref(&path);
            match print_paths(&document, paths, Spacing::default(), limits.answer()) {
                Ok(Some(out)) => to.bulk(&out),
                Ok(None) => Err(limits.too_long()),
                // A legacy path without a match.
                Err(_) => to.value(None),
            }
        });
        if let Err(Unanswered::Refused((Code::WrongType, _))) = done {
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

pub fn types(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    look(state, request.arg(1), |document, to| {
        if to.proto() == Proto::Resp3 {
            to.encoder().array(1);
        }
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(refused)?;
        let types: Vec<_> = document.types(&path).into_iter().map(Some).collect();
        each(&mut to.encoder(), &path, &types, |encoder, name| {
            encoder.text(name)
        });
        Ok(())
    })
}

/// Executes JSON.NUMINCRBY, or JSON.NUMMULTBY if `multiplies`.
pub fn change_numbers(
    state: &mut State,
    request: Request<'_>,
    multiplies: bool,
) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let by = Number::parse(request.arg(3)).ok_or_else(|| bad("value is not a number"))?;
    let done = edit(state, request.arg(1), &path, 0, |document| {
        let operate = |before| {
            if multiplies {
                document::multiply(before, by)
            } else {
                document::add(before, by)
            }
        };
        document.change_numbers(&path, operate).map_err(refused)
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

pub fn append_string(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let has_path = request.len() == 4;
    let path = path(request.get(2).filter(|_| has_path))?;
    let value = request.arg(request.len() - 1);
    let Value::String(text) = json(value)? else {
        return Err(bad("the value is no JSON string: it stands in quotes").into());
    };
    let lengths = edit(state, request.arg(1), &path, value.len(), |document| {
        document.append_string(&path, &text).map_err(refused)
    })?;
    each(&mut state.encoder(), &path, &lengths, count);
    Ok(())
}

pub fn toggle(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let flags = edit(state, request.arg(1), &path, 0, |document| {
        document.toggle(&path).map_err(refused)
    })?;
    each(&mut state.encoder(), &path, &flags, |encoder, flag| {
        if path.is_legacy() {
            encoder.text(if *flag { "true" } else { "false" })
        } else {
            encoder.integer(i64::from(*flag))
        }
    });
    Ok(())
}

pub fn clear(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    let cleared = edit(state, request.arg(1), &path, 0, |document| {
        Ok(document.clear(&path))
    })?;
    state.encoder().count(cleared as u64);
    Ok(())
}

/// Parses the arguments from `at` on as values. Also returns their total size in bytes.
fn values(request: Request<'_>, at: usize) -> Result<(Vec<Value>, usize), Refusal> {
    let bytes = request.args().skip(at).map(|text| text.len() + 1).sum();
    refuse_large(bytes)?;
    let values: Result<Vec<Value>, Refusal> = request.args().skip(at).map(json).collect();
    Ok((values?, bytes))
}

pub fn append_elements(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let (values, bytes) = values(request, 3)?;
    let lengths = edit(state, request.arg(1), &path, bytes, |document| {
        document.append_elements(&path, &values).map_err(refused)
    })?;
    each(&mut state.encoder(), &path, &lengths, count);
    Ok(())
}

pub fn insert_elements(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let index = number(request.arg(3))?;
    let (values, bytes) = values(request, 4)?;
    let lengths = edit(state, request.arg(1), &path, bytes, |document| {
        document
            .insert_elements(&path, index, &values)
            .map_err(refused)
    })?;
    each(&mut state.encoder(), &path, &lengths, count);
    Ok(())
}

pub fn pop_elements(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    let index = match request.get(3) {
        None => -1,
        Some(text) => number(text)?,
    };
    let popped = edit(state, request.arg(1), &path, 0, |document| {
        document.pop_elements(&path, index).map_err(refused)
    })?;
    each(
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

pub fn trim_elements(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let (start, stop) = (number(request.arg(3))?, number(request.arg(4))?);
    let lengths = edit(state, request.arg(1), &path, 0, |document| {
        document.trim_elements(&path, start, stop).map_err(refused)
    })?;
    each(&mut state.encoder(), &path, &lengths, count);
    Ok(())
}

pub fn index_of(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(Some(request.arg(2)))?;
    let value = json(request.arg(3))?;
    let bound = |at| request.get(at).map_or(Ok(0), number);
    let (start, stop) = (bound(4)?, bound(5)?);
    look(state, request.arg(1), |document, to| {
        let document = document.ok_or_else(no_key)?;
        path.count(&document.root).map_err(refused)?;
        let found = document.index_of_element(&path, &value, start, stop);
        let found = found.map_err(refused)?;
        each(&mut to.encoder(), &path, &found, |encoder, at| {
            encoder.integer(*at)
        });
        Ok(())
    })
}

/// Executes JSON.STRLEN, JSON.ARRLEN and JSON.OBJLEN.
pub fn lengths(
    state: &mut State,
    request: Request<'_>,
    of: &'static str,
) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    look(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(refused)?;
        let lengths = document.lengths(&path, of).map_err(refused)?;
        each(&mut to.encoder(), &path, &lengths, count);
        Ok(())
    })
}

pub fn names(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let path = path(request.get(2))?;
    look(state, request.arg(1), |document, to| {
        let Some(document) = document else {
            return to.value(None);
        };
        path.count(&document.root).map_err(refused)?;
        let names = document.names(&path).map_err(refused)?;
        each(&mut to.encoder(), &path, &names, |encoder, names| {
            encoder.array(names.len());
            names.iter().for_each(|name| encoder.text(name));
        });
        Ok(())
    })
}
