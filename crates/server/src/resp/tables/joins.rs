//! `JOIN.*`: the commands that declare and describe joins.

use larder_join::{CreateBehavior, DefinitionEffect, DropBehavior, JoinInfo};
use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use larder_types::KEY_BYTES_MAX;

use super::super::pending::Work;
use super::super::state::ConnectionState;
use super::syntax_error;
use crate::tables::{Gate, NoReply, Refusal, Tables, refusal};

/// A change of the joins.
#[derive(Debug, Clone)]
pub(crate) enum JoinChange {
    Create {
        name: String,
        definition: String,
        if_defined: CreateBehavior,
    },
    Drop {
        name: String,
        if_read: DropBehavior,
    },
}

/// The effect of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// Adds a join and removes none.
    Adds,
    /// Removes these joins, in this order. Other rows may have been computed from their outputs.
    Removes(Vec<String>),
}

impl JoinChange {
    /// Parses a JOIN.CREATE or JOIN.DROP.
    pub fn parse(id: Id, request: Request<'_>) -> Result<JoinChange, Refusal> {
        let name = parse_text(request.arg(1))?.to_owned();
        if id == Id::JoinDrop {
            let if_read = match request.get(2) {
                None => DropBehavior::Refuse,
                Some(word) if word.eq_ignore_ascii_case(b"CASCADE") && request.len() == 3 => {
                    DropBehavior::Cascade
                }
                Some(_) => return Err(syntax_error()),
            };
            return Ok(JoinChange::Drop { name, if_read });
        }
        // A definition without quotes arrives as several arguments.
        let words: Vec<&[u8]> = request.args().skip(2).collect();
        let words = words.join(&b' ');
        let words = parse_text(&words)?;
        let (if_defined, definition) = if let Some(definition) = strip_words(words, "IF NOT EXISTS")
        {
            (CreateBehavior::Keep, definition)
        } else if let Some(definition) = strip_words(words, "OR REPLACE") {
            (CreateBehavior::Replace, definition)
        } else {
            (CreateBehavior::Refuse, words)
        };
        Ok(JoinChange::Create {
            name,
            definition: definition.to_owned(),
            if_defined,
        })
    }

    pub fn name(&self) -> &str {
        match self {
            JoinChange::Create { name, .. } | JoinChange::Drop { name, .. } => name,
        }
    }

    /// Checks whether the change can be applied, and returns its effect.
    ///
    /// # Errors
    /// The position and cause of an error in the definition, or why the join cannot be dropped.
    pub fn check(&self, tables: &Tables) -> Result<Effect, Refusal> {
        match self {
            JoinChange::Create {
                name,
                definition,
                if_defined,
            } => {
                check_name(name)?;
                let admitted =
                    tables.read(|engine, _| engine.check_definition(name, definition, *if_defined));
                match admitted {
                    Ok(DefinitionEffect::Unchanged) => Ok(Effect::Nothing),
                    Ok(DefinitionEffect::New) => Ok(Effect::Adds),
                    Ok(DefinitionEffect::Replaced) => Ok(Effect::Removes(vec![name.clone()])),
                    Err(error) => Err((Code::BadRequest, error.to_string())),
                }
            }
            JoinChange::Drop { name, if_read } => {
                let planned = tables.read(|engine, _| engine.plan_drop(name, *if_read));
                planned.map(Effect::Removes).map_err(refusal)
            }
        }
    }

    /// Applies the change on one core, atomically.
    ///
    /// # Errors
    /// As [`JoinChange::check`].
    pub fn apply(&self, tables: &Tables, gate: &mut Gate) -> Result<(), Refusal> {
        if let JoinChange::Create { name, .. } = self {
            check_name(name)?;
        }
        let applied = tables.write(gate, |engine, now| {
            match self {
                JoinChange::Create {
                    name,
                    definition,
                    if_defined,
                } => {
                    engine
                        .define(name, definition, *if_defined, now)
                        .map_err(|error| (Code::BadRequest, error.to_string()))?;
                }
                JoinChange::Drop { name, if_read } => {
                    for name in engine.plan_drop(name, *if_read).map_err(refusal)? {
                        engine.drop_join(&name).map_err(refusal)?;
                    }
                }
            }
            Ok(((), None))
        });
        applied.map_err(NoReply::refusal)
    }
}

/// Returns the text after a prefix of words, which is compared case-insensitively.
fn strip_words<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let (before, after) = text.split_at_checked(words.len())?;
    let has_words = before.eq_ignore_ascii_case(words) && after.starts_with(' ');
    has_words.then(|| after.trim_start())
}

/// Declares or drops a join. If a join is removed, the rows computed from its output are dropped first, a limited
/// number per step.
pub(in crate::resp) fn define(
    state: &mut ConnectionState,
    id: Id,
    request: Request<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let change = JoinChange::parse(id, request)?;
    let tables = state.tables();
    let is_prepared = atomic || !matches!(change.check(&tables)?, Effect::Removes(_));
    if !is_prepared && !tables.prepare_drop_step(change.name()) {
        return Ok(Some(Work::Define(DefineJob { change })));
    }
    change.apply(&tables, &mut state.gate)?;
    state.encoder().ok();
    Ok(None)
}

/// The drop or replacement of a join, which needs several steps.
pub(in crate::resp) struct DefineJob {
    change: JoinChange,
}

impl DefineJob {
    pub async fn run(&self, state: &mut ConnectionState) {
        state.tables().prepare_drop(self.change.name()).await;
        let tables = state.tables();
        match self.change.apply(&tables, &mut state.gate) {
            Ok(()) => state.encoder().ok(),
            Err(refusal) => state.refuse(refusal),
        }
    }
}

pub(in crate::resp) fn list(state: &mut ConnectionState) {
    let joins = state.tables().read(|engine, _| engine.list());
    let mut encoder = state.encoder();
    encoder.map(joins.len());
    for join in &joins {
        encoder.text(&join.name);
        encoder.text(&join.definition);
    }
}

pub(in crate::resp) fn info(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let (tables, name) = (state.tables(), parse_text(request.arg(1))?);
    let join = tables.read(|engine, _| engine.info(name));
    encode_join(&mut state.encoder(), &join.map_err(refusal)?);
    Ok(())
}

pub(in crate::resp) fn explain(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let range = match request.len() {
        2 => None,
        4 => Some((request.arg(2), request.arg(3))),
        _ => return Err(syntax_error().into()),
    };
    let (tables, name) = (state.tables(), parse_text(request.arg(1))?);
    let explained = tables.read(|engine, _| engine.explain(name, range));
    state.encoder().verbatim(&explained.map_err(refusal)?);
    Ok(())
}

pub(super) fn encode_join(encoder: &mut Encoder<'_>, join: &JoinInfo) {
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

pub(super) fn parse_text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| {
        (
            Code::BadRequest,
            "the name and the definition of a join must be UTF-8 text".to_owned(),
        )
    })
}

/// # Errors
/// The name is too short or too long.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > KEY_BYTES_MAX {
        let message = "a join's name has at least one byte and at most 65536".to_owned();
        Err((Code::BadRequest, message))
    } else {
        Ok(())
    }
}
