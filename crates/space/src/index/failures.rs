//! Fields that do not fit their attributes, as FT.INFO tells them. They are counted since the space was made, also those that have been corrected.

use std::collections::BTreeMap;

use crate::schema::AttributeId;
use crate::value::Fault;

#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// Of all attributes.
    pub count: u64,
    pub newest: Option<Failure>,
    /// How many, and the newest.
    pub by_attribute: BTreeMap<AttributeId, (u64, Failure)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The object's.
    pub key: Vec<u8>,
    pub message: String,
}

impl Failures {
    pub(super) fn add(&mut self, key: &[u8], fault: Fault) {
        let failure = Failure {
            key: key.to_vec(),
            message: fault.message,
        };
        self.count += 1;
        self.by_attribute
            .entry(fault.attribute)
            .and_modify(|(count, newest)| {
                *count += 1;
                newest.clone_from(&failure);
            })
            .or_insert_with(|| (1, failure.clone()));
        self.newest = Some(failure);
    }

    pub(super) fn drop_attribute(&mut self, attribute: AttributeId) {
        self.by_attribute.remove(&attribute);
    }
}
