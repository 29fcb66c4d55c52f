//! A definition that is valid by itself; `catalog` checks it against the other joins and the tables.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use larder_types::OBJECT_MARK;

use crate::base::hash::FoldHasher;
use crate::base::number;
use crate::base::pattern::{Element, Pattern, SLOTS_MAX, Slot, SlotId};
use crate::error::DefinitionError;
use crate::language::grammar::{self, Condition, JoinMode, Part, PatternText, Syntax, Test};
use crate::operators::{self, Operator, OperatorKind, Rank, Shape};

type Names = HashMap<String, SlotId, BuildHasherDefault<FoldHasher>>;

#[derive(Debug, Clone)]
pub struct Definition {
    /// The definition as written.
    pub text: String,
    pub shape: Shape,
    pub mode: JoinMode,
    pub slots: Vec<Slot>,
    /// In the order of the text.
    pub sources: Vec<Source>,
    /// The index of the source that produces the value.
    pub value: usize,
    pub output_column: usize,
    /// The value that an absent row reads as.
    pub else_value: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub struct Source {
    pub operator: Operator,
    pub pattern: Pattern,
    /// Conditions that a row must satisfy to be used.
    pub conditions: Vec<CompiledCondition>,
    pub column: usize,
}

/// A compiled condition.
#[derive(Debug, Clone)]
pub struct CompiledCondition {
    pub slot: Option<SlotId>,
    test: Test,
    literal: Vec<u8>,
    number: Option<number::Billionths>,
}

impl CompiledCondition {
    /// Returns whether a value of the slot, or of the row, satisfies the condition. An empty value never does.
    pub fn holds(&self, value: &[u8]) -> bool {
        if value.is_empty() {
            return false;
        }
        match self.number {
            Some(bound) => number::parse(value).is_some_and(|v| self.test.holds(v.cmp(&bound))),
            None => self.test.holds(value.cmp(&self.literal)),
        }
    }
}

impl Source {
    /// Returns whether a row with this value satisfies the conditions on values.
    pub fn admits(&self, value: &[u8]) -> bool {
        self.conditions
            .iter()
            .all(|c| c.slot.is_some() || c.holds(value))
    }

    pub fn bounds_values(&self) -> bool {
        self.conditions.iter().any(|c| c.slot.is_none())
    }
}

impl Definition {
    /// Parses and checks a definition.
    ///
    /// # Errors
    /// The column of the first error, and the reason.
    pub fn parse(text: &str) -> Result<Self, DefinitionError> {
        if let Some(column) = text.chars().position(|c| c == char::from(OBJECT_MARK)) {
            let message = "a definition has no zero byte: no table's name begins with one";
            return Err(DefinitionError::new(column + 1, message));
        }
        let syntax = grammar::parse(text)?;
        let (slots, names) = slots(&syntax)?;
        let output = pattern(&syntax.output, &names, &slots)?;
        let mut sources = Vec::new();
        for clause in &syntax.clauses {
            let source = pattern(&clause.source, &names, &slots)?;
            let conditions = clause
                .conditions
                .iter()
                .map(|c| compile_condition(c, &names, &source))
                .collect::<Result<_, _>>()?;
            sources.push(Source {
                operator: clause.operator,
                pattern: source,
                conditions,
                column: clause.source.column,
            });
        }
        let value = value_source(&syntax)?;
        let operator = syntax.clauses[value].operator;
        let rank = rank(&syntax, operator, &output, &names, &slots)?;
        undefined_slots(&syntax, &names, &sources, rank)?;
        if syntax.mode == JoinMode::Auto && !operator.is_copy() {
            return Err(DefinitionError::new(
                syntax.clauses[value].column,
                format!(
                    "auto applies only to copy: with {} write push or pull",
                    operator.name()
                ),
            ));
        }
        if let Some((_, column)) = syntax.else_value
            && !operator.may_have_else()
        {
            return Err(DefinitionError::new(
                column,
                format!(
                    "else defines the value of an empty {}; {} has no such value",
                    operators::names(|row| row.may_have_else, " or "),
                    operator.name()
                ),
            ));
        }
        let all = sources.iter().fold(0, |all, s| all | s.pattern.slots);
        if syntax.mode == JoinMode::Auto && all & !output.slots != 0 {
            return Err(DefinitionError::new(
                syntax.output.column,
                "the output of an auto join must name all slots of its sources: add them, or write push or pull",
            ));
        }
        Ok(Definition {
            text: text.to_string(),
            shape: Shape {
                operator,
                one_to_one: all & !output.slots == 0,
                rank,
                output,
            },
            output_column: syntax.output.column,
            mode: syntax.mode,
            slots,
            sources,
            value,
            else_value: syntax.else_value.map(|(text, _)| text),
        })
    }

    /// Returns whether writes maintain the output.
    pub fn is_maintained(&self) -> bool {
        matches!(self.mode, JoinMode::Push | JoinMode::Auto)
    }
}

/// Collects the slots of all patterns, their widths, and the bytes that end slots without a width.
fn slots(syntax: &Syntax) -> Result<(Vec<Slot>, Names), DefinitionError> {
    let mut slots: Vec<Slot> = Vec::new();
    let mut names = Names::default();
    let patterns = || {
        syntax
            .clauses
            .iter()
            .map(|c| &c.source)
            .chain([&syntax.output])
    };
    for pattern in patterns() {
        for part in &pattern.parts {
            let Part::Slot {
                name,
                width,
                column,
            } = part
            else {
                continue;
            };
            let id = match names.get(name) {
                Some(&id) => id,
                None => {
                    if slots.len() == SLOTS_MAX {
                        return Err(DefinitionError::new(
                            *column,
                            format!("a join has at most {SLOTS_MAX} slots"),
                        ));
                    }
                    names.insert(name.clone(), slots.len() as SlotId);
                    slots.push(Slot {
                        name: name.clone(),
                        width: None,
                        stops: [false; 256],
                    });
                    slots.len() as SlotId - 1
                }
            };
            let slot = &mut slots[id as usize];
            match (slot.width, width) {
                (Some(was), Some(is)) if was != *is => {
                    return Err(DefinitionError::new(
                        *column,
                        format!(
                            "<{name}> is {is} bytes wide here and {was} elsewhere: a slot has one width"
                        ),
                    ));
                }
                (None, Some(width)) => slot.width = Some(*width),
                _ => {}
            }
        }
    }
    for pattern in patterns() {
        for pair in pattern.parts.windows(2) {
            let Part::Slot { name, column, .. } = &pair[0] else {
                continue;
            };
            let slot = &mut slots[names[name] as usize];
            if slot.width.is_some() {
                continue;
            }
            match &pair[1] {
                Part::Text(text) => slot.stops[text[0] as usize] = true,
                Part::Slot { name: next, .. } => {
                    return Err(DefinitionError::new(
                        *column,
                        format!(
                            "there is no boundary between <{name}> and <{next}>: give <{name}> a width, such as <{name}:10>, or put text between them"
                        ),
                    ));
                }
            }
        }
    }
    for slot in slots.iter_mut().filter(|s| s.width.is_none()) {
        slot.stops[usize::from(b'|')] = true;
    }
    Ok((slots, names))
}

fn pattern(text: &PatternText, names: &Names, slots: &[Slot]) -> Result<Pattern, DefinitionError> {
    let elements: Vec<Element> = text
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => Element::Text(text.as_slice().into()),
            Part::Slot { name, .. } => Element::Slot(names[name]),
        })
        .collect();
    match elements.first() {
        Some(Element::Text(start)) if start.iter().any(|b| matches!(b, b'|' | b':')) => {}
        _ => {
            return Err(DefinitionError::new(
                text.column,
                format!(
                    "{:?} names no table: a pattern begins with a table's name and | or :, such as post|<author>",
                    text.text
                ),
            ));
        }
    }
    let used = elements.iter().fold(0, |set, e| match e {
        Element::Slot(id) => set | 1 << id,
        Element::Text(_) => set,
    });
    let key_len = elements.iter().try_fold(0, |len, e| match e {
        Element::Text(text) => Some(len + text.len()),
        Element::Slot(id) => slots[*id as usize].width.map(|w| len + w),
    });
    Ok(Pattern {
        elements,
        text: text.text.clone(),
        key_len,
        slots: used,
    })
}

fn compile_condition(
    condition: &Condition,
    names: &Names,
    source: &Pattern,
) -> Result<CompiledCondition, DefinitionError> {
    let slot = match &condition.slot {
        None => None,
        Some(name) => {
            let id = names
                .get(name)
                .copied()
                .filter(|id| source.slots & (1 << id) != 0);
            Some(id.ok_or_else(|| {
                DefinitionError::new(
                    condition.column,
                    format!(
                        "the source before this condition, {}, has no slot <{name}>",
                        source.text
                    ),
                )
            })?)
        }
    };
    let number = if slot.is_none() {
        number::parse(&condition.literal)
    } else {
        None
    };
    Ok(CompiledCondition {
        slot,
        test: condition.test,
        literal: condition.literal.clone(),
        number,
    })
}

/// Returns the index of the only clause that is not a `check`.
fn value_source(syntax: &Syntax) -> Result<usize, DefinitionError> {
    let mut values = syntax
        .clauses
        .iter()
        .enumerate()
        .filter(|(_, c)| !c.operator.is_check());
    let Some((value, first)) = values.next() else {
        return Err(DefinitionError::new(
            syntax.clauses[0].column,
            format!(
                "no source produces the value: copy or aggregate one source ({})",
                operators::names(|row| !matches!(row.kind, OperatorKind::Check), ", ")
            ),
        ));
    };
    if let Some((_, second)) = values.next() {
        return Err(DefinitionError::new(
            second.column,
            format!(
                "the value comes from {} {} already: make this source a check, or define a second join",
                first.operator.name(),
                first.source.text
            ),
        ));
    }
    Ok(value)
}

fn rank(
    syntax: &Syntax,
    operator: Operator,
    output: &Pattern,
    names: &Names,
    slots: &[Slot],
) -> Result<Option<Rank>, DefinitionError> {
    if !operator.has_ranks() {
        return Ok(None);
    }
    let (name, k) = (operator.name(), operator.count());
    let slot = names
        .get("rank")
        .copied()
        .filter(|id| output.slots & (1 << id) != 0);
    let Some(slot) = slot else {
        return Err(DefinitionError::new(
            syntax.output.column,
            format!(
                "the output of {name} needs a slot <rank:width> for its ranks, such as best|<game>|<rank:2>|<player>"
            ),
        ));
    };
    let digits = k.to_string().len();
    let width = slots[slot as usize]
        .width
        .filter(|w| (digits..=20).contains(w))
        .ok_or_else(|| {
            DefinitionError::new(
                syntax.output.column,
                format!("{name} {k} needs a <rank:{digits}> of {digits} to 20 digits"),
            )
        })?;
    for clause in &syntax.clauses {
        for part in &clause.source.parts {
            if let Part::Slot { name, column, .. } = part
                && name == "rank"
            {
                return Err(DefinitionError::new(
                    *column,
                    format!("{name} computes <rank>: a source cannot contain it"),
                ));
            }
        }
    }
    let element = output
        .elements
        .iter()
        .position(|e| *e == Element::Slot(slot))
        .expect("invariant: the output has the slot");
    let repeats = output
        .elements
        .iter()
        .filter(|e| **e == Element::Slot(slot))
        .count()
        > 1;
    if repeats {
        return Err(DefinitionError::new(
            syntax.output.column,
            "<rank> may occur only once in the output",
        ));
    }
    Ok(Some(Rank {
        slot,
        width,
        element,
    }))
}

fn undefined_slots(
    syntax: &Syntax,
    names: &Names,
    sources: &[Source],
    rank: Option<Rank>,
) -> Result<(), DefinitionError> {
    let mut defined = sources.iter().fold(0_u32, |all, s| all | s.pattern.slots);
    if let Some(rank) = rank {
        defined |= 1 << rank.slot;
    }
    for part in &syntax.output.parts {
        if let Part::Slot { name, column, .. } = part
            && defined & (1 << names[name]) == 0
        {
            return Err(DefinitionError::new(
                *column,
                format!("no source defines <{name}>: add it to one of the source patterns"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a definition is rejected, at this column and with this part of the message.
    #[track_caller]
    fn assert_rejected(text: &str, column: usize, message: &str) {
        let error = Definition::parse(text).expect_err(text);
        assert_eq!(
            (error.column, error.message.contains(message)),
            (column, true),
            "{error}"
        );
    }

    #[test]
    fn errors_name_the_column_and_the_correction() {
        assert_rejected("", 1, "the output's pattern");
        assert_rejected("t|<a>", 6, "\"=\"");
        assert_rejected("t|<a> = ", 9, "sources are missing");
        assert_rejected("t|<a> = copied p|<a>", 9, "not an operator");
        assert_rejected("t|<a> = copy", 13, "source's pattern");
        assert_rejected("t|<a> = copy p|<b>", 3, "no source defines <a>");
        assert_rejected("t|<a:3> = copy p|<a:4>", 3, "one width");
        assert_rejected(
            "t|<a><b> = copy p|<a>|<b>",
            3,
            "no boundary between <a> and <b>",
        );
        assert_rejected("t|<a = copy p|<a>", 3, "no closing >");
        assert_rejected("t|<a:x> = copy p|<a>", 3, "not a width");
        assert_rejected("t|<a> = check p|<a>", 9, "no source produces the value");
        assert_rejected(
            "t|<a> = copy p|<a> count q|<a>",
            20,
            "comes from copy p|<a> already",
        );
        assert_rejected("<a> = copy p|<a>", 1, "names no table");
        assert_rejected(
            "t|<a> = snapshot x copy p|<a>",
            18,
            "not a number of seconds",
        );
        assert_rejected("t|<a> = pull push copy p|<a>", 14, "only once");
        assert_rejected(
            "t|<a> = copy p|<a> where size > 3",
            26,
            "begins with value or a <slot>",
        );
        assert_rejected("t|<a> = copy p|<a> where value ~ 3", 32, "not a comparison");
        assert_rejected("t|<a> = copy p|<a> where <b> > 3", 26, "has no slot <b>");
        assert_rejected("t|<a> = top 10 p|<a>|<b>", 1, "<rank:width>");
        assert_rejected("t|<a>|<rank:1> = top 10 p|<a>|<b>", 1, "<rank:2>");
        assert_rejected("t|<a> = auto count p|<a>|<b>", 14, "auto applies");
    }

    #[test]
    fn a_width_given_once_applies_everywhere() {
        let join =
            Definition::parse("t|<user:3>|<time:2> = check s|<user>|<who> copy p|<who>|<time>")
                .unwrap();
        assert_eq!(join.sources[0].pattern.key_len, None);
        assert_eq!(join.shape.output.key_len, Some(8));
        assert!(!join.shape.one_to_one);
    }
}
