//! What commands on rows of text do where a key has an object, by Redis's rules.
//!
//! | command | does |
//! |---|---|
//! | SET, SETEX, PSETEX, MSET | puts the row in the object's place |
//! | SET NX, SETNX, MSETNX | nothing: the key is there |
//! | GETSET, GETDEL, GETEX, SET GET, INCR, APPEND and their kin | are refused: WRONGTYPE |
//!
//! MGET answers nil for an object. Commands on any key (DEL, EXISTS, TYPE, TTL, EXPIRE, RENAME, SCAN) know objects by themselves.

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_types::object_row;

use super::super::state::State;
use crate::tables::objects::{has_object, read_object, wrong_type};
use crate::tables::{Tables, Unanswered, refusal};

/// An object that goes, as it was.
struct Replaced {
    row: Vec<u8>,
    bytes: Vec<u8>,
    at: Option<u64>,
}

/// Whether some key of the command has an object.
fn meets(tables: &Tables, command: Command<'_>) -> bool {
    tables.read(|engine, now| command.keys().any(|key| has_object(engine, key, now)))
}

/// Executes a command on rows of text if one of its keys has an object; says whether it did. `run` executes it as if there were none.
pub(in crate::resp) fn meets_object(
    state: &mut State,
    command: Command<'_>,
    run: impl FnOnce(&mut State, Command<'_>) -> Result<(), Unanswered>,
) -> Result<bool, Unanswered> {
    let is_refused = match command.id() {
        Id::Set | Id::SetEx | Id::PSetEx | Id::MSet | Id::SetNx | Id::MSetNx => false,
        Id::Append
        | Id::SetRange
        | Id::Incr
        | Id::Decr
        | Id::IncrBy
        | Id::DecrBy
        | Id::IncrByFloat
        | Id::GetSet
        | Id::GetDel
        | Id::GetEx => true,
        _ => return Ok(false),
    };
    let tables = state.tables();
    if !meets(&tables, command) {
        return Ok(false);
    }
    if is_refused {
        return Err(wrong_type().into());
    }
    let has_option = |word: &[u8]| {
        let mut options = command.args().skip(3);
        command.id() == Id::Set && options.any(|option| option.eq_ignore_ascii_case(word))
    };
    match command.id() {
        Id::SetNx | Id::MSetNx => state.encoder().count(0),
        _ if has_option(b"GET") => return Err(wrong_type().into()),
        _ if has_option(b"NX") => state.encoder().null(),
        _ => replace(state, &tables, command, run)?,
    }
    Ok(true)
}

/// Executes a command that puts rows of text in the place of the objects that its keys have, all as one.
fn replace(
    state: &mut State,
    tables: &Tables,
    command: Command<'_>,
    run: impl FnOnce(&mut State, Command<'_>) -> Result<(), Unanswered>,
) -> Result<(), Unanswered> {
    if tables.in_transaction() {
        return replace_now(state, tables, command, run);
    }
    let mut gate = std::mem::take(&mut state.gate);
    let done = tables.execute_transaction(&mut gate, |gate| {
        let done = replace_now(state, tables, command, run);
        gate.join(std::mem::take(&mut state.gate));
        done
    });
    state.gate = gate;
    done
}

fn replace_now(
    state: &mut State,
    tables: &Tables,
    command: Command<'_>,
    run: impl FnOnce(&mut State, Command<'_>) -> Result<(), Unanswered>,
) -> Result<(), Unanswered> {
    let replaced = take_objects(state, tables, command)?;
    let done = run(state, adapted(command, &replaced).command());
    if done.is_err() {
        // Nothing was put, so nothing is replaced.
        put_back(state, tables, &replaced)?;
    }
    done
}

fn take_objects(
    state: &mut State,
    tables: &Tables,
    command: Command<'_>,
) -> Result<Vec<Replaced>, Unanswered> {
    let mut all = Vec::new();
    tables.write(&mut state.gate, |engine, now| {
        let mut waits_for = None;
        for key in command.keys() {
            let Some(bytes) = read_object(engine, key, now, <[u8]>::to_vec) else {
                continue;
            };
            let row = object_row(key);
            let at = engine.expires_at(&row, now);
            let removed = engine.remove(&row, now).map_err(refusal)?;
            waits_for = removed.waits_for.max(waits_for);
            all.push(Replaced { row, bytes, at });
        }
        Ok(((), waits_for))
    })?;
    Ok(all)
}

fn put_back(state: &mut State, tables: &Tables, replaced: &[Replaced]) -> Result<(), Unanswered> {
    tables.write(&mut state.gate, |engine, now| {
        for Replaced { row, bytes, at } in replaced {
            engine.put(row, bytes, now).map_err(refusal)?;
            if at.is_some() {
                engine.expire(row, *at, now).map_err(refusal)?;
            }
        }
        Ok(((), None))
    })
}

/// The same command for a key that has no object any more: XX holds, and KEEPTTL keeps the object's time.
fn adapted(command: Command<'_>, replaced: &[Replaced]) -> OwnedCommand {
    if command.id() != Id::Set {
        return command.owned();
    }
    let at = replaced.first().and_then(|one| one.at);
    let at = at.map(|at| at.to_string());
    let mut args: Vec<&[u8]> = Vec::with_capacity(command.len() + 1);
    for (position, arg) in command.args().enumerate() {
        match position {
            3.. if arg.eq_ignore_ascii_case(b"XX") => {}
            3.. if arg.eq_ignore_ascii_case(b"KEEPTTL") => {
                if let Some(at) = &at {
                    args.extend([b"PXAT", at.as_bytes()]);
                }
            }
            _ => args.push(arg),
        }
    }
    command.with_args(args.into_iter())
}
