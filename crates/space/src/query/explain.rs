//! The output of FT.EXPLAIN: one line for each node of the predicate, indented by two spaces per level.

use std::fmt::Write;
use std::ops::Bound;

use crate::base::instant;
use crate::base::number::{Number, print_general};
use crate::base::ordered::Scalar;
use crate::error::printable;
use crate::query::predicate::{Leaf, Pattern, Predicate, Span, Test};
use crate::schema::Definition;

pub fn explain(predicate: &Predicate, definition: &Definition) -> String {
    let mut out = String::new();
    node(predicate, definition, 0, &mut out);
    out
}

fn line(level: usize, text: &str, out: &mut String) {
    let _ = writeln!(out, "{:1$}{text}", "", level * 2);
}

fn group(head: &str, parts: &[Predicate], definition: &Definition, level: usize, out: &mut String) {
    line(level, head, out);
    parts
        .iter()
        .for_each(|part| node(part, definition, level + 1, out));
    line(level, "}", out);
}

fn node(predicate: &Predicate, definition: &Definition, level: usize, out: &mut String) {
    match predicate {
        Predicate::All => line(level, "<WILDCARD>", out),
        Predicate::Nothing => line(level, "<empty>", out),
        Predicate::And(parts) => group("INTERSECT {", parts, definition, level, out),
        Predicate::Or(parts) => group("UNION {", parts, definition, level, out),
        Predicate::Not(inner) => group("NOT{", std::slice::from_ref(inner), definition, level, out),
        Predicate::Optional(inner) => group(
            "OPTIONAL{",
            std::slice::from_ref(inner),
            definition,
            level,
            out,
        ),
        Predicate::Leaf(leaf) => leaf_lines(leaf, definition, level, out),
    }
}

fn leaf_lines(leaf: &Leaf, definition: &Definition, level: usize, out: &mut String) {
    let names: Vec<_> = leaf
        .attributes
        .iter()
        .map(|id| definition.get(*id).name.as_str())
        .collect();
    let name = names.join("|");
    let before = if leaf.is_everywhere {
        String::new()
    } else {
        format!("@{name}:")
    };
    match &leaf.test {
        Test::Within(span) => line(level, &range(&name, span), out),
        Test::Tag(patterns) => {
            line(level, &format!("TAG:@{name} {{"), out);
            patterns
                .iter()
                .for_each(|it| line(level + 1, &pattern(it), out));
            line(level, "}", out);
        }
        Test::Word(it) => line(level, &format!("{before}{}", pattern(it)), out),
        Test::Phrase { words, .. } => {
            line(level, &format!("{before}EXACT {{"), out);
            words
                .iter()
                .for_each(|word| line(level + 1, &format!("{before}{}", printable(word)), out));
            line(level, "}", out);
        }
        Test::Near(circle) => {
            let (longitude, latitude) = (circle.center.longitude, circle.center.latitude);
            let text = format!(
                "GEO {name}:{{{longitude:.6},{latitude:.6} --> {:.6} {}}}",
                circle.radius, circle.unit
            );
            line(level, &text, out);
        }
        Test::Missing => line(level, &format!("ISMISSING{{{name}}}"), out),
    }
}

fn pattern(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(text) => printable(text),
        Pattern::Prefix(text) => format!("PREFIX{{{}*}}", printable(text)),
        Pattern::Suffix(text) => format!("SUFFIX{{*{}}}", printable(text)),
        Pattern::Infix(text) => format!("INFIX{{*{}*}}", printable(text)),
        Pattern::Wildcard(text) => format!("WILDCARD{{{}}}", printable(text)),
    }
}

fn range(name: &str, span: &Span) -> String {
    let sample = match (&span.low, &span.high) {
        (Bound::Included(value) | Bound::Excluded(value), _)
        | (_, Bound::Included(value) | Bound::Excluded(value)) => Some(value),
        _ => None,
    };
    let kind = match sample {
        Some(Scalar::Number(_)) => "NUMERIC",
        Some(Scalar::Instant(_)) => "TIMESTAMP",
        Some(Scalar::Boolean(_)) => "BOOLEAN",
        Some(Scalar::Bytes(_)) | None => "RANGE",
    };
    let side = |bound: &Bound<Scalar>, open: &str| match bound {
        Bound::Unbounded => (open.to_string(), "<="),
        Bound::Included(value) => (scalar(value), "<="),
        Bound::Excluded(value) => (scalar(value), "<"),
    };
    let ((low, below), (high, above)) = (side(&span.low, "-inf"), side(&span.high, "inf"));
    format!("{kind} {{{low} {below} @{name} {above} {high}}}")
}

fn scalar(value: &Scalar) -> String {
    match value {
        Scalar::Boolean(flag) => flag.to_string(),
        Scalar::Number(Number::Int(number)) => format!("{number}.000000"),
        Scalar::Number(Number::Float(number)) if number.is_finite() => format!("{number:.6}"),
        Scalar::Number(Number::Float(number)) => print_general(*number, 6),
        Scalar::Instant(micros) => instant::print(*micros),
        Scalar::Bytes(bytes) => format!("{:?}", printable(bytes)),
    }
}
