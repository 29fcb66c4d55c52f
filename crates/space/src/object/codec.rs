//! The byte encoding of objects. One field can be read without decoding the others.
//!
//! | part | size | meaning |
//! |---|---|---|
//! | kind | 1 | 1: a hash; 2: a JSON document, whose text follows; 3: a hash with at least one field that expires |
//! | count | varint | the number of fields |
//! | directory | 2 or 3 varints each | the size of the name; the size of the value; in kind 3 also the expiry: 0 for never, otherwise milliseconds since 1970, plus 1 |
//! | names | | concatenated |
//! | values | | concatenated |
//!
//! Varints have seven bits per byte, lowest first. The highest bit of a byte is set if another byte follows. They have
//! the minimum length.

use larder_types::wire::Malformed;

use super::hash::{Field, Hash};
use super::{Document, Object, ObjectKind};

const HASH: u8 = 1;
const JSON: u8 = 2;
const EXPIRING_HASH: u8 = 3;

impl Object {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Object::Json(document) => {
                let mut out = vec![JSON];
                out.extend(document.print());
                out
            }
            Object::Hash(hash) => {
                let expires = hash.fields.iter().any(|it| it.expires_at_ms.is_some());
                let mut out = vec![if expires { EXPIRING_HASH } else { HASH }];
                put_varint(hash.fields.len() as u64, &mut out);
                for field in &hash.fields {
                    put_varint(field.name.len() as u64, &mut out);
                    put_varint(field.value.len() as u64, &mut out);
                    if expires {
                        put_varint(
                            field.expires_at_ms.map_or(0, |at| at.saturating_add(1)),
                            &mut out,
                        );
                    }
                }
                hash.fields
                    .iter()
                    .for_each(|field| out.extend_from_slice(&field.name));
                hash.fields
                    .iter()
                    .for_each(|field| out.extend_from_slice(&field.value));
                out
            }
        }
    }

    /// Decodes an object.
    ///
    /// # Errors
    /// The bytes are not an encoded object.
    pub fn decode(bytes: &[u8]) -> Result<Object, Malformed> {
        match ObjectView::new(bytes)? {
            ObjectView::Json(text) => Document::parse(text)
                .map(Object::Json)
                .map_err(|_| Malformed("an object's bytes are not JSON")),
            ObjectView::Hash(view) => {
                let fields = view.fields().map(|(name, value, expires_at_ms)| Field {
                    name: name.to_vec(),
                    value: value.to_vec(),
                    expires_at_ms,
                });
                Ok(Object::Hash(Hash {
                    fields: fields.collect(),
                }))
            }
        }
    }
}

/// A view of an encoded object, without copies.
#[derive(Debug, Clone, Copy)]
pub enum ObjectView<'a> {
    Hash(HashView<'a>),
    /// The text of the document.
    Json(&'a [u8]),
}

#[derive(Debug, Clone, Copy)]
pub struct HashView<'a> {
    count: usize,
    expires: bool,
    directory: &'a [u8],
    names: &'a [u8],
    values: &'a [u8],
}

impl<'a> ObjectView<'a> {
    /// Reads the header of an object. Does not check that a document is valid JSON.
    ///
    /// # Errors
    /// The bytes are not an encoded object.
    pub fn new(bytes: &'a [u8]) -> Result<ObjectView<'a>, Malformed> {
        match bytes.split_first() {
            Some((&JSON, text)) => Ok(ObjectView::Json(text)),
            Some((&HASH, rest)) => HashView::new(rest, false).map(ObjectView::Hash),
            Some((&EXPIRING_HASH, rest)) => HashView::new(rest, true).map(ObjectView::Hash),
            _ => Err(Malformed("an object is of an unknown kind")),
        }
    }

    /// Returns the kind of an encoded object, from its first byte.
    #[inline]
    pub fn kind_of(bytes: &[u8]) -> ObjectKind {
        match bytes.first() {
            Some(&JSON) => ObjectKind::Json,
            _ => ObjectKind::Hash,
        }
    }

    /// Returns whether the object is a hash with a field that expires, from its first byte.
    #[inline]
    pub fn expires(bytes: &[u8]) -> bool {
        bytes.first() == Some(&EXPIRING_HASH)
    }

    /// Returns the earliest expiry of a hash's fields, in milliseconds since 1970.
    pub fn next_expiry_ms(bytes: &[u8]) -> Option<u64> {
        if !ObjectView::expires(bytes) {
            return None;
        }
        match ObjectView::new(bytes) {
            Ok(ObjectView::Hash(hash)) => hash.next_expiry_ms(),
            _ => None,
        }
    }

    pub fn kind(&self) -> ObjectKind {
        match self {
            ObjectView::Hash(_) => ObjectKind::Hash,
            ObjectView::Json(_) => ObjectKind::Json,
        }
    }
}

impl<'a> HashView<'a> {
    fn new(bytes: &'a [u8], expires: bool) -> Result<HashView<'a>, Malformed> {
        const BAD: Malformed = Malformed("a hash's sizes do not match its bytes");
        let mut rest = bytes;
        let count = take_varint(&mut rest).ok_or(BAD)?;
        let begin = rest;
        // Each field takes at least two bytes, so reading the directory of an excessive count fails.
        let (mut names, mut values, mut any_expires) = (0_u64, 0_u64, false);
        for _ in 0..count {
            let mut part = || take_varint(&mut rest).ok_or(BAD);
            names = names.checked_add(part()?).ok_or(BAD)?;
            values = values.checked_add(part()?).ok_or(BAD)?;
            if expires {
                any_expires |= part()? > 0;
            }
        }
        if expires != any_expires {
            return Err(BAD);
        }
        let directory = &begin[..begin.len() - rest.len()];
        if names.checked_add(values) != Some(rest.len() as u64) {
            return Err(BAD);
        }
        let (names, values) = rest.split_at(names as usize);
        Ok(HashView {
            count: count as usize,
            expires,
            directory,
            names,
            values,
        })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns whether any field expires.
    pub fn expires(&self) -> bool {
        self.expires
    }

    /// Returns the earliest expiry of the fields, in milliseconds since 1970.
    pub fn next_expiry_ms(self) -> Option<u64> {
        if !self.expires {
            return None;
        }
        self.fields().filter_map(|(_, _, at)| at).min()
    }

    /// Returns the fields that have not expired at `now_ms`.
    pub fn fields_at(self, now_ms: u64) -> impl Iterator<Item = (&'a [u8], &'a [u8], Option<u64>)> {
        let is_live = move |at: Option<u64>| at.is_none_or(|at| at > now_ms);
        self.fields().filter(move |(_, _, at)| is_live(*at))
    }

    /// Returns a field's value and expiry, if the field exists and has not expired at `now_ms`.
    pub fn get_at(self, name: &[u8], now_ms: u64) -> Option<(&'a [u8], Option<u64>)> {
        let mut fields = self.fields_at(now_ms);
        fields
            .find(|(field, _, _)| *field == name)
            .map(|(_, value, at)| (value, at))
    }

    /// Returns names, values and expiries, in order.
    pub fn fields(self) -> impl Iterator<Item = (&'a [u8], &'a [u8], Option<u64>)> {
        let HashView {
            expires,
            mut directory,
            mut names,
            mut values,
            ..
        } = self;
        std::iter::from_fn(move || {
            let name_size = take_varint(&mut directory)? as usize;
            let value_size = take_varint(&mut directory)? as usize;
            let expiry = if expires {
                take_varint(&mut directory)?
            } else {
                0
            };
            let (name, names_rest) = names.split_at(name_size);
            let (value, values_rest) = values.split_at(value_size);
            (names, values) = (names_rest, values_rest);
            Some((name, value, expiry.checked_sub(1)))
        })
    }

    pub fn get(self, name: &[u8]) -> Option<&'a [u8]> {
        self.fields()
            .find(|(field, _, _)| *field == name)
            .map(|(_, value, _)| value)
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            // A varint that ends with a zero byte is not minimal.
            return (byte != 0 || shift == 0).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_hash() -> impl Strategy<Value = Hash> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
        let expiry = proptest::option::of(0..u64::MAX - 1);
        proptest::collection::vec((bytes(), bytes(), expiry), 0..6).prop_map(|fields| {
            let mut hash = Hash::default();
            for (name, value, expires_at_ms) in fields {
                hash.set(&name, value);
                hash.fields.last_mut().expect("one was set").expires_at_ms = expires_at_ms;
            }
            hash
        })
    }

    proptest! {
        #[test]
        fn objects_round_trip_and_fields_are_readable_individually(hash in any_hash()) {
            let bytes = Object::Hash(hash.clone()).encode();
            let ObjectView::Hash(view) = ObjectView::new(&bytes).unwrap() else { panic!("it is a hash") };
            prop_assert_eq!(view.count(), hash.fields.len());
            for field in &hash.fields {
                prop_assert_eq!(view.get(&field.name), Some(&field.value[..]));
            }
            prop_assert_eq!(view.next_expiry_ms(), hash.next_expiry_ms());
            prop_assert_eq!(view.expires(), hash.next_expiry_ms().is_some());
            let at = u64::MAX / 2;
            let there = hash.fields.iter().filter(|field| field.expires_at_ms.is_none_or(|expiry| expiry > at));
            prop_assert!(view.fields_at(at).map(|(name, ..)| name).eq(there.map(|field| &field.name[..])));
            prop_assert_eq!(view.get(b"a name that is too long to come up by chance"), None);
            prop_assert_eq!(Object::decode(&bytes).unwrap(), Object::Hash(hash));
        }

        #[test]
        fn decoded_bytes_are_canonical(hash in any_hash(), at in any::<u16>(), bits in 1_u8.., tail in proptest::collection::vec(any::<u8>(), 0..30)) {
            let mut bytes = Object::Hash(hash).encode();
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= bits;
            for bytes in [&bytes[..], &bytes[..at], &tail, &[&[HASH], &tail[..]].concat(), &[&[EXPIRING_HASH], &tail[..]].concat()] {
                if let Ok(object @ Object::Hash(_)) = Object::decode(bytes) {
                    prop_assert_eq!(object.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn documents_are_stored_as_text() {
        let document = Document::parse(br#"{"b": [1, 9223372036854775807], "a": "x"}"#).unwrap();
        let bytes = Object::Json(document.clone()).encode();
        assert_eq!(bytes, b"\x02{\"b\":[1,9223372036854775807],\"a\":\"x\"}");
        assert_eq!(Object::decode(&bytes), Ok(Object::Json(document)));
        assert!(Object::decode(b"\x02{").is_err() && Object::decode(b"").is_err());
    }
}
