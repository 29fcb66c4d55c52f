//! JSON documents, and the JSON commands. Member names keep their order, and 64-bit integers are exact.
//!
//! A command with a `$` path changes every value that the path selects. Its result is `None` for each value of another
//! type. With a legacy path, a command uses only the first selected value; it returns an error if there is none or if
//! it has another type.

use serde_json::{Map, Value};

use super::path::{Path, PathElement, at_mut, index_of};
use crate::base::number::Number;
use crate::error::{Refusal, Result};

#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub root: Value,
}

/// The condition under which JSON.SET sets a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetRule {
    Always,
    /// NX: the value does not exist.
    Absent,
    /// XX: the value exists.
    Present,
}

impl Document {
    /// Parses a document.
    ///
    /// # Errors
    /// The text is not JSON, or nests deeper than 127 levels.
    pub fn parse(text: &[u8]) -> Result<Document> {
        Ok(Document { root: parse(text)? })
    }

    /// Formats the document without whitespace.
    pub fn print(&self) -> Vec<u8> {
        print(&self.root)
    }

    /// JSON.SET: returns the new document, or `None` if the condition does not hold or the path has no parent for a new
    /// member.
    ///
    /// # Errors
    /// The document does not exist and the path is not its root, or the result would nest too deep.
    pub fn set(
        before: Option<&Document>,
        path: &Path,
        value: Value,
        rule: SetRule,
    ) -> Result<Option<Document>> {
        let Some(before) = before else {
            if !path.is_root() {
                return Err(Refusal::new(
                    "new objects must be created at the root: give $ as the path",
                ));
            }
            return Ok((rule != SetRule::Present).then_some(Document { root: value }));
        };
        let mut document = before.clone();
        let found = path.locate(&document.root);
        if !found.is_empty() {
            if rule == SetRule::Absent {
                return Ok(None);
            }
            for places in &found {
                if let Some(there) = at_mut(&mut document.root, places) {
                    *there = value.clone();
                }
            }
            check_depth(&document.root)?;
            return Ok(Some(document));
        }
        let Some((parents, name)) = path.parents(&document.root) else {
            return Ok(None);
        };
        if parents.is_empty() || rule == SetRule::Present {
            return Ok(None);
        }
        for places in &parents {
            if let Some(Value::Object(members)) = at_mut(&mut document.root, places) {
                members.insert(name.to_string(), value.clone());
            }
        }
        check_depth(&document.root)?;
        Ok(Some(document))
    }

    /// JSON.MERGE (RFC 7396): null removes a member. Returns `None` if the path has no parent for a new member.
    ///
    /// # Errors
    /// See [`Document::set`].
    pub fn merge(
        before: Option<&Document>,
        path: &Path,
        patch: &Value,
    ) -> Result<Option<Document>> {
        let exists = before.is_some_and(|before| !path.locate(&before.root).is_empty());
        if !exists {
            let mut fresh = Value::Null;
            merge(&mut fresh, patch);
            return Document::set(before, path, fresh, SetRule::Always);
        }
        let mut document = before.cloned().expect("something is there");
        // Merge nested values before the values that contain them.
        for places in order_inner_first(path.locate(&document.root)) {
            if patch.is_null() && !places.is_empty() {
                remove_at(&mut document.root, &places);
            } else if let Some(value) = at_mut(&mut document.root, &places) {
                merge(value, patch);
            }
        }
        check_depth(&document.root)?;
        Ok(Some(document))
    }

    /// JSON.DEL: returns the number of removed values. If the path is the root, the caller deletes the object.
    pub fn delete(&mut self, path: &Path) -> usize {
        remove(&mut self.root, path)
    }

    /// JSON.GET of one path: returns an array of all values, or the first value for a legacy path.
    ///
    /// # Errors
    /// A legacy path selects nothing.
    pub fn get(&self, path: &Path) -> Result<Value> {
        let found = path.select(&self.root);
        match (path.is_legacy(), found.first()) {
            (false, _) => Ok(Value::Array(found.into_iter().cloned().collect())),
            (true, Some(first)) => Ok((*first).clone()),
            (true, None) => Err(no_such(path)),
        }
    }

    /// JSON.GET of several paths: returns an object from each path to the result of [`Document::get`]. If a path begins
    /// with `$`, all results are arrays.
    ///
    /// # Errors
    /// All paths are legacy paths, and one selects nothing.
    pub fn get_each(&self, paths: &[Path]) -> Result<Value> {
        if let [path] = paths {
            return self.get(path);
        }
        let arrays = paths.iter().any(|path| !path.is_legacy());
        let mut members = Map::new();
        for path in paths {
            let value = if arrays {
                Value::Array(path.select(&self.root).into_iter().cloned().collect())
            } else {
                self.get(path)?
            };
            members.insert(path.text().to_string(), value);
        }
        Ok(Value::Object(members))
    }

    /// JSON.TYPE.
    pub fn types(&self, path: &Path) -> Vec<&'static str> {
        path.select(&self.root).into_iter().map(type_name).collect()
    }

    /// JSON.NUMINCRBY, NUMMULTBY: returns the new numbers.
    ///
    /// # Errors
    /// A result is infinite, or a legacy path fails (see the module documentation).
    pub fn change_numbers(
        &mut self,
        path: &Path,
        change: impl Fn(Number) -> Option<Number>,
    ) -> Result<Vec<Option<Value>>> {
        self.update(path, "a number", |value| {
            let Value::Number(before) = value else {
                return Ok(None);
            };
            let after = change(number(before)).and_then(json_number);
            let after = after
                .ok_or_else(|| Refusal::new("result is not a number: it would be infinite"))?;
            *value = Value::Number(after);
            Ok(Some(value.clone()))
        })
    }

    /// JSON.STRAPPEND: returns the new lengths in bytes.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn append_string(&mut self, path: &Path, text: &str) -> Result<Vec<Option<usize>>> {
        self.update(path, "a string", |value| {
            let Value::String(string) = value else {
                return Ok(None);
            };
            string.push_str(text);
            Ok(Some(string.len()))
        })
    }

    /// JSON.TOGGLE: returns the new values.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn toggle(&mut self, path: &Path) -> Result<Vec<Option<bool>>> {
        self.update(path, "a boolean", |value| {
            let Value::Bool(flag) = value else {
                return Ok(None);
            };
            *flag = !*flag;
            Ok(Some(*flag))
        })
    }

    /// JSON.CLEAR: empties arrays and objects and sets numbers to 0. Returns the number of changed values.
    pub fn clear(&mut self, path: &Path) -> usize {
        let mut count = 0;
        for places in order_inner_first(path.locate(&self.root)) {
            count += match at_mut(&mut self.root, &places) {
                Some(Value::Array(elements)) if !elements.is_empty() => {
                    elements.clear();
                    1
                }
                Some(Value::Object(members)) if !members.is_empty() => {
                    members.clear();
                    1
                }
                Some(value @ Value::Number(_)) if value.as_f64() != Some(0.0) => {
                    *value = Value::from(0);
                    1
                }
                _ => 0,
            };
        }
        count
    }

    /// JSON.ARRAPPEND: returns the new lengths.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn append_elements(&mut self, path: &Path, values: &[Value]) -> Result<Vec<Option<usize>>> {
        self.update_arrays(path, |elements| {
            elements.extend_from_slice(values);
            Ok(elements.len())
        })
    }

    /// JSON.ARRINSERT, before the element at `index`: returns the new lengths.
    ///
    /// # Errors
    /// An index is out of bounds, or a legacy path fails (see the module documentation).
    pub fn insert_elements(
        &mut self,
        path: &Path,
        index: i64,
        values: &[Value],
    ) -> Result<Vec<Option<usize>>> {
        self.update_arrays(path, |elements| {
            // Inserting after the last element is allowed too.
            let at = match index {
                index if usize::try_from(index) == Ok(elements.len()) => Some(elements.len()),
                index => index_of(index, elements.len()),
            };
            let at = at.ok_or_else(|| {
                Refusal::new(format!(
                    "index out of bounds: {index} of {} elements",
                    elements.len()
                ))
            })?;
            elements.splice(at..at, values.iter().cloned());
            Ok(elements.len())
        })
    }

    /// JSON.ARRPOP: returns the removed elements, and null for an empty array. An out-of-bounds index means the nearest
    /// end.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn pop_elements(&mut self, path: &Path, index: i64) -> Result<Vec<Option<Option<Value>>>> {
        self.update_arrays(path, |elements| {
            if elements.is_empty() {
                return Ok(None);
            }
            let last = elements.len() as i64 - 1;
            let at = if index < 0 {
                index.saturating_add(last + 1)
            } else {
                index
            }
            .clamp(0, last);
            Ok(Some(elements.remove(at as usize)))
        })
    }

    /// JSON.ARRTRIM to the elements from `start` to `stop`, both inclusive: returns the new lengths.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn trim_elements(
        &mut self,
        path: &Path,
        start: i64,
        stop: i64,
    ) -> Result<Vec<Option<usize>>> {
        self.update_arrays(path, |elements| {
            let size = elements.len() as i64;
            let from_end = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
            let begin = from_end(start).clamp(0, size);
            let end = from_end(stop).saturating_add(1).clamp(begin, size);
            elements.truncate(end as usize);
            elements.drain(..begin as usize);
            Ok(elements.len())
        })
    }

    /// JSON.ARRINDEX: returns the first position of the value from `start` (inclusive) to `stop` (exclusive), or -1. If
    /// `stop` is 0, the range extends to the end.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn index_of_element(
        &self,
        path: &Path,
        value: &Value,
        start: i64,
        stop: i64,
    ) -> Result<Vec<Option<i64>>> {
        self.read_each(path, "an array", |found| {
            let elements = found.as_array()?;
            let size = elements.len() as i64;
            let from_end =
                |at: i64| if at < 0 { at.saturating_add(size) } else { at }.clamp(0, size);
            let (start, stop) = (
                from_end(start),
                if stop == 0 { size } else { from_end(stop) },
            );
            let part = elements
                .get(start as usize..stop as usize)
                .unwrap_or_default();
            Some(
                part.iter()
                    .position(|element| element == value)
                    .map_or(-1, |at| at as i64 + start),
            )
        })
    }

    /// JSON.STRLEN, ARRLEN, OBJLEN: returns the lengths of strings, arrays or objects.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn lengths(&self, path: &Path, of: &'static str) -> Result<Vec<Option<usize>>> {
        self.read_each(path, of, |found| match (found, of) {
            (Value::String(text), "a string") => Some(text.len()),
            (Value::Array(elements), "an array") => Some(elements.len()),
            (Value::Object(members), "an object") => Some(members.len()),
            _ => None,
        })
    }

    /// JSON.OBJKEYS.
    ///
    /// # Errors
    /// A legacy path fails (see the module documentation).
    pub fn names(&self, path: &Path) -> Result<Vec<Option<Vec<String>>>> {
        self.read_each(path, "an object", |found| {
            Some(found.as_object()?.keys().cloned().collect())
        })
    }

    fn read_each<T>(
        &self,
        path: &Path,
        expected: &str,
        one: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<Option<T>>> {
        let mut found = path.select(&self.root);
        if path.is_legacy() {
            found.truncate(1);
            let first = found.first().ok_or_else(|| no_such(path))?;
            if one(first).is_none() {
                return Err(wrong_type(path, expected, first));
            }
        }
        Ok(found.into_iter().map(one).collect())
    }

    /// Changes all selected values, or none if one change fails.
    fn update<T>(
        &mut self,
        path: &Path,
        expected: &str,
        mut one: impl FnMut(&mut Value) -> Result<Option<T>>,
    ) -> Result<Vec<Option<T>>> {
        let mut changed = self.root.clone();
        let mut found = path.locate(&changed);
        if path.is_legacy() {
            found.truncate(1);
            let Some(first) = found.first() else {
                return Err(no_such(path));
            };
            let first = at_mut(&mut changed, first).ok_or_else(|| no_such(path))?;
            let before = first.clone();
            let result = one(first)?.ok_or_else(|| wrong_type(path, expected, &before))?;
            check_depth(&changed)?;
            self.root = changed;
            return Ok(vec![Some(result)]);
        }
        let mut results = Vec::new();
        for places in found {
            // A change of an outer value may have removed this one.
            results.push(match at_mut(&mut changed, &places) {
                Some(value) => one(value)?,
                None => None,
            });
        }
        check_depth(&changed)?;
        self.root = changed;
        Ok(results)
    }

    fn update_arrays<T>(
        &mut self,
        path: &Path,
        mut one: impl FnMut(&mut Vec<Value>) -> Result<T>,
    ) -> Result<Vec<Option<T>>> {
        self.update(path, "an array", |value| match value {
            Value::Array(elements) => one(elements).map(Some),
            _ => Ok(None),
        })
    }
}

fn no_such(path: &Path) -> Refusal {
    Refusal::new(format!("Path '{}' does not exist", path.text()))
}

fn wrong_type(path: &Path, expected: &str, found: &Value) -> Refusal {
    Refusal::new(format!(
        "Path '{}' does not exist or is not {expected}: {} is there",
        path.text(),
        type_name(found)
    ))
}

/// Returns the type name that JSON.TYPE reports.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(target) = value else { return };
    for (name, member) in members {
        match member {
            Value::Null => drop(target.shift_remove(name)),
            member => merge(target.entry(name).or_insert(Value::Null), member),
        }
    }
}

/// Orders inner values before the values that contain them, and later elements before earlier ones, without duplicates.
/// Removing a value then leaves the locations of the following ones valid.
fn order_inner_first(mut found: Vec<Vec<PathElement>>) -> Vec<Vec<PathElement>> {
    found.sort();
    found.dedup();
    found.reverse();
    found
}

/// Removes the values that the path selects, and returns their number.
pub(super) fn remove(root: &mut Value, path: &Path) -> usize {
    let found = order_inner_first(path.locate(root));
    found
        .iter()
        .filter(|places| remove_at(root, places))
        .count()
}

fn remove_at(root: &mut Value, places: &[PathElement]) -> bool {
    let Some((last, before)) = places.split_last() else {
        *root = Value::Null;
        return true;
    };
    match (at_mut(root, before), last) {
        (Some(Value::Object(members)), PathElement::Name(name)) => {
            members.shift_remove(name).is_some()
        }
        (Some(Value::Array(elements)), PathElement::Index(index)) if *index < elements.len() => {
            elements.remove(*index);
            true
        }
        _ => false,
    }
}

/// Renames the member that the path selects. Returns `None` if there is none.
pub(super) fn rename(root: &mut Value, path: &Path, new: &str) -> Option<()> {
    let found = path.locate(root);
    let (last, before) = found.first()?.split_last()?;
    let (Some(Value::Object(members)), PathElement::Name(name)) = (at_mut(root, before), last)
    else {
        return None;
    };
    let value = members.shift_remove(name)?;
    members.insert(new.to_string(), value);
    Some(())
}

/// The maximum nesting depth of a document. Deeper text is not parsed, so no command may create deeper values.
pub const DEPTH_MAX: usize = 127;

/// Checks the nesting depth.
///
/// # Errors
/// The value nests deeper than [`DEPTH_MAX`], and its text could not be parsed again.
pub fn check_depth(value: &Value) -> Result<()> {
    fn is_within(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(elements) => left > 0 && elements.iter().all(|it| is_within(it, left - 1)),
            Value::Object(members) => {
                left > 0 && members.values().all(|it| is_within(it, left - 1))
            }
            _ => true,
        }
    }
    if is_within(value, DEPTH_MAX) {
        Ok(())
    } else {
        Err(Refusal::new(format!(
            "the document would be nested deeper than {DEPTH_MAX}: nothing was changed"
        )))
    }
}

/// Parses a JSON text.
///
/// # Errors
/// The text is not JSON, or nests deeper than [`DEPTH_MAX`].
pub fn parse(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).map_err(|error| {
        let message = format!("this is not valid JSON: {error}");
        match error.line() {
            1 => Refusal::at_column(error.column(), message),
            _ => Refusal::new(message),
        }
    })
}

pub fn print(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("names are strings, and memory takes what is written")
}

/// The whitespace that JSON.GET writes between values; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spacing<'a> {
    pub indent: &'a [u8],
    pub newline: &'a [u8],
    pub space: &'a [u8],
}

pub fn print_spaced(value: &Value, spacing: Spacing<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    print_into(value, spacing, 0, &mut out);
    out
}

fn print_into(value: &Value, spacing: Spacing<'_>, level: usize, out: &mut Vec<u8>) {
    let line = |level: usize, out: &mut Vec<u8>| {
        out.extend_from_slice(spacing.newline);
        (0..level).for_each(|_| out.extend_from_slice(spacing.indent));
    };
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            out.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                line(level + 1, out);
                print_into(element, spacing, level + 1, out);
            }
            line(level, out);
            out.push(b']');
        }
        Value::Object(members) if !members.is_empty() => {
            out.push(b'{');
            for (index, (name, member)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                line(level + 1, out);
                out.extend(print(&Value::String(name.clone())));
                out.push(b':');
                out.extend_from_slice(spacing.space);
                print_into(member, spacing, level + 1, out);
            }
            line(level, out);
            out.push(b'}');
        }
        value => out.extend(print(value)),
    }
}

pub fn number(number: &serde_json::Number) -> Number {
    match (number.as_i64(), number.as_u64()) {
        (Some(value), _) => Number::Int(value),
        (None, Some(value)) => Number::from_i128(i128::from(value)),
        (None, None) => number
            .as_f64()
            .and_then(Number::from_f64)
            .unwrap_or(Number::Int(0)),
    }
}

/// Returns `None` for an infinite number.
pub fn json_number(number: Number) -> Option<serde_json::Number> {
    match number {
        Number::Int(value) => Some(value.into()),
        Number::Float(value) => serde_json::Number::from_f64(value),
    }
}

/// Returns the sum, exact while both numbers and the sum are 64-bit integers. `None` if the result is infinite.
pub fn add(a: Number, b: Number) -> Option<Number> {
    let exact = match (a, b) {
        (Number::Int(a), Number::Int(b)) => a.checked_add(b).map(Number::Int),
        _ => None,
    };
    exact
        .or_else(|| Number::from_f64(a.as_f64() + b.as_f64()))
        .filter(|sum| sum.as_f64().is_finite())
}

/// Returns the product, exact while both numbers and the product are 64-bit integers. `None` if the result is infinite.
pub fn multiply(a: Number, b: Number) -> Option<Number> {
    let exact = match (a, b) {
        (Number::Int(a), Number::Int(b)) => a.checked_mul(b).map(Number::Int),
        _ => None,
    };
    exact
        .or_else(|| Number::from_f64(a.as_f64() * b.as_f64()))
        .filter(|product| product.as_f64().is_finite())
}
