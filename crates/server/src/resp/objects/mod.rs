//! Commands on objects: hashes and JSON documents. The pure functions of `larder_space::object` compute the new
//! objects.
//!
//! - `access` reads and changes an object.
//! - `hash` has the commands on hashes, and `fields` those on the TTL of fields.
//! - `json` has the commands on documents, and `json_mset` has JSON.MSET.
//! - `change` has OBJ.CHANGE and SPACE.CPUT.
//!
//! Commands on text and on keys of any kind (SET, DEL, TTL, RENAME) are in the modules on tables.

mod access;
mod change;
mod fields;
mod hash;
mod json;
mod json_mset;

use larder_protocol::commands::{Command, Id};

use super::state::ConnectionState;
use crate::tables::NoReply;

pub(super) use access::{check_object_size, corrupted_object};
pub(super) use change::check as check_change;
pub(super) use json_mset::{assign_all, parse_assignments};

/// Executes a command on an object. Returns false if it is not such a command.
pub(super) fn execute(state: &mut ConnectionState, command: Command<'_>) -> Result<bool, NoReply> {
    let request = command.request;
    match command.id() {
        Id::HSet => hash::set(state, request, false)?,
        Id::HMSet => hash::set(state, request, true)?,
        Id::HSetEx => fields::set_ex(state, request)?,
        Id::HSetNx => hash::set_if_absent(state, request)?,
        Id::HDel => hash::delete(state, request)?,
        Id::HIncrBy => hash::increment(state, request)?,
        Id::HIncrByFloat => hash::increment_float(state, request)?,
        Id::HGet => hash::get(state, request)?,
        Id::HMGet => hash::get_several(state, request)?,
        Id::HGetAll => hash::read_all(state, request, hash::FieldParts::Both)?,
        Id::HKeys => hash::read_all(state, request, hash::FieldParts::Names)?,
        Id::HVals => hash::read_all(state, request, hash::FieldParts::Values)?,
        Id::HLen => hash::length(state, request)?,
        Id::HExists => hash::exists(state, request)?,
        Id::HStrLen => hash::value_length(state, request)?,
        Id::HRandField => hash::random(state, request)?,
        Id::HScan => hash::scan(state, request)?,

        Id::HExpire => fields::expire(state, request, "hexpire", (1000, true))?,
        Id::HPExpire => fields::expire(state, request, "hpexpire", (1, true))?,
        Id::HExpireAt => fields::expire(state, request, "hexpireat", (1000, false))?,
        Id::HPExpireAt => fields::expire(state, request, "hpexpireat", (1, false))?,
        Id::HPersist => fields::persist(state, request)?,
        // Rounded as in Redis.
        Id::HTtl => fields::read_times(state, request, |at, now| (at - now).div_ceil(1000))?,
        Id::HPTtl => fields::read_times(state, request, |at, now| at - now)?,
        Id::HExpireTime => fields::read_times(state, request, |at, _| at.div_ceil(1000))?,
        Id::HPExpireTime => fields::read_times(state, request, |at, _| at)?,
        Id::HGetDel => fields::get_del(state, request)?,
        Id::HGetEx => fields::get_ex(state, request)?,

        Id::ObjChange => change::run(state, request)?,
        Id::SpaceCPut => change::put(state, request)?,

        Id::JsonSet => json::set(state, request)?,
        Id::JsonMSet => json_mset::set_several(state, request)?,
        Id::JsonMerge => json::merge(state, request)?,
        Id::JsonDel | Id::JsonForget => json::delete(state, request)?,
        Id::JsonGet => json::get(state, request)?,
        Id::JsonMGet => json::get_several(state, request)?,
        Id::JsonType => json::types(state, request)?,
        Id::JsonNumIncrBy => json::change_numbers(state, request, false)?,
        Id::JsonNumMultBy => json::change_numbers(state, request, true)?,
        Id::JsonStrAppend => json::append_string(state, request)?,
        Id::JsonToggle => json::toggle(state, request)?,
        Id::JsonClear => json::clear(state, request)?,
        Id::JsonArrAppend => json::append_elements(state, request)?,
        Id::JsonArrInsert => json::insert_elements(state, request)?,
        Id::JsonArrPop => json::pop_elements(state, request)?,
        Id::JsonArrTrim => json::trim_elements(state, request)?,
        Id::JsonArrIndex => json::index_of(state, request)?,
        Id::JsonStrLen => json::lengths(state, request, "a string")?,
        Id::JsonArrLen => json::lengths(state, request, "an array")?,
        Id::JsonObjLen => json::lengths(state, request, "an object")?,
        Id::JsonObjKeys => json::names(state, request)?,
        _ => return Ok(false),
    }
    Ok(true)
}
