//! Parses the contents of braces and brackets, and the operands of comparisons: values of one attribute, parsed by its
//! type.

use std::cmp::Ordering;
use std::ops::Bound;

use super::parser::QueryParser;
use super::predicate::{Circle, Pattern, Predicate, Span, Test};
use super::scan::{Sign, text_of};
use crate::base::instant;
use crate::base::number::Number;
use crate::base::ordered::Scalar;
use crate::base::point::{Point, unit_m};
use crate::base::words::{fold_case, tag};
use crate::error::{Refusal, Result, printable};
use crate::schema::{Attribute, AttributeId, AttributeKind};
use crate::value::parse_flag;

/// One bound or value of a range, before it is parsed by type.
struct Operand {
    text: Vec<u8>,
    is_quoted: bool,
    is_exclusive: bool,
    is_negated: bool,
    at: usize,
}

impl Operand {
    /// Returns `Less` for `-inf`, and `Greater` for `inf`.
    fn infinite(&self) -> Option<Ordering> {
        let is = |word: &[u8]| !self.is_quoted && self.text.eq_ignore_ascii_case(word);
        match () {
            () if is(b"-inf") => Some(Ordering::Less),
            () if is(b"inf") || is(b"+inf") => Some(Ordering::Greater),
            () => None,
        }
    }
}

impl QueryParser<'_> {
    /// Parses `{a | b}`.
    pub fn tags(&mut self, id: AttributeId) -> Result<Option<Predicate>> {
        let attribute = self.definition.get(id).clone();
        let is_tag = matches!(attribute.kind, AttributeKind::Tag { .. });
        if !is_tag && attribute.kind != AttributeKind::Boolean {
            let advice = format!("{} is {}", attribute.name, attribute.kind.name());
            return Err(self
                .scan
                .refuse_at(self.scan.at, "Expected a TAG field", &advice));
        }
        self.scan.at += 1;
        let mut patterns = Vec::new();
        loop {
            self.scan.blanks();
            let at = self.scan.at;
            let pattern = self.tag_pattern(&attribute)?;
            patterns.push((at, pattern));
            self.count_conditions(1)?;
            self.scan.blanks();
            if self.scan.take("}") {
                break;
            }
            if !self.scan.take("|") {
                return Err(self.scan.syntax("here | or a closing } is expected"));
            }
        }
        if is_tag {
            let patterns = patterns.into_iter().map(|(_, pattern)| pattern).collect();
            return Ok(Some(Predicate::leaf(id, Test::Tag(patterns))));
        }
        let flags = patterns.into_iter().map(|(at, pattern)| {
            let Pattern::Exact(text) = pattern else {
                return Err(self.scan.syntax_at(at, "a boolean is true or false"));
            };
            let flag = parse_flag(&text).map_err(|message| self.scan.syntax_at(at, &message))?;
            Ok(Predicate::leaf(
                id,
                Test::Within(Span::point(Scalar::Boolean(flag))),
            ))
        });
        Ok(Some(Predicate::or(flags.collect::<Result<_>>()?)))
    }

    fn tag_pattern(&mut self, attribute: &Attribute) -> Result<Pattern> {
        let rule = attribute.tag_rule();
        let begin = self.scan.at;
        let folded = |text: &[u8]| {
            if rule.is_case_sensitive {
                text.to_vec()
            } else {
                fold_case(text)
            }
        };
        match self.scan.peek() {
            Some('"' | '\'') => {
                let text = self.scan.quoted()?;
                return self.exact_tag(text.as_bytes(), attribute, begin);
            }
            Some('w') if self.scan.peek_ahead(1) == Some('\'') => {
                self.scan.at += 1;
                let pattern = self.wildcard()?;
                return Ok(Pattern::Wildcard(folded(&pattern)));
            }
            _ => {}
        }
        let signs = self.scan.until(|sign| "|}{\"".contains(sign));
        let star: Sign = ('*', false);
        let (has_star, rest) = match signs.split_first() {
            Some((first, rest)) if *first == star => (true, rest),
            _ => (false, &signs[..]),
        };
        let (has_end_star, rest) = match rest.split_last() {
            Some((last, rest)) if *last == star => (true, rest),
            _ => (false, rest),
        };
        if rest.is_empty() {
            let advice = "a tag is expected here; an empty one is written \"\"";
            return Err(self.scan.syntax_at(begin, advice));
        }
        if rest.contains(&star) {
            let advice = "a * may only begin or end a tag: for patterns write w'a*b', for the sign itself \\*";
            return Err(self.scan.syntax_at(begin, advice));
        }
        let text = match rest {
            [('$', false), name @ ..] => self.value_of(&text_of(name), begin)?,
            signs => text_of(signs).into_bytes(),
        };
        match (has_star, has_end_star) {
            (false, false) => self.exact_tag(&text, attribute, begin),
            (false, true) => Ok(Pattern::Prefix(folded(text.trim_ascii_start()))),
            (true, false) => Ok(Pattern::Suffix(folded(text.trim_ascii_end()))),
            (true, true) => Ok(Pattern::Infix(folded(&text))),
        }
    }

    fn exact_tag(&self, text: &[u8], attribute: &Attribute, begin: usize) -> Result<Pattern> {
        let tag = tag(text, attribute.tag_rule().is_case_sensitive);
        if tag.is_empty() && !attribute.options.index_empty {
            let message = format!(
                "Use `INDEXEMPTY` in field creation in order to index and query for empty strings: {} has none",
                attribute.name
            );
            return Err(Refusal::at_column(begin + 1, message));
        }
        Ok(Pattern::Exact(tag))
    }

    /// Parses `[a b]`, `[v]` or `[longitude latitude radius unit]`.
    pub fn range(&mut self, id: AttributeId) -> Result<Option<Predicate>> {
        let attribute = self.definition.get(id).clone();
        let begin = self.scan.at;
        self.scan.at += 1;
        let mut operands = Vec::new();
        loop {
            while self
                .scan
                .peek()
                .is_some_and(|sign| sign.is_whitespace() || sign == ',')
            {
                self.scan.at += 1;
            }
            if self.scan.take("]") {
                break;
            }
            operands.push(self.operand()?);
            if operands.len() > 4 {
                return Err(self.scan.syntax("a closing ] is expected here"));
            }
        }
        if attribute.kind == AttributeKind::Geo {
            return self.circle(id, &operands, begin).map(Some);
        }
        let refuse_order = || {
            let message = format!(
                "Invalid numeric range (min > max): the lesser bound of @{} comes first",
                attribute.name
            );
            Err(Refusal::at_column(begin + 1, message))
        };
        let span = match &operands[..] {
            [one] if one.is_exclusive => {
                return Err(self.scan.syntax_at(
                    one.at,
                    "a single value cannot be excluded: write [(from to], or [value]",
                ));
            }
            [one] => match self.scalar(&attribute, one)? {
                Some(value) => Span::point(value),
                None => {
                    return Err(self.scan.syntax_at(
                        one.at,
                        "a single value has an end: write [-inf value] or [value +inf]",
                    ));
                }
            },
            [low, high] => {
                let bound = |operand: &Operand| -> Result<Bound<Scalar>> {
                    Ok(
                        match (self.scalar(&attribute, operand)?, operand.is_exclusive) {
                            (None, _) => Bound::Unbounded,
                            (Some(value), true) => Bound::Excluded(value),
                            (Some(value), false) => Bound::Included(value),
                        },
                    )
                };
                let span = Span {
                    low: bound(low)?,
                    high: bound(high)?,
                };
                // Numbers include the infinities as values. Other types have no infinite values.
                if attribute.kind != AttributeKind::Numeric {
                    match (low.infinite(), high.infinite()) {
                        (Some(low), Some(high)) if low == high => {
                            return Ok(Some(Predicate::Nothing));
                        }
                        (Some(Ordering::Greater), _) | (_, Some(Ordering::Less)) => {
                            return refuse_order();
                        }
                        _ => {}
                    }
                }
                span
            }
            _ => {
                return Err(self.scan.syntax_at(
                    begin,
                    "a range is [value] or [from to], with ( before an excluded bound",
                ));
            }
        };
        if let (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) = (&span.low, &span.high)
            && low > high
        {
            return refuse_order();
        }
        Ok(Some(Predicate::leaf(id, Test::Within(span))))
    }

    fn operand(&mut self) -> Result<Operand> {
        let is_exclusive = self.scan.take("(");
        self.scan.blanks();
        let at = self.scan.at;
        if let Some('"' | '\'') = self.scan.peek() {
            let text = self.scan.quoted()?.into_bytes();
            return Ok(Operand {
                text,
                is_quoted: true,
                is_exclusive,
                is_negated: false,
                at,
            });
        }
        let is_negated = self.scan.peek() == Some('-') && self.scan.peek_ahead(1) == Some('$');
        self.scan.at += usize::from(is_negated);
        if self.scan.peek() == Some('$') {
            let text = self.param()?;
            return Ok(Operand {
                text,
                is_quoted: false,
                is_exclusive,
                is_negated,
                at,
            });
        }
        let signs = self
            .scan
            .until(|sign| sign.is_whitespace() || "],[(){}|\"'".contains(sign));
        if signs.is_empty() {
            return Err(self.scan.syntax("a value or a closing ] is expected here"));
        }
        let text = text_of(&signs).into_bytes();
        Ok(Operand {
            text,
            is_quoted: false,
            is_exclusive,
            is_negated,
            at,
        })
    }

    /// Returns the value of an operand, or `None` for an infinity of a type without infinite values.
    fn scalar(&self, attribute: &Attribute, operand: &Operand) -> Result<Option<Scalar>> {
        let text = &operand.text;
        let bad = |what: &str| {
            self.scan
                .syntax_at(operand.at, &format!("{:?} is not {what}", printable(text)))
        };
        if operand.is_negated && attribute.kind != AttributeKind::Numeric {
            return Err(self
                .scan
                .syntax_at(operand.at, "a - before a parameter is for numbers only"));
        }
        Ok(Some(match attribute.kind {
            AttributeKind::Numeric => {
                let number = Number::parse(text).ok_or_else(|| bad("a number"))?;
                Scalar::Number(if operand.is_negated {
                    number.negate()
                } else {
                    number
                })
            }
            _ if operand.infinite().is_some() => return Ok(None),
            AttributeKind::Timestamp => {
                let what =
                    "an instant: write seconds since 1970, or a date such as 2024-02-29T12:30Z";
                Scalar::Instant(instant::parse(text).ok_or_else(|| bad(what))?)
            }
            AttributeKind::Boolean => Scalar::Boolean(
                parse_flag(text).map_err(|_| bad("a boolean: write true or false"))?,
            ),
            AttributeKind::Tag {
                is_case_sensitive, ..
            } => Scalar::Bytes(tag(text, is_case_sensitive)),
            AttributeKind::Text { .. } => Scalar::Bytes(fold_case(text)),
            AttributeKind::Geo => {
                return Err(bad(
                    "a value for comparison with points: write @name:[longitude latitude radius km]",
                ));
            }
        }))
    }

    fn circle(&self, id: AttributeId, operands: &[Operand], begin: usize) -> Result<Predicate> {
        let [longitude, latitude, radius, unit] = operands else {
            let advice =
                "search for points by [longitude latitude radius unit], such as [2.35 48.85 10 km]";
            return Err(self.scan.syntax_at(begin, advice));
        };
        let number = |operand: &Operand| {
            let number = Number::parse(&operand.text).ok_or_else(|| {
                self.scan.syntax_at(
                    operand.at,
                    &format!("{:?} is not a number", printable(&operand.text)),
                )
            })?;
            Ok(if operand.is_negated {
                number.negate()
            } else {
                number
            }
            .as_f64())
        };
        let circle = circle(
            number(longitude)?,
            number(latitude)?,
            number(radius)?,
            &unit.text,
        )
        .map_err(|message| self.scan.syntax_at(begin, &message))?;
        Ok(Predicate::leaf(id, Test::Near(circle)))
    }

    /// Parses `@name >= value`.
    pub fn comparison(&mut self, id: AttributeId) -> Result<Option<Predicate>> {
        let attribute = self.definition.get(id).clone();
        let begin = self.scan.at;
        let Some(test) = ["==", "!=", ">=", "<=", ">", "<"]
            .into_iter()
            .find(|test| self.scan.take(test))
        else {
            return Err(self.scan.syntax(
                "the name of a field is followed by : and a clause, or by one of == != > >= < <=",
            ));
        };
        self.scan.blanks();
        let operand = self.operand()?;
        if operand.is_exclusive {
            return Err(self.scan.syntax_at(operand.at, "a value is expected here"));
        }
        let Some(value) = self.scalar(&attribute, &operand)? else {
            return Err(self
                .scan
                .syntax_at(begin, "only numbers are compared with inf"));
        };
        let within = |low, high| Predicate::leaf(id, Test::Within(Span { low, high }));
        Ok(Some(match test {
            "==" => within(Bound::Included(value.clone()), Bound::Included(value)),
            "!=" => Predicate::Not(Box::new(Predicate::leaf(
                id,
                Test::Within(Span::point(value)),
            ))),
            ">=" => within(Bound::Included(value), Bound::Unbounded),
            "<=" => within(Bound::Unbounded, Bound::Included(value)),
            ">" => within(Bound::Excluded(value), Bound::Unbounded),
            _ => within(Bound::Unbounded, Bound::Excluded(value)),
        }))
    }
}

/// Returns the circle with this center and radius.
///
/// # Errors
/// A coordinate, the radius or the unit is invalid.
pub(crate) fn circle(
    longitude: f64,
    latitude: f64,
    radius: f64,
    unit: &[u8],
) -> Result<Circle, String> {
    let center = Point::new(longitude, latitude)
        .ok_or("Invalid GeoFilter lon/lat: longitude lies within 180, latitude within 85.05")?;
    let metres = unit_m(unit).ok_or("Invalid GeoFilter unit: it is m, km, ft or mi")?;
    // The negated form also rejects NaN.
    if !(radius >= 0.0 && radius.is_finite()) {
        return Err("Invalid GeoFilter radius: it is 0 or more".to_string());
    }
    let unit = String::from_utf8_lossy(unit).to_ascii_lowercase();
    Ok(Circle {
        center,
        radius,
        unit,
        radius_m: radius * metres,
    })
}
