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
use super::super::nodes::RoutedBatch;
use super::super::objects::check_change;
use super::super::place::place_of;
use super::super::reply_decoding::decode_integer;
use super::super::tables::Destination;
use super::aggregate::{ensure_no_full_scan, keys_after};
use super::context::{QueryContext, QueryScope, decode_refusal, retry_on_schema_change};
use crate::error::show;
use crate::tables::Refusal;

/// Index of the query argument.
const QUERY: usize = 2;
/// Maximum number of objects that are found and changed per round.
const OBJECTS_PER_ROUND_MAX: usize = 128;
/// Approximate size of the arguments of the commands in one round.
const BYTES_PER_ROUND: usize = 1 << 20;

/// The parsed arguments.
struct FtChangeArgs<'a> {
    /// The query and its PARAMS.
    query: Vec<&'a [u8]>,
    /// ONCE with its target and id, if present.
    once: Vec<&'a [u8]>,
    /// DO and the changes.
    changes: Vec<&'a [u8]>,
}

impl<'a> FtChangeArgs<'a> {
    fn parse(command: Command<'a>) -> Result<FtChangeArgs<'a>, Refusal> {
        let is = |at: usize, expected: &[u8]| {
            let word = command.get(at);
            word.is_some_and(|it| it.eq_ignore_ascii_case(expected))
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
        Ok(FtChangeArgs {
            query: (QUERY..query_end).map(|at| command.arg(at)).collect(),
            once: (query_end..at).map(|at| command.arg(at)).collect(),
            changes: (at..command.len()).map(|at| command.arg(at)).collect(),
        })
    }

    /// Returns the command that changes one object.
    fn command_for(&self, key: &[u8], space: &str) -> OwnedCommand {
        let condition: [&[u8]; 4] = [b"IF", self.query[0], b"IN", space.as_bytes()];
        let head = [key].into_iter().chain(self.once.iter().copied());
        let rest = self.query[1..].iter().chain(&self.changes).copied();
        OwnedCommand::of(Id::ObjChange, head.chain(condition).chain(rest))
    }
}

/// The results so far.
#[derive(Default)]
struct ChangeTally {
    changed: u64,
    refused: u64,
    /// The key of the first object that could not be changed, and the error.
    first: Option<String>,
}

impl ChangeTally {
    fn with_progress(&self, (code, reason): Refusal) -> Refusal {
        match self.changed {
            0 => (code, reason),
            changed => (
                code,
                format!("after {changed} objects were changed: {reason}"),
            ),
        }
    }

    /// Counts the reply for one object.
    ///
    /// # Errors
    /// The command was not executed, or its outcome is unknown.
    fn count(&mut self, key: &[u8], reply: &[u8]) -> Result<(), Refusal> {
        if let Some(changed) = decode_integer(reply) {
            self.changed += changed as u64;
            return Ok(());
        }
        let text = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
        let (code, reason) = decode_refusal(text);
        match code {
            Code::BadRequest | Code::WrongType => {
                self.refused += 1;
                self.first
                    .get_or_insert_with(|| format!("{}: {reason}", show(key)));
                Ok(())
            }
            _ => Err((code, format!("{}: {reason}", show(key)))),
        }
    }
}

pub(in crate::resp) async fn change(
    context: &QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    if let QueryScope::Part { .. } = context.scope {
        let message = "only the node that received FT.CHANGE from the client executes it";
        return Err((Code::BadRequest, message.to_owned()));
    }
    let args = FtChangeArgs::parse(command)?;
    let declared = context.find_space(command.arg(1))?;
    ensure_no_full_scan(context, &declared, &args.query)?;
    let definition = declared.definition.clone();
    let example = args.command_for(b"key", &definition.name);
    check_change(example.command().request, definition.on)?;
    let rows = BYTES_PER_ROUND / example.memory_bytes().max(1);
    let rows = rows.clamp(1, OBJECTS_PER_ROUND_MAX);
    let (mut tally, mut after) = (ChangeTally::default(), None);
    loop {
        let found = retry_on_schema_change(&context.core, context.scope, async || {
            let declared = context.find_space(definition.name.as_bytes())?;
            keys_after(context, &declared, &args.query, after.as_deref(), rows).await
        });
        let (keys, is_last) = found.await.map_err(|reason| tally.with_progress(reason))?;
        change_all(context, &args, &definition.name, &keys, &mut tally).await?;
        match keys.into_iter().next_back() {
            Some(last) if !is_last => after = Some(last),
            _ => break,
        }
    }
    match tally.first {
        None => Ok(context.encode(|encoder| encoder.count(tally.changed))),
        Some(first) => {
            let (changed, refused) = (tally.changed, tally.refused);
            let message = format!(
                "{changed} objects were changed and {refused} were not; the first error is {first}"
            );
            Err((Code::BadRequest, message))
        }
    }
}

/// The commands for one place.
struct PlaceCommands<'a> {
    place: Option<u16>,
    batch: Batch,
    keys: Vec<&'a [u8]>,
}

/// Changes some objects at their owners, concurrently.
async fn change_all(
    context: &QueryContext,
    args: &FtChangeArgs<'_>,
    space: &str,
    keys: &[Vec<u8>],
    tally: &mut ChangeTally,
) -> Result<(), Refusal> {
    let core = &context.core;
    let snapshot = core.shared.catalog.load().clone();
    let mut parts: Vec<PlaceCommands<'_>> = Vec::new();
    for key in keys {
        let one = args.command_for(key, space);
        let place = match place_of(core, &snapshot, one.command()) {
            Destination::Core(place) => Some(place as u16),
            // The owner is determined when the request is routed.
            _ => None,
        };
        let found = parts.iter().position(|part| part.place == place);
        let number = found.unwrap_or_else(|| {
            parts.push(PlaceCommands {
                place,
                batch: Batch::default(),
                keys: Vec::new(),
            });
            parts.len() - 1
        });
        parts[number].batch.push(one.command());
        parts[number].keys.push(key);
    }
    let pending = parts.into_iter().map(|part| {
        let routed_batch = RoutedBatch::of(part.batch, Proto::Resp2, &context.client);
        (
            Incoming::request_owner(core, part.place, routed_batch),
            part.keys,
        )
    });
    let mut pending: Vec<(Incoming, Vec<&[u8]>)> = pending.collect();
    let mut stopped = None;
    for (incoming, keys) in &mut pending {
        for key in keys.iter() {
            let Some(reply) = incoming.reply().await else {
                let message =
                    "the replies of a node were lost, so it is unknown which objects it changed";
                stopped = Some((Code::Unknown, message.to_owned()));
                break;
            };
            if let Err(reason) = tally.count(key, &reply) {
                stopped = stopped.or(Some(reason));
            }
        }
    }
    match stopped {
        Some(reason) => Err(tally.with_progress(reason)),
        None => Ok(()),
    }
}
