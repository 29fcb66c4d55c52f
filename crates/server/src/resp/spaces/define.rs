//! Declares, alters and drops spaces and their aliases.
//!
//! On a single node, the first core decides on a change and logs it, and then all cores apply it. In a cluster, the map
//! contains the definitions: a change is sent to the controller, and every node follows the map.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_cluster::controller::ControllerRequest;
use larder_cluster::map::{Map, SpaceSet};
use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;
use larder_space::schema::Definition;
use larder_types::key_hash;

use super::super::core::Core;
use super::super::tables::{execute_on_owners, request_nodes, wait_for_change};
use super::aggregate::keys_after;
use super::context::{QueryContext, QueryScope, retry_on_schema_change};
use super::{layout, parse_name};
use crate::spaces::{Catalog, NameUpdate, SpaceChange, change};
use crate::tables::{Gate, Refusal, Tables, decode_catalog, stopping};

/// Maximum time to wait until this node has the new definition from the map.
const APPLY_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of attempts at a change that conflicts with concurrent changes.
const TRIES_MAX: usize = 8;
/// The controller's error for such a conflict.
const CONFLICT_TEXT: &str = "has changed meanwhile";
/// Number of objects that FT.DROPINDEX DD removes per round.
const OBJECTS_PER_ROUND: usize = 256;

pub(in crate::resp) async fn define(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    if layout::changes_subspaces(command) {
        layout::alter(context, command).await?;
        return ok_reply(context).await;
    }
    let change = parse_change(command)?;
    if let (SpaceChange::Drop(name), Some(option)) = (&change, command.request.get(2)) {
        if !option.eq_ignore_ascii_case(b"DD") || command.len() > 3 {
            return Err((
                Code::Syntax,
                "syntax error: the option of FT.DROPINDEX is DD".to_owned(),
            ));
        }
        remove_objects(context, name).await?;
    }
    apply_change(context, change).await?;
    ok_reply(context).await
}

/// Returns the reply of a successful change.
async fn ok_reply(context: &QueryContext) -> Result<Vec<u8>, Refusal> {
    if context.scope == QueryScope::Nodes {
        // Waits for the other nodes, so that a client that connects to one of them next finds the change there.
        // Unreachable nodes receive it later.
        let list = OwnedCommand::of(Id::FtList, std::iter::empty());
        let batch = list.command().into();
        let _ = request_nodes(&context.core, &context.client, Proto::Resp2, batch).await;
    }
    Ok(context.encode(|encoder| encoder.ok()))
}

/// Makes a change.
///
/// # Errors
/// The change is not possible.
pub(super) async fn apply_change(
    context: &QueryContext,
    change: SpaceChange,
) -> Result<(), Refusal> {
    match context.scope {
        QueryScope::Alone => {
            let handle = &context.core.shared.tables;
            let decided = handle.run_on(0, move |tables| async move {
                change_on_this_node(&tables, &change).await
            });
            decided.await.map_err(stopping)?
        }
        QueryScope::Nodes => change_in_cluster(&context.core, &change).await,
        QueryScope::Part { .. } => {
            let message = "only the node that received the command from the client changes spaces";
            Err((Code::BadRequest, message.to_owned()))
        }
    }
}

/// Drops all spaces and their aliases.
///
/// # Errors
/// A space cannot be dropped; others may already have been dropped.
pub(in crate::resp) async fn drop_all(context: &QueryContext) -> Result<(), Refusal> {
    let catalog = context.core.shared.tables.spaces.load_full();
    for (name, _) in catalog.spaces() {
        match apply_change(context, SpaceChange::Drop(name.to_owned())).await {
            // Another client has dropped it.
            Ok(()) | Err((Code::NoSuchSpace, _)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    ok_reply(context).await.map(drop)
}

fn parse_change(command: Command<'_>) -> Result<SpaceChange, Refusal> {
    let name = |at: usize| parse_name(command.arg(at)).map(str::to_owned);
    Ok(match command.id() {
        Id::FtCreate => {
            let arguments: Vec<&[u8]> = command.args().skip(1).collect();
            let parsed = Definition::parse_create(&arguments);
            let parsed = parsed.and_then(|definition| {
                definition.ensure_effective(None)?;
                Ok(definition)
            });
            SpaceChange::Create(Box::new(
                parsed.map_err(|refused| super::argument_refusal(refused, 1))?,
            ))
        }
        Id::FtAlter => {
            let arguments = command.args().skip(2).map(<[u8]>::to_vec);
            SpaceChange::Alter(name(1)?, arguments.collect())
        }
        Id::FtDropIndex => SpaceChange::Drop(name(1)?),
        Id::FtAliasAdd => SpaceChange::AddAlias {
            alias: name(1)?,
            space: name(2)?,
        },
        Id::FtAliasUpdate => SpaceChange::UpdateAlias {
            alias: name(1)?,
            space: name(2)?,
        },
        Id::FtAliasDel => SpaceChange::RemoveAlias(name(1)?),
        _ => {
            let message = format!("{} does not declare a space", command.name());
            return Err((Code::BadRequest, message));
        }
    })
}

/// Returns a number that no space or change of a space has had before.
pub(super) fn generate_change_id(tables: &Tables, by: &str) -> u64 {
    let (now, ticket) = (tables.now(), tables.handle().next_ticket());
    key_hash(format!("{by} {now} {ticket}").as_bytes())
}

/// Decides on a change and logs it, on the first core of a server outside a cluster.
async fn change_on_this_node(tables: &Rc<Tables>, change: &SpaceChange) -> Result<(), Refusal> {
    tables.ensure_writes_accepted()?;
    let (handle, mut gate) = (tables.handle().clone(), Gate::default());
    let catalog = handle.spaces.load_full();
    let sets = change.plan(&catalog, generate_change_id(tables, ""))?;
    tables.log_spaces(&sets, &mut gate)?;
    handle.spaces.store(Arc::new(catalog.with_updates(&sets)));
    apply_on_all_cores(tables).await?;
    let opened = poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await;
    opened.map_err(|error| (Code::Io, error.to_string()))
}

async fn apply_on_all_cores(tables: &Rc<Tables>) -> Result<(), Refusal> {
    let follow = |tables: Rc<Tables>| async move {
        tables.apply_spaces();
        // A small number of objects is indexed immediately.
        tables.index_step();
    };
    let followed = tables.handle().run_on_all(None, follow).await;
    followed.map(drop).map_err(stopping)
}

fn decode_map_catalog(spaces: &BTreeMap<String, String>) -> Catalog {
    let decoded = spaces
        .iter()
        .map(|(name, record)| (name.as_str(), BASE64.decode(record).unwrap_or_default()));
    let records: Vec<(&str, Vec<u8>)> = decoded.collect();
    let mut catalog = decode_catalog(records.iter().map(|(name, record)| (*name, &record[..])));
    catalog.map_records = spaces.clone();
    catalog
}

/// Changes the map, and returns once this node has applied the change.
async fn change_in_cluster(core: &Rc<Core>, change: &SpaceChange) -> Result<(), Refusal> {
    let down = |reason: &str| (Code::ClusterDown, reason.to_owned());
    let tables = &core.tables;
    let Some(membership) = &core.shared.membership else {
        return Err(down("this node is not a member of a cluster"));
    };
    let created = generate_change_id(tables, &core.shared.config.cluster.node);
    let mut tries = 0;
    let sets = loop {
        let view = tables.view();
        let view = view.ok_or_else(|| down("this node has not received the cluster map yet"))?;
        let before = view.map.spaces();
        let sets = change.plan(&decode_map_catalog(before), created)?;
        let changes = sets.iter().map(|set| SpaceSet {
            name: set.name.clone(),
            before: before.get(&set.name).cloned(),
            record: set.record.as_ref().map(|record| BASE64.encode(record)),
        });
        let ask = ControllerRequest::SetSpaces {
            sets: changes.collect(),
        };
        tries += 1;
        match membership.submit(ask).await {
            Ok(_) => break sets,
            Err(reason) if reason.contains(CONFLICT_TEXT) && tries < TRIES_MAX => {
                wait_for_change(core, view.map.epoch().0).await;
            }
            Err(reason) => return Err((Code::ClusterDown, reason)),
        }
    };
    let started = Instant::now();
    while !has_applied(tables, &sets) || !tables.has_definitions() {
        if started.elapsed() > APPLY_TIME_MAX {
            return Err(down(
                "the cluster has made the change, but this node has not received it yet: check FT._LIST",
            ));
        }
        tables.wait_for_view().await;
    }
    Ok(())
}

fn has_applied(tables: &Tables, sets: &[NameUpdate]) -> bool {
    let catalog = tables.handle().spaces.load();
    sets.iter()
        .all(|set| catalog.record(&set.name) == set.record.as_deref())
}

/// Applies the map's spaces to all cores. Runs on one core.
pub(crate) async fn follow_spaces(tables: &Rc<Tables>, map: &Map) {
    let handle = tables.handle();
    if handle.spaces.load().map_records == *map.spaces() {
        return;
    }
    handle
        .spaces
        .store(Arc::new(decode_map_catalog(map.spaces())));
    // An error means that the server is stopping.
    let _ = apply_on_all_cores(tables).await;
}

/// Removes all objects of a space that exist at the start, including those that its index does not contain yet.
async fn remove_objects(context: &QueryContext, name: &str) -> Result<(), Refusal> {
    let catalog = context.core.shared.tables.spaces.load_full();
    let declared = catalog.space(name).ok_or_else(change::unknown_name)?;
    loop {
        let found = retry_on_schema_change(&context.core, context.scope, async || {
            keys_after(context, declared, &[b"*"], None, OBJECTS_PER_ROUND).await
        });
        let (keys, _) = found.await?;
        if keys.is_empty() {
            return Ok(());
        }
        let del = OwnedCommand::of(Id::Del, keys.iter().map(Vec::as_slice));
        let reply = execute_on_owners(&context.core, &context.client, del).await?;
        if reply.first() == Some(&b'-') {
            let text = String::from_utf8_lossy(&reply[1..]).trim_end().to_owned();
            return Err((Code::Io, format!("objects could not be removed: {text}")));
        }
    }
}
