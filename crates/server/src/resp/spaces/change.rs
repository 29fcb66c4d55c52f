//! FT.CHANGE: changes or deletes all objects that match a query, and counts them (HyperDex's group operations).
//!
//! ```text
//!  FT.CHANGE ─► the next keys that match the query ─► OBJ.CHANGE key IF query IN index DO .. , at the owner of each ─► count
//!                      ▲                                                  │
//!                      └──────────────── after the last key ──────────────┘
//! ```
//!
//! 1. An object is changed atomically, if it matches the query at that moment. No object is changed twice; with ONCE,
//!    not even by a repetition of the command.
//! 2. If some objects cannot be changed, for example because a number cannot be added to a word, they stay as they are
//!    and the others are changed. The reply is then an error with both counts.
//! 3. The command waits until objects that existed before the space was declared or altered are indexed.
//! 4. If a node does not reply, the command ends, and its error contains the number of objects changed so far.

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;

use super::super::incoming::Incoming;
use super::super::nodes::Wanted;
use super::super::objects::check_change;
use super::super::place::place_of;
use super::super::replies::number;
use super::super::tables::To;
use super::aggregate::{ensure_no_full_scan, keys_behind};
use super::reach::{Asker, Reach, again, refusal_of};
use crate::error::show;
use crate::tables::Refusal;

/// Index of the query argument.
const QUERY: usize = 2;
/// Maximum number of objects that are found and changed per round.
const AT_ONCE_MAX: usize = 128;
/// Approximate size of the arguments of the commands in one round.
const BYTES_AT_ONCE: usize = 1 << 20;

/// The parsed arguments.
struct Told<'a> {
    /// The query and its PARAMS.
    query: Vec<&'a [u8]>,
    /// ONCE with its target and id, if present.
    once: Vec<&'a [u8]>,
    /// DO and the changes.
    changes: Vec<&'a [u8]>,
}

impl<'a> Told<'a> {
    fn parse(command: Command<'a>) -> Result<Told<'a>, Refusal> {
        let is = |at: usize, word: &[u8]| {
            let there = command.get(at);
            there.is_some_and(|it| it.eq_ignore_ascii_case(word))
        };
        let mut at = QUERY + 1;
        if is(at, b"PARAMS") {
            let count = command.get(at + 1).and_then(larder_types::integer);
            let count = count.and_then(|count| usize::try_from(count).ok());
            at = count.map_or(at, |count| (at + 2).saturating_add(count));
        }
        let query_end = at;
        if is(at, b"ONCE") {
            at += 3;
        }
        if !is(at, b"DO") {
            let message = "write FT.CHANGE index query [PARAMS count name value ...] [ONCE target id] DO DELETE, or DO change [change ...]: see COMMAND DOCS OBJ.CHANGE";
            return Err((Code::Syntax, message.to_owned()));
        }
        Ok(Told {
            query: (QUERY..query_end).map(|at| command.arg(at)).collect(),
            once: (query_end..at).map(|at| command.arg(at)).collect(),
            changes: (at..command.len()).map(|at| command.arg(at)).collect(),
        })
    }

    /// Returns the command that changes one object.
    fn of_object(&self, key: &[u8], space: &str) -> OwnedCommand {
        let condition: [&[u8]; 4] = [b"IF", self.query[0], b"IN", space.as_bytes()];
        let head = [key].into_iter().chain(self.once.iter().copied());
        let rest = self.query[1..].iter().chain(&self.changes).copied();
        OwnedCommand::of(Id::ObjChange, head.chain(condition).chain(rest))
    }
}

/// The results so far.
#[derive(Default)]
struct Done {
    changed: u64,
    refused: u64,
    /// The key of the first object that could not be changed, and the error.
    first: Option<String>,
}

impl Done {
    fn stopped(&self, (code, why): Refusal) -> Refusal {
        match self.changed {
            0 => (code, why),
            changed => (code, format!("after {changed} objects were changed: {why}")),
        }
    }

    /// Counts the reply for one object.
    ///
    /// # Errors
    /// The command was not executed, or its outcome is unknown.
    fn count(&mut self, key: &[u8], reply: &[u8]) -> Result<(), Refusal> {
        if let Some(changed) = number(reply) {
            self.changed += changed as u64;
            return Ok(());
        }
        let text = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
        let (code, why) = refusal_of(text);
        match code {
            Code::BadRequest | Code::WrongType => {
                self.refused += 1;
                self.first
                    .get_or_insert_with(|| format!("{}: {why}", show(key)));
                Ok(())
            }
            _ => Err((code, format!("{}: {why}", show(key)))),
        }
    }
}

pub(super) async fn change(asker: &Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    if let Reach::Part { .. } = asker.reach {
        let message = "objects are changed by the node that is asked for it";
        return Err((Code::BadRequest, message.to_owned()));
    }
    let told = Told::parse(command)?;
    let declared = asker.declared(command.arg(1))?;
    ensure_no_full_scan(asker, &declared, &told.query)?;
    let definition = declared.definition.clone();
    let example = told.of_object(b"key", &definition.name);
    check_change(example.command().request, definition.on)?;
    let rows = BYTES_AT_ONCE / example.memory_bytes().max(1);
    let rows = rows.clamp(1, AT_ONCE_MAX);
    let (mut done, mut after) = (Done::default(), None);
    loop {
        let found = again(&asker.core, asker.reach, async || {
            let declared = asker.declared(definition.name.as_bytes())?;
            keys_behind(asker, &declared, &told.query, after.as_deref(), rows).await
        });
        let (keys, is_over) = found.await.map_err(|why| done.stopped(why))?;
        change_all(asker, &told, &definition.name, &keys, &mut done).await?;
        match keys.into_iter().next_back() {
            Some(last) if !is_over => after = Some(last),
            _ => break,
        }
    }
    match done.first {
        None => Ok(asker.encoded(|encoder| encoder.count(done.changed))),
        Some(first) => {
            let (changed, refused) = (done.changed, done.refused);
            let message = format!(
                "{changed} objects were changed, and {refused} were not, the first {first}"
            );
            Err((Code::BadRequest, message))
        }
    }
}

/// The commands for one place.
struct Part<'a> {
    place: Option<u16>,
    batch: Batch,
    keys: Vec<&'a [u8]>,
}

/// Changes some objects at their owners, concurrently.
async fn change_all(
    asker: &Asker,
    told: &Told<'_>,
    space: &str,
    keys: &[Vec<u8>],
    done: &mut Done,
) -> Result<(), Refusal> {
    let core = &asker.core;
    let snapshot = core.shared.catalog.load().clone();
    let mut parts: Vec<Part<'_>> = Vec::new();
    for key in keys {
        let one = told.of_object(key, space);
        let place = match place_of(core, &snapshot, one.command()) {
            To::Core(place) => Some(place as u16),
            // The owner is determined when the request is routed.
            _ => None,
        };
        let known = parts.iter().position(|part| part.place == place);
        let number = known.unwrap_or_else(|| {
            parts.push(Part {
                place,
                batch: Batch::default(),
                keys: Vec::new(),
            });
            parts.len() - 1
        });
        parts[number].batch.push(one.command());
        parts[number].keys.push(key);
    }
    let asked = parts.into_iter().map(|part| {
        let wanted = Wanted::of(part.batch, Proto::Resp2, &asker.client);
        (Incoming::routed(core, part.place, wanted), part.keys)
    });
    let mut asked: Vec<(Incoming, Vec<&[u8]>)> = asked.collect();
    let mut stopped = None;
    for (incoming, keys) in &mut asked {
        for key in keys.iter() {
            let Some(reply) = incoming.reply().await else {
                let message = "the replies of a node were lost: it is unknown what it has changed";
                stopped = Some((Code::Unknown, message.to_owned()));
                break;
            };
            if let Err(why) = done.count(key, &reply) {
                stopped = stopped.or(Some(why));
            }
        }
    }
    match stopped {
        Some(why) => Err(done.stopped(why)),
        None => Ok(()),
    }
}
