//! The text of a join.

use std::fmt::Write;
use std::ops::ControlFlow;

use larder_join::grammar::{self, Clause, Condition, JoinMode, Part, PatternText, Syntax, Test};
use larder_join::{DefinitionError, Engine, Limits};

/// Any text is a join, or is rejected at one of its columns. A join is unchanged after being printed and parsed again.
/// An engine that accepts it can be written to and read.
pub fn join(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match grammar::parse(&text) {
        Err(error) => check_error(&text, &error),
        Ok(syntax) => {
            let printed = print(&syntax);
            let again = grammar::parse(&printed)
                .unwrap_or_else(|error| panic!("{text:?} prints as {printed:?}: {error}"));
            assert_eq!(print(&again), printed, "{text:?}");
            use_it(&text);
        }
    }
}

/// Returns whether these bytes can be parsed as a join.
pub fn is_join(bytes: &[u8]) -> bool {
    grammar::parse(&String::from_utf8_lossy(bytes)).is_ok()
}

fn check_error(text: &str, error: &DefinitionError) {
    let end = text.chars().count() + 1;
    assert!(
        (1..=end).contains(&error.column),
        "column {} of {text:?}",
        error.column
    );
    assert!(!error.message.is_empty());
}

/// The engine rejects the join at a column, or computes it from rows with keys that match its patterns.
fn use_it(text: &str) {
    let mut engine = Engine::new();
    if let Err(error) = engine.create("j", text, 0) {
        return check_error(text, &error);
    }
    let syntax = grammar::parse(text).expect("it was parsed before");
    let lo = table_of(&syntax.output);
    for (number, clause) in syntax.clauses.iter().enumerate() {
        let key = key_like(&clause.source);
        let value = if number % 2 == 0 { "1" } else { "x" };
        // A source may be the output of another join, or of this one. The write is then rejected.
        let _ = engine.put(key.as_bytes(), value.as_bytes(), 1);
        read(&mut engine, &lo);
    }
    for clause in &syntax.clauses {
        let _ = engine.remove(key_like(&clause.source).as_bytes(), 2);
        read(&mut engine, &lo);
    }
}

fn read(engine: &mut Engine, lo: &str) {
    let mut hi = lo.to_owned();
    let last = hi.pop();
    hi.push(if last == Some('|') { '}' } else { ';' });
    let mut each = |_: &[u8], _: &[u8]| ControlFlow::Continue(());
    let _ = engine.range(
        lo.as_bytes(),
        hi.as_bytes(),
        Limits::default(),
        1,
        &mut each,
    );
}

/// Returns the common prefix of all keys in the pattern's table.
fn table_of(pattern: &PatternText) -> String {
    let text = pattern_text(pattern);
    let end = text.find(['|', ':']).map_or(text.len(), |at| at + 1);
    text[..end].to_owned()
}

/// Returns a key that matches the pattern, if one byte per slot suffices.
fn key_like(pattern: &PatternText) -> String {
    let mut key = String::new();
    for part in &pattern.parts {
        match part {
            Part::Text(text) => key.push_str(&String::from_utf8_lossy(text)),
            Part::Slot { width, .. } => key.push_str(&"7".repeat(width.unwrap_or(1))),
        }
    }
    key
}

/// Prints a canonical spelling of a join. Parts that the text omits, such as columns, are omitted here too.
fn print(syntax: &Syntax) -> String {
    let mut out = word(&pattern_text(&syntax.output));
    out.push_str(" = ");
    out.push_str(syntax.mode.name());
    if let JoinMode::Snapshot { millis } = syntax.mode {
        let _ = write!(out, " {}", millis as f64 / 1000.0);
    }
    for clause in &syntax.clauses {
        print_clause(clause, &mut out);
    }
    if let Some((text, _)) = &syntax.else_value {
        let _ = write!(out, " else {}", word(&String::from_utf8_lossy(text)));
    }
    out
}

fn print_clause(clause: &Clause, out: &mut String) {
    let operator = clause.operator;
    let _ = write!(out, " {}", operator.name());
    if operator.has_ranks() {
        let order = if operator.descending() { "desc" } else { "asc" };
        let _ = write!(out, " {} {order}", operator.count());
    }
    let _ = write!(out, " {}", word(&pattern_text(&clause.source)));
    for (number, condition) in clause.conditions.iter().enumerate() {
        out.push_str(if number == 0 { " where " } else { " and " });
        print_condition(condition, out);
    }
}

fn print_condition(condition: &Condition, out: &mut String) {
    let subject = match &condition.slot {
        None => "value".to_owned(),
        Some(slot) => word(&format!("<{slot}>")),
    };
    let test = match condition.test {
        Test::Equal => "=",
        Test::NotEqual => "!=",
        Test::Less => "<",
        Test::AtMost => "<=",
        Test::Greater => ">",
        Test::AtLeast => ">=",
    };
    let literal = word(&String::from_utf8_lossy(&condition.literal));
    let _ = write!(out, "{subject} {test} {literal}");
}

fn pattern_text(pattern: &PatternText) -> String {
    let mut out = String::new();
    for part in &pattern.parts {
        let _ = match part {
            Part::Text(text) => {
                out.push_str(&String::from_utf8_lossy(text).replace('<', "<<"));
                Ok(())
            }
            Part::Slot {
                name,
                width: Some(width),
                ..
            } => write!(out, "<{name}:{width}>"),
            Part::Slot { name, .. } => write!(out, "<{name}>"),
        };
    }
    out
}

/// Prints a word, quoted if necessary.
fn word(text: &str) -> String {
    let is_plain = !text.is_empty()
        && !text.starts_with(['\'', '"'])
        && !text.contains(|c: char| c.is_whitespace() || c == ',');
    match is_plain {
        true => text.to_owned(),
        false if text.contains('"') => format!("'{text}'"),
        false => format!("\"{text}\""),
    }
}
