//! GET, MGET, EXISTS, STRLEN, GETRANGE, TYPE and MEMORY USAGE of rows. Those of stores' records are in `resp/reads`.

use larder_join::{Engine, Error};
use larder_protocol::commands::{Command, Id};

use super::super::reads::range_of;
use super::super::state::State;
use super::number;
use super::rows::get;
use crate::tables::{Unanswered, complete};

/// What was found at a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Row,
    Nothing,
    /// A row that does not add up.
    NoValue,
}

/// As [`get`], among other rows, and where the value is not asked for: a row that does not add up has none, and counts as absent.
pub(super) fn get_among(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<Found, Unanswered> {
    let mut found = Found::Nothing;
    let outcome = engine.get(key, now, &mut |value| {
        found = Found::Row;
        each(value);
    });
    match outcome {
        Err(Error::NotANumber { .. }) => Ok(Found::NoValue),
        outcome => complete(outcome).map(|()| found),
    }
}

pub(super) fn read(state: &mut State, command: Command<'_>) -> Result<(), Unanswered> {
    let (id, keys) = (command.id(), command.keys());
    let tables = state.tables();
    let mark = state.output.mark();
    let part = match id {
        Id::GetRange | Id::SubStr => Some((number(command.arg(2))?, number(command.arg(3))?)),
        _ => None,
    };
    let asked = keys.len() as u64;
    let limits = state.core.clients.limits;
    let (output, proto) = (&mut state.output, state.proto);
    let absent = tables.read(|engine, now| -> Result<u64, Unanswered> {
        if id == Id::MGet {
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
                let value = match id {
                    Id::Exists | Id::Touch => return,
                    Id::StrLen => return encoder.count(value.len() as u64),
                    Id::Memory => return encoder.count((key.len() + value.len()) as u64),
                    Id::Type => return encoder.simple("string"),
                    Id::GetRange | Id::SubStr => {
                        let (start, end) = part.unwrap_or((0, -1));
                        &value[range_of(start, end, value.len())]
                    }
                    _ => value,
                };
                match limits.admits(answered, value.len()) {
                    true => encoder.bulk(value),
                    false => is_too_long = true,
                }
            };
            let found = match id {
                Id::MGet | Id::Exists | Id::Touch | Id::Type => get_among(engine, key, now, each)?,
                _ if get(engine, key, now, each)? => Found::Row,
                _ => Found::Nothing,
            };
            if is_too_long {
                return Err(limits.too_long().into());
            }
            if found != Found::Row {
                absent += 1;
                if matches!(id, Id::Get | Id::MGet)
                    && found == Found::Nothing
                    && let Some(otherwise) = engine.otherwise(key)
                {
                    output.encoder(proto).bulk(otherwise);
                    continue;
                }
                let mut encoder = output.encoder(proto);
                match id {
                    Id::Exists | Id::Touch => {}
                    Id::StrLen => encoder.integer(0),
                    Id::Type => encoder.simple("none"),
                    Id::GetRange | Id::SubStr => encoder.bulk(b""),
                    _ => encoder.null(),
                }
            }
        }
        Ok(absent)
    });
    match absent {
        Ok(absent) => {
            if matches!(id, Id::Exists | Id::Touch) {
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
