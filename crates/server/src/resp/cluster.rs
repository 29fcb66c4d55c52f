//! The commands of Redis Cluster that report which node serves which slots, in the format of Redis 7.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use larder_cluster::map::{Member, MemberState, ServedRange, SlotRange};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};
use larder_types::{SLOTS, slot_of};

use super::state::ConnectionState;
use crate::cluster::View;
use crate::membership::{Membership, shown_id};

const DISABLED: &str = "This instance has cluster support disabled";

/// Executes the command `ASKING`. It has no effect: at every moment of a move, exactly one node accepts the commands of a slot.
pub(super) fn asking(state: &mut ConnectionState) {
    if state.core.shared.membership.is_some() {
        state.encoder().ok();
    } else {
        state.error(Code::BadRequest, DISABLED);
    }
}

/// Executes READONLY and READWRITE.
pub(super) fn set_reads_replicas(state: &mut ConnectionState, reads_replicas: bool) {
    if state.core.shared.membership.is_some() {
        state.reads_replicas = reads_replicas;
    }
    asking(state);
}

pub(super) fn cluster(state: &mut ConnectionState, request: Request<'_>) {
    let shared = state.core.shared.clone();
    let Some(membership) = &shared.membership else {
        return state.error(Code::BadRequest, DISABLED);
    };
    let cluster = &ClientView {
        membership,
        view: membership.view(),
        local_addr: state.client.local_addr,
        uses_tls: !shared.config.server.tls_cert.is_empty(),
    };
    let mut encoder = state.encoder();
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"KEYSLOT" => encoder.count(u64::from(slot_of(request.arg(2)))),
        b"MAP" => encoder.text(&cluster.view.map.to_text()),
        b"MYID" => encoder.text(&cluster.view.own().map_or_else(String::new, shown_id)),
        b"SLOTS" => slots(&mut encoder, cluster),
        b"SHARDS" => shards(&mut encoder, cluster),
        b"NODES" => encoder.verbatim(&nodes(cluster)),
        _ => encoder.verbatim(&info(cluster)),
    }
}

/// The cluster from the viewpoint of one client.
struct ClientView<'a> {
    membership: &'a Membership,
    view: Arc<View>,
    /// The address of this node through which the client connected.
    local_addr: SocketAddr,
    /// Clients must use TLS. This is the same for all nodes of a cluster.
    uses_tls: bool,
}

impl ClientView<'_> {
    fn address(&self, member: &Member) -> (String, u16) {
        self.membership.address(&self.view, member, self.local_addr)
    }

    /// Returns the slots that a member owns, as ranges.
    fn owned_slots(&self, member: &Member) -> &[SlotRange] {
        let held = self.view.lookup.slots_of(member.id);
        held.map_or(&[], |held| &held.owned)
    }
}

fn slots(encoder: &mut Encoder<'_>, cluster: &ClientView<'_>) {
    let listed = cluster.view.lookup.listed_ranges();
    encoder.array(listed.len());
    for ServedRange {
        slots,
        owner,
        replicas,
    } in listed
    {
        let nodes = std::iter::once(owner).chain(replicas);
        let nodes: Vec<&Member> = nodes
            .filter_map(|node| cluster.view.map.member(*node))
            .collect();
        encoder.array(2 + nodes.len());
        encoder.count(u64::from(slots.from));
        encoder.count(u64::from(slots.to));
        for node in nodes {
            let (host, port) = cluster.address(node);
            encoder.array(4);
            encoder.text(&host);
            encoder.count(u64::from(port));
            encoder.text(&shown_id(node));
            let zone = zone(node);
            encoder.map(usize::from(zone.is_some()));
            if let Some(zone) = zone {
                field(encoder, ZONE, zone);
            }
        }
    }
}

fn shards(encoder: &mut Encoder<'_>, cluster: &ClientView<'_>) {
    let members = cluster.view.map.members();
    let owners = members.iter().map(|it| (it, cluster.owned_slots(it)));
    let owners: Vec<(&Member, &[SlotRange])> = owners.filter(|(_, s)| !s.is_empty()).collect();
    encoder.array(owners.len());
    for (owner, slots) in owners {
        let served = cluster.view.lookup.served_ranges().iter();
        let mut replicas: Vec<&Member> = served
            .filter(|served| served.owner == owner.id)
            .flat_map(|served| &served.replicas)
            .filter_map(|node| cluster.view.map.member(*node))
            .collect();
        replicas.sort_unstable_by_key(|member| member.id);
        replicas.dedup_by_key(|member| member.id);
        encoder.map(2);
        encoder.text("slots");
        encoder.array(slots.len() * 2);
        for slots in slots {
            encoder.count(u64::from(slots.from));
            encoder.count(u64::from(slots.to));
        }
        encoder.text("nodes");
        encoder.array(1 + replicas.len());
        for node in std::iter::once(owner).chain(replicas) {
            let (host, port) = cluster.address(node);
            let role = if node.id == owner.id {
                "master"
            } else {
                "replica"
            };
            let health = if node.state == MemberState::Down {
                "fail"
            } else {
                "online"
            };
            let (name, zone) = (is_name(&host).then_some(&host), zone(node));
            encoder.map(7 + usize::from(name.is_some()) + usize::from(zone.is_some()));
            field(encoder, "id", &shown_id(node));
            encoder.text(if cluster.uses_tls { "tls-port" } else { "port" });
            encoder.count(u64::from(port));
            // Host names are not resolved here.
            field(encoder, "ip", &host);
            field(encoder, "endpoint", &host);
            if let Some(name) = name {
                field(encoder, "hostname", name);
            }
            field(encoder, "role", role);
            encoder.text("replication-offset");
            encoder.count(0);
            field(encoder, "health", health);
            if let Some(zone) = zone {
                field(encoder, ZONE, zone);
            }
        }
    }
}

/// Valkey's name for a node's zone.
const ZONE: &str = "availability-zone";

fn zone(member: &Member) -> Option<&str> {
    let zone = member.registration.zone.as_str();
    (!zone.is_empty()).then_some(zone)
}

/// Returns whether the host is a name rather than an IP address.
fn is_name(host: &str) -> bool {
    host.parse::<IpAddr>().is_err()
}

fn field(encoder: &mut Encoder<'_>, name: &str, value: &str) {
    encoder.text(name);
    encoder.text(value);
}

fn nodes(cluster: &ClientView<'_>) -> String {
    let line = |member: &Member| {
        let (host, port) = cluster.address(member);
        let myself = if member.id == cluster.view.me {
            "myself,"
        } else {
            ""
        };
        let failed = if member.state == MemberState::Down {
            ",fail"
        } else {
            ""
        };
        let term = cluster.view.map.epoch();
        let link = if failed.is_empty() {
            "connected"
        } else {
            "disconnected"
        };
        let slots = cluster.owned_slots(member).iter();
        let slots: String = slots.map(|s| format!(" {}", range(*s))).collect();
        let id = shown_id(member);
        let name = if is_name(&host) {
            format!(",{host}")
        } else {
            String::new()
        };
        format!(
            "{id} {host}:{port}@{port}{name} {myself}master{failed} - 0 0 {term} {link}{slots}\n"
        )
    };
    cluster.view.map.members().iter().map(line).collect()
}

fn range(slots: SlotRange) -> String {
    if slots.from == slots.to {
        slots.from.to_string()
    } else {
        format!("{}-{}", slots.from, slots.to)
    }
}

fn info(cluster: &ClientView<'_>) -> String {
    let served: u32 = cluster
        .view
        .lookup
        .served_ranges()
        .iter()
        .map(|it| it.slots.count())
        .sum();
    let members = cluster.view.map.members();
    let owned = members
        .iter()
        .flat_map(|member| cluster.owned_slots(member));
    let assigned: u32 = owned.map(|slots| slots.count()).sum();
    let owns = |member: &&Member| !cluster.owned_slots(member).is_empty();
    let state = if served == u32::from(SLOTS) {
        "ok"
    } else {
        "fail"
    };
    let (size, epoch) = (
        members.iter().filter(owns).count(),
        cluster.view.map.epoch(),
    );
    let lines = [
        "cluster_enabled:1".to_owned(),
        format!("cluster_state:{state}"),
        format!("cluster_slots_assigned:{assigned}"),
        format!("cluster_slots_ok:{served}"),
        "cluster_slots_pfail:0".to_owned(),
        format!("cluster_slots_fail:{}", assigned - served),
        format!("cluster_known_nodes:{}", members.len()),
        format!("cluster_size:{size}"),
        format!("cluster_current_epoch:{epoch}"),
        format!("cluster_my_epoch:{epoch}"),
        "cluster_stats_messages_sent:0".to_owned(),
        "cluster_stats_messages_received:0".to_owned(),
    ];
    let mut text = lines.map(|line| line + "\r\n").concat();
    if let Some(standing) = cluster.membership.health() {
        let etcd = match standing.etcd_error {
            Some(_) => "silent",
            None => "ok",
        };
        let left = standing.lease_left_ms(&cluster.view);
        text += &format!("cluster_etcd:{etcd}\r\ncluster_lease_left_ms:{left}\r\n");
    }
    text
}
