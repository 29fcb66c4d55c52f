//! Commands that change several rows atomically: MSET, MSETNX, MSETEX, RENAME, RENAMENX and COPY, if one core owns all
//! rows. For rows of several cores, see `coordinate/keys.rs`.

use std::ops::Range;

use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{integer, object_key};

use super::super::replies;
use super::super::state::State;
use super::condition::Condition;
use super::expire::{Lifetime, Times};
use super::partly::behind;
use super::rows::{get, is_there, put_object, put_text, refuse_computed_rows, write};
use super::{number, syntax};
use crate::tables::objects::row_of;
use crate::tables::{Gate, Refusal, Unanswered, refusal};

/// The texts that MSET, MSETNX or MSETEX puts atomically.
pub(super) struct Puts<'a> {
    /// Keys and values.
    pub pairs: Vec<(&'a [u8], &'a [u8])>,
    /// [`Condition::IfAbsent`]: none of the keys may exist. [`Condition::IfPresent`]: all must exist.
    pub condition: Condition<'a>,
    pub times: Times,
    /// The command's name, for errors.
    pub command: &'static str,
}

impl<'a> Puts<'a> {
    pub fn parse(id: Id, request: Request<'a>) -> Result<Puts<'a>, Refusal> {
        let (command, condition) = match id {
            Id::MSet => ("mset", Condition::Always),
            Id::MSetNx => ("msetnx", Condition::IfAbsent),
            _ => return Puts::with_options(request),
        };
        if request.len().is_multiple_of(2) {
            let message = format!("wrong number of arguments for '{command}' command");
            return Err((Code::WrongArity, message));
        }
        Ok(Puts {
            pairs: pairs(request, 1..request.len()),
            condition,
            times: Times::Forever,
            command,
        })
    }

    /// Parses MSETEX.
    fn with_options(request: Request<'a>) -> Result<Puts<'a>, Refusal> {
        let refuse = |message: &str| (Code::BadRequest, message.to_owned());
        let count = integer(request.arg(1)).filter(|count| *count > 0);
        let count = count.ok_or_else(|| refuse("invalid numkeys value"))?;
        let end = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(2)?.checked_add(2))
            .filter(|end| *end <= request.len());
        let end = end.ok_or_else(|| refuse("wrong number of key-value pairs"))?;
        let (mut condition, mut lifetime) = (Condition::Always, Lifetime::Forever);
        let mut at = end;
        while let Some(option) = request.get(at) {
            at += 1;
            let option = option.to_ascii_uppercase();
            let new = match option.as_slice() {
                b"NX" => Condition::IfAbsent,
                b"XX" => Condition::IfPresent,
                word => {
                    let time = || request.get(at).ok_or_else(syntax);
                    if !lifetime.take(word, time)? {
                        return Err(syntax());
                    }
                    at += usize::from(word != b"KEEPTTL");
                    continue;
                }
            };
            if condition != Condition::Always && condition != new {
                return Err(syntax());
            }
            condition = new;
        }
        Ok(Puts {
            pairs: pairs(request, 2..end),
            condition,
            times: lifetime.times("msetex")?,
            command: "msetex",
        })
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        self.pairs.iter().map(|(key, _)| *key)
    }

    /// Returns whether the existence or absence of a key violates the condition.
    pub fn is_against(&self, exists: bool) -> bool {
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
pub(super) fn put(state: &mut State, id: Id, request: Request<'_>) -> Result<(), Unanswered> {
    let puts = Puts::parse(id, request)?;
    let done = put_all(state, &puts)?;
    match id {
        Id::MSet => state.encoder().ok(),
        _ => state.encoder().count(u64::from(done)),
    }
    Ok(())
}

/// Puts all texts atomically, or none if the condition is not met. Returns whether it was met.
fn put_all(state: &mut State, puts: &Puts<'_>) -> Result<bool, Unanswered> {
    let tables = state.tables();
    if puts.pairs.len() > 1 {
        tables.read(|engine, _| refuse_computed_rows(engine, puts.keys()))?;
    }
    let is_met = puts.condition == Condition::Always
        || tables.read(|engine, now| -> Result<bool, Unanswered> {
            for key in puts.keys() {
                if puts.is_against(is_there(engine, key, now)?) {
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
                let deadline = puts.times.deadline(engine, key, now, puts.command)?;
                Ok(((), put_text(engine, key, value, deadline, now)?))
            });
            let written = written.map_err(|why| behind(before, puts.command, why));
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
pub(super) struct Copying {
    /// Replace an existing row.
    pub replaces: bool,
    /// Remove the source row.
    pub moves: bool,
}

impl Copying {
    pub fn parse(id: Id, request: Request<'_>) -> Result<Copying, Refusal> {
        let mut copying = Copying {
            replaces: id == Id::Rename,
            moves: id != Id::Copy,
        };
        let mut at = 3;
        while let Some(option) = request.get(at) {
            match option.to_ascii_uppercase().as_slice() {
                b"REPLACE" => copying.replaces = true,
                b"DB" => {
                    at += 1;
                    match number(request.get(at).ok_or_else(syntax)?)? {
                        0 => {}
                        _ => {
                            let message = "DB index is out of range".to_owned();
                            return Err((Code::BadRequest, message));
                        }
                    }
                }
                _ => return Err(syntax()),
            }
            at += 1;
        }
        if !copying.moves && request.arg(1) == request.arg(2) {
            let message = "source and destination objects are the same".to_owned();
            return Err((Code::BadRequest, message));
        }
        Ok(copying)
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
pub(super) fn is_answered_ok(id: Id) -> bool {
    id == Id::Rename
}

pub(super) fn copy(state: &mut State, id: Id, request: Request<'_>) -> Result<(), Unanswered> {
    let done = copy_row(state, id, request)?;
    if is_answered_ok(id) {
        state.encoder().ok()
    } else {
        state.encoder().count(u64::from(done))
    }
    Ok(())
}

fn copy_row(state: &mut State, id: Id, request: Request<'_>) -> Result<bool, Unanswered> {
    let copying = Copying::parse(id, request)?;
    let (from, to) = (request.arg(1), request.arg(2));
    let tables = state.tables();
    let (mut value, mut has_target) = (None, false);
    let (source, at) = tables.read(|engine, now| -> Result<_, Unanswered> {
        let source = row_of(engine, from, now);
        let keep = |bytes: &[u8]| value = Some(bytes.to_vec());
        get(engine, &source, now, keep)?;
        has_target = !copying.replaces && is_there(engine, to, now)?;
        let at = engine.expires_at(&source, now);
        Ok((source, at))
    })?;
    let Some(value) = value else {
        copying.refuse_absent()?;
        return Ok(false);
    };
    if has_target || (copying.moves && from == to) {
        return Ok(!has_target);
    }
    write(state, |engine, now| {
        if copying.moves {
            refuse_computed_rows(engine, [from])?;
        }
        let put = match object_key(&source) {
            Some(_) => put_object(engine, to, &value, at, now)?,
            None => put_text(engine, to, &value, at, now)?,
        };
        let removed = if copying.moves {
            engine.remove(&source, now).map_err(refusal)?.waits_for
        } else {
            None
        };
        Ok((true, put.max(removed)))
    })
}

/// Returns the time in a reply of PEXPIRETIME, if it is one.
pub(super) fn time_of(reply: &[u8]) -> Option<i64> {
    replies::number(reply).filter(|time| *time >= 0)
}
