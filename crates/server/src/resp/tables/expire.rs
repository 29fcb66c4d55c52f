//! EXPIRE, TTL and similar, and the options EX, PX, EXAT and PXAT of other commands.

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::objects::find_row;
use super::super::state::ConnectionState;
use super::reads::{RowLookup, get_lenient};
use super::rows::write;
use super::{parse_integer, syntax_error};
use crate::error::show;
use crate::tables::{NoReply, Refusal, refusal};

/// A time, its unit in milliseconds, and whether it is relative to now instead of 1970.
pub(in crate::resp) type ExpirySpec = (i64, i64, bool);

/// Returns the meaning of EX, PX, EXAT and PXAT.
pub(in crate::resp) fn expiry(option: &[u8], time: i64) -> ExpirySpec {
    let unit = if option[0] == b'P' { 1 } else { 1000 };
    (time, unit, !option.ends_with(b"AT"))
}

pub(super) fn ensure_positive(expiry: ExpirySpec, command: &str) -> Result<ExpirySpec, Refusal> {
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
    (time, unit, from_now): ExpirySpec,
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
pub(super) enum TtlOption<'a> {
    /// No such option: the text has no TTL.
    #[default]
    Forever,
    KeepTtl,
    /// The option and its unparsed time.
    Timed(&'static [u8], &'a [u8]),
}

/// A [`TtlOption`] whose time has been validated.
#[derive(Clone, Copy)]
pub(super) enum Ttl {
    Forever,
    Keep,
    Until(ExpirySpec),
}

impl<'a> TtlOption<'a> {
    /// Parses an option, in upper case, and returns whether it is one of these. As in Redis, the same option may be
    /// repeated.
    ///
    /// # Errors
    /// Another of these options was given before, or the time is missing.
    pub fn parse_option(
        &mut self,
        word: &[u8],
        time: impl FnOnce() -> Result<&'a [u8], Refusal>,
    ) -> Result<bool, Refusal> {
        const TIMED: [&[u8]; 4] = [b"EX", b"PX", b"EXAT", b"PXAT"];
        let new = match TIMED.iter().find(|option| **option == word) {
            _ if word == b"KEEPTTL" => TtlOption::KeepTtl,
            Some(option) => TtlOption::Timed(option, time()?),
            None => return Ok(false),
        };
        let is_same = match (*self, new) {
            (TtlOption::Forever, _) | (TtlOption::KeepTtl, TtlOption::KeepTtl) => true,
            (TtlOption::Timed(before, _), TtlOption::Timed(option, _)) => before == option,
            _ => false,
        };
        if !is_same {
            return Err(syntax_error());
        }
        *self = new;
        Ok(true)
    }

    /// # Errors
    /// The time is not a positive integer.
    pub fn validate(self, command: &str) -> Result<Ttl, Refusal> {
        Ok(match self {
            TtlOption::Forever => Ttl::Forever,
            TtlOption::KeepTtl => Ttl::Keep,
            TtlOption::Timed(option, time) => Ttl::Until(ensure_positive(
                expiry(option, parse_integer(time)?),
                command,
            )?),
        })
    }
}

impl Ttl {
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
            Ttl::Forever => None,
            Ttl::Keep => {
                let row = find_row(engine, key, now);
                engine.expires_at(&row, now)
            }
            Ttl::Until(expiry) => Some(deadline(expiry, now, command)?),
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
    fn allows(&self, before: Option<u64>, at: u64) -> bool {
        !(self.if_none && before.is_some()
            || self.if_any && before.is_none()
            || self.if_later && before.is_none_or(|before| at <= before)
            || self.if_sooner && before.is_some_and(|before| at >= before))
    }
}

/// Executes EXPIRE and similar. `unit` is in milliseconds; the time is relative to now if `from_now`, else to 1970.
pub(in crate::resp) fn expire(
    state: &mut ConnectionState,
    request: Request<'_>,
    command: &str,
    (unit, from_now): (i64, bool),
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let options = ExpireOptions::parse(request)?;
    let time = parse_integer(request.arg(2))?;
    let is_set = write(state, |engine, now| {
        let at = deadline((time, unit, from_now), now, command)?;
        let key = &*find_row(engine, key, now);
        if !options.allows(engine.expires_at(key, now), at) {
            return Ok((false, None));
        }
        if at <= now {
            let written = engine.remove(key, now).map_err(refusal)?;
            return Ok((written.rows > 0, written.waits_for));
        }
        Ok((engine.expire(key, Some(at), now).map_err(refusal)?, None))
    })?;
    state.encoder().count(u64::from(is_set));
    Ok(())
}

/// Executes TTL and PTTL. `unit` is the unit of the reply, in milliseconds.
pub(in crate::resp) fn ttl(
    state: &mut ConnectionState,
    key: &[u8],
    unit: u64,
) -> Result<(), NoReply> {
    // Rounded as in Redis.
    encode_expiry(state, key, |at, now| {
        (at.saturating_sub(now) + unit / 2) / unit
    })
}

pub(in crate::resp) fn expire_time(
    state: &mut ConnectionState,
    key: &[u8],
    unit: u64,
) -> Result<(), NoReply> {
    encode_expiry(state, key, |at, _| (at + unit / 2) / unit)
}

/// Appends a row's expiry time as formatted by `format`, -1 if the row has no TTL, or -2 if it does not exist.
fn encode_expiry(
    state: &mut ConnectionState,
    key: &[u8],
    format: impl FnOnce(u64, u64) -> u64,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let time = tables.read(|engine, now| -> Result<i64, NoReply> {
        let key = &*find_row(engine, key, now);
        if let Some(at) = engine.expires_at(key, now) {
            return Ok(format(at, now) as i64);
        }
        Ok(match get_lenient(engine, key, now, |_| {})? {
            RowLookup::Present => -1,
            RowLookup::Absent | RowLookup::NoValue => -2,
        })
    })?;
    state.encoder().integer(time);
    Ok(())
}

pub(in crate::resp) fn persist(state: &mut ConnectionState, key: &[u8]) -> Result<(), NoReply> {
    let persisted = write(state, |engine, now| {
        let key = &*find_row(engine, key, now);
        let had_ttl = engine.expires_at(key, now).is_some();
        if had_ttl {
            engine.expire(key, None, now).map_err(refusal)?;
        }
        Ok((had_ttl, None))
    })?;
    state.encoder().count(u64::from(persisted));
    Ok(())
}
