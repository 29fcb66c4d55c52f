//! Commands on objects: hashes and JSON documents. What they make of an object are the pure functions of `larder_space::object`.
//!
//! `access` has how an object is read and changed; `hash` the HSET family and `fields` the times of fields; `keys` what commands on text do where a key has
//! an object. Commands on any key (DEL, TTL, RENAME) are with those on tables.

mod access;
mod fields;
mod hash;
mod keys;

use larder_protocol::commands::{Command, Id};

use super::state::State;
use crate::tables::Unanswered;

pub(super) use keys::meets_object;

/// Executes a command on an object; says whether it is one.
pub(super) fn execute(state: &mut State, command: Command<'_>) -> Result<bool, Unanswered> {
    let request = command.request;
    match command.id() {
        Id::HSet => hash::set(state, request, false)?,
        Id::HMSet => hash::set(state, request, true)?,
        Id::HSetNx => hash::set_if_absent(state, request)?,
        Id::HDel => hash::delete(state, request)?,
        Id::HIncrBy => hash::increment(state, request)?,
        Id::HIncrByFloat => hash::increment_float(state, request)?,
        Id::HGet => hash::get(state, request)?,
        Id::HMGet => hash::get_several(state, request)?,
        Id::HGetAll => hash::all(state, request, hash::Parts::Both)?,
        Id::HKeys => hash::all(state, request, hash::Parts::Names)?,
        Id::HVals => hash::all(state, request, hash::Parts::Values)?,
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
        // Rounded as Redis rounds.
        Id::HTtl => fields::times(state, request, |at, now| (at - now).div_ceil(1000))?,
        Id::HPTtl => fields::times(state, request, |at, now| at - now)?,
        Id::HExpireTime => fields::times(state, request, |at, _| at.div_ceil(1000))?,
        Id::HPExpireTime => fields::times(state, request, |at, _| at)?,
        Id::HGetDel => fields::get_del(state, request)?,
        Id::HGetEx => fields::get_ex(state, request)?,
        _ => return Ok(false),
    }
    Ok(true)
}
