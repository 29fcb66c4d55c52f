//! Requests store data from other nodes over HTTP: values whose partition is not on this node, from the version that the request
//! started with, and parts of operations on a complete version.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use larder_cluster::map::NodeId;
use larder_types::{StoreName, slot_of};

use super::reads::absent_key;
use crate::Shared;
use crate::catalog::LiveStore;
use crate::cluster::View;
use crate::error::Error;
use crate::fetch::cluster::{http_root, locate_peer};

/// Returns the value from the slot's owner, or else from a replica. `encoded` is the key as it appears in the path.
///
/// # Errors
/// [`Error::AbsentKey`]; [`Error::NotOnThisNode`] if no node answered.
pub async fn fetch_value(
    shared: &Shared,
    live: &LiveStore,
    key: &[u8],
    encoded: &str,
) -> Result<Bytes, Error> {
    let Some(membership) = &shared.membership else {
        return Err(not_on_this_node(live));
    };
    let view = membership.view();
    let slot = slot_of(&[live.name.as_str().as_bytes(), b":", key].concat());
    let mut failed: Vec<String> = Vec::new();
    for node in view.lookup.placement(slot).holders() {
        let member = view
            .map
            .member(node)
            .filter(|member| view.map.is_up(member.id));
        let Some(root) = member
            .filter(|it| it.id != view.me)
            .and_then(|it| http_root(shared, it))
        else {
            continue;
        };
        let url = format!(
            "{root}/v1/stores/{}/keys/{encoded}?version={}&here=true",
            live.name, live.version_id
        );
        let place = locate_peer(shared, &url)?;
        match tokio::time::timeout(shared.http_read_limiter.timeout, place.get_all(u64::MAX)).await
        {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(larder_remote::Error::NotFound { .. })) => return Err(absent_key(live, key)),
            Ok(Err(error)) => failed.push(error.to_string()),
            Err(_) => failed.push(format!("{} did not answer in time", view.map.name_of(node))),
        }
    }
    Err(Error::NotOnThisNode(if failed.is_empty() {
        format!("no node that is up has slot {slot}")
    } else {
        failed.join("; ")
    }))
}

/// The response to another node that requests a partition that is not here either.
pub fn not_on_this_node(live: &LiveStore) -> Error {
    Error::NotOnThisNode(format!(
        "this node does not have the key's partition of version {} of store {}",
        live.version_id, live.name
    ))
}

/// The interval between checks whether the other node is still up.
const UP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Waits for another node's response for as long as the node is up.
///
/// # Errors
/// The reason why there is no response.
pub async fn await_while_up<T>(
    shared: &Shared,
    node: NodeId,
    answer: impl Future<Output = Result<T, larder_remote::Error>>,
) -> Result<T, String> {
    let mut answer = std::pin::pin!(answer);
    loop {
        match tokio::time::timeout(UP_CHECK_INTERVAL, &mut answer).await {
            Ok(answer) => return answer.map_err(|error| error.to_string()),
            Err(_) => {
                let view = shared.membership.as_ref().map(|it| it.view());
                let is_up = |view: &Arc<View>| view.map.is_up(node);
                if let Some(view) = view.filter(|view| !is_up(view)) {
                    return Err(format!("node {} went down", view.map.name_of(node)));
                }
            }
        }
    }
}

/// Other nodes that have parts of a store, and those that were tried unsuccessfully.
#[derive(Default)]
pub struct Peers {
    avoided: Vec<NodeId>,
    failed: Vec<String>,
}

impl Peers {
    /// Returns a node, with its HTTP address, that should have records of some of these slots and has not been tried
    /// unsuccessfully.
    ///
    /// # Errors
    /// [`Error::NotOnThisNode`] if there is none.
    pub fn find(
        &self,
        shared: &Shared,
        store: &StoreName,
        slots: RangeInclusive<u16>,
        what: &str,
    ) -> Result<(NodeId, String), Error> {
        let view = shared.membership.as_ref().map(|it| it.view());
        let found = view.and_then(|view| {
            let others = view.nodes_with_store_slots(store, slots).into_iter();
            let mut left = others.filter(|node| !self.avoided.contains(node));
            left.find_map(|node| Some((node, http_root(shared, view.map.member(node)?)?)))
        });
        found.ok_or_else(|| {
            let why = if self.failed.is_empty() {
                "no node that is up holds it".to_owned()
            } else {
                self.failed.join("; ")
            };
            Error::NotOnThisNode(format!("{what} is not available: {why}"))
        })
    }

    /// Like [`Peers::of`], but never returns the same node again.
    ///
    /// # Errors
    /// As for [`Peers::of`].
    pub fn next(
        &mut self,
        shared: &Shared,
        store: &StoreName,
        slots: RangeInclusive<u16>,
        what: &str,
    ) -> Result<(NodeId, String), Error> {
        let found = self.find(shared, store, slots, what)?;
        self.avoided.push(found.0);
        Ok(found)
    }

    pub fn avoid(&mut self, node: NodeId, why: String) {
        self.avoided.push(node);
        self.record_failure(why);
    }

    /// Records why the last node failed.
    pub fn record_failure(&mut self, why: String) {
        self.failed.push(why);
    }
}
