//! EXPIRE, TTL and similar, and the options EX, PX, EXAT and PXAT of other commands.

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::state::State;
use super::reads::{Found, get_among};
use super::rows::write;
use super::{number, syntax};
use crate::error::show;
use crate::tables::objects::row_of;
use crate::tables::{Refusal, Unanswered, refusal};

/// A time, its unit in milliseconds, and whether it is relative to now instead of 1970.
pub(in crate::resp) type Expiry = (i64, i64, bool);

/// Returns the meaning of EX, PX, EXAT and PXAT.
pub(in crate::resp) fn expiry(option: &[u8], time: i64) -> Expiry {
    let unit = if option[0] == b'P' { 1 } else { 1000 };
    (time, unit, !option.ends_with(b"AT"))
}

pub(super) fn positive(expiry: Expiry, command: &str) -> Result<Expiry, Refusal> {
    match expiry.0 {
        1.. => Ok(expiry),
        _ => Err(invalid_expire(command)),
    }
}

fn invalid_expire(command: &str) -> Refusal {
    let message = format!("invalid expire time in '{command}' command");
    (Code::BadRequest, message)
}

/// Returns the expiry time in milliseconds since 1970.
///
/// # Errors
/// The time overflows.
pub(in crate::resp) fn deadline(
    (time, unit, from_now): Expiry,
    now: u64,
    command: &str,
) -> Result<u64, Refusal> {
    let base = if from_now { now as i64 } else { 0 };
    let at = time
        .checked_mul(unit)
        .and_then(|time| time.checked_add(base));
    let at = at.ok_or_else(|| invalid_expire(command))?;
    Ok(u64::try_from(at).unwrap_or(0))
}

/// The option KEEPTTL, EX, PX, EXAT or PXAT of a command that writes a text.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime<'a> {
    /// No such option: the text has no TTL.
    #[default]
    Forever,
    Kept,
    /// The option and its unparsed time.
    Timed(&'static [u8], &'a [u8]),
}

/// A [`Lifetime`] whose time has been validated.
#[derive(Clone, Copy)]
pub(super) enum Times {
    Forever,
    Kept,
    Until(Expiry),
}

impl<'a> Lifetime<'a> {
    /// Parses an option, in upper case, and returns whether it is one of these. As in Redis, the same option may be
    /// repeated.
    ///
    /// # Errors
    /// Another of these options was given before, or the time is missing.
    pub fn take(
        &mut self,
        word: &[u8],
        time: impl FnOnce() -> Result<&'a [u8], Refusal>,
    ) -> Result<bool, Refusal> {
        const TIMED: [&[u8]; 4] = [b"EX", b"PX", b"EXAT", b"PXAT"];
        let new = match TIMED.iter().find(|option| **option == word) {
            _ if word == b"KEEPTTL" => Lifetime::Kept,
            Some(option) => Lifetime::Timed(option, time()?),
            None => return Ok(false),
        };
        let is_same = match (*self, new) {
            (Lifetime::Forever, _) | (Lifetime::Kept, Lifetime::Kept) => true,
            (Lifetime::Timed(before, _), Lifetime::Timed(option, _)) => before == option,
            _ => false,
        };
        if !is_same {
            return Err(syntax());
        }
        *self = new;
        Ok(true)
    }

    /// # Errors
    /// The time is not a positive integer.
    pub fn times(self, command: &str) -> Result<Times, Refusal> {
        Ok(match self {
            Lifetime::Forever => Times::Forever,
            Lifetime::Kept => Times::Kept,
            Lifetime::Timed(option, time) => {
                Times::Until(positive(expiry(option, number(time)?), command)?)
            }
        })
    }
}

impl Times {
    /// Returns the expiry time of a text that is put now. With KEEPTTL, it is that of the key's current value.
    ///
    /// # Errors
    /// The time is out of range.
    pub fn deadline(
        self,
        engine: &mut Engine,
        key: &[u8],
        now: u64,
        command: &str,
    ) -> Result<Option<u64>, Refusal> {
        Ok(match self {
            Times::Forever => None,
            Times::Kept => {
                let row = row_of(engine, key, now);
                engine.expires_at(&row, now)
            }
            Times::Until(expiry) => Some(deadline(expiry, now, command)?),
        })
    }
}

/// The options of EXPIRE and similar that make it a no-op.
#[derive(Default)]
struct ExpireOptions {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireOptions {
    fn parse(request: Request<'_>) -> Result<ExpireOptions, Refusal> {
        let mut options = ExpireOptions::default();
        for option in request.args().skip(3) {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => options.if_none = true,
                b"XX" => options.if_any = true,
                b"GT" => options.if_later = true,
                b"LT" => options.if_sooner = true,
                _ => {
                    let message = format!("Unsupported option {}", show(option));
                    return Err((Code::BadRequest, message));
                }
            }
        }
        let with = options.if_any || options.if_later || options.if_sooner;
        let refused = match () {
            () if options.if_none && with => "NX and XX, GT or LT",
            () if options.if_later && options.if_sooner => "GT and LT",
            () => return Ok(options),
        };
        let message = format!("{refused} options at the same time are not compatible");
        Err((Code::BadRequest, message))
    }

    /// Returns whether the expiry time `before` of a row may be changed to `at`.
    fn hold(&self, before: Option<u64>, at: u64) -> bool {
        !(self.if_none && before.is_some()
            || self.if_any && before.is_none()
            || self.if_later && before.is_none_or(|before| at <= before)
            || self.if_sooner && before.is_some_and(|before| at >= before))
    }
}

/// Executes EXPIRE and similar. `unit` is in milliseconds; the time is relative to now if `from_now`, else to 1970.
pub(super) fn expire(
    state: &mut State,
    request: Request<'_>,
    command: &str,
    (unit, from_now): (i64, bool),
) -> Result<(), Unanswered> {
    let key = request.arg(1);
    let options = ExpireOptions::parse(request)?;
    let time = number(request.arg(2))?;
    let set = write(state, |engine, now| {
        let at = deadline((time, unit, from_now), now, command)?;
        let key = &*row_of(engine, key, now);
        if !options.hold(engine.expires_at(key, now), at) {
            return Ok((false, None));
        }
        if at <= now {
            let written = engine.remove(key, now).map_err(refusal)?;
            return Ok((written.rows > 0, written.waits_for));
        }
        Ok((engine.expire(key, Some(at), now).map_err(refusal)?, None))
    })?;
    state.encoder().count(u64::from(set));
    Ok(())
}

/// Executes TTL and PTTL. `unit` is the unit of the reply, in milliseconds.
pub(super) fn ttl(state: &mut State, key: &[u8], unit: u64) -> Result<(), Unanswered> {
    // Rounded as in Redis.
    answer_time(state, key, |at, now| {
        (at.saturating_sub(now) + unit / 2) / unit
    })
}

pub(super) fn expire_time(state: &mut State, key: &[u8], unit: u64) -> Result<(), Unanswered> {
    answer_time(state, key, |at, _| (at + unit / 2) / unit)
}

/// Appends a row's expiry time as formatted by `shown`, -1 if the row has no TTL, or -2 if it does not exist.
fn answer_time(
    state: &mut State,
    key: &[u8],
    shown: impl FnOnce(u64, u64) -> u64,
) -> Result<(), Unanswered> {
    let tables = state.tables();
    let time = tables.read(|engine, now| -> Result<i64, Unanswered> {
        let key = &*row_of(engine, key, now);
        if let Some(at) = engine.expires_at(key, now) {
            return Ok(shown(at, now) as i64);
        }
        Ok(match get_among(engine, key, now, |_| {})? {
            Found::Row => -1,
            Found::Nothing | Found::NoValue => -2,
        })
    })?;
    state.encoder().integer(time);
    Ok(())
}

pub(super) fn persist(state: &mut State, key: &[u8]) -> Result<(), Unanswered> {
    let persisted = write(state, |engine, now| {
        let key = &*row_of(engine, key, now);
        let was = engine.expires_at(key, now).is_some();
        if was {
            engine.expire(key, None, now).map_err(refusal)?;
        }
        Ok((was, None))
    })?;
    state.encoder().count(u64::from(persisted));
    Ok(())
}
