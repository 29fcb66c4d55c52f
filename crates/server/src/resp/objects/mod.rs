//! Commands on objects: hashes and JSON documents. The pure functions of `larder_space::object` compute the new
//! objects.
//!
//! - `rows` defines how a key holds text or an object. `access` reads and changes an object.
//! - `hash` has the commands on hashes, and `fields` those on the TTL of fields.
//! - `json` has the commands on documents, and `json_mset` has JSON.MSET.
//! - `change` has OBJ.CHANGE and SPACE.CPUT.
//!
//! Commands on text and on keys of any kind (SET, DEL, TTL, RENAME) are in the modules on tables.

mod access;
pub(super) mod change;
pub(super) mod fields;
pub(super) mod hash;
pub(super) mod json;
pub(super) mod json_mset;
mod rows;

pub(super) use access::{check_object_size, corrupted_object};
pub(super) use change::check as check_change;
pub(super) use rows::{
    OBJECT_BYTES_MAX, ValueType, check_not_computed, find_row, put_with_expiry, remove_object,
    wrong_type,
};
