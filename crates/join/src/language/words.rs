//! The lexer of join definitions: splits the text into words, and patterns into parts.
//! [`grammar`](crate::language::grammar) interprets them.

use crate::error::DefinitionError;
use crate::language::grammar::{Part, PatternText};

/// A word, or a quoted text.
pub(crate) struct Word {
    pub text: String,
    pub column: usize,
    pub quoted: bool,
}

/// The words that have not been parsed.
pub(crate) struct Words {
    pub words: Vec<Word>,
    pub next: usize,
    /// The column after the last character.
    pub end: usize,
}

impl Words {
    /// # Errors
    /// A quotation is not terminated.
    pub(crate) fn of(text: &str) -> Result<Words, DefinitionError> {
        Ok(Words {
            words: split(text)?,
            next: 0,
            end: text.chars().count() + 1,
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == self.words.len()
    }

    pub(crate) fn column(&self) -> usize {
        self.words.get(self.next).map_or(self.end, |w| w.column)
    }

    pub(crate) fn peek(&self) -> Option<&str> {
        self.words
            .get(self.next)
            .filter(|w| !w.quoted)
            .map(|w| w.text.as_str())
    }

    pub(crate) fn skip<T>(&mut self, value: T) -> T {
        self.next += 1;
        value
    }

    pub(crate) fn take(&mut self, expected: &str) -> Result<String, DefinitionError> {
        let column = self.column();
        let word = self
            .words
            .get(self.next)
            .ok_or_else(|| DefinitionError::new(column, format!("{expected} is missing here")))?;
        self.next += 1;
        Ok(word.text.clone())
    }

    pub(crate) fn expect(&mut self, sign: &str) -> Result<(), DefinitionError> {
        let column = self.column();
        if self.peek() == Some(sign) {
            self.next += 1;
            return Ok(());
        }
        let found = self
            .peek()
            .map_or("nothing".to_string(), |w| format!("{w:?}"));
        Err(DefinitionError::new(
            column,
            format!(
                "{sign:?} must follow the output's pattern, but {found} was found: a pattern contains no blanks"
            ),
        ))
    }

    pub(crate) fn pattern(&mut self, expected: &str) -> Result<PatternText, DefinitionError> {
        let column = self.column();
        let text = self.take(expected)?;
        let parts = parts(&text, column)?;
        Ok(PatternText {
            text,
            parts,
            column,
        })
    }
}

/// Splits the text into words; a quoted word may contain white space.
fn split(text: &str) -> Result<Vec<Word>, DefinitionError> {
    let mut words = Vec::new();
    let mut chars = text.chars().enumerate().peekable();
    while let Some(&(at, c)) = chars.peek() {
        let column = at + 1;
        if c.is_whitespace() || c == ',' {
            chars.next();
        } else if c == '\'' || c == '"' {
            chars.next();
            let mut word = String::new();
            loop {
                match chars.next() {
                    Some((_, end)) if end == c => break,
                    Some((_, inside)) => word.push(inside),
                    None => {
                        return Err(DefinitionError::new(
                            column,
                            format!("the quote {c} that opens here is not closed"),
                        ));
                    }
                }
            }
            words.push(Word {
                text: word,
                column,
                quoted: true,
            });
        } else {
            let mut word = String::new();
            while let Some(&(_, c)) = chars.peek() {
                if c.is_whitespace() || c == ',' {
                    break;
                }
                word.push(c);
                chars.next();
            }
            words.push(Word {
                text: word,
                column,
                quoted: false,
            });
        }
    }
    Ok(words)
}

/// Splits a pattern into literal text and slots.
fn parts(text: &str, column: usize) -> Result<Vec<Part>, DefinitionError> {
    let mut parts: Vec<Part> = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let mut literal = String::new();
    let mut at = 0;
    while at < chars.len() {
        if chars[at] != '<' {
            literal.push(chars[at]);
            at += 1;
            continue;
        }
        if chars.get(at + 1) == Some(&'<') {
            literal.push('<');
            at += 2;
            continue;
        }
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal).into_bytes()));
        }
        let slot_column = column + at;
        let close = chars[at..].iter().position(|&c| c == '>').ok_or_else(|| {
            DefinitionError::new(
                slot_column,
                "this slot has no closing >; for a literal < write <<",
            )
        })?;
        let inside: String = chars[at + 1..at + close].iter().collect();
        parts.push(slot(&inside, slot_column)?);
        at += close + 1;
    }
    if !literal.is_empty() {
        parts.push(Part::Text(literal.into_bytes()));
    }
    Ok(parts)
}

fn slot(inside: &str, column: usize) -> Result<Part, DefinitionError> {
    let (name, width) = match inside.split_once(':') {
        None => (inside, None),
        Some((name, width)) => {
            let width_ok = width
                .parse::<usize>()
                .ok()
                .filter(|w| (1..=1024).contains(w));
            (
                name,
                Some(width_ok.ok_or_else(|| {
                    DefinitionError::new(column, format!("{width:?} is not a width from 1 to 1024 bytes: write, for example, <time:10>"))
                })?),
            )
        }
    };
    if name.is_empty()
        || !name
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '-')
    {
        return Err(DefinitionError::new(
            column,
            format!(
                "{name:?} is not a slot's name: use letters, digits, - and _, such as <user> or <time:10>"
            ),
        ));
    }
    Ok(Part::Slot {
        name: name.to_string(),
        width,
        column,
    })
}
