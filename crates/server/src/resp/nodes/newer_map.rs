//! Lets a node without a connection to etcd learn from the other nodes whether their map is newer, and then which
//! versions of stores are live.
//!
//! Once this node's lease has expired, core 0 requests the epoch of the map from the connected nodes once a second.
//! While one of them has a newer map, this node does not serve reads from its own versions. With `cluster.cut_off_reads
//! = "forward"`, it adopts the live versions of the newer map and therefore forwards reads to the nodes that have the
//! records; with `"refuse"`, it rejects reads of stores.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Epoch, Map, NodeId};
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::config::CutOffReads;
use tokio::time::timeout;

use super::request_reply;
use crate::Shared;
use crate::cluster::{Peers, View};

/// Maximum time to wait for another node's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether to query the other nodes: the lease may have expired.
pub(super) fn is_due(view: &View) -> bool {
    !view.has_valid_lease(boot_ms())
}

/// Compares a node's map with this node's map. If it is newer, adopts its live versions or rejects reads, as
/// configured.
pub(super) async fn compare(shared: Arc<Shared>, peers: Rc<Peers>, node: NodeId) {
    // After a timeout, the node is queried again a second later.
    let _ = timeout(REPLY_TIMEOUT, compare_maps(&shared, &peers, node)).await;
}

async fn compare_maps(shared: &Shared, peers: &Rc<Peers>, node: NodeId) -> Option<()> {
    let membership = shared.membership.as_ref()?;
    let info = cluster_reply(peers, node, "INFO").await?;
    let mut lines = info.lines();
    let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
    let epoch = Epoch(epoch.parse().ok()?);
    membership.observe_epoch(epoch);
    let why = membership.cut_off_reason()?;
    if shared.config.cluster.cut_off_reads == CutOffReads::Forward {
        let map = cluster_reply(peers, node, "MAP").await;
        if let Some(Ok(map)) = map.map(|text| Map::from_text(&text)) {
            shared.stores.apply_map(&map);
            return Some(());
        }
    }
    shared.stores.refuse_reads(epoch, &why);
    Some(())
}

/// Returns a node's reply to a subcommand of CLUSTER.
async fn cluster_reply(peers: &Rc<Peers>, node: NodeId, subcommand: &str) -> Option<String> {
    let command = OwnedCommand::of(Id::Cluster, std::iter::once(subcommand.as_bytes()));
    let reply = String::from_utf8(request_reply(peers, node, command).await?).ok()?;
    let (size, text) = reply.strip_prefix('$')?.split_once("\r\n")?;
    text.get(..size.parse().ok()?).map(str::to_owned)
}
