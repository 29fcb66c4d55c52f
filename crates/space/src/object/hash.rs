//! Hashes: fields and values, bytes both, in the order in which they came to be; and the commands of the HSET family.
//!
//! A command either changes the hash as it says or leaves it alone and is an error. Fields that have expired are taken out by [`Hash::expire`] before.

use larder_types::integer;

use super::change::ChangeError;
use crate::base::number::Number;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hash {
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    /// Milliseconds since 1970 from which on the field is not there.
    pub expires_at_ms: Option<u64>,
}

/// When HEXPIRE and its kin set an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryRule {
    Always,
    /// NX: it has none.
    WithoutOne,
    /// XX: it has one.
    WithOne,
    /// GT: it is later; a field without one never expires, so nothing is later.
    Later,
    /// LT: it is earlier.
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

    /// HSET of one field, which then does not expire. Whether it is new.
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

    /// HSETNX. Whether it was set.
    pub fn set_if_absent(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.place(name).is_none() && self.set(name, value)
    }

    /// Sets the value of a field and leaves its expiry.
    pub(super) fn set_value(&mut self, name: &[u8], value: Vec<u8>) {
        match self.place(name) {
            Some(place) => self.fields[place].value = value,
            None => {
                self.set(name, value);
            }
        }
    }

    /// HINCRBY: what the field becomes; one that is absent counts from 0.
    ///
    /// # Errors
    /// The field holds no integer, or the sum has more than 64 bits.
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

    /// HINCRBYFLOAT: the text that the field becomes.
    ///
    /// # Errors
    /// The field holds no number, or the sum is infinite.
    pub fn increment_float(&mut self, name: &[u8], by: f64) -> Result<Vec<u8>, ChangeError> {
        let before = match self.get(name) {
            None => 0.0,
            Some(text) => Number::parse(text)
                .ok_or(ChangeError::HashValueNotFloat)?
                .as_f64(),
        };
        let after = Number::of_f64(before + by).filter(|after| after.as_f64().is_finite());
        let text = match after.ok_or(ChangeError::IncrementNotFinite)? {
            Number::Int(value) => value.to_string(),
            // Without an exponent, as clients of HINCRBYFLOAT know it.
            Number::Float(value) => value.to_string(),
        };
        self.set_value(name, text.clone().into_bytes());
        Ok(text.into_bytes())
    }

    /// HDEL of one field. Whether it was there. A hash without fields is none: whoever keeps it removes it.
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

    /// HEXPIRE and its kin, of one field: -2 if it is absent, 0 if the rule is not met, 1 if it is set, 2 if the time has passed and the field is gone.
    pub fn expire_field(&mut self, name: &[u8], at_ms: u64, rule: ExpiryRule, now_ms: u64) -> i64 {
        let Some(place) = self.place(name) else {
            return -2;
        };
        let before = self.fields[place].expires_at_ms;
        let is_met = match rule {
            ExpiryRule::Always => true,
            ExpiryRule::WithoutOne => before.is_none(),
            ExpiryRule::WithOne => before.is_some(),
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

    /// HPERSIST of one field: -2 if it is absent, -1 if it does not expire, 1 if it no longer does.
    pub fn persist_field(&mut self, name: &[u8]) -> i64 {
        match self.place(name) {
            None => -2,
            Some(place) => match self.fields[place].expires_at_ms.take() {
                None => -1,
                Some(_) => 1,
            },
        }
    }

    /// Takes out the fields that have expired at this time. Whether there were any.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        let before = self.fields.len();
        self.fields
            .retain(|field| field.expires_at_ms.is_none_or(|at| at > now_ms));
        self.fields.len() < before
    }

    /// When the first of its fields expires.
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
        assert_eq!(hash.increment_float(b"f", 10.5), Ok(b"10.5".to_vec()));
        assert_eq!(hash.increment_float(b"f", 0.1), Ok(b"10.6".to_vec()));
        assert_eq!(hash.increment_float(b"a", 5e3), Ok(b"5042".to_vec()));
        assert_eq!(
            hash.increment_float(b"b", 1.0),
            Err(ChangeError::HashValueNotFloat)
        );
        assert_eq!(
            hash.increment_float(b"f", f64::INFINITY),
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
    fn fields_expire_by_their_rules() {
        let mut hash = Hash::from_iter([("a", "1"), ("b", "2")]);
        let mut set = |at, rule| hash.expire_field(b"a", at, rule, 100);
        assert_eq!(set(200, ExpiryRule::WithOne), 0);
        assert_eq!(set(200, ExpiryRule::Later), 0);
        assert_eq!(set(200, ExpiryRule::WithoutOne), 1);
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
            "what is set anew does not expire"
        );
    }
}
