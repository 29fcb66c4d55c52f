//! Fields that do not match the type of their attribute, as FT.INFO reports them. The counts begin when the space is
//! created, and include corrected fields.

use std::collections::BTreeMap;

use crate::schema::AttributeId;
use crate::value::Fault;

#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// The total of all attributes.
    pub count: u64,
    pub newest: Option<Failure>,
    /// The count and the most recent failure.
    pub by_attribute: BTreeMap<AttributeId, (u64, Failure)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The key of the object.
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
