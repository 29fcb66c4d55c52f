//! Parses the text of a join into a syntax tree; [`definition`](crate::language::definition) checks its meaning.
//!
//! ```text
//! join      = output "=" [mode] clause {clause} ["else" text]
//! mode      = "push" | "pull" | "auto" | "snapshot" seconds
//! clause    = operator source ["where" condition {"and" condition}]
//! operator  = "check" | "copy" | "count" | "sum" | "avg" | "min" | "max" | "distinct" | "top" k ["asc" | "desc"]
//! condition = ("value" | "<slot>") ("=" | "!=" | "<" | "<=" | ">" | ">=") literal
//! ```
//!
//! Words are separated by white space, and a comma may follow a clause. `output` and `source` are *patterns*: literal
//! text with `<slots>`. A pattern begins with its table's name and `|` or `:`. `<time:10>` is a slot of exactly 10
//! bytes; the width is stated once and applies to all occurrences of the slot. A slot without a width extends to the
//! literal text after it, or to the end of the key. `<<` is a literal `<`. A literal in a condition may be in single or
//! double quotes.
//!
//! One clause defines the value; the others `check` that a row exists:
//!
//! | operator | value of an output row |
//! |---|---|
//! | `copy` | the source's value; if several source rows match, that of the last source key |
//! | `count` | the number of source rows, counted once per combination of checked rows |
//! | `sum`, `avg` | of the source's values, exact to nine decimals; an average is rounded to six |
//! | `min`, `max` | the least or greatest value: numbers by value, before any text; text by bytes |
//! | `distinct` | the number of different values |
//! | `top k` | the k greatest (`desc`, the default) or least (`asc`) values of a group, one row each: the output has a slot `<rank:width>` that counts from 1; the slots before it are the group |
//!
//! An output row without source rows does not exist: there is no count of zero. With `else 0`, a read of that single
//! key returns 0; the row still does not exist, and ranges and other joins do not include it.
//!
//! A condition on `value` restricts the values of the clause before it; rows that do not satisfy it are ignored. If the
//! literal is a number, only numbers satisfy the condition. A condition on a slot compares bytes.

use crate::error::DefinitionError;
use crate::language::words::Words;
pub use crate::operators::Operator;
use crate::operators::{self, Argument, OperatorRow};

/// The syntax tree of a definition.
#[derive(Debug, Clone)]
pub struct Syntax {
    pub output: PatternText,
    pub mode: JoinMode,
    pub clauses: Vec<Clause>,
    /// The `else` value, which an absent row reads as, and the column of the word.
    pub else_value: Option<(Vec<u8>, usize)>,
}

/// When an output is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinMode {
    /// Filled on demand, then maintained by every write.
    Push,
    /// Computed by each read; nothing is stored.
    Pull,
    /// Filled on demand, and not updated for this many milliseconds.
    Snapshot { millis: u64 },
    /// Push or pull, whichever costs less, for each source range.
    Auto,
}

impl JoinMode {
    pub fn name(self) -> &'static str {
        match self {
            JoinMode::Push => "push",
            JoinMode::Pull => "pull",
            JoinMode::Snapshot { .. } => "snapshot",
            JoinMode::Auto => "auto",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Clause {
    pub operator: Operator,
    pub source: PatternText,
    pub conditions: Vec<Condition>,
    /// Column of the operator.
    pub column: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `None` for the source's value.
    pub slot: Option<String>,
    pub test: Test,
    pub literal: Vec<u8>,
    pub column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Test {
    pub fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Test::Equal => order.is_eq(),
            Test::NotEqual => order.is_ne(),
            Test::Less => order.is_lt(),
            Test::AtMost => order.is_le(),
            Test::Greater => order.is_gt(),
            Test::AtLeast => order.is_ge(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct PatternText {
    pub text: String,
    pub parts: Vec<Part>,
    pub column: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(Vec<u8>),
    Slot {
        name: String,
        width: Option<usize>,
        column: usize,
    },
}

/// Parses a definition.
///
/// # Errors
/// The column of the first invalid word, and what is expected there.
pub fn parse(text: &str) -> Result<Syntax, DefinitionError> {
    let mut words = Words::of(text)?;
    let output = words.pattern("the output's pattern, such as timeline|<user>|<time>")?;
    words.expect("=")?;
    let mode = parse_mode(&mut words)?;
    let mut clauses = Vec::new();
    while !words.is_done() && words.peek() != Some("else") {
        clauses.push(parse_clause(&mut words)?);
    }
    let otherwise = parse_else(&mut words)?;
    if clauses.is_empty() {
        return Err(DefinitionError::new(
            words.end,
            "the sources are missing: after = write, for example, check sub|<user>|<author> copy post|<author>|<time>",
        ));
    }
    Ok(Syntax {
        output,
        mode,
        clauses,
        else_value: otherwise,
    })
}

fn parse_else(words: &mut Words) -> Result<Option<(Vec<u8>, usize)>, DefinitionError> {
    if words.is_done() {
        return Ok(None);
    }
    let column = words.column();
    words.next += 1;
    let text = words.take("the value of an absent row, such as else 0,")?;
    if !words.is_done() {
        let message = "else and its value must be at the end of the definition";
        return Err(DefinitionError::new(column, message));
    }
    Ok(Some((text.into_bytes(), column)))
}

fn parse_mode(words: &mut Words) -> Result<JoinMode, DefinitionError> {
    Ok(match words.peek() {
        Some("push") => words.skip(JoinMode::Push),
        Some("pull") => words.skip(JoinMode::Pull),
        Some("auto") => words.skip(JoinMode::Auto),
        Some("snapshot") => {
            words.next += 1;
            let column = words.column();
            let seconds =
                words.take("the maximum age of a snapshot in seconds, such as snapshot 5,")?;
            let millis = seconds
                .parse::<f64>()
                .ok()
                .map(|s| s * 1000.0)
                .filter(|m| m.is_finite() && *m >= 1.0 && *m < 1e15)
                .ok_or_else(|| {
                    DefinitionError::new(
                        column,
                        format!("{seconds:?} is not a number of seconds: write, for example, snapshot 5 or snapshot 0.5"),
                    )
                })?;
            JoinMode::Snapshot {
                millis: millis.round() as u64,
            }
        }
        _ => JoinMode::Push,
    })
}

fn parse_clause(words: &mut Words) -> Result<Clause, DefinitionError> {
    let column = words.column();
    let word = words.take("an operator")?;
    let Some(row) = operators::find(&word) else {
        let message = match &*word {
            "push" | "pull" | "auto" | "snapshot" => {
                format!("write the mode {word} only once, directly after =")
            }
            _ => format!(
                "{word:?} is not an operator: write one of {} before each source",
                operators::names(|_| true, " or ")
            ),
        };
        return Err(DefinitionError::new(column, message));
    };
    let operator = match row.argument {
        Argument::None => Operator::new(row),
        Argument::CountAndOrder => parse_counted_operator(row, words)?,
    };
    let source = words.pattern("a source's pattern, such as post|<author>|<time>")?;
    let mut conditions = Vec::new();
    if words.peek() == Some("where") {
        words.next += 1;
        conditions.push(parse_condition(words)?);
        while words.peek() == Some("and") {
            words.next += 1;
            conditions.push(parse_condition(words)?);
        }
    }
    Ok(Clause {
        operator,
        source,
        conditions,
        column,
    })
}

fn parse_counted_operator(
    row: &'static OperatorRow,
    words: &mut Words,
) -> Result<Operator, DefinitionError> {
    let (name, column) = (row.name, words.column());
    let expected = format!("the number of rows of each group, such as {name} 10,");
    let count = words.take(&expected)?;
    let number = count.parse::<usize>().ok();
    let number = number.filter(|k| (1..=10_000).contains(k)).ok_or_else(|| {
        let message = format!(
            "{count:?} is not a number of rows from 1 to 10000: write, for example, {name} 10"
        );
        DefinitionError::new(column, message)
    })?;
    let descending = match words.peek() {
        Some("asc") => words.skip(false),
        Some("desc") => words.skip(true),
        _ => true,
    };
    Ok(Operator::with_count(row, number, descending))
}

fn parse_condition(words: &mut Words) -> Result<Condition, DefinitionError> {
    let column = words.column();
    let subject = words.take("value or a <slot>")?;
    let slot = if subject == "value" {
        None
    } else {
        let name = subject.strip_prefix('<').and_then(|s| s.strip_suffix('>'));
        Some(name.map(str::to_string).ok_or_else(|| {
            DefinitionError::new(
                column,
                format!("a condition begins with value or a <slot>, not {subject:?}"),
            )
        })?)
    };
    let test_column = words.column();
    let test = words.take("one of = != < <= > >=")?;
    let test = match test.as_str() {
        "=" => Test::Equal,
        "!=" => Test::NotEqual,
        "<" => Test::Less,
        "<=" => Test::AtMost,
        ">" => Test::Greater,
        ">=" => Test::AtLeast,
        _ => {
            return Err(DefinitionError::new(
                test_column,
                format!(
                    "{test:?} is not a comparison: write one of = != < <= > >= with blanks around it"
                ),
            ));
        }
    };
    let literal = words.take("the value to compare with")?.into_bytes();
    Ok(Condition {
        slot,
        test,
        literal,
        column,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshots_age_is_the_nearest_millisecond() {
        for (seconds, expected) in [("1.001", 1001), ("0.0014", 1), ("0.29", 290), ("5", 5000)] {
            let text = format!("a|<x> = snapshot {seconds} copy b|<x>");
            let mode = parse(&text).expect("a join").mode;
            assert_eq!(mode, JoinMode::Snapshot { millis: expected }, "{seconds}");
        }
    }
}
