//! What clients of Redis Cluster ask: who serves which slots, in the shapes that they expect (Redis 7).

use std::net::SocketAddr;

use larder_cluster::map::{Member, Served, SlotRange, State as MemberState};
use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_types::{SLOTS, slot_of};

use super::state::State;
use crate::membership::{Membership, shown_id};

pub(super) fn answer(state: &mut State, command: Command<'_>) {
    let shared = state.core.shared.clone();
    let Some(cluster) = &shared.membership else {
        let message = "This instance has cluster support disabled";
        return state.error(Code::BadRequest, message);
    };
    if command.id() != Id::Cluster {
        // Every slot is here, and none is on its way.
        return state.encoder().ok();
    }
    let reached = state.client.local_addr;
    let mut encoder = state.encoder();
    match command.arg(1).to_ascii_uppercase().as_slice() {
        b"KEYSLOT" => encoder.count(u64::from(slot_of(command.arg(2)))),
        b"MYID" => encoder.text(&cluster.own().map_or_else(String::new, shown_id)),
        b"SLOTS" => slots(&mut encoder, cluster, reached),
        b"SHARDS" => shards(&mut encoder, cluster, reached),
        b"NODES" => encoder.verbatim(&nodes(cluster, reached)),
        _ => encoder.verbatim(&info(cluster)),
    }
}

fn slots(encoder: &mut Encoder<'_>, cluster: &Membership, reached: SocketAddr) {
    let served = cluster.lookup.served();
    encoder.array(served.len());
    for Served {
        slots,
        owner,
        replicas,
    } in served
    {
        let nodes = std::iter::once(owner).chain(replicas);
        let nodes: Vec<&Member> = nodes.filter_map(|node| cluster.map.member(*node)).collect();
        encoder.array(2 + nodes.len());
        encoder.count(u64::from(slots.from));
        encoder.count(u64::from(slots.to));
        for node in nodes {
            let (host, port) = cluster.address(node, reached);
            encoder.array(4);
            encoder.text(&host);
            encoder.count(u64::from(port));
            encoder.text(&shown_id(node));
            // Nothing more is told of it.
            match encoder.proto {
                Proto::Resp2 => encoder.array(0),
                Proto::Resp3 => encoder.map(0),
            }
        }
    }
}

fn shards(encoder: &mut Encoder<'_>, cluster: &Membership, reached: SocketAddr) {
    let members = cluster.map.members();
    let owned = |member: &Member| cluster.lookup.held(member.id).map(|held| &held.owned[..]);
    let owners = members.iter().filter_map(|it| Some((it, owned(it)?)));
    let owners: Vec<(&Member, &[SlotRange])> = owners.filter(|(_, s)| !s.is_empty()).collect();
    encoder.array(owners.len());
    for (owner, slots) in owners {
        let served = cluster.lookup.served().iter();
        let mut replicas: Vec<&Member> = served
            .filter(|served| served.owner == owner.id)
            .flat_map(|served| &served.replicas)
            .filter_map(|node| cluster.map.member(*node))
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
            let (host, port) = cluster.address(node, reached);
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
            encoder.map(7);
            let mut field = |name: &str, value: &str| {
                encoder.text(name);
                encoder.text(value);
            };
            field("id", &shown_id(node));
            encoder.text("port");
            encoder.count(u64::from(port));
            let mut field = |name: &str, value: &str| {
                encoder.text(name);
                encoder.text(value);
            };
            field("ip", &host);
            field("endpoint", &host);
            field("role", role);
            encoder.text("replication-offset");
            encoder.count(0);
            encoder.text("health");
            encoder.text(health);
        }
    }
}

fn nodes(cluster: &Membership, reached: SocketAddr) -> String {
    let line = |member: &Member| {
        let (host, port) = cluster.address(member, reached);
        let myself = if cluster.is_own(member.id) {
            "myself,"
        } else {
            ""
        };
        let failed = if member.state == MemberState::Down {
            ",fail"
        } else {
            ""
        };
        let term = cluster.map.epoch();
        let link = if failed.is_empty() {
            "connected"
        } else {
            "disconnected"
        };
        let owned = cluster.lookup.held(member.id).map(|held| &held.owned[..]);
        let slots = owned.unwrap_or_default().iter();
        let slots: String = slots.map(|s| format!(" {}", range(*s))).collect();
        let id = shown_id(member);
        format!("{id} {host}:{port}@{port} {myself}master{failed} - 0 0 {term} {link}{slots}\n")
    };
    cluster.map.members().iter().map(line).collect()
}

fn range(slots: SlotRange) -> String {
    match slots.from == slots.to {
        true => slots.from.to_string(),
        false => format!("{}-{}", slots.from, slots.to),
    }
}

fn info(cluster: &Membership) -> String {
    let served: u32 = cluster
        .lookup
        .served()
        .iter()
        .map(|it| it.slots.count())
        .sum();
    let assigned = (0..SLOTS).filter(|&slot| cluster.lookup.placed(slot).owner.is_some());
    let assigned = assigned.count() as u32;
    let members = cluster.map.members();
    let owns = |member: &&Member| {
        let held = cluster.lookup.held(member.id);
        held.is_some_and(|held| !held.owned.is_empty())
    };
    let state = if served == u32::from(SLOTS) {
        "ok"
    } else {
        "fail"
    };
    let (size, epoch) = (members.iter().filter(owns).count(), cluster.map.epoch());
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
    lines.map(|line| line + "\r\n").concat()
}
