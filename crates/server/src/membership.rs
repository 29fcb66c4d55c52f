//! What this node knows of its cluster: its present view, and how it is reached.
//!
//! With `cluster.mode = "one"` the cluster is this node. Its map is kept in `cluster.json` in the data folder, so that the node's id
//! stays the same.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use larder_cluster::coordination::{Change, Coordination, Embedded, Keys, Mark, Outcome, Revision};
use larder_cluster::map::{
    self, ChangeId, DiskId, Incarnation, Map, Member, NodeId, NodeName, Refused, Registration,
    Roles, Settings, SlotRange,
};
use larder_protocol::config::{ClusterMode, ServerConfig};

use crate::cluster::View;
use crate::error::Error;

/// Where the map is in the coordination service.
const MAP: &str = "map";
const MARK: &str = "marks/map";

pub struct Membership {
    view: ArcSwap<View>,
    /// `cluster.announce`: a host, and a port if that is another one too.
    announce: Option<(String, Option<u16>)>,
    /// Holds the lock on the file.
    _service: Embedded,
}

impl Membership {
    /// Joins the cluster of `cluster.mode`, if there is one.
    ///
    /// # Errors
    /// [`Error::BadRequest`] if a setting is wrong, [`Error::Corrupted`] or [`Error::Io`] if the map cannot be read or written.
    pub async fn open(
        config: &ServerConfig,
        cores: usize,
        resp: SocketAddr,
        http: Option<SocketAddr>,
    ) -> Result<Option<Membership>, Error> {
        if config.cluster.mode == ClusterMode::Off {
            return Ok(None);
        }
        let wrong = |key: &str, why: String| Error::BadRequest(format!("cluster.{key}: {why}"));
        let name: NodeName = (config.cluster.node.parse()).map_err(|why| wrong("node", why))?;
        let announce = announced(&config.cluster.announce).map_err(|why| wrong("announce", why))?;
        if config.cluster.mode == ClusterMode::Etcd {
            return Err(wrong("mode", "etcd is not there yet; use one".to_owned()));
        }
        let service = Embedded::open(&config.server.data).map_err(unreadable)?;
        let stored = service_read(&service).await?;
        let before = stored.as_ref().map(|(map, _)| map);
        let known = before.and_then(|map| map.member_named(&name));
        if let (None, Some(map)) = (known, before) {
            let others: Vec<&str> = map.members().iter().map(|it| it.name().as_str()).collect();
            let why = format!(
                "{name} is not the node whose data this is ({}): give it its name, or start with another data folder",
                others.join(", ")
            );
            return Err(wrong("node", why));
        }
        let registration = Registration {
            name,
            incarnation: Incarnation(known.map_or(1, |it| it.registration.incarnation.0 + 1)),
            disk: known.map_or_else(new_disk, |it| Ok(it.registration.disk))?,
            resp: resp.to_string(),
            http: http.map_or_else(String::new, |http| http.to_string()),
            peer: String::new(),
            hostname: None,
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
            zone: String::new(),
            weight: 1,
            roles: Roles::Both,
        };
        let map = match before {
            None => founded(&config.cluster.name, registration),
            Some(map) => returned(map, known.map_or(NodeId(0), |it| it.id), registration),
        };
        let map = map.map_err(|why| Error::Corrupted(format!("cluster.json: {why}")))?;
        let revision = stored
            .as_ref()
            .map_or(Revision(0), |(_, revision)| *revision);
        write(&service, &map, revision).await?;
        let node = map.members().first().map_or(NodeId(0), |member| member.id);
        let own_cores = u16::try_from(cores).unwrap_or(u16::MAX);
        let view = View::first(map.clone(), own_cores).after(map, node);
        Ok(Some(Membership {
            view: ArcSwap::from_pointee(view),
            announce,
            _service: service,
        }))
    }

    /// What this node goes by now.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Where clients find a member of a view: this node is where a client has reached it, unless another address is announced.
    pub fn address(&self, view: &View, member: &Member, reached: SocketAddr) -> (String, u16) {
        let is_own = member.id == view.me;
        let told: SocketAddr = match member.registration.resp.parse() {
            Ok(told) if !is_own => told,
            _ => reached,
        };
        match &self.announce {
            Some((host, port)) if is_own => (host.clone(), port.unwrap_or(told.port())),
            _ => (told.ip().to_canonical().to_string(), told.port()),
        }
    }
}

/// What clients know a member by: 40 hexadecimal digits, the same as long as its data folder is.
pub fn shown_id(member: &Member) -> String {
    let name = larder_types::key_hash(member.name().as_str().as_bytes());
    format!(
        "{:016x}{:08x}{name:016x}",
        member.registration.disk.0, member.id.0
    )
}

/// `host`, `host:port` or `[host]:port`.
fn announced(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is not host:port or host");
    let (host, port) = match text.rsplit_once(':') {
        // An address of version 6 by itself has colons too.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, Some(port.parse().map_err(|_| wrong())?))
        }
        _ => (text, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.is_empty() || host.contains(char::is_whitespace) || port == Some(0) {
        true => Err(wrong()),
        false => Ok(Some((host.to_owned(), port))),
    }
}

/// The first map: this node is all there is, and owns every slot.
fn founded(cluster: &str, registration: Registration) -> Result<Map, Refused> {
    let node = NodeId(1);
    let changes = [
        map::Change::MemberAdded {
            registration,
            at_ms: 0,
        },
        map::Change::MembersAdmitted {
            nodes: vec![node],
            at_ms: 0,
        },
        map::Change::PlacementTaken {
            goals: vec![(SlotRange::ALL, vec![node])],
            outputs: Vec::new(),
            from: 0,
        },
    ];
    let settings = Settings {
        replicas: 1,
        ..Settings::default()
    };
    changed(Map::new(cluster, settings), &changes)
}

/// The map after this node has started again, in a new life.
fn returned(map: &Map, node: NodeId, registration: Registration) -> Result<Map, Refused> {
    let changes = [
        map::Change::MembersLost {
            nodes: vec![node],
            owners: Vec::new(),
            at_ms: 0,
        },
        map::Change::MemberReturned {
            node,
            registration,
            at_ms: 0,
        },
    ];
    changed(map.clone(), &changes)
}

fn changed(map: Map, changes: &[map::Change]) -> Result<Map, Refused> {
    changes.iter().try_fold(map, |map, change| {
        map.apply(change, &ChangeId(format!("start-{}", map.epoch())))
    })
}

async fn service_read(service: &Embedded) -> Result<Option<(Map, Revision)>, Error> {
    let service: &dyn Coordination = service;
    let read = service.read(&Keys::one(MAP)).await.map_err(unreadable)?;
    let Some(entry) = read.entries.into_iter().next() else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&entry.value);
    let map = Map::from_text(&text);
    let map = map.map_err(|why| Error::Corrupted(format!("cluster.json: {why}")))?;
    Ok(Some((map, entry.modified)))
}

async fn write(service: &Embedded, map: &Map, before: Revision) -> Result<(), Error> {
    let service: &dyn Coordination = service;
    let mark = Mark {
        key: MARK.to_owned(),
        id: format!("{}", map.epoch()),
    };
    let change = Change {
        mark,
        compares: Vec::new(),
        puts: Vec::new(),
        deletes: Vec::new(),
    };
    let change = change.unless_changed(MAP, before).put(MAP, map.to_text());
    match service.change(&change).await.map_err(unreadable)? {
        Outcome::Done(_) => Ok(()),
        Outcome::Conflict(_) => Err(Error::Io("cluster.json was changed meanwhile".to_owned())),
    }
}

fn unreadable(error: larder_cluster::coordination::Error) -> Error {
    Error::Io(error.to_string())
}

fn new_disk() -> Result<DiskId, Error> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Error::Io(format!("/dev/urandom: {error}")))?;
    Ok(DiskId(u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_a_host_with_or_without_a_port() {
        let host = |host: &str, port| Ok(Some((host.to_owned(), port)));
        assert_eq!(announced(""), Ok(None));
        assert_eq!(announced("larder.example"), host("larder.example", None));
        assert_eq!(
            announced("larder.example:7000"),
            host("larder.example", Some(7000))
        );
        assert_eq!(announced("fe80::1"), host("fe80::1", None));
        assert_eq!(announced("[fe80::1]:7000"), host("fe80::1", Some(7000)));
        for wrong in [
            "larder.example:",
            ":7000",
            "a b:1",
            "h:0",
            "h:70000",
            "[]:1",
        ] {
            assert!(announced(wrong).is_err(), "{wrong}");
        }
    }
}
