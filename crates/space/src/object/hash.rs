//! Hashes: fields and values as bytes, in insertion order, and the commands of the HSET family.
//!
//! A command that returns an error leaves the hash unchanged. Callers first remove expired fields with
//! [`Hash::expire`].

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{decimal, integer};

use super::change::ChangeError;
use crate::base::number::Number;

/// The maximum number of names that are looked up by linear search; for more names, an operation builds an index.
const LINEAR_SEARCH_MAX: usize = 8;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hash {
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    /// The field does not exist from this time on, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
}

/// The condition under which HEXPIRE and related commands set an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryRule {
    Always,
    /// NX: the field has no expiry.
    NoExpiry,
    /// XX: the field has an expiry.
    HasExpiry,
    /// GT: the new expiry is later. A field without an expiry never expires, so no expiry is later.
    Later,
    /// LT: the new expiry is earlier.
    Earlier,
}

impl Hash {
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.field(name).map(|field| &field.value[..])
    }

    pub fn field(&self, name: &[u8]) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// HSET of one field. Removes the field's expiry. Returns whether the field is new.
    pub fn set(&mut self, name: &[u8], value: impl Into<Vec<u8>>) -> bool {
        let value = value.into();
        match self.place(name) {
            Some(place) => {
                self.fields[place].value = value;
                self.fields[place].expires_at_ms = None;
                false
            }
            None => {
                self.fields.push(Field {
                    name: name.to_vec(),
                    value,
                    expires_at_ms: None,
                });
                true
            }
        }
    }

    /// HSET of several fields. Returns the number of new fields.
    pub fn set_all<'a>(
        &mut self,
        pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> usize {
        let mut new = 0;
        if pairs.len() <= LINEAR_SEARCH_MAX {
            for (name, value) in pairs {
                new += usize::from(self.set(name, value));
            }
            return new;
        }
        let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (place, field) in self.fields.iter().enumerate() {
            places.insert(field.name.clone(), place);
        }
        for (name, value) in pairs {
            match places.get(name) {
                Some(&place) => {
                    self.fields[place].value = value.to_vec();
                    self.fields[place].expires_at_ms = None;
                }
                None => {
                    places.insert(name.to_vec(), self.fields.len());
                    self.fields.push(Field {
                        name: name.to_vec(),
                        value: value.to_vec(),
                        expires_at_ms: None,
                    });
                    new += 1;
                }
            }
        }
        new
    }

    /// HDEL of several fields. Returns the number of removed fields.
    pub fn remove_all<'a>(&mut self, names: impl ExactSizeIterator<Item = &'a [u8]>) -> usize {
        let before = self.fields.len();
        if names.len() <= LINEAR_SEARCH_MAX {
            names.for_each(|name| {
                self.remove(name);
            });
        } else {
            let names: BTreeSet<&[u8]> = names.collect();
            self.fields.retain(|field| !names.contains(&*field.name));
        }
        before - self.fields.len()
    }

    /// HSETNX. Returns whether the field was set.
    pub fn set_if_absent(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.place(name).is_none() && self.set(name, value)
    }

    /// Sets the value of a field, and keeps its expiry.
    pub(super) fn set_value(&mut self, name: &[u8], value: Vec<u8>) {
        match self.place(name) {
            Some(place) => self.fields[place].value = value,
            None => {
                self.set(name, value);
            }
        }
    }

    /// HINCRBY: returns the new value. An absent field counts as 0.
    ///
    /// # Errors
    /// The field does not hold an integer, or the sum exceeds 64 bits.
    pub fn increment(&mut self, name: &[u8], by: i64) -> Result<i64, ChangeError> {
        let before = match self.get(name) {
            None => 0,
            Some(text) => integer(text).ok_or(ChangeError::HashValueNotInteger)?,
        };
        let after = before
            .checked_add(by)
            .ok_or(ChangeError::IncrementOverflow)?;
        self.set_value(name, after.to_string().into_bytes());
        Ok(after)
    }

    /// HINCRBYFLOAT: returns the new text of the field, computed by [`decimal::add`]. `by` must be a number.
    ///
    /// # Errors
    /// The field does not hold a number, or the sum is infinite.
    pub fn increment_float(&mut self, name: &[u8], by: &[u8]) -> Result<Vec<u8>, ChangeError> {
        let before = self.get(name).unwrap_or(b"0");
        if Number::parse(before).is_none() {
            return Err(ChangeError::HashValueNotFloat);
        }
        let sum = decimal::add(before, by).map_err(|_| ChangeError::IncrementNotFinite)?;
        self.set_value(name, sum.clone().into_bytes());
        Ok(sum.into_bytes())
    }

    /// HDEL of one field. Returns whether the field existed. The caller deletes a hash that has no fields left.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let place = self.place(name);
        if let Some(place) = place {
            self.fields.remove(place);
        }
        place.is_some()
    }

    /// HGETDEL of one field.
    pub fn take(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let place = self.place(name)?;
        Some(self.fields.remove(place).value)
    }

    /// HEXPIRE and related commands, for one field. Returns -2 if the field is absent, 0 if the condition does not
    /// hold, 1 if the expiry is set, and 2 if the time has passed and the field was deleted.
    pub fn expire_field(&mut self, name: &[u8], at_ms: u64, rule: ExpiryRule, now_ms: u64) -> i64 {
        let Some(place) = self.place(name) else {
            return -2;
        };
        let before = self.fields[place].expires_at_ms;
        let is_met = match rule {
            ExpiryRule::Always => true,
            ExpiryRule::NoExpiry => before.is_none(),
            ExpiryRule::HasExpiry => before.is_some(),
            ExpiryRule::Later => before.is_some_and(|before| at_ms > before),
            ExpiryRule::Earlier => before.is_none_or(|before| at_ms < before),
        };
        if !is_met {
            return 0;
        }
        if at_ms <= now_ms {
            self.fields.remove(place);
            return 2;
        }
        self.fields[place].expires_at_ms = Some(at_ms);
        1
    }

    /// Applies [`Hash::expire_field`] to several fields.
    pub fn expire_fields<'a>(
        &mut self,
        names: impl ExactSizeIterator<Item = &'a [u8]>,
        at_ms: u64,
        rule: ExpiryRule,
        now_ms: u64,
    ) -> Vec<i64> {
        if names.len() <= LINEAR_SEARCH_MAX {
            return names
                .map(|name| self.expire_field(name, at_ms, rule, now_ms))
                .collect();
        }
        // Each field is changed in a temporary hash of its own.
        let places = self.positions(names);
        let mut removed = vec![false; self.fields.len()];
        let expire = |place: Option<usize>| {
            let place = place.filter(|place| !removed[*place])?;
            let mut alone = Hash {
                fields: vec![std::mem::take(&mut self.fields[place])],
            };
            let name = alone.fields[0].name.clone();
            let code = alone.expire_field(&name, at_ms, rule, now_ms);
            match alone.fields.pop() {
                Some(field) => self.fields[place] = field,
                None => removed[place] = true,
            }
            Some(code)
        };
        let codes: Vec<Option<i64>> = places.into_iter().map(expire).collect();
        self.drop_fields(&removed);
        codes.into_iter().map(|code| code.unwrap_or(-2)).collect()
    }

    /// HGETDEL of several fields: returns their values.
    pub fn take_all<'a>(
        &mut self,
        names: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Vec<Option<Vec<u8>>> {
        let places = self.positions(names);
        let mut removed = vec![false; self.fields.len()];
        let take = |place: Option<usize>| {
            let place = place.filter(|place| !removed[*place])?;
            removed[place] = true;
            Some(std::mem::take(&mut self.fields[place].value))
        };
        let values = places.into_iter().map(take).collect();
        self.drop_fields(&removed);
        values
    }

    /// Returns the positions of the fields with these names.
    pub fn positions<'a>(
        &self,
        names: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Vec<Option<usize>> {
        if names.len() <= LINEAR_SEARCH_MAX {
            return names.map(|name| self.place(name)).collect();
        }
        let numbered = (0..).zip(&self.fields);
        let by_name: BTreeMap<&[u8], usize> =
            numbered.map(|(at, field)| (&*field.name, at)).collect();
        names.map(|name| by_name.get(name).copied()).collect()
    }

    fn drop_fields(&mut self, removed: &[bool]) {
        let mut removed = removed.iter();
        self.fields
            .retain(|_| !removed.next().copied().unwrap_or(false));
    }

    /// HPERSIST of one field. Returns -2 if the field is absent, -1 if it had no expiry, and 1 if the expiry was
    /// removed.
    pub fn persist_field(&mut self, name: &[u8]) -> i64 {
        let place = self.place(name);
        self.persist_at(place)
    }

    /// Applies [`Hash::persist_field`] to the field at this position.
    pub fn persist_at(&mut self, place: Option<usize>) -> i64 {
        match place {
            None => -2,
            Some(place) => match self.fields[place].expires_at_ms.take() {
                None => -1,
                Some(_) => 1,
            },
        }
    }

    /// Removes the fields that have expired at `now_ms`. Returns whether there were any.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        let before = self.fields.len();
        self.fields
            .retain(|field| field.expires_at_ms.is_none_or(|at| at > now_ms));
        self.fields.len() < before
    }

    /// Returns the earliest expiry of the fields, in milliseconds since 1970.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.fields
            .iter()
            .filter_map(|field| field.expires_at_ms)
            .min()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Hash {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Hash {
        let mut hash = Hash::default();
        for (name, value) in pairs {
            hash.set(name.as_ref(), value.as_ref());
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_added_as_decimals() {
        let mut hash = Hash::default();
        for (before, by, after) in [
            ("123456789012345678", "0", "123456789012345678"),
            ("9007199254740993", "1.5", "9007199254740994.5"),
            ("0.1", "0.2", "0.3"),
        ] {
            hash.set(b"f", before);
            let sum = hash.increment_float(b"f", by.as_bytes());
            assert_eq!(sum, Ok(after.into()), "{before} + {by}");
        }
    }

    #[test]
    fn fields_are_set_counted_and_removed() {
        let mut hash = Hash::default();
        assert!(
            hash.set(b"a", "1")
                && !hash.set(b"a", "2")
                && hash.set_if_absent(b"b", b"x")
                && !hash.set_if_absent(b"b", b"y")
        );
        assert_eq!(hash.increment(b"a", 40), Ok(42));
        assert_eq!(hash.increment(b"n", i64::MAX), Ok(i64::MAX));
        assert_eq!(hash.increment(b"n", 1), Err(ChangeError::IncrementOverflow));
        assert_eq!(
            hash.increment(b"b", 1),
            Err(ChangeError::HashValueNotInteger)
        );
        assert_eq!(hash.increment_float(b"f", b"10.5"), Ok(b"10.5".to_vec()));
        assert_eq!(hash.increment_float(b"f", b"0.1"), Ok(b"10.6".to_vec()));
        assert_eq!(hash.increment_float(b"a", b"5e3"), Ok(b"5042".to_vec()));
        assert_eq!(
            hash.increment_float(b"b", b"1.0"),
            Err(ChangeError::HashValueNotFloat)
        );
        assert_eq!(
            hash.increment_float(b"f", b"inf"),
            Err(ChangeError::IncrementNotFinite)
        );
        assert_eq!(
            (hash.get(b"n"), hash.get(b"f")),
            (Some(&b"9223372036854775807"[..]), Some(&b"10.6"[..]))
        );
        assert_eq!(
            (hash.take(b"b"), hash.remove(b"b"), hash.remove(b"a")),
            (Some(b"x".to_vec()), false, true)
        );
    }

    #[test]
    fn many_fields_are_set_and_removed_as_one_by_one() {
        let names: Vec<String> = (0..40).map(|at| format!("f{}", at % 25)).collect();
        let pairs = || {
            names
                .iter()
                .map(|name| (name.as_bytes(), &name.as_bytes()[1..]))
        };
        let (mut together, mut alone) = (Hash::from_iter([("f3", "x")]), Hash::default());
        together.expire_field(b"f3", 200, ExpiryRule::Always, 100);
        alone.set(b"f3", "x");
        assert_eq!(together.set_all(pairs()), 24);
        pairs().for_each(|(name, value)| {
            alone.set(name, value);
        });
        assert_eq!(together, alone);
        let gone: Vec<&[u8]> = names[5..20].iter().map(String::as_bytes).collect();
        assert_eq!(together.remove_all(gone.iter().copied()), 15);
        assert_eq!(together.remove_all(gone[..3].iter().copied()), 0);
        let twice = || gone[..9].iter().chain(&gone[..9]).map(|name| &name[..]);
        let twice: Vec<&[u8]> = twice().chain([&b"f0"[..], b"f0"]).collect();
        let mut other = together.clone();
        let codes = together.expire_fields(twice.iter().copied(), 50, ExpiryRule::Always, 100);
        assert_eq!(codes[..18], [-2; 18]);
        assert_eq!(codes[18..], [2, -2]);
        let codes = other.expire_fields(twice.iter().copied(), 150, ExpiryRule::NoExpiry, 100);
        assert_eq!(codes[18..], [1, 0]);
        let taken = other.take_all(twice.iter().copied());
        assert_eq!(taken[17..], [None, Some(b"0".to_vec()), None]);
        assert_eq!(together, other);
        together.set(b"f0", "0");
        alone.remove(b"f0");
        alone.set(b"f0", "0");
        gone.iter().for_each(|name| {
            alone.remove(name);
        });
        assert_eq!(together, alone);
    }

    #[test]
    fn fields_expire_by_their_rules() {
        let mut hash = Hash::from_iter([("a", "1"), ("b", "2")]);
        let mut set = |at, rule| hash.expire_field(b"a", at, rule, 100);
        assert_eq!(set(200, ExpiryRule::HasExpiry), 0);
        assert_eq!(set(200, ExpiryRule::Later), 0);
        assert_eq!(set(200, ExpiryRule::NoExpiry), 1);
        assert_eq!(set(150, ExpiryRule::Later), 0);
        assert_eq!(set(150, ExpiryRule::Earlier), 1);
        assert_eq!(set(300, ExpiryRule::Always), 1);
        assert_eq!(hash.expire_field(b"none", 200, ExpiryRule::Always, 100), -2);
        assert_eq!(hash.expire_field(b"b", 100, ExpiryRule::Always, 100), 2);
        assert_eq!(
            (
                hash.persist_field(b"b"),
                hash.persist_field(b"a"),
                hash.persist_field(b"a")
            ),
            (-2, 1, -1)
        );
        assert_eq!(hash.expire_field(b"a", 300, ExpiryRule::Always, 100), 1);
        assert_eq!(
            (
                hash.next_expiry_ms(),
                hash.expire(299),
                hash.expire(300),
                hash.fields.len()
            ),
            (Some(300), false, true, 0)
        );
        hash.set(b"a", "1");
        hash.expire_field(b"a", 300, ExpiryRule::Always, 100);
        assert_eq!(hash.increment(b"a", 1), Ok(2));
        assert_eq!(
            hash.next_expiry_ms(),
            Some(300),
            "a change of the value leaves the expiry"
        );
        hash.set(b"a", "1");
        assert_eq!(
            hash.next_expiry_ms(),
            None,
            "a field that is set again does not expire"
        );
    }
}
