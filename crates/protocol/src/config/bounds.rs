//! Bounds of numbers and sizes. A key's bounds are beside its field in the table of [`super::keys`]. The check, its error message
//! and the reference page are all derived from them.

use std::fmt;

use larder_types::ByteSize;

use super::ConfigValue;

/// The inclusive minimum and maximum of a value. An absent bound is that of the key's type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: Option<u64>,
    pub most: Option<u64>,
    /// 0 is allowed even if it is below the minimum, and has a special meaning.
    pub or_zero: bool,
}

impl Bounds {
    pub fn allow(&self, amount: f64) -> bool {
        self.or_zero && amount == 0.0
            || self.least.is_none_or(|least| least as f64 <= amount)
                && self.most.is_none_or(|most| amount <= most as f64)
    }
}

pub(super) const fn at_least(least: u64) -> Bounds {
    Bounds {
        least: Some(least),
        most: None,
        or_zero: false,
    }
}

pub(super) const fn at_most(most: u64) -> Bounds {
    Bounds {
        least: None,
        most: Some(most),
        or_zero: false,
    }
}

pub(super) const fn between(least: u64, most: u64) -> Bounds {
    Bounds {
        least: Some(least),
        most: Some(most),
        or_zero: false,
    }
}

pub(super) const fn zero_or(bounds: Bounds) -> Bounds {
    Bounds {
        or_zero: true,
        ..bounds
    }
}

/// A value that has bounds.
pub(super) trait Bounded: ConfigValue + fmt::Display {
    /// Returns the value as a number that is comparable with bounds.
    fn amount(&self) -> f64;

    /// Formats a bound like a value of the key.
    fn spell(bound: u64) -> String {
        bound.to_string()
    }

    /// Returns the text that completes the sentence "it must be ...".
    fn within(bounds: &Bounds) -> String {
        let range = match (bounds.least, bounds.most) {
            (None, None) => String::new(),
            (Some(least), None) => format!("at least {}", Self::spell(least)),
            (None, Some(most)) => format!("at most {}", Self::spell(most)),
            (Some(least), Some(most)) => {
                format!("from {} to {}", Self::spell(least), Self::spell(most))
            }
        };
        if bounds.or_zero {
            format!("0, or {range}")
        } else {
            range
        }
    }
}

impl Bounded for u32 {
    fn amount(&self) -> f64 {
        f64::from(*self)
    }
}

impl Bounded for u64 {
    fn amount(&self) -> f64 {
        *self as f64
    }
}

impl Bounded for f64 {
    fn amount(&self) -> f64 {
        *self
    }
}

impl Bounded for ByteSize {
    fn amount(&self) -> f64 {
        self.0 as f64
    }

    fn spell(bound: u64) -> String {
        String::from(ByteSize(bound))
    }
}
