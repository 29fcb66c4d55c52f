//! What a node that has lost touch with etcd learns from the other nodes: whether their map is newer, and then which versions of stores are live.
//!
//! Once this node's lease has ended, core 0 asks the connected nodes for the epoch of their map, once a second. While one of them has a newer map,
//! this node does not answer from the versions of its own: with `cluster.cut_off_reads = "forward"` it shows the versions that are live in the newer
//! map, and so asks the nodes that have their records; with `"refuse"` it refuses reads of stores.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Epoch, Map, NodeId};
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::config::CutOffReads;
use tokio::time::timeout;

use super::reply_of;
use crate::Shared;
use crate::cluster::{Peers, View};

/// How long another node's answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the other nodes are to be asked.
pub(super) fn is_due(view: &View) -> bool {
    !view.is_held_surely(boot_ms())
}

/// Asks a node, and acts on its answer if its map is newer.
pub(super) async fn compare(shared: Arc<Shared>, peers: Rc<Peers>, node: NodeId) {
    // A node that does not answer is asked again a second later.
    let _ = timeout(PATIENCE, compare_maps(&shared, &peers, node)).await;
}

async fn compare_maps(shared: &Shared, peers: &Rc<Peers>, node: NodeId) -> Option<()> {
    let membership = shared.membership.as_ref()?;
    let info = cluster_reply(peers, node, "INFO").await?;
    let mut lines = info.lines();
    let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
    let epoch = Epoch(epoch.parse().ok()?);
    membership.saw_epoch(epoch);
    let why = membership.cut_off()?;
    if shared.config.cluster.cut_off_reads == CutOffReads::Forward {
        let map = cluster_reply(peers, node, "MAP").await;
        if let Some(Ok(map)) = map.map(|text| Map::from_text(&text)) {
            shared.stores.show(&map);
            return Some(());
        }
    }
    shared.stores.refuse_reads(epoch, &why);
    Some(())
}

/// What a node replies to a subcommand of CLUSTER.
async fn cluster_reply(peers: &Rc<Peers>, node: NodeId, subcommand: &str) -> Option<String> {
    let command = OwnedCommand::of(Id::Cluster, std::iter::once(subcommand.as_bytes()));
    let reply = String::from_utf8(reply_of(peers, node, command).await?).ok()?;
    let (size, text) = reply.strip_prefix('$')?.split_once("\r\n")?;
    text.get(..size.parse().ok()?).map(str::to_owned)
}
