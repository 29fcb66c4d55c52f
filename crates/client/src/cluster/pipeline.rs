//! Pipelines over several nodes: the commands of one node are sent in one write, and their replies are read together.
//!
//! Each part begins with a `PING`, whose reply shows that the node received the part. A node's reply to a single
//! command (`MOVED`, `TRYAGAIN`) is then no reason to resend the other commands of the part. Commands that were not
//! executed by their node are resent individually.

use std::collections::BTreeMap;

use larder_protocol::resp::client::{Reply, request};

use super::drive::{Call, CallOutcome, drive, retryable_error};
use super::route::Route;
use super::view::ClusterView;
use crate::error::Error;
use crate::resp_client::refused;

/// Returns the result of each command, in order.
pub(super) fn pipeline(
    view: &ClusterView,
    commands: &[Vec<&[u8]>],
) -> Result<Vec<Result<Reply, Error>>, Error> {
    let topology = view.topology()?;
    let mut results: Vec<Option<Result<Reply, Error>>> = commands.iter().map(|_| None).collect();
    let mut routes = Vec::with_capacity(commands.len());
    let mut parts: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
    for (at, command) in commands.iter().enumerate() {
        let route = Route::of(&topology, command);
        match &route {
            Some(route) => {
                let node = route
                    .slot
                    .and_then(|slot| view.preferred(&topology, slot, false));
                parts.entry(node).or_default().push(at);
            }
            None => {
                let name = command.first().copied().unwrap_or_default();
                let command = String::from_utf8_lossy(name).to_uppercase();
                results[at] = Some(Err(Error::BoundToConnection { command }));
            }
        }
        routes.push(route);
    }
    let calls: Vec<Call> = parts
        .values()
        .map(|part| call(commands, &routes, part))
        .collect();
    let mut retries = Vec::new();
    for (part, done) in parts.values().zip(drive(view, &calls)) {
        match done {
            Ok(CallOutcome::Replies(replies)) => {
                for (&at, reply) in part.iter().zip(replies.into_iter().skip(1)) {
                    match retryable_error(&reply, false) {
                        Some(_) => retries.push(at),
                        None => results[at] = Some(Ok(reply)),
                    }
                }
            }
            // None of its commands was executed.
            Ok(CallOutcome::Split) => retries.extend(part),
            Err(error) => {
                for &at in part {
                    results[at] = Some(Err(error.clone()));
                }
            }
        }
    }
    if !retries.is_empty() {
        view.mark_stale();
    }
    let calls: Vec<Call> = retries
        .iter()
        .map(|at| call(commands, &routes, &[*at]))
        .map(with_command_reply)
        .collect();
    for (at, done) in retries.into_iter().zip(drive(view, &calls)) {
        results[at] = Some(match done {
            Ok(CallOutcome::Replies(mut replies)) => Ok(replies.pop().unwrap_or(Reply::Null)),
            Ok(CallOutcome::Split) => unreachable!("one call of one slot"),
            Err(error) => Err(error),
        });
    }
    let results = results.into_iter().map(|result| match result {
        Some(Ok(Reply::Error(error))) => Err(refused(error)),
        Some(result) => result,
        None => unreachable!("each command has its result"),
    });
    Ok(results.collect())
}

fn call(commands: &[Vec<&[u8]>], routes: &[Option<Route>], part: &[usize]) -> Call {
    let mut bytes = Vec::new();
    request(&mut bytes, &["PING"]);
    for &at in part {
        request(&mut bytes, &commands[at]);
    }
    let routes = part.iter().filter_map(|at| routes[*at].as_ref());
    let mut slots: Vec<u16> = routes.clone().filter_map(|route| route.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    Call {
        slots,
        request: bytes,
        replies: 1 + part.len(),
        main: 0,
        is_read: routes.clone().all(|route| route.is_read),
        of_stores: false,
        is_point: false,
    }
}

/// Makes the reply of the command itself determine redirections.
fn with_command_reply(mut call: Call) -> Call {
    call.main = 1;
    call
}
