//! The work of one core for a search, in steps, so that the core also serves its other connections.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_join::Engine;
use larder_space::index::{Objects, SpaceIndex, effort};
use larder_types::{object_row, put_object_row};
use tokio::time::timeout;

use super::context::altered_refusal;
use super::offload::{SearchDeadline, dispose};
use super::scatter_gather::ResultDetail;
use super::space_query::SteppedRun;
use crate::spaces::{Backlog, DeclaredSpace};
use crate::tables::{Refusal, Tables};

/// Maximum effort of one step.
pub(super) const STEP_EFFORT: usize = effort(256);
/// Maximum time to wait for a cluster map as new as the sender's.
const MAP_MAX: Duration = Duration::from_secs(2);

/// The space of a search, and its conditions of execution.
#[derive(Clone)]
pub(super) struct ShardRequest {
    pub declared: Arc<DeclaredSpace>,
    /// The epoch of the map by which the search was sent.
    pub epoch: u64,
    pub deadline: SearchDeadline,
    pub detail: ResultDetail,
    /// The ticket of the pause in which the search is executed, if it belongs to a transaction.
    pub ticket: Option<u64>,
    /// Wait for objects that existed before the space was declared or altered, so that they are found.
    pub waits_for_all: bool,
}

impl ShardRequest {
    /// Returns the space whose walk must be complete first.
    fn space_to_scan(&self) -> Option<&DeclaredSpace> {
        self.waits_for_all.then_some(&*self.declared)
    }
}

/// The objects of a core, as stored in its engine.
struct EngineObjects<'a>(&'a Engine);

impl Objects for EngineObjects<'_> {
    fn object(&self, _: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        if let Some((bytes, _)) = self.0.base_row(&object_row(key)) {
            read(bytes);
        }
    }

    fn objects(&self, rows: &[(u32, &[u8])], read: &mut dyn FnMut(usize, Option<&[u8]>)) {
        read_objects(self.0, rows.iter().map(|(_, key)| *key), read);
    }
}

/// Passes the objects of the keys to `read`, with the index of each key, in order. Absent objects are passed as `None`.
pub(super) fn read_objects<'k>(
    engine: &Engine,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
    read: &mut dyn FnMut(usize, Option<&[u8]>),
) {
    let mut ends = Vec::with_capacity(keys.len());
    let mut bytes = Vec::with_capacity(24 * keys.len());
    for key in keys {
        put_object_row(key, &mut bytes);
        ends.push(bytes.len());
    }
    let mut start = 0;
    let rows: Vec<&[u8]> = ends
        .iter()
        .map(|end| &bytes[std::mem::replace(&mut start, *end)..*end])
        .collect();
    engine.base_values(&rows, read);
}

/// A run that is dropped without blocking the core.
pub(super) struct RunGuard<R: SteppedRun>(pub Option<R>);

impl<R: SteppedRun> Drop for RunGuard<R> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            dispose(run.bytes(), run);
        }
    }
}

/// Executes the run that `start` creates, on the objects that this core owns.
///
/// # Errors
/// The ownership has changed since the search was sent, or changes meanwhile; the space was altered; or the time limit
/// is exceeded.
pub(super) async fn run_on_core<R: SteppedRun>(
    tables: Rc<Tables>,
    request: ShardRequest,
    start: impl FnOnce(&SpaceIndex) -> R,
) -> Result<R, Refusal> {
    self::begin_search(&tables, request.epoch, request.ticket).await?;
    let (mut start, mut running) = (Some(start), RunGuard(None));
    loop {
        tables.wait_while_paused(request.ticket).await;
        catch_up(&tables, request.space_to_scan(), request.ticket).await;
        let done = tables.read(|engine, now| {
            if engine.has_expired_rows() {
                return Ok(false);
            }
            let all = tables.spaces().read();
            let space = all.spaces.get(&request.declared.definition.name);
            let space = space
                .filter(|space| space.declared.version == request.declared.version)
                .ok_or_else(altered_refusal)?;
            if let Some(start) = start.take() {
                running.0 = Some(start(&space.index));
            }
            if request.detail == ResultDetail::PlanOnly {
                return Ok(true);
            }
            let run = running.0.as_mut();
            Ok(run.is_some_and(|run| {
                run.step(&space.index, &EngineObjects(engine), now, STEP_EFFORT)
            }))
        })?;
        if let Some(run) = &running.0 {
            tables.spaces().record_work(run.profile().work_max);
        }
        if done {
            break;
        }
        request.deadline.check()?;
        tokio::task::yield_now().await;
    }
    finish_search(&tables, request.epoch).await?;
    running.0.take().ok_or_else(altered_refusal)
}

/// Prepares a search on this core, sent by the map of an epoch: waits until the data that the core owns has arrived and
/// is indexed.
///
/// # Errors
/// The core does not own it.
pub(super) async fn begin_search(
    tables: &Tables,
    epoch: u64,
    ticket: Option<u64>,
) -> Result<(), Refusal> {
    // A timeout is reported below, by `ensure_owner_since`.
    let _ = timeout(MAP_MAX, tables.wait_for_epoch(epoch)).await;
    tables.ensure_owner_since(epoch)?;
    tables.wait_while_paused(ticket).await;
    catch_up(tables, None, ticket).await;
    Ok(())
}

/// Completes a search: waits until the objects found are committed, and checks that none has moved.
///
/// # Errors
/// The commit failed, or objects have moved.
pub(super) async fn finish_search(tables: &Tables, epoch: u64) -> Result<(), Refusal> {
    // The objects found may not have been replicated yet.
    tables.wait_until_committed().await?;
    tables.ensure_owner_since(epoch)
}

/// Indexes the objects that a search must not miss, and completes the scan of `space_to_scan`.
async fn catch_up(tables: &Tables, space_to_scan: Option<&DeclaredSpace>, ticket: Option<u64>) {
    let is_walking = |declared: &DeclaredSpace| {
        let all = tables.spaces().read();
        let space = all.spaces.get(&declared.definition.name);
        space.is_some_and(|space| space.walk_progress().is_walking)
    };
    while tables.index_step() == Backlog::BlocksSearch || space_to_scan.is_some_and(is_walking) {
        tokio::task::yield_now().await;
        tables.wait_while_paused(ticket).await;
    }
}
