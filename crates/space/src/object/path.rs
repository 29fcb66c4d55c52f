//! Paths into JSON documents.
//!
//! ```text
//! path     = "$" {step} | legacy          legacy = "." | ["."] name {step}
//! step     = [".."] ( "." name | ".*" | "[" selector {"," selector} "]" )
//! selector = "*" | 'name' | "name" | index | [start] ":" [end] [":" step]
//! ```
//!
//! `..` applies the next step at every depth. Negative indexes count from the end. Filters, `[?(..)]`, are rejected. A
//! legacy path selects the first value that matches; a path that begins with `$` selects all of them.

use serde_json::Value;

use crate::error::{Refusal, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
    is_legacy: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    selectors: Vec<Selector>,
    /// The selectors apply at every depth below the value, not only to its children.
    descends: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Selector {
    Name(String),
    Index(i64),
    All,
    Slice(Option<i64>, Option<i64>, i64),
}

/// One step on the way to an existing value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    Name(String),
    Index(usize),
}

const TEXT_BYTES_MAX: usize = 4096;
/// A path with more steps cannot match, because documents are parsed to this depth.
const STEPS_MAX: usize = 128;
/// The maximum number of visited values, plus the total length of the locations of the selected ones.
const WEIGHT_MAX: usize = 4 << 20;

impl Path {
    pub fn root() -> Path {
        Path {
            text: "$".to_string(),
            steps: Vec::new(),
            is_legacy: false,
        }
    }

    /// Parses a path.
    ///
    /// # Errors
    /// Syntax errors, with their column.
    pub fn parse(text: &str) -> Result<Path> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Refusal::new(format!(
                "a path has at most {TEXT_BYTES_MAX} bytes, this one {}",
                text.len()
            )));
        }
        let chars: Vec<char> = text.chars().collect();
        let is_legacy = chars.first() != Some(&'$');
        let mut parser = PathParser {
            chars: &chars,
            at: usize::from(!is_legacy),
        };
        let mut steps = Vec::new();
        if is_legacy && text == "." {
            parser.at = 1;
        } else if is_legacy && !matches!(chars.first(), Some('.' | '[')) {
            let name = parser.name()?;
            steps.push(Step {
                selectors: vec![name],
                descends: false,
            });
        }
        while parser.at < chars.len() {
            steps.push(parser.step()?);
            if steps.len() > STEPS_MAX {
                return Err(parser.refuse(&format!("a path has at most {STEPS_MAX} steps")));
            }
        }
        Ok(Path {
            text: text.to_string(),
            steps,
            is_legacy,
        })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the path is written in the syntax that preceded `$` paths. Such a path selects one value.
    pub fn is_legacy(&self) -> bool {
        self.is_legacy
    }

    pub fn is_root(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns whether the path selects at most one value in any document.
    pub fn is_single(&self) -> bool {
        self.steps.iter().all(|step| {
            !step.descends && matches!(step.selectors[..], [Selector::Name(_) | Selector::Index(_)])
        })
    }

    /// Returns the number of values that the path selects in this document.
    ///
    /// # Errors
    /// The number of selected and visited values is so large that finding them would take too long.
    pub fn count(&self, root: &Value) -> Result<usize> {
        let mut left = WEIGHT_MAX;
        let count = weigh(root, &self.steps, 1, &mut left);
        match left {
            0 => Err(Refusal::new(format!(
                "Path '{}' selects or visits too many values of this document",
                self.text
            ))),
            _ => Ok(count),
        }
    }

    /// Returns all selected values, in document order.
    pub fn select<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut found = Vec::new();
        let mut none = Vec::new();
        walk(root, &self.steps, &mut none, false, &mut |_, value| {
            found.push(value)
        });
        found
    }

    /// Returns the locations of the selected values.
    pub fn locate(&self, root: &Value) -> Vec<Vec<PathElement>> {
        let mut found: Vec<Vec<PathElement>> = Vec::new();
        let mut places = Vec::new();
        walk(root, &self.steps, &mut places, true, &mut |places, _| {
            found.push(places.to_vec())
        });
        found
    }

    /// Returns the locations of the objects that would contain the selected member, and the member's name. `None`
    /// unless the last step is a single name.
    pub fn parents(&self, root: &Value) -> Option<(Vec<Vec<PathElement>>, &str)> {
        let (last, before) = self.steps.split_last()?;
        let [Selector::Name(name)] = &last.selectors[..] else {
            return None;
        };
        if last.descends {
            return None;
        }
        let mut found: Vec<Vec<PathElement>> = Vec::new();
        let mut places = Vec::new();
        walk(root, before, &mut places, true, &mut |places, value| {
            if value.is_object() {
                found.push(places.to_vec());
            }
        });
        Some((found, name))
    }

    /// Returns the value at a path of names and indexes, and creates missing parts: null becomes an object, and a
    /// missing member becomes null. `None` if the path leads through a value of another type, or to a missing element.
    pub fn get_or_create<'v>(&self, root: &'v mut Value) -> Option<&'v mut Value> {
        self.steps
            .iter()
            .try_fold(root, |value, step| match &step.selectors[..] {
                [Selector::Name(name)] if !step.descends => {
                    if value.is_null() {
                        *value = Value::Object(serde_json::Map::new());
                    }
                    Some(
                        value
                            .as_object_mut()?
                            .entry(name.as_str())
                            .or_insert(Value::Null),
                    )
                }
                [Selector::Index(index)] if !step.descends => {
                    let elements = value.as_array_mut()?;
                    let index = index_of(*index, elements.len())?;
                    elements.get_mut(index)
                }
                _ => None,
            })
    }
}

/// Returns the value at this location.
pub fn at_mut<'v>(root: &'v mut Value, places: &[PathElement]) -> Option<&'v mut Value> {
    places.iter().try_fold(root, |value, place| match place {
        PathElement::Name(name) => value.as_object_mut()?.get_mut(name),
        PathElement::Index(index) => value.as_array_mut()?.get_mut(*index),
    })
}

/// Calls `each` for every value that the steps select. Maintains `places`, the location of the value, if `is_asked` is
/// true.
fn walk<'v>(
    value: &'v Value,
    steps: &[Step],
    places: &mut Vec<PathElement>,
    is_asked: bool,
    each: &mut impl FnMut(&[PathElement], &'v Value),
) {
    let Some((step, rest)) = steps.split_first() else {
        each(places, value);
        return;
    };
    for selector in &step.selectors {
        children(
            value,
            Some(selector),
            places,
            is_asked,
            &mut |child, places| {
                walk(child, rest, places, is_asked, each);
            },
        );
    }
    if step.descends {
        children(value, None, places, is_asked, &mut |child, places| {
            walk(child, steps, places, is_asked, each);
        });
    }
}

/// Counts the selected values, and subtracts the cost of finding them from `left`: one for each visited value, and the
/// length of the location of each selected one. `left` becomes 0 if the cost is too high.
fn weigh(value: &Value, steps: &[Step], weight: usize, left: &mut usize) -> usize {
    let Some((step, rest)) = steps.split_first() else {
        *left = left.saturating_sub(weight);
        return 1;
    };
    let mut count = 0;
    let mut each = |selector: Option<&Selector>, steps: &[Step], left: &mut usize| {
        // The cost of a location depends only on its length, so no locations are tracked here.
        let mut none = Vec::new();
        children(value, selector, &mut none, false, &mut |child, _| {
            if *left > 0 {
                *left = left.saturating_sub(1);
                count += weigh(child, steps, weight + 1, left);
            }
        });
    };
    for selector in &step.selectors {
        each(Some(selector), rest, left);
    }
    if step.descends {
        each(None, steps, left);
    }
    count
}

/// Visits the selected children of a value, or all children if there is no selector.
fn children<'v>(
    value: &'v Value,
    selector: Option<&Selector>,
    places: &mut Vec<PathElement>,
    is_asked: bool,
    each: &mut dyn FnMut(&'v Value, &mut Vec<PathElement>),
) {
    let mut visit = |place: &dyn Fn() -> PathElement, child: &'v Value| {
        if is_asked {
            places.push(place());
        }
        each(child, places);
        if is_asked {
            places.pop();
        }
    };
    match (value, selector.unwrap_or(&Selector::All)) {
        (Value::Object(members), Selector::Name(name)) => {
            if let Some(child) = members.get(name) {
                visit(&|| PathElement::Name(name.clone()), child);
            }
        }
        (Value::Object(members), Selector::All) => {
            for (name, child) in members {
                visit(&|| PathElement::Name(name.clone()), child);
            }
        }
        (Value::Array(elements), Selector::All) => {
            for (index, child) in elements.iter().enumerate() {
                visit(&|| PathElement::Index(index), child);
            }
        }
        (Value::Array(elements), Selector::Index(index)) => {
            if let Some(index) = index_of(*index, elements.len()) {
                visit(&|| PathElement::Index(index), &elements[index]);
            }
        }
        (Value::Array(elements), Selector::Slice(start, end, step)) => {
            let size = elements.len() as i64;
            let bound = |at: i64| if at < 0 { at.saturating_add(size) } else { at }.clamp(0, size);
            let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(size)));
            for index in (start..end).step_by(*step as usize) {
                visit(
                    &|| PathElement::Index(index as usize),
                    &elements[index as usize],
                );
            }
        }
        _ => {}
    }
}

/// Resolves an index, which may count from the end, in a list of this size.
pub fn index_of(index: i64, size: usize) -> Option<usize> {
    let index = if index < 0 {
        index.checked_add(size as i64)?
    } else {
        index
    };
    usize::try_from(index).ok().filter(|index| *index < size)
}

struct PathParser<'a> {
    chars: &'a [char],
    at: usize,
}

impl PathParser<'_> {
    fn refuse(&self, expected: &str) -> Refusal {
        let text: String = self.chars.iter().take(64).collect();
        Refusal::at_column(
            self.at + 1,
            format!("invalid JSON path {text:?}: {expected}"),
        )
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, sign: char) -> bool {
        let is_next = self.peek() == Some(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn blanks(&mut self) {
        while self.peek() == Some(' ') {
            self.at += 1;
        }
    }

    fn step(&mut self) -> Result<Step> {
        let has_point = self.take('.');
        let descends = has_point && self.take('.');
        if self.peek() == Some('[') && (descends || !has_point || self.at == 1) {
            self.at += 1;
            let selectors = self.brackets()?;
            return Ok(Step {
                selectors,
                descends,
            });
        }
        if !has_point {
            return Err(self.refuse("here . and a name, or [ is expected"));
        }
        let selectors = vec![if self.take('*') {
            Selector::All
        } else {
            self.name()?
        }];
        Ok(Step {
            selectors,
            descends,
        })
    }

    fn name(&mut self) -> Result<Selector> {
        let begin = self.at;
        while self.peek().is_some_and(|c| !".[]'\"()?*, ".contains(c)) {
            self.at += 1;
        }
        if self.at == begin {
            Err(self.refuse(
                "here a name is expected; write names with other characters than letters as ['..']",
            ))
        } else {
            Ok(Selector::Name(self.chars[begin..self.at].iter().collect()))
        }
    }

    fn brackets(&mut self) -> Result<Vec<Selector>> {
        let mut selectors = Vec::new();
        loop {
            self.blanks();
            selectors.push(match self.peek() {
                Some('?') => {
                    return Err(self.refuse(
                        "filters are not supported; search finds documents by their attributes",
                    ));
                }
                Some('*') => {
                    self.at += 1;
                    Selector::All
                }
                Some(quote @ ('\'' | '"')) => self.quoted(quote)?,
                _ => self.index_or_slice()?,
            });
            self.blanks();
            if self.take(']') {
                return Ok(selectors);
            }
            if !self.take(',') {
                return Err(self.refuse("here , or ] is expected"));
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Selector> {
        let mut name = String::new();
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.refuse("this name has no closing quote")),
                Some(c) if c == quote => break,
                Some('\\') if self.at + 1 < self.chars.len() => {
                    self.at += 1;
                    name.push(self.chars[self.at]);
                }
                Some(c) => name.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(Selector::Name(name))
    }

    fn index_or_slice(&mut self) -> Result<Selector> {
        let start = self.integer()?;
        if !self.take(':') {
            return start.map(Selector::Index).ok_or_else(|| {
                self.refuse("here an index, a slice, * or a name in quotes is expected")
            });
        }
        let end = self.integer()?;
        let step = if self.take(':') {
            self.integer()?
        } else {
            None
        }
        .unwrap_or(1);
        if step > 0 {
            Ok(Selector::Slice(start, end, step))
        } else {
            Err(self.refuse("the step of a slice is 1 or more"))
        }
    }

    fn integer(&mut self) -> Result<Option<i64>> {
        self.blanks();
        let begin = self.at;
        self.take('-');
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let text: String = self.chars[begin..self.at].iter().collect();
        self.blanks();
        if text.is_empty() {
            Ok(None)
        } else {
            text.parse()
                .map(Some)
                .map_err(|_| self.refuse("this is not an index of 64 bits"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn check(path: &str, expected: &str) {
        let document = json!({
            "name": "Grand", "stars": 4, "a.b": 1, "at": {"lat": 1, "lon": 2},
            "rooms": [{"no": 1, "tags": ["x", "y"]}, {"no": 2, "tags": []}, {"no": 3}]
        });
        let shown = match Path::parse(path) {
            Err(refusal) => format!("! {refusal}"),
            Ok(path) => {
                let found = path.select(&document);
                let places = path.locate(&document);
                assert_eq!(found.len(), places.len());
                for (value, places) in found.iter().zip(places) {
                    assert_eq!(
                        at_mut(&mut document.clone(), &places),
                        Some(&mut (*value).clone())
                    );
                }
                serde_json::to_string(&found).unwrap()
            }
        };
        assert_eq!(shown, expected, "{path}");
    }

    #[test]
    fn paths_select_the_expected_values() {
        check("$.name", r#"["Grand"]"#);
        check("$['name']", r#"["Grand"]"#);
        check("$[\"a.b\"]", "[1]");
        check("$.rooms[*].no", "[1,2,3]");
        check("$.rooms[-1].no", "[3]");
        check("$.rooms[0:2].no", "[1,2]");
        check("$.rooms[::2].no", "[1,3]");
        check("$.rooms[0,2].no", "[1,3]");
        check("$['name','stars']", r#"["Grand",4]"#);
        check("$..no", "[1,2,3]");
        check("$..tags[0]", r#"["x"]"#);
        check("$.at.*", "[1,2]");
        check("$.none", "[]");
        check("$.name.x", "[]");
        check("name", r#"["Grand"]"#);
        check(".rooms[0].no", "[1]");
        check("rooms[1].no", "[2]");
        check("..no", "[1,2,3]");
        assert!(Path::parse(".").unwrap().is_root() && Path::parse("$").unwrap().is_root());
        assert!(
            Path::parse("$.a[0]['b']").unwrap().is_single()
                && !Path::parse("$..a").unwrap().is_single()
        );
    }

    #[test]
    fn errors_name_the_column_of_an_invalid_path() {
        check(
            "$.",
            "! invalid JSON path \"$.\": here a name is expected; write names with other characters than letters as ['..'] (column 3)",
        );
        check(
            "$name",
            "! invalid JSON path \"$name\": here . and a name, or [ is expected (column 2)",
        );
        check(
            "$.a[?(@.b>1)]",
            "! invalid JSON path \"$.a[?(@.b>1)]\": filters are not supported; search finds documents by their attributes (column 5)",
        );
        check(
            "$[0",
            "! invalid JSON path \"$[0\": here , or ] is expected (column 4)",
        );
        check(
            "$[0:1:0]",
            "! invalid JSON path \"$[0:1:0]\": the step of a slice is 1 or more (column 8)",
        );
        check(
            "$['a",
            "! invalid JSON path \"$['a\": this name has no closing quote (column 5)",
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_path_or_rejected(text in r#"[$.\[\]a*0-1:,'"-]{0,20}"#) {
            if let Ok(path) = Path::parse(&text) {
                let document = json!({"a": [1, {"a": [2, 3]}]});
                prop_assert_eq!(path.select(&document).len(), path.locate(&document).len());
            }
        }
    }
}
