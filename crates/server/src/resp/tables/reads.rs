//! GET, MGET, EXISTS, STRLEN, GETRANGE, TYPE and MEMORY USAGE of rows. `resp/reads` has those of stores' records.

use larder_join::{Engine, Error};
use larder_protocol::commands::Command;
use larder_protocol::resp::Encoder;
use larder_space::object::ObjectView;
use larder_types::with_text_row;

use super::super::reads::{KeyQuery, range_of};
use super::super::state::State;
use super::condition::digest;
use super::rows::get;
use crate::tables::objects::{Kind, read_object, wrong_type};
use crate::tables::{Refusal, Unanswered, complete};

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Row,
    Nothing,
    /// A computed row whose values cannot be summed.
    NoValue,
}

/// As [`get`], for reads of several rows and reads that ignore the value. A row whose values cannot be summed has no
/// value and counts as absent.
pub(super) fn get_among(
    engine: &mut Engine,
    row: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<Found, Unanswered> {
    let mut found = Found::Nothing;
    let outcome = engine.get(row, now, &mut |value| {
        found = Found::Row;
        each(value);
    });
    match outcome {
        Err(Error::NotANumber { .. }) => Ok(Found::NoValue),
        outcome => complete(outcome).map(|()| found),
    }
}

/// Returns the encoding that Redis would use for an object.
fn encoding(object: &[u8]) -> &'static str {
    /// Redis encodes hashes with more fields, or with longer names or values, as hash tables.
    const LISTPACK_FIELDS_MAX: usize = 128;
    const LISTPACK_BYTES_MAX: usize = 64;
    let Ok(ObjectView::Hash(hash)) = ObjectView::new(object) else {
        return "raw";
    };
    let mut fields = hash.fields_at(0);
    let is_short = |bytes: &[u8]| bytes.len() <= LISTPACK_BYTES_MAX;
    if hash.count() <= LISTPACK_FIELDS_MAX
        && fields.all(|(name, value, _)| is_short(name) && is_short(value))
    {
        "listpack"
    } else {
        "hashtable"
    }
}

/// Appends the reply to a query of a key that holds an object.
fn answer_object(
    query: KeyQuery,
    key: &[u8],
    object: &[u8],
    mut encoder: Encoder<'_>,
) -> Result<(), Refusal> {
    match query {
        KeyQuery::Exists | KeyQuery::Ttl => {}
        KeyQuery::Type => encoder.simple(Kind::of_object(object).name()),
        KeyQuery::MemoryUsage => encoder.count((key.len() + object.len()) as u64),
        KeyQuery::MGet => encoder.null(),
        KeyQuery::Object(query) => query.answer(&mut encoder, || encoding(object)),
        KeyQuery::Digest | KeyQuery::Get | KeyQuery::StrLen | KeyQuery::GetRange { .. } => {
            return Err(wrong_type());
        }
    }
    Ok(())
}

pub(super) fn read(state: &mut State, command: Command<'_>) -> Result<(), Unanswered> {
    let Some(query) = KeyQuery::of(command)? else {
        return Ok(());
    };
    let keys = command.keys();
    let tables = state.tables();
    let mark = state.output.mark();
    let asked = keys.len() as u64;
    let limits = state.core.clients.limits;
    let (output, proto) = (&mut state.output, state.proto);
    let absent = tables.read(|engine, now| -> Result<u64, Unanswered> {
        if query == KeyQuery::MGet {
            output.encoder(proto).array(keys.len());
        }
        let mut absent = 0;
        for key in keys.clone() {
            if output.len() > limits.answer() {
                return Err(limits.too_long().into());
            }
            let mut is_too_long = false;
            let each = |value: &[u8]| {
                let answered = output.len();
                let mut encoder = output.encoder(proto);
                let value = match query {
                    KeyQuery::Exists => return,
                    KeyQuery::StrLen => return encoder.count(value.len() as u64),
                    KeyQuery::MemoryUsage => {
                        return encoder.count((key.len() + value.len()) as u64);
                    }
                    KeyQuery::Object(query) => return query.answer_text(value, &mut encoder),
                    KeyQuery::Digest => return encoder.text(&digest(value)),
                    KeyQuery::Type => return encoder.simple("string"),
                    KeyQuery::GetRange { start, end } => &value[range_of(start, end, value.len())],
                    KeyQuery::Get | KeyQuery::MGet | KeyQuery::Ttl => value,
                };
                if limits.admits(answered, value.len()) {
                    encoder.bulk(value)
                } else {
                    is_too_long = true
                }
            };
            let found = with_text_row(key, |row| match query {
                KeyQuery::MGet | KeyQuery::Exists | KeyQuery::Type => {
                    get_among(engine, row, now, each)
                }
                _ => get(engine, row, now, each)
                    .map(|is_there| if is_there { Found::Row } else { Found::Nothing }),
            })?;
            if is_too_long {
                return Err(limits.too_long().into());
            }
            if found == Found::Nothing
                && read_object(engine, key, now, |object| {
                    answer_object(query, key, object, output.encoder(proto))
                })
                .transpose()?
                .is_some()
            {
                continue;
            }
            if found != Found::Row {
                absent += 1;
                if matches!(query, KeyQuery::Get | KeyQuery::MGet)
                    && found == Found::Nothing
                    && let Some(otherwise) = engine.otherwise(key)
                {
                    output.encoder(proto).bulk(otherwise);
                    continue;
                }
                let mut encoder = output.encoder(proto);
                match query {
                    KeyQuery::Exists => {}
                    KeyQuery::StrLen => encoder.integer(0),
                    KeyQuery::Type => encoder.simple("none"),
                    KeyQuery::GetRange { .. } => encoder.bulk(b""),
                    _ => encoder.null(),
                }
            }
        }
        Ok(absent)
    });
    match absent {
        Ok(absent) => {
            if query == KeyQuery::Exists {
                state.encoder().count(asked - absent);
            }
            state.keys = (asked, absent);
            Ok(())
        }
        Err(refusal) => {
            state.output.rewind(mark);
            Err(refusal)
        }
    }
}
