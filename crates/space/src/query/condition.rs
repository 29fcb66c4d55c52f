//! The conditions of writes: put if absent, and HyperDex's conditional operations.

use crate::object::Object;
use crate::query::{Predicate, matches};
use crate::schema::Definition;
use crate::value::Row;

#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    Always,
    /// Put if absent.
    Absent,
    Present,
    /// The object exists, and the predicate holds for it.
    Holds(Predicate),
    /// The object does not exist, or the predicate holds for it.
    HoldsOrAbsent(Predicate),
}

impl Condition {
    /// Returns whether the current state of the object meets the condition. The predicate refers to the attributes of
    /// `definition`, whether or not the space covers the object.
    pub fn is_met(&self, definition: &Definition, object: Option<&Object>) -> bool {
        let holds = |predicate: &Predicate, object: &Object| {
            matches(predicate, &Row::of(definition, object).0)
        };
        match (self, object) {
            (Condition::Always, _) => true,
            (Condition::Absent | Condition::HoldsOrAbsent(_), None) => true,
            (Condition::Present | Condition::Holds(_), None) => false,
            (Condition::Absent, Some(_)) => false,
            (Condition::Present, Some(_)) => true,
            (Condition::Holds(predicate) | Condition::HoldsOrAbsent(predicate), Some(object)) => {
                holds(predicate, object)
            }
        }
    }
}
