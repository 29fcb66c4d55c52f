//! GET, MGET, EXISTS, STRLEN, GETRANGE, TYPE and MEMORY USAGE of rows. `resp/reads` has those of stores' records.

use larder_join::{Engine, Error};
use larder_protocol::resp::Encoder;
use larder_space::object::ObjectView;
use larder_types::with_text_row;

use super::super::objects::{ValueType, wrong_type};
use super::super::reads::{KeyQuery, byte_range};
use super::super::state::ConnectionState;
use super::condition::digest;
use super::rows::get;
use crate::tables::{NoReply, Refusal, read_object, require_done};

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLookup {
    Present,
    Absent,
    /// A computed row whose values cannot be summed.
    NoValue,
}

/// As [`get`], for reads of several rows and reads that ignore the value. A row whose values cannot be summed has no
/// value and counts as absent.
pub(super) fn get_lenient(
    engine: &mut Engine,
    row: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<RowLookup, NoReply> {
    let mut found = RowLookup::Absent;
    let outcome = engine.get(row, now, &mut |value| {
        found = RowLookup::Present;
        each(value);
    });
    match outcome {
        Err(Error::NotANumber { .. }) => Ok(RowLookup::NoValue),
        outcome => require_done(outcome).map(|()| found),
    }
}

/// Returns the encoding that Redis would use for an object.
fn redis_encoding(object: &[u8]) -> &'static str {
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
fn encode_object_reply(
    query: KeyQuery,
    key: &[u8],
    object: &[u8],
    mut encoder: Encoder<'_>,
) -> Result<(), Refusal> {
    match query {
        KeyQuery::Exists | KeyQuery::Ttl => {}
        KeyQuery::Type => encoder.simple(ValueType::of_object(object).name()),
        KeyQuery::MemoryUsage => encoder.count((key.len() + object.len()) as u64),
        KeyQuery::MGet => encoder.null(),
        KeyQuery::Object(query) => query.encode_reply(&mut encoder, || redis_encoding(object)),
        KeyQuery::Digest | KeyQuery::Get | KeyQuery::StrLen | KeyQuery::GetRange { .. } => {
            return Err(wrong_type());
        }
    }
    Ok(())
}

pub(in crate::resp) fn read<'k>(
    state: &mut ConnectionState,
    query: KeyQuery,
    keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let mark = state.output.mark();
    let requested = keys.len() as u64;
    let limits = state.core.clients.limits;
    let (output, proto) = (&mut state.output, state.proto);
    let absent = tables.read(|engine, now| -> Result<u64, NoReply> {
        if query == KeyQuery::MGet {
            output.encoder(proto).array(keys.len());
        }
        let mut absent = 0;
        for key in keys.clone() {
            if output.len() > limits.reply_bytes() {
                return Err(limits.reply_too_long().into());
            }
            let mut is_too_long = false;
            let each = |value: &[u8]| {
                let reply_len = output.len();
                let mut encoder = output.encoder(proto);
                let value = match query {
                    KeyQuery::Exists => return,
                    KeyQuery::StrLen => return encoder.count(value.len() as u64),
                    KeyQuery::MemoryUsage => {
                        return encoder.count((key.len() + value.len()) as u64);
                    }
                    KeyQuery::Object(query) => return query.encode_text_reply(value, &mut encoder),
                    KeyQuery::Digest => return encoder.text(&digest(value)),
                    KeyQuery::Type => return encoder.simple("string"),
                    KeyQuery::GetRange { start, end } => {
                        &value[byte_range(start, end, value.len())]
                    }
                    KeyQuery::Get | KeyQuery::MGet | KeyQuery::Ttl => value,
                };
                if limits.admits(reply_len, value.len()) {
                    encoder.bulk(value)
                } else {
                    is_too_long = true
                }
            };
            let found = with_text_row(key, |row| match query {
                KeyQuery::MGet | KeyQuery::Exists | KeyQuery::Type => {
                    get_lenient(engine, row, now, each)
                }
                _ => get(engine, row, now, each).map(|exists| {
                    if exists {
                        RowLookup::Present
                    } else {
                        RowLookup::Absent
                    }
                }),
            })?;
            if is_too_long {
                return Err(limits.reply_too_long().into());
            }
            if found == RowLookup::Absent
                && read_object(engine, key, now, |object| {
                    encode_object_reply(query, key, object, output.encoder(proto))
                })
                .transpose()?
                .is_some()
            {
                continue;
            }
            if found != RowLookup::Present {
                absent += 1;
                if matches!(query, KeyQuery::Get | KeyQuery::MGet)
                    && found == RowLookup::Absent
                    && let Some(otherwise) = engine.else_value(key)
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
                state.encoder().count(requested - absent);
            }
            state.keys = (requested, absent);
            Ok(())
        }
        Err(refusal) => {
            state.output.rewind(mark);
            Err(refusal)
        }
    }
}
