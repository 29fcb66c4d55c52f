//! Commands on the TTL of fields: HEXPIRE and similar, and HGETDEL and HGETEX, which also take a list of fields.

use std::ops::Range;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::hash::ExpiryRule;
use larder_types::integer;

use super::super::state::ConnectionState;
use super::super::tables::{deadline, expiry};
use super::access::read_hash;
use super::hash::{change_hash, find_all, syntax_error};
use crate::tables::{NoReply, Refusal};

fn bad_request(message: String) -> Refusal {
    (Code::BadRequest, message)
}

/// Parses `FIELDS numfields field ...`, from the argument at `at` to the end.
fn parse_names(request: Request<'_>, at: usize) -> Result<Range<usize>, Refusal> {
    let is_present = request
        .get(at)
        .is_some_and(|word| word.eq_ignore_ascii_case(b"FIELDS"));
    if !is_present {
        let message = "Mandatory argument FIELDS is missing or not at the right position";
        return Err(bad_request(message.to_owned()));
    }
    parse_counted(request, at + 1, 1)
}

/// Parses `numfields` at `at`, which must be followed by that many groups of `width` arguments. Returns their
/// positions.
fn parse_counted(request: Request<'_>, at: usize, width: usize) -> Result<Range<usize>, Refusal> {
    let count = request.get(at).and_then(integer);
    let count = count.filter(|count| *count > 0);
    let count = count.ok_or_else(|| {
        let message = "Parameter `numFields` should be greater than 0";
        bad_request(message.to_owned())
    })?;
    let (first, end) = (at + 1, request.len());
    let expected = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_mul(width));
    if expected == Some(end.saturating_sub(first)) {
        Ok(first..end)
    } else {
        let message = "The `numfields` parameter must match the number of arguments";
        Err(bad_request(message.to_owned()))
    }
}

fn write_codes(state: &mut ConnectionState, codes: &[i64]) {
    let mut encoder = state.encoder();
    encoder.array(codes.len());
    codes.iter().for_each(|code| encoder.integer(*code));
}

/// Executes HEXPIRE and similar. `unit` is in milliseconds; the time is relative to now if `from_now`, else to 1970.
pub fn expire(
    state: &mut ConnectionState,
    request: Request<'_>,
    command: &str,
    (unit, from_now): (i64, bool),
) -> Result<(), NoReply> {
    let time = integer(request.arg(2));
    let time =
        time.ok_or_else(|| bad_request("value is not an integer or out of range".to_owned()))?;
    if time < 0 {
        return Err(bad_request("invalid expire time, must be >= 0".to_owned()).into());
    }
    let rule = request.arg(3).to_ascii_uppercase();
    let (rule, at) = match rule.as_slice() {
        b"NX" => (ExpiryRule::NoExpiry, 4),
        b"XX" => (ExpiryRule::HasExpiry, 4),
        b"GT" => (ExpiryRule::Later, 4),
        b"LT" => (ExpiryRule::Earlier, 4),
        _ => (ExpiryRule::Always, 3),
    };
    let names = parse_names(request, at)?;
    let all = change_hash(state, request.arg(1), |hash, now| {
        let at = deadline((time, unit, from_now), now, command)?;
        let names = names.map(|at| request.arg(at));
        let codes = hash.expire_fields(names, at, rule, now);
        let is_changed = codes.iter().any(|code| *code > 0);
        Ok((codes, is_changed))
    })?;
    write_codes(state, &all);
    Ok(())
}

pub fn persist(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let names = parse_names(request, 2)?;
    let all = change_hash(state, request.arg(1), |hash, _| {
        let places = hash.positions(names.map(|at| request.arg(at)));
        let persist = |place| hash.persist_at(place);
        let codes: Vec<i64> = places.into_iter().map(persist).collect();
        let is_changed = codes.contains(&1);
        Ok((codes, is_changed))
    })?;
    write_codes(state, &all);
    Ok(())
}

/// Executes HTTL and similar: returns -2 for an absent field, -1 for a field without TTL, else the result of `shown`
/// for the expiry time and now.
pub fn read_times(
    state: &mut ConnectionState,
    request: Request<'_>,
    convert: impl Fn(u64, u64) -> u64,
) -> Result<(), NoReply> {
    let names = parse_names(request, 2)?;
    read_hash(state, request.arg(1), |hash, now, to| {
        let found = find_all(hash, names.map(|at| request.arg(at)), now);
        let mut encoder = to.encoder();
        encoder.array(found.len());
        for field in found {
            encoder.integer(match field {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(at))) => convert(at, now) as i64,
            });
        }
        Ok(())
    })
}

/// Appends values that a change has collected.
fn write_values(state: &mut ConnectionState, values: &[Option<Vec<u8>>]) {
    let mut encoder = state.encoder();
    encoder.array(values.len());
    for value in values {
        match value {
            Some(value) => encoder.bulk(value),
            None => encoder.null(),
        }
    }
}

/// Returns a check that rejects a change whose reply would be too long, before it is applied.
fn check_reply_size(
    state: &ConnectionState,
) -> impl Fn(&[Option<Vec<u8>>]) -> Result<(), Refusal> + use<> {
    let (limits, answered) = (state.core.clients.limits, state.output.len());
    move |values| {
        let bytes = values.iter().flatten().map(|value| value.len() + 16).sum();
        if limits.admits(answered, bytes) {
            Ok(())
        } else {
            Err(limits.reply_too_long())
        }
    }
}

pub fn get_del(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let names = parse_names(request, 2)?;
    let check_reply_size = check_reply_size(state);
    let values = change_hash(state, request.arg(1), |hash, _| {
        let values = hash.take_all(names.map(|at| request.arg(at)));
        check_reply_size(&values)?;
        let is_changed = values.iter().any(Option::is_some);
        Ok((values, is_changed))
    })?;
    write_values(state, &values);
    Ok(())
}

pub fn get_ex(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let option = request.arg(2).to_ascii_uppercase();
    let number = |at| {
        let number = request.get(at).and_then(integer);
        number.ok_or_else(|| bad_request("value is not an integer or out of range".to_owned()))
    };
    let (time, persists, at) = match option.as_slice() {
        b"PERSIST" => (None, true, 3),
        b"EX" | b"PX" | b"EXAT" | b"PXAT" => match number(3)? {
            time @ 1.. => (Some(expiry(&option, time)), false, 4),
            _ => {
                return Err(
                    bad_request("invalid expire time in 'hgetex' command".to_owned()).into(),
                );
            }
        },
        b"FIELDS" => (None, false, 2),
        _ => return Err(syntax_error().into()),
    };
    let names = parse_names(request, at)?;
    let check_reply_size = check_reply_size(state);
    let values = change_hash(state, request.arg(1), |hash, now| {
        let names = || names.clone().map(|at| request.arg(at));
        let places = hash.positions(names());
        let value = |place: &Option<usize>| place.map(|place| hash.fields[place].value.clone());
        let values: Vec<Option<Vec<u8>>> = places.iter().map(value).collect();
        check_reply_size(&values)?;
        let codes = match time {
            Some(time) => {
                let at = deadline(time, now, "hgetex")?;
                hash.expire_fields(names(), at, ExpiryRule::Always, now)
            }
            None if persists => {
                let persist = |place| hash.persist_at(place);
                places.into_iter().map(persist).collect()
            }
            None => Vec::new(),
        };
        Ok((values, codes.iter().any(|code| *code > 0)))
    })?;
    write_values(state, &values);
    Ok(())
}

/// The precondition of HSETEX on the existence of the fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldPrecondition {
    IfNoneExists,
    IfAllExist,
}

/// Executes HSETEX.
pub fn set_ex(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let options = SetEx::parse(request)?;
    let is_set = change_hash(state, request.arg(1), |hash, now| {
        let at = match options.time {
            Some(time) => Some(deadline(time, now, "hsetex")?),
            None => None,
        };
        let names = options.pairs.iter().map(|(name, _)| *name);
        let places = hash.positions(names.clone());
        let holds = match options.only {
            None => true,
            Some(FieldPrecondition::IfNoneExists) => places.iter().all(Option::is_none),
            Some(FieldPrecondition::IfAllExist) => places.iter().all(Option::is_some),
        };
        if !holds {
            return Ok((false, false));
        }
        let places: Vec<usize> = places.into_iter().flatten().collect();
        let time = |place: &usize| hash.fields[*place].expires_at_ms;
        let times: Vec<Option<u64>> = places.iter().map(time).collect();
        // Existing fields keep their positions.
        hash.set_all(options.pairs.iter().copied());
        if options.keeps_ttl {
            for (place, time) in places.into_iter().zip(times) {
                hash.fields[place].expires_at_ms = time;
            }
        }
        if let Some(at) = at {
            hash.expire_fields(names, at, ExpiryRule::Always, now);
        }
        Ok((true, true))
    })?;
    state.encoder().count(u64::from(is_set));
    Ok(())
}

/// The arguments of HSETEX.
struct SetEx<'a> {
    only: Option<FieldPrecondition>,
    time: Option<(i64, i64, bool)>,
    keeps_ttl: bool,
    pairs: Vec<Pair<'a>>,
}

/// A field's name and value.
type Pair<'a> = (&'a [u8], &'a [u8]);

impl<'a> SetEx<'a> {
    fn parse(request: Request<'a>) -> Result<SetEx<'a>, Refusal> {
        let mut options = SetEx {
            only: None,
            time: None,
            keeps_ttl: false,
            pairs: Vec::new(),
        };
        let mut at = 2;
        while let Some(option) = request.get(at) {
            at += 1;
            let option = option.to_ascii_uppercase();
            match option.as_slice() {
                b"FNX" | b"FXX" if options.only.is_some() => {
                    let message = "Only one of FXX or FNX arguments can be specified";
                    return Err(bad_request(message.to_owned()));
                }
                b"FNX" => options.only = Some(FieldPrecondition::IfNoneExists),
                b"FXX" => options.only = Some(FieldPrecondition::IfAllExist),
                b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"KEEPTTL"
                    if options.time.is_some() || options.keeps_ttl =>
                {
                    let message =
                        "Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
                    return Err(bad_request(message.to_owned()));
                }
                b"KEEPTTL" => options.keeps_ttl = true,
                b"EX" | b"PX" | b"EXAT" | b"PXAT" => {
                    let time = request.get(at).and_then(integer);
                    let time = time.ok_or_else(|| {
                        bad_request("value is not an integer or out of range".to_owned())
                    })?;
                    if time <= 0 {
                        return Err(bad_request(
                            "invalid expire time in 'hsetex' command".to_owned(),
                        ));
                    }
                    options.time = Some(expiry(&option, time));
                    at += 1;
                }
                b"FIELDS" => {
                    let pairs = parse_counted(request, at, 2)?.step_by(2);
                    let pair = |at| (request.arg(at), request.arg(at + 1));
                    options.pairs = pairs.map(pair).collect();
                    return Ok(options);
                }
                _ => {
                    let shown = crate::error::show(&option);
                    return Err(bad_request(format!("unknown argument: {shown}")));
                }
            }
        }
        Err(bad_request("missing FIELDS argument".to_owned()))
    }
}
