//! SMEMBERS, SCARD, SISMEMBER and SMISMEMBER, read-only, on the rows whose keys begin with a key.
//!
//! The members of `team|red` are the texts after `team|red|`. Their separator is the byte that ends the table's name:
//! `|` or `:`.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::is_plain;

use super::super::pending::Work;
use super::super::state::ConnectionState;
use super::range::{self, Form, RangeQuery, successor};
use super::rows::get;
use crate::error::show;
use crate::tables::{NoReply, Refusal, require_done};

/// Returns the prefix of the keys of a set's rows.
fn prefix(key: &[u8]) -> Result<Vec<u8>, Refusal> {
    let separator = key.iter().find(|byte| matches!(byte, b'|' | b':'));
    let separator = separator.filter(|_| !is_plain(key)).ok_or_else(|| {
        let message = format!(
            "{} is not the key of a set: the members of team|red are the rows team|red|ann and team|red|bob",
            show(key)
        );
        (Code::BadRequest, message)
    })?;
    Ok([key, &[*separator]].concat())
}

pub(in crate::resp) fn read_all(
    state: &mut ConnectionState,
    request: Request<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let prefix = prefix(request.arg(1))?;
    let query = RangeQuery {
        form: Form::Members(prefix.len()),
        hi: successor(&prefix).into(),
        lo: prefix.into(),
        left: u64::MAX,
        reverse: false,
    };
    range::read(state, &query, atomic)
}

pub(in crate::resp) fn count(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let prefix = prefix(request.arg(1))?;
    let tables = state.tables();
    let counted = tables.read(|engine, now| engine.count(&prefix, &successor(&prefix), now));
    let count = require_done(counted)?;
    state.encoder().count(count);
    Ok(())
}

/// Appends whether the members exist: as an integer, or for `as_array` as an array.
pub(in crate::resp) fn contains(
    state: &mut ConnectionState,
    request: Request<'_>,
    as_array: bool,
) -> Result<(), NoReply> {
    let prefix = prefix(request.arg(1))?;
    let tables = state.tables();
    let found = tables.read(|engine, now| -> Result<Vec<bool>, NoReply> {
        let members = request.args().skip(2);
        let rows = members.map(|member| [&prefix[..], member].concat());
        rows.map(|row| get(engine, &row, now, |_| {})).collect()
    })?;
    let mut encoder = state.encoder();
    if as_array {
        encoder.array(found.len());
    }
    found
        .iter()
        .for_each(|is_member| encoder.count(u64::from(*is_member)));
    Ok(())
}
