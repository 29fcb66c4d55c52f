//! A cluster of a single node, `cluster.mode = "one"`. Its map is stored in `cluster.json` in the data folder, so that the node's
//! id stays the same.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use larder_cluster::coordination::{
    Change, Coordination, Embedded, Keys, LeaseHandle, Mark, Outcome, Revision,
};
use larder_cluster::map::{
    self, ChangeId, ChangeRejected, DiskId, Incarnation, Map, NodeId, Registration, Settings,
    SlotRange,
};

use super::{Life, View};
use crate::error::Error;

/// The key of the map in the coordination service.
const MAP: &str = "map";
const MARK: &str = "marks/map";

/// Begins this node's next incarnation. Returns the service, which holds the lock on the file, and the view for the lifetime of
/// the process. Sets the incarnation and the disk of `registration`.
///
/// # Errors
/// [`Error::BadRequest`] if the folder belongs to another node, [`Error::Corrupted`] or [`Error::Io`] if the map cannot be read
/// or written.
pub async fn open(
    data: &Path,
    cluster: &str,
    mut registration: Registration,
) -> Result<(Embedded, View), Error> {
    let service = Embedded::open(data).map_err(unreadable)?;
    let stored = read_map(&service).await?;
    let before = stored.as_ref().map(|(map, _)| map);
    let name = registration.name.clone();
    let member = before.and_then(|map| map.member_named(&name));
    if let (None, Some(map)) = (member, before) {
        let others: Vec<&str> = map.members().iter().map(|it| it.name().as_str()).collect();
        return Err(Error::BadRequest(format!(
            "cluster.node: {name} is not the node that owns this data folder ({}): use that name, or start with another data folder",
            others.join(", ")
        )));
    }
    registration.incarnation =
        Incarnation(member.map_or(1, |it| it.registration.incarnation.0 + 1));
    registration.disk = member.map_or_else(random_disk_id, |it| Ok(it.registration.disk))?;
    let life = Life {
        incarnation: registration.incarnation,
        disk: registration.disk,
        held: LeaseHandle::unlimited(),
        unproven: None,
    };
    let own_cores = registration.cores;
    let map = match before {
        None => create_map(cluster, registration),
        Some(map) => restart_node(map, member.map_or(NodeId(0), |it| it.id), registration),
    };
    let map = map.map_err(|why| Error::Corrupted(format!("cluster.json: {why}")))?;
    let revision = stored
        .as_ref()
        .map_or(Revision(0), |(_, revision)| *revision);
    write_map(&service, &map, revision).await?;
    let node = map.members().first().map_or(NodeId(0), |member| member.id);
    let view = View::initial(map.clone(), own_cores).next(map, node, Some(life));
    Ok((service, view))
}

/// Returns the first map, in which this node is the only member and owns every slot.
fn create_map(cluster: &str, registration: Registration) -> Result<Map, ChangeRejected> {
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
        map::Change::PlacementReplaced {
            goals: vec![(SlotRange::ALL, vec![node])],
            outputs: Vec::new(),
            from: 0,
        },
    ];
    let settings = Settings {
        replicas: 1,
        ..Settings::default()
    };
    apply_changes(Map::new(cluster, settings), &changes)
}

/// Returns the map after this node has started again, with a new incarnation.
fn restart_node(
    map: &Map,
    node: NodeId,
    registration: Registration,
) -> Result<Map, ChangeRejected> {
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
    apply_changes(map.clone(), &changes)
}

fn apply_changes(map: Map, changes: &[map::Change]) -> Result<Map, ChangeRejected> {
    changes.iter().try_fold(map, |map, change| {
        map.apply(change, &ChangeId(format!("start-{}", map.epoch())))
    })
}

async fn read_map(service: &Embedded) -> Result<Option<(Map, Revision)>, Error> {
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

async fn write_map(service: &Embedded, map: &Map, before: Revision) -> Result<(), Error> {
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
    let change = change.if_unchanged(MAP, before).put(MAP, map.to_text());
    match service.change(&change).await.map_err(unreadable)? {
        Outcome::Done(_) => Ok(()),
        Outcome::Conflict(_) => Err(Error::Io(
            "cluster.json was changed concurrently".to_owned(),
        )),
    }
}

fn unreadable(error: larder_cluster::coordination::Error) -> Error {
    Error::Io(error.to_string())
}

fn random_disk_id() -> Result<DiskId, Error> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Error::Io(format!("/dev/urandom: {error}")))?;
    Ok(DiskId(u64::from_le_bytes(bytes)))
}
