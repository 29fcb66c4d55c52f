//! A cursor over the arguments of a command.

use std::ops::RangeInclusive;

use super::number::Number;
use crate::error::{Refusal, Result, printable};

#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    all: &'a [&'a [u8]],
    next: usize,
}

impl<'a> Arguments<'a> {
    pub fn new(all: &'a [&'a [u8]]) -> Arguments<'a> {
        Arguments { all, next: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.next == self.all.len()
    }

    /// Returns the position of the next argument, counted from 0.
    pub fn position(&self) -> usize {
        self.next
    }

    pub fn left(&self) -> usize {
        self.all.len() - self.next
    }

    pub fn peek(&self) -> Option<&'a [u8]> {
        self.all.get(self.next).copied()
    }

    pub fn at(&self, position: usize) -> Option<&'a [u8]> {
        self.all.get(position).copied()
    }

    pub fn peek_is(&self, word: &str) -> bool {
        self.peek()
            .is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns the next argument in upper case, or `None` at the end or if it is not UTF-8.
    pub fn peek_word(&self) -> Option<String> {
        std::str::from_utf8(self.peek()?)
            .ok()
            .map(str::to_ascii_uppercase)
    }

    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Consumes the next argument and returns true if it is `word`, in any case.
    pub fn take_word(&mut self, word: &str) -> bool {
        let is_next = self.peek_is(word);
        self.next += usize::from(is_next);
        is_next
    }

    /// Consumes the next argument.
    ///
    /// # Errors
    /// No argument is left. `what` describes the expected argument.
    pub fn take(&mut self, what: &str) -> Result<&'a [u8]> {
        let Some(next) = self.peek() else {
            return Err(self.refuse(format!(
                "Expected an argument, but none provided: {what} is missing"
            )));
        };
        self.next += 1;
        Ok(next)
    }

    /// Consumes the next argument as text.
    ///
    /// # Errors
    /// No argument is left, or it is not UTF-8.
    pub fn take_text(&mut self, what: &str) -> Result<String> {
        let taken = self.take(what)?;
        match std::str::from_utf8(taken) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => Err(self.refuse_last(format!("{what} {:?} is not UTF-8", printable(taken)))),
        }
    }

    /// Consumes a count from 0 to `max`, written as an integer or as a decimal with a zero fraction.
    ///
    /// # Errors
    /// The argument is missing, or is not such a number.
    pub fn take_count(&mut self, what: &str, max: u64) -> Result<u64> {
        self.take_count_within(what, 0..=max)
    }

    /// Consumes a count within the given bounds, both inclusive. See [`Arguments::take_count`].
    ///
    /// # Errors
    /// The argument is missing, or is not such a number.
    pub fn take_count_within(&mut self, what: &str, within: RangeInclusive<u64>) -> Result<u64> {
        let taken = self.take(what)?;
        let count = match Number::parse(taken) {
            Some(Number::Int(count)) => u64::try_from(count).ok(),
            _ => None,
        };
        count.filter(|count| within.contains(count)).ok_or_else(|| {
            self.refuse_last(format!(
                "Bad arguments for {what}: {:?} is not a number from {} to {}",
                printable(taken),
                within.start(),
                within.end()
            ))
        })
    }

    /// Consumes a number.
    ///
    /// # Errors
    /// The argument is missing, or is not a number.
    pub fn take_number(&mut self, what: &str) -> Result<Number> {
        let taken = self.take(what)?;
        Number::parse(taken).ok_or_else(|| {
            self.refuse_last(format!(
                "Bad arguments for {what}: {:?} is not a number",
                printable(taken)
            ))
        })
    }

    /// Consumes a count, and as many arguments as it specifies.
    ///
    /// # Errors
    /// Fewer arguments follow.
    pub fn take_list(&mut self, what: &str) -> Result<&'a [&'a [u8]]> {
        let count = self.take_count(what, i64::MAX as u64)? as usize;
        if count > self.left() {
            return Err(self.refuse_last(format!(
                "Bad arguments for {what}: {count} arguments should follow, and {} do",
                self.left()
            )));
        }
        let list = &self.all[self.next..self.next + count];
        self.next += count;
        Ok(list)
    }

    /// Returns an error that refers to the next argument.
    pub fn refuse(&self, message: impl Into<String>) -> Refusal {
        Refusal::at_argument(self.next, message)
    }

    /// Returns an error that refers to the last consumed argument.
    pub fn refuse_last(&self, message: impl Into<String>) -> Refusal {
        Refusal::at_argument(self.next.saturating_sub(1), message)
    }
}
