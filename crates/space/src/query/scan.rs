//! A cursor over the characters of a query.

use std::rc::Rc;

use crate::base::words::is_separator;
use crate::error::{Refusal, Result};

#[derive(Clone)]
pub struct Scan {
    chars: Rc<[char]>,
    last_apostrophe: Option<usize>,
    pub at: usize,
}

/// A character, and whether it was escaped with `\` or quoted.
pub type Sign = (char, bool);

impl Scan {
    pub fn new(text: &str) -> Scan {
        let chars: Rc<[char]> = text.chars().collect();
        Scan {
            last_apostrophe: chars.iter().rposition(|sign| *sign == '\''),
            chars,
            at: 0,
        }
    }

    pub fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    pub fn peek_ahead(&self, by: usize) -> Option<char> {
        self.chars.get(self.at + by).copied()
    }

    pub fn peek_at(&self, at: usize) -> Option<char> {
        self.chars.get(at).copied()
    }

    /// Returns whether a `'` follows after the next character.
    pub fn has_later_apostrophe(&self) -> bool {
        self.last_apostrophe.is_some_and(|last| self.at < last)
    }

    /// Returns the start of the text at this position, for error messages.
    fn near(&self, at: usize) -> String {
        let rest = self.chars.get(at..).unwrap_or_default();
        match rest {
            [] => "the end".to_owned(),
            rest => rest.iter().take(20).collect(),
        }
    }

    /// Returns an error that begins with RediSearch's phrase, followed by the advice.
    pub fn syntax(&self, advice: &str) -> Refusal {
        self.syntax_at(self.at, advice)
    }

    pub fn syntax_at(&self, at: usize, advice: &str) -> Refusal {
        let message = format!(
            "Syntax error at offset {at} near {}: {advice}",
            self.near(at)
        );
        Refusal::at_column(at + 1, message)
    }

    /// Returns an error with this phrase, followed by "at offset N near X" and the advice.
    pub fn refuse_at(&self, at: usize, phrase: &str, advice: &str) -> Refusal {
        Refusal::at_column(
            at + 1,
            format!("{phrase} at offset {at} near {}: {advice}", self.near(at)),
        )
    }

    pub fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// Consumes the characters if they are next, and returns whether they were.
    pub fn take(&mut self, signs: &str) -> bool {
        let fits = signs
            .chars()
            .enumerate()
            .all(|(by, sign)| self.peek_ahead(by) == Some(sign));
        self.at += if fits { signs.chars().count() } else { 0 };
        fits
    }

    pub fn take_after_blanks(&mut self, signs: &str) -> bool {
        let begin = self.at;
        self.blanks();
        let is_next = self.take(signs);
        if !is_next {
            self.at = begin;
        }
        is_next
    }

    pub fn expect(&mut self, sign: &str, advice: &str) -> Result<()> {
        if self.take_after_blanks(sign) {
            Ok(())
        } else {
            self.blanks();
            Err(self.syntax(advice))
        }
    }

    /// Consumes the next word and returns it unescaped; empty if there is none.
    pub fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(sign) = self.peek() {
            if sign == '\\' {
                let Some(escaped) = self.peek_ahead(1) else {
                    break;
                };
                word.push(escaped);
                self.at += 2;
            } else if sign.is_ascii() && is_separator(sign as u8) || sign.is_whitespace() {
                break;
            } else {
                word.push(sign);
                self.at += 1;
            }
        }
        word
    }

    /// Consumes the name of an attribute or a parameter: letters, digits, `_`, escaped characters, and the characters
    /// in `also`.
    pub fn name(&mut self, also: &str) -> String {
        let mut name = String::new();
        while let Some(sign) = self.peek() {
            if let ('\\', Some(escaped)) = (sign, self.peek_ahead(1)) {
                name.push(escaped);
                self.at += 2;
            } else if sign.is_alphanumeric() || sign == '_' || also.contains(sign) {
                name.push(sign);
                self.at += 1;
            } else {
                break;
            }
        }
        name
    }

    /// Consumes a quoted text, starting at the opening quote. `\` escapes the quote and itself.
    ///
    /// # Errors
    /// The closing quote is missing.
    pub fn quoted(&mut self) -> Result<String> {
        let (begin, quote) = (self.at, self.peek());
        let mut text = String::new();
        self.at += 1;
        loop {
            match self.peek() {
                None => {
                    return Err(self.syntax_at(begin, "the quote that opens here is not closed"));
                }
                sign if sign == quote => break,
                Some('\\') if self.peek_ahead(1) == quote || self.peek_ahead(1) == Some('\\') => {
                    text.extend(self.peek_ahead(1));
                    self.at += 1;
                }
                Some(sign) => text.push(sign),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(text)
    }

    /// Consumes an operand up to a character that ends it, and trims whitespace at its end.
    pub fn until(&mut self, is_end: impl Fn(char) -> bool) -> Vec<Sign> {
        let mut signs: Vec<Sign> = Vec::new();
        while let Some(sign) = self.peek() {
            if let ('\\', Some(escaped)) = (sign, self.peek_ahead(1)) {
                signs.push((escaped, true));
                self.at += 2;
                continue;
            }
            if is_end(sign) {
                break;
            }
            signs.push((sign, false));
            self.at += 1;
        }
        while signs
            .last()
            .is_some_and(|(sign, is_escaped)| !is_escaped && sign.is_whitespace())
        {
            signs.pop();
        }
        signs
    }
}

pub fn text_of(signs: &[Sign]) -> String {
    signs.iter().map(|(sign, _)| sign).collect()
}
