//! Declares and drops joins on every core, atomically.
//!
//! In a cluster, the map contains the definitions: a declaration is sent to the controller, and every node follows the
//! map.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use larder_cluster::controller::ControllerRequest;
use larder_join::{CreateBehavior, DropBehavior};
use larder_protocol::errors::Code;

use super::super::super::spaces::follow_spaces;
use super::super::joins::{Effect, JoinChange};
use super::{Coordinator, core_stopped};
use crate::Shared;
use crate::tables::{Gate, PausedCores, Refusal, Tables, stopping};

impl Coordinator {
    /// Declares or drops a join on every core.
    pub(super) async fn define(&mut self, change: JoinChange) -> Result<Vec<u8>, Refusal> {
        // In a transaction, the cores are already paused, so nothing can be prepared.
        if self.ticket.is_none() {
            prepare(&self.core.tables, &change).await?;
        }
        let paused = self.pause().await?;
        let defined = define(&self.core.tables, self.ticket, &change).await;
        self.resume(paused).await?;
        defined?;
        Ok(self.encode(|encoder| encoder.ok()))
    }
}

/// Makes every core drop what it computed from the output of a join that is about to be dropped or replaced.
///
/// # Errors
/// The change would be rejected.
async fn prepare(tables: &Tables, change: &JoinChange) -> Result<(), Refusal> {
    if !matches!(change.check(tables)?, Effect::Removes(_)) {
        return Ok(());
    }
    let handle = tables.handle();
    let begin = |core: usize| {
        let name = change.name().to_owned();
        handle.start_on(core, None, move |tables| async move {
            tables.prepare_drop(&name).await;
        })
    };
    for done in (0..handle.cores()).map(begin).collect::<Vec<_>>() {
        // A core that has stopped is detected when the change is applied.
        let _ = done.await;
    }
    Ok(())
}

/// Makes a change atomically on all cores, which are paused with the ticket: all cores check the change before the
/// first makes it.
async fn define(
    tables: &Rc<Tables>,
    ticket: Option<u64>,
    change: &JoinChange,
) -> Result<(), Refusal> {
    let handle = tables.handle();
    for core in 0..handle.cores() {
        let change = change.clone();
        let checked = handle.start_on(core, ticket, move |tables| async move {
            change.check(&tables).map(drop)
        });
        checked.await.map_err(|_| core_stopped())??;
    }
    for core in 0..handle.cores() {
        let change = change.clone();
        let applied = handle.start_on(core, ticket, move |tables| async move {
            change.apply(&tables, &mut Gate::default())
        });
        applied.await.map_err(|_| core_stopped())??;
    }
    Ok(())
}

/// Declares or drops a join for HTTP, on one core or on all.
///
/// # Errors
/// As for JOIN.CREATE and JOIN.DROP.
pub(crate) async fn define_on_all_cores(
    tables: Rc<Tables>,
    gate: &mut Gate,
    change: &JoinChange,
) -> Result<(), Refusal> {
    prepare(&tables, change).await?;
    if tables.shard().is_none() {
        return change.apply(&tables, gate);
    }
    if !tables.is_in_cluster() {
        // Definitions of the map are not in this node's journal, and are declared before this node has any rows.
        tables.ensure_writes_accepted()?;
    }
    let paused = PausedCores::pause_all(tables.handle())
        .await
        .map_err(stopping)?;
    let defined = define(&tables, Some(paused.ticket), change).await;
    paused.finish(&tables, gate).await?;
    defined
}

/// Maximum time to wait until this node has the new definition from the map.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry interval for a definition that could not be applied.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Declares or drops a join in the cluster, and returns once this node has done so.
///
/// # Errors
/// The definition is invalid, the join already exists or does not exist, or the controller does not reply.
pub(crate) async fn define_in_cluster(
    shared: &Shared,
    tables: &Rc<Tables>,
    change: &JoinChange,
) -> Result<(), Refusal> {
    let Some(membership) = &shared.membership else {
        return Err(core_stopped());
    };
    let effect = change.check(tables)?;
    let keeps = matches!(
        change,
        JoinChange::Create {
            if_defined: CreateBehavior::Keep,
            ..
        }
    );
    // This node's map may be outdated, so the controller decides whether the same definition still exists.
    if effect == Effect::Nothing && keeps {
        return Ok(());
    }
    let requests = match (change, effect) {
        (
            JoinChange::Create {
                name,
                definition,
                if_defined,
            },
            _,
        ) => vec![ControllerRequest::DefineJoin {
            name: name.clone(),
            text: definition.clone(),
            replace: *if_defined == CreateBehavior::Replace,
        }],
        (JoinChange::Drop { .. }, Effect::Removes(names)) => {
            let drops = names
                .into_iter()
                .map(|name| ControllerRequest::DropJoin { name });
            drops.collect()
        }
        (JoinChange::Drop { .. }, _) => Vec::new(),
    };
    for request in requests {
        let result = membership.submit(request).await;
        result.map_err(|why| (Code::ClusterDown, why))?;
    }
    let is_applied = || match change {
        JoinChange::Create {
            name, definition, ..
        } => tables.read(|engine, _| {
            let join = engine.info(name);
            join.is_ok_and(|join| join.definition.trim() == definition.trim())
        }),
        JoinChange::Drop { name, .. } => tables.read(|engine, _| engine.info(name).is_err()),
    };
    let started = Instant::now();
    while !is_applied() || !tables.has_definitions() {
        if started.elapsed() > APPLY_TIMEOUT {
            let message = "the cluster map contains the definition, but this node has not applied it in time; JOIN.LIST shows when it has";
            return Err((Code::ClusterDown, message.to_owned()));
        }
        tables.wait_for_view().await;
    }
    Ok(())
}

/// Applies the map's definitions to all cores. Runs on one core, and never returns.
pub(crate) async fn follow_definitions(tables: Rc<Tables>) {
    // The map's numbers of the definitions that this node has declared.
    let mut declared_numbers: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let Some(view) = tables.view() else {
            tables.wait_for_view().await;
            continue;
        };
        follow_spaces(&tables, &view.map).await;
        let target = view.map.joins();
        let declared = tables.read(|engine, _| engine.list());
        let is_current = |name: &str, text: &str| {
            let definition = target.get(name);
            definition.is_some_and(|it| {
                declared_numbers
                    .get(name)
                    .map_or(it.text.trim() == text.trim(), |number| it.number == *number)
            })
        };
        let drops: Vec<String> = (declared.iter())
            .filter(|join| !target.contains_key(&join.name))
            .map(|join| join.name.clone())
            .collect();
        let is_declared = |name: &str| {
            let mut declared = declared.iter();
            declared.any(|join| join.name == name && is_current(name, &join.definition))
        };
        let mut creates: Vec<(u64, &String, &String)> = (target.iter())
            .filter(|(name, _)| !is_declared(name))
            .map(|(name, definition)| (definition.number, name, &definition.text))
            .collect();
        creates.sort_unstable();
        let mut failed = None;
        for name in drops {
            declared_numbers.remove(&name);
            let dropped = drop_on_this_node(&tables, name).await;
            failed = dropped.err().or(failed);
        }
        for (number, name, text) in creates {
            let change = JoinChange::Create {
                name: name.clone(),
                definition: text.clone(),
                if_defined: CreateBehavior::Replace,
            };
            let mut gate = Gate::default();
            let mut defined = define_on_all_cores(tables.clone(), &mut gate, &change).await;
            if defined.is_err() && drop_on_this_node(&tables, name.clone()).await.is_ok() {
                // Another join of the map, which is also about to change, may conflict with a replacement.
                declared_numbers.remove(name);
                defined = define_on_all_cores(tables.clone(), &mut gate, &change).await;
            }
            match defined {
                Ok(()) => drop(declared_numbers.insert(name.clone(), number)),
                Err(refusal) => failed = Some(refusal),
            }
        }
        let note = |tables: Rc<Tables>| async move { tables.refresh_definitions() };
        // An error means that the server is stopping.
        let _ = tables.handle().run_on_all(None, note).await;
        match failed {
            None => {
                declared_numbers.extend(target.iter().map(|(name, it)| (name.clone(), it.number)));
                let epoch = view.map.epoch();
                while tables.view().is_some_and(|view| view.map.epoch() == epoch) {
                    tables.wait_for_view().await;
                }
            }
            Some((_, why)) => {
                // Before this node takes part, the failure is expected.
                if tables.view().is_some_and(|view| view.is_up()) {
                    tracing::warn!(
                        why,
                        "this node cannot declare or drop a join of the cluster map; it will retry"
                    )
                } else {
                    tracing::debug!(why, "a join of the cluster map is not applied yet")
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Drops a join that the map does not contain, even if other joins on this node read its output.
async fn drop_on_this_node(tables: &Rc<Tables>, name: String) -> Result<(), Refusal> {
    let if_read = DropBehavior::Ignore;
    let change = JoinChange::Drop { name, if_read };
    define_on_all_cores(tables.clone(), &mut Gate::default(), &change).await
}
