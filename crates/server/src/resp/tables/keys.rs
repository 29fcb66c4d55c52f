//! Commands that change several rows as one: MSET, MSETNX, MSETEX, RENAME, RENAMENX and COPY, where one core has them all. Where
//! several have, see `coordinate/keys.rs`.

use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{integer, object_key, text_row};

use super::super::replies;
use super::super::state::State;
use super::condition::Condition;
use super::expire::{Lifetime, Times};
use super::partly::behind;
use super::rows::{get, put_object, put_text, refuse_computed_rows, write};
use super::{number, syntax};
use crate::tables::objects::{has_object, row_of};
use crate::tables::{Gate, Refusal, Unanswered, refusal};

/// The positions of the keys of MSET and MSETNX; their values follow each.
pub(super) fn pairs(request: Request<'_>, command: &str) -> Result<Vec<usize>, Refusal> {
    if request.len().is_multiple_of(2) {
        let message = format!("wrong number of arguments for '{command}' command");
        return Err((Code::WrongArity, message));
    }
    Ok((1..request.len()).step_by(2).collect())
}

/// Texts that MSET, MSETNX or MSETEX puts in one step.
pub(super) struct Puts<'a> {
    pub pairs: Vec<(&'a [u8], &'a [u8])>,
    /// [`Condition::IfAbsent`]: if none of the keys exists; [`Condition::IfPresent`]: if all do.
    pub condition: Condition<'a>,
    pub times: Times,
}

impl<'a> Puts<'a> {
    /// Those of MSET, or with a condition of MSETNX.
    pub fn of(
        request: Request<'a>,
        command: &str,
        condition: Condition<'a>,
    ) -> Result<Puts<'a>, Refusal> {
        let pairs = pairs(request, command)?.into_iter();
        Ok(Puts {
            pairs: pairs
                .map(|at| (request.arg(at), request.arg(at + 1)))
                .collect(),
            condition,
            times: Times::Forever,
        })
    }

    /// Those of MSETEX.
    pub fn with_options(request: Request<'a>) -> Result<Puts<'a>, Refusal> {
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
            pairs: (2..end)
                .step_by(2)
                .map(|at| (request.arg(at), request.arg(at + 1)))
                .collect(),
            condition,
            times: lifetime.times("msetex")?,
        })
    }
}

pub(super) fn mset(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let puts = Puts::of(request, "mset", Condition::Always)?;
    put_all(state, "mset", &puts)?;
    state.encoder().ok();
    Ok(())
}

pub(super) fn msetnx(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let puts = Puts::of(request, "msetnx", Condition::IfAbsent)?;
    let put = put_all(state, "msetnx", &puts)?;
    state.encoder().count(u64::from(put));
    Ok(())
}

pub(super) fn msetex(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let puts = Puts::with_options(request)?;
    let put = put_all(state, "msetex", &puts)?;
    state.encoder().count(u64::from(put));
    Ok(())
}

/// Puts texts in one step, or none of them if the condition does not hold; says whether it did.
fn put_all(state: &mut State, command: &str, puts: &Puts<'_>) -> Result<bool, Unanswered> {
    let tables = state.tables();
    if puts.condition != Condition::Always {
        let is_absent = puts.condition == Condition::IfAbsent;
        let is_met = tables.read(|engine, now| {
            let mut keys = puts.pairs.iter().map(|(key, _)| *key);
            keys.try_fold(true, |all, key| -> Result<bool, Unanswered> {
                let is_there =
                    has_object(engine, key, now) || get(engine, &text_row(key), now, |_| {})?;
                Ok(all && is_there != is_absent)
            })
        })?;
        if !is_met {
            return Ok(false);
        }
    }
    let keys = || puts.pairs.iter().map(|(key, _)| *key);
    tables.read(|engine, now| refuse_computed_rows(engine, keys(), now))?;
    // Memory may end in the middle.
    let mut done = Ok(());
    let in_transaction = tables.in_transaction();
    let mut all = |gate: &mut Gate| {
        for (before, (key, value)) in puts.pairs.iter().enumerate() {
            let written = tables.write(gate, |engine, now| {
                let deadline = puts.times.deadline(engine, key, now, command)?;
                Ok(((), put_text(engine, key, value, deadline, now)?))
            });
            let written = written.map_err(|why| behind(before, command, why));
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

/// What RENAME, RENAMENX and COPY were told.
pub(super) struct Copying {
    /// A row that is there already goes.
    pub replaces: bool,
    /// The row goes from where it was.
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
    /// RENAME of what is not there.
    pub fn refuse_absent(&self) -> Result<(), Refusal> {
        match self.moves {
            true => Err((Code::BadRequest, "no such key".to_owned())),
            false => Ok(()),
        }
    }
}

/// How RENAME, RENAMENX and COPY are answered.
pub(super) fn is_answered_ok(id: Id) -> bool {
    id == Id::Rename
}

pub(super) fn copy(state: &mut State, id: Id, request: Request<'_>) -> Result<(), Unanswered> {
    let done = copy_row(state, id, request)?;
    match is_answered_ok(id) {
        true => state.encoder().ok(),
        false => state.encoder().count(u64::from(done)),
    }
    Ok(())
}

fn copy_row(state: &mut State, id: Id, request: Request<'_>) -> Result<bool, Unanswered> {
    let copying = Copying::parse(id, request)?;
    let (from, to) = (request.arg(1), request.arg(2));
    let tables = state.tables();
    let (mut value, mut is_there) = (None, false);
    let (source, at) = tables.read(|engine, now| -> Result<_, Unanswered> {
        let source = row_of(engine, from, now);
        let keep = |bytes: &[u8]| value = Some(bytes.to_vec());
        get(engine, &source, now, keep)?;
        is_there = !copying.replaces
            && (has_object(engine, to, now) || get(engine, &text_row(to), now, |_| {})?);
        let at = engine.expires_at(&source, now);
        Ok((source, at))
    })?;
    let Some(value) = value else {
        copying.refuse_absent()?;
        return Ok(false);
    };
    if is_there || (copying.moves && from == to) {
        return Ok(!is_there);
    }
    write(state, |engine, now| {
        if copying.moves {
            refuse_computed_rows(engine, [from], now)?;
        }
        let put = match object_key(&source) {
            Some(_) => put_object(engine, to, &value, at, now)?,
            None => put_text(engine, to, &value, at, now)?,
        };
        let removed = match copying.moves {
            true => engine.remove(&source, now).map_err(refusal)?.waits_for,
            false => None,
        };
        Ok((true, put.max(removed)))
    })
}

/// The time in the reply to PEXPIRETIME.
pub(super) fn time_of(reply: &[u8]) -> Option<i64> {
    replies::number(reply).filter(|time| *time >= 0)
}
