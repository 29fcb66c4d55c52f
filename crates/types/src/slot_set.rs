//! A set of slots and its text form in URLs.

use std::fmt;
use std::str::FromStr;

use crate::SLOTS;

const WORDS: usize = SLOTS as usize / 64;

/// A set of slots. Its text form has one hexadecimal digit per four slots; the lowest bit of a digit is the first of
/// them.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u64; WORDS]>);

impl SlotSet {
    pub fn none() -> SlotSet {
        SlotSet(Box::new([0; WORDS]))
    }

    pub fn all() -> SlotSet {
        SlotSet(Box::new([u64::MAX; WORDS]))
    }

    pub fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot / 64)] |= 1 << (slot % 64);
    }

    #[inline]
    pub fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..SLOTS).filter(|slot| self.contains(*slot))
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> SlotSet {
        let mut set = SlotSet::none();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = self
            .0
            .iter()
            .flat_map(|word| (0..16).map(move |at| word >> (at * 4) & 0xf));
        digits.try_for_each(|digit| write!(out, "{digit:x}"))
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} slots", self.iter().count())
    }
}

/// Error for a text that is not a [`SlotSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSetError;

impl FromStr for SlotSet {
    type Err = SlotSetError;

    fn from_str(text: &str) -> Result<SlotSet, SlotSetError> {
        let mut set = SlotSet::none();
        if text.len() != WORDS * 16 {
            return Err(SlotSetError);
        }
        for (at, digit) in text.chars().enumerate() {
            let digit = digit.to_digit(16).ok_or(SlotSetError)?;
            set.0[at / 16] |= u64::from(digit) << (at % 16 * 4);
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_round_trips() {
        let some: SlotSet = [0, 3, 4, 63, 64, 5_000, SLOTS - 1].into_iter().collect();
        let text = some.to_string();
        assert!(text.starts_with("91"), "{text}");
        assert_eq!(text.parse(), Ok(some.clone()));
        assert_eq!(
            some.iter().collect::<Vec<_>>(),
            [0, 3, 4, 63, 64, 5_000, 16_383]
        );
        assert!(!some.contains(1) && !some.is_empty() && SlotSet::none().is_empty());
        assert_eq!(SlotSet::all().to_string().parse(), Ok(SlotSet::all()));
        for wrong in ["", "9", &text[1..], &text.replace('9', "x")] {
            assert_eq!(wrong.parse::<SlotSet>(), Err(SlotSetError), "{wrong}");
        }
    }
}
