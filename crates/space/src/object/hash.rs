//! Hashes: fields and values, bytes both, in the order in which they came to be.

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

impl Hash {
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.field(name).map(|field| &field.value[..])
    }

    pub fn field(&self, name: &[u8]) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    pub(super) fn place(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// Sets a field, which then does not expire. Whether it is new.
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

    /// Whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let place = self.place(name);
        if let Some(place) = place {
            self.fields.remove(place);
        }
        place.is_some()
    }

    /// Takes out the fields that have expired at this time.
    pub fn expire(&mut self, now_ms: u64) {
        self.fields
            .retain(|field| field.expires_at_ms.is_none_or(|at| at > now_ms));
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
