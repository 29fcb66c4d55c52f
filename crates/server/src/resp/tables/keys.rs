//! Commands that change several rows atomically: MSET, MSETNX, MSETEX, RENAME, RENAMENX and COPY, if one core owns all
//! rows. For rows of several cores, see `coordinate/keys.rs`.

use std::ops::Range;

use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{integer, object_key};

use super::super::objects::find_row;
use super::super::reply_decoding;
use super::super::state::ConnectionState;
use super::condition::Condition;
use super::expire::{Ttl, TtlOption};
use super::partial_write::partial_write_error;
use super::rows::{get, key_exists, put_object, put_text, refuse_computed_rows, write};
use super::{parse_integer, syntax_error};
use crate::tables::{Gate, NoReply, Refusal, refusal};

/// The texts that MSET, MSETNX or MSETEX puts atomically.
pub(super) struct MultiPut<'a> {
    /// Keys and values.
    pub pairs: Vec<(&'a [u8], &'a [u8])>,
    /// [`Condition::IfAbsent`]: none of the keys may exist. [`Condition::IfPresent`]: all must exist.
    pub condition: Condition<'a>,
    pub ttl: Ttl,
    /// The command's name, for errors.
    pub command: &'static str,
}

impl<'a> MultiPut<'a> {
    pub fn parse(id: Id, request: Request<'a>) -> Result<MultiPut<'a>, Refusal> {
        let (command, condition) = match id {
            Id::MSet => ("mset", Condition::Always),
            Id::MSetNx => ("msetnx", Condition::IfAbsent),
            _ => return MultiPut::parse_msetex(request),
        };
        if request.len().is_multiple_of(2) {
            let message = format!("wrong number of arguments for '{command}' command");
            return Err((Code::WrongArity, message));
        }
        Ok(MultiPut {
            pairs: pairs(request, 1..request.len()),
            condition,
            ttl: Ttl::Forever,
            command,
        })
    }

    /// Parses MSETEX.
    fn parse_msetex(request: Request<'a>) -> Result<MultiPut<'a>, Refusal> {
        let refuse = |message: &str| (Code::BadRequest, message.to_owned());
        let count = integer(request.arg(1)).filter(|count| *count > 0);
        let count = count.ok_or_else(|| refuse("invalid numkeys value"))?;
        let end = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(2)?.checked_add(2))
            .filter(|end| *end <= request.len());
        let end = end.ok_or_else(|| refuse("wrong number of key-value pairs"))?;
        let (mut condition, mut ttl) = (Condition::Always, TtlOption::Forever);
        let mut at = end;
        while let Some(option) = request.get(at) {
            at += 1;
            let option = option.to_ascii_uppercase();
            let new = match option.as_slice() {
                b"NX" => Condition::IfAbsent,
                b"XX" => Condition::IfPresent,
                word => {
                    let time = || request.get(at).ok_or_else(syntax_error);
                    if !ttl.parse_option(word, time)? {
                        return Err(syntax_error());
                    }
                    at += usize::from(word != b"KEEPTTL");
                    continue;
                }
            };
            if condition != Condition::Always && condition != new {
                return Err(syntax_error());
            }
            condition = new;
        }
        Ok(MultiPut {
            pairs: pairs(request, 2..end),
            condition,
            ttl: ttl.validate("msetex")?,
            command: "msetex",
        })
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        self.pairs.iter().map(|(key, _)| *key)
    }

    /// Returns whether the existence or absence of a key violates the condition.
    pub fn is_violated(&self, exists: bool) -> bool {
        match self.condition {
            Condition::IfAbsent => exists,
            Condition::IfPresent => !exists,
            _ => false,
        }
    }
}

/// Returns alternating keys and values as pairs.
fn pairs(request: Request<'_>, all: Range<usize>) -> Vec<(&[u8], &[u8])> {
    let pair = |at| (request.arg(at), request.arg(at + 1));
    all.step_by(2).map(pair).collect()
}

/// Executes MSET, MSETNX and MSETEX.
pub(in crate::resp) fn put(
    state: &mut ConnectionState,
    id: Id,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let puts = MultiPut::parse(id, request)?;
    let done = put_all(state, &puts)?;
    match id {
        Id::MSet => state.encoder().ok(),
        _ => state.encoder().count(u64::from(done)),
    }
    Ok(())
}

/// Puts all texts atomically, or none if the condition is not met. Returns whether it was met.
fn put_all(state: &mut ConnectionState, puts: &MultiPut<'_>) -> Result<bool, NoReply> {
    let tables = state.tables();
    if puts.pairs.len() > 1 {
        tables.read(|engine, _| refuse_computed_rows(engine, puts.keys()))?;
    }
    let is_met = puts.condition == Condition::Always
        || tables.read(|engine, now| -> Result<bool, NoReply> {
            for key in puts.keys() {
                if puts.is_violated(key_exists(engine, key, now)?) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
    if !is_met {
        return Ok(false);
    }
    // The memory limit may be reached before the last text.
    let mut done = Ok(());
    let in_transaction = tables.in_transaction();
    let mut all = |gate: &mut Gate| {
        for (before, (key, value)) in puts.pairs.iter().enumerate() {
            let written = tables.write(gate, |engine, now| {
                let deadline = puts.ttl.deadline(engine, key, now, puts.command)?;
                Ok(((), put_text(engine, key, value, deadline, now)?))
            });
            let written = written.map_err(|why| partial_write_error(before, puts.command, why));
            if written.is_err() {
                done = written;
                return;
            }
        }
    };
    if in_transaction {
        all(&mut state.gate);
    } else {
        tables.execute_transaction(&mut state.gate, all);
    }
    done.map(|()| true)
}

/// The options of RENAME, RENAMENX and COPY.
pub(super) struct CopyOptions {
    /// Replace an existing row.
    pub replaces: bool,
    /// Remove the source row.
    pub moves: bool,
}

impl CopyOptions {
    pub fn parse(id: Id, request: Request<'_>) -> Result<CopyOptions, Refusal> {
        let mut options = CopyOptions {
            replaces: id == Id::Rename,
            moves: id != Id::Copy,
        };
        let mut at = 3;
        while let Some(option) = request.get(at) {
            match option.to_ascii_uppercase().as_slice() {
                b"REPLACE" => options.replaces = true,
                b"DB" => {
                    at += 1;
                    match parse_integer(request.get(at).ok_or_else(syntax_error)?)? {
                        0 => {}
                        _ => {
                            let message = "DB index is out of range".to_owned();
                            return Err((Code::BadRequest, message));
                        }
                    }
                }
                _ => return Err(syntax_error()),
            }
            at += 1;
        }
        if !options.moves && request.arg(1) == request.arg(2) {
            let message = "source and destination objects are the same".to_owned();
            return Err((Code::BadRequest, message));
        }
        Ok(options)
    }

    /// # Errors
    /// The source of a RENAME does not exist.
    pub fn refuse_absent(&self) -> Result<(), Refusal> {
        if self.moves {
            Err((Code::BadRequest, "no such key".to_owned()))
        } else {
            Ok(())
        }
    }
}

/// Returns whether the command returns OK instead of a number.
pub(super) fn returns_ok(id: Id) -> bool {
    id == Id::Rename
}

pub(in crate::resp) fn copy(
    state: &mut ConnectionState,
    id: Id,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let done = copy_row(state, id, request)?;
    if returns_ok(id) {
        state.encoder().ok()
    } else {
        state.encoder().count(u64::from(done))
    }
    Ok(())
}

fn copy_row(state: &mut ConnectionState, id: Id, request: Request<'_>) -> Result<bool, NoReply> {
    let options = CopyOptions::parse(id, request)?;
    let (from, to) = (request.arg(1), request.arg(2));
    let tables = state.tables();
    let (mut value, mut has_target) = (None, false);
    let (source, at) = tables.read(|engine, now| -> Result<_, NoReply> {
        let source = find_row(engine, from, now);
        let keep = |bytes: &[u8]| value = Some(bytes.to_vec());
        get(engine, &source, now, keep)?;
        has_target = !options.replaces && key_exists(engine, to, now)?;
        let at = engine.expires_at(&source, now);
        Ok((source, at))
    })?;
    let Some(value) = value else {
        options.refuse_absent()?;
        return Ok(false);
    };
    if has_target || (options.moves && from == to) {
        return Ok(!has_target);
    }
    write(state, |engine, now| {
        if options.moves {
            refuse_computed_rows(engine, [from])?;
        }
        let put = match object_key(&source) {
            Some(_) => put_object(engine, to, &value, at, now)?,
            None => put_text(engine, to, &value, at, now)?,
        };
        let removed = if options.moves {
            engine.remove(&source, now).map_err(refusal)?.waits_for
        } else {
            None
        };
        Ok((true, put.max(removed)))
    })
}

/// Returns the time in a reply of PEXPIRETIME, if it is one.
pub(super) fn parse_time(reply: &[u8]) -> Option<i64> {
    reply_decoding::decode_integer(reply).filter(|time| *time >= 0)
}
