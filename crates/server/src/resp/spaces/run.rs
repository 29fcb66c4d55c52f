//! The work of one core for a search, in steps, so that the core also serves its other connections.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_join::Engine;
use larder_space::index::{Objects, SpaceIndex, effort};
use larder_types::{object_row, put_object_row};
use tokio::time::timeout;

use super::aside::{Patience, dispose};
use super::parts::Depth;
use super::question::Steps;
use super::reach::altered;
use crate::spaces::{Behind, Declared};
use crate::tables::{Refusal, Tables};

/// Maximum effort of one step.
pub(super) const STEP_EFFORT: usize = effort(256);
/// Maximum time to wait for a cluster map as new as the sender's.
const MAP_MAX: Duration = Duration::from_secs(2);

/// The space of a search, and its conditions of execution.
#[derive(Clone)]
pub(super) struct Order {
    pub declared: Arc<Declared>,
    /// The epoch of the map by which the search was sent.
    pub epoch: u64,
    pub patience: Patience,
    pub depth: Depth,
    /// The ticket of the pause in which the search is executed, if it belongs to a transaction.
    pub ticket: Option<u64>,
    /// Wait for objects that existed before the space was declared or altered, so that they are found.
    pub is_of_all: bool,
}

impl Order {
    /// Returns the space whose walk must be complete first.
    fn walked(&self) -> Option<&Declared> {
        self.is_of_all.then_some(&*self.declared)
    }
}

/// The objects of a core, as stored in its engine.
struct Rows<'a>(&'a Engine);

impl Objects for Rows<'_> {
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
    let mut begin = 0;
    let rows: Vec<&[u8]> = ends
        .iter()
        .map(|end| &bytes[std::mem::replace(&mut begin, *end)..*end])
        .collect();
    engine.base_values(&rows, read);
}

/// A run that is dropped without blocking the core.
pub(super) struct Running<R: Steps>(pub Option<R>);

impl<R: Steps> Drop for Running<R> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            dispose(run.bytes(), run);
        }
    }
}

/// Executes the run that `begin` creates, on the objects that this core owns.
///
/// # Errors
/// The ownership has changed since the search was sent, or changes meanwhile; the space was altered; or the time limit
/// is exceeded.
pub(super) async fn run<R: Steps>(
    tables: Rc<Tables>,
    order: Order,
    begin: impl FnOnce(&SpaceIndex) -> R,
) -> Result<R, Refusal> {
    self::begin(&tables, order.epoch, order.ticket).await?;
    let (mut begin, mut running) = (Some(begin), Running(None));
    loop {
        tables.wait_while_paused(order.ticket).await;
        catch_up(&tables, order.walked(), order.ticket).await;
        let done = tables.read(|engine, now| {
            if engine.has_late_rows() {
                return Ok(false);
            }
            let all = tables.spaces().read();
            let space = all.spaces.get(&order.declared.definition.name);
            let space = space
                .filter(|space| space.declared.version == order.declared.version)
                .ok_or_else(altered)?;
            if let Some(begin) = begin.take() {
                running.0 = Some(begin(&space.index));
            }
            if order.depth == Depth::Planned {
                return Ok(true);
            }
            let run = running.0.as_mut();
            Ok(run.is_some_and(|run| run.step(&space.index, &Rows(engine), now, STEP_EFFORT)))
        })?;
        if let Some(run) = &running.0 {
            tables.spaces().note_work(run.profile().work_max);
        }
        if done {
            break;
        }
        order.patience.ensure()?;
        tokio::task::yield_now().await;
    }
    end(&tables, order.epoch).await?;
    running.0.take().ok_or_else(altered)
}

/// Prepares a search on this core, sent by the map of an epoch: waits until the data that the core owns has arrived and
/// is indexed.
///
/// # Errors
/// The core does not own it.
pub(super) async fn begin(tables: &Tables, epoch: u64, ticket: Option<u64>) -> Result<(), Refusal> {
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
pub(super) async fn end(tables: &Tables, epoch: u64) -> Result<(), Refusal> {
    // The objects found may not have been replicated yet.
    tables.wait_until_committed().await?;
    tables.ensure_owner_since(epoch)
}

/// Indexes the objects that a search must not miss, and completes the walk of `walked`.
async fn catch_up(tables: &Tables, walked: Option<&Declared>, ticket: Option<u64>) {
    let is_walking = |declared: &Declared| {
        let all = tables.spaces().read();
        let space = all.spaces.get(&declared.definition.name);
        space.is_some_and(|space| space.standing().is_walking)
    };
    while tables.index_some() == Behind::Owed || walked.is_some_and(is_walking) {
        tokio::task::yield_now().await;
        tables.wait_while_paused(ticket).await;
    }
}
