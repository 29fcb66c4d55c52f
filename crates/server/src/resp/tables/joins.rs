//! `JOIN.*`: declaring joins, and looking at them.

use larder_join::JoinInfo;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use larder_types::KEY_BYTES_MAX;

use super::super::pending::Work;
use super::super::state::State;
use super::syntax;
use crate::tables::{Gate, Refusal, Tables, Unanswered, refusal};

pub(super) fn create_join(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let (name, definition) = definition(request)?;
    let tables = state.tables();
    create(&tables, &mut state.gate, &name, &definition)?;
    state.encoder().ok();
    Ok(())
}

pub(super) fn drop_at_once(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let tables = state.tables();
    drop_join(&tables, &mut state.gate, text(request.arg(1))?)?;
    state.encoder().ok();
    Ok(())
}

pub(super) fn list(state: &mut State) {
    let joins = state.tables().read(|engine, _| engine.list());
    let mut encoder = state.encoder();
    encoder.map(joins.len());
    for join in &joins {
        encoder.text(&join.name);
        encoder.text(&join.definition);
    }
}

pub(super) fn info(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let (tables, name) = (state.tables(), text(request.arg(1))?);
    let join = tables.read(|engine, _| engine.info(name));
    describe(&mut state.encoder(), &join.map_err(refusal)?);
    Ok(())
}

pub(super) fn explain(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let range = match request.len() {
        2 => None,
        4 => Some((request.arg(2), request.arg(3))),
        _ => return Err(syntax()),
    };
    let (tables, name) = (state.tables(), text(request.arg(1))?);
    let explained = tables.read(|engine, _| engine.explain(name, range));
    state.encoder().verbatim(&explained.map_err(refusal)?);
    Ok(())
}

/// Name and definition of a JOIN.CREATE.
pub(super) fn definition(request: Request<'_>) -> Result<(String, String), Refusal> {
    // Without quotes around it, a definition comes in words.
    let words: Vec<&[u8]> = request.args().skip(2).collect();
    let definition = words.join(&b' ');
    Ok((
        text(request.arg(1))?.to_owned(),
        text(&definition)?.to_owned(),
    ))
}

pub(super) fn describe(encoder: &mut Encoder<'_>, join: &JoinInfo) {
    let counts = [
        ("rows", join.rows),
        ("ranges", join.ranges as u64),
        ("filled", join.filled),
        ("evicted", join.evicted),
        ("left_out", join.left_out),
        ("updaters", join.updaters as u64),
        ("memory_bytes", join.memory_bytes as u64),
    ];
    encoder.map(2 + counts.len());
    for (field, value) in [("name", &join.name), ("definition", &join.definition)] {
        encoder.text(field);
        encoder.text(value);
    }
    for (field, count) in counts {
        encoder.text(field);
        encoder.count(count);
    }
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| {
        (
            Code::BadRequest,
            "joins are named and defined in UTF-8".to_owned(),
        )
    })
}

/// # Errors
/// It is too short or too long.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    match name.is_empty() || name.len() > KEY_BYTES_MAX {
        false => Ok(()),
        true => {
            let message = "a join's name has at least one byte and at most 65536".to_owned();
            Err((Code::BadRequest, message))
        }
    }
}

/// Declares a join.
///
/// # Errors
/// Where in the definition something is wrong, and what.
pub(super) fn create(
    tables: &Tables,
    gate: &mut Gate,
    name: &str,
    definition: &str,
) -> Result<(), Refusal> {
    check_name(name)?;
    let done = tables.write(gate, |engine, now| {
        engine
            .create(name, definition, now)
            .map_err(|error| (Code::BadRequest, error.to_string()))?;
        Ok(((), None))
    });
    done.map_err(Unanswered::refusal)
}

/// Drops a join, once what was computed from its output has been forgotten some rows at a time.
pub(super) fn drop_in_steps(
    state: &mut State,
    request: Request<'_>,
) -> Result<Option<Work>, Refusal> {
    let name = text(request.arg(1))?;
    let tables = state.tables();
    if !tables.prepare_drop_once(name) {
        let name = name.to_owned();
        return Ok(Some(Work::Drop(DropJob { name })));
    }
    drop_join(&tables, &mut state.gate, name)?;
    state.encoder().ok();
    Ok(None)
}

/// A join that is about to be dropped.
pub(in crate::resp) struct DropJob {
    name: String,
}

impl DropJob {
    pub async fn run(&self, state: &mut State) {
        state.tables().prepare_drop(&self.name).await;
        let tables = state.tables();
        match drop_join(&tables, &mut state.gate, &self.name) {
            Ok(()) => state.encoder().ok(),
            Err(refusal) => state.refuse(refusal),
        }
    }
}

/// Drops a join and what it made.
///
/// # Errors
/// There is none of this name.
pub(super) fn drop_join(tables: &Tables, gate: &mut Gate, name: &str) -> Result<(), Refusal> {
    let done = tables.write(gate, |engine, _| {
        engine.drop_join(name).map_err(refusal)?;
        Ok(((), None))
    });
    done.map_err(Unanswered::refusal)
}
