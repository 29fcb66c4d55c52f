//! The identity of the data folder, in `node.json`, by which a returning node is recognized.
//!
//! | field | meaning |
//! |---|---|
//! | `cluster`, `name` | the node to which the data belong; a node with another name does not start on them |
//! | `disk` | drawn when the folder was created, and again when its rows no longer count |
//! | `incarnation` | the last incarnation that began. It is written to disk before it is announced |
//! | `boot` | the boot of the machine in which it began |
//! | `home` | the folder's own identity in the file system, which differs for a copy |
//! | `is_stopped` | it ended gracefully: the journal has everything that it acknowledged |

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use larder_batch::version::files::{self, FileId};
use larder_cluster::map::{DiskId, Incarnation, Registration};
use larder_cluster::replication::recovery::{Identity, ProofError, prove_disk};
use larder_protocol::config::Fsync;
use serde::{Deserialize, Serialize};

use crate::error::Error;

const FILE: &str = "node.json";
const FORMAT: u32 = 1;

pub struct Disk {
    path: PathBuf,
    cluster: String,
    name: String,
    stored: Option<NodeFile>,
    /// The stored state when this process began.
    previous: Option<NodeFile>,
    /// The incarnations that this process has registered.
    registered: Vec<Identity>,
    /// The journal has everything that it acknowledged before this process began.
    is_log_complete: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    format: u32,
    cluster: String,
    name: String,
    disk: DiskId,
    incarnation: Incarnation,
    boot: String,
    home: String,
    is_stopped: bool,
}

/// An incarnation that may begin: it is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedIncarnation {
    pub identity: Identity,
    /// The reason why the rows of the folder do not count, if so; the folder then has a new id.
    pub unproven: Option<ProofError>,
    /// The machine lost power, so the end of the journal may be missing, as much as `tables.fsync` allows. The rows count
    /// nevertheless. If another node has them, this node was removed from the in-sync set when it died, and is filled again; if
    /// none has, these are the best copy.
    pub may_lack_tail: bool,
}

/// Returns the identity of a data folder; `None` if no incarnation has begun on it.
///
/// # Errors
/// Like [`Disk::open`].
pub fn identity(data: &Path) -> Result<Option<Identity>, Error> {
    let stored = read(&data.join(FILE))?;
    Ok(stored.as_ref().map(NodeFile::identity))
}

fn read(path: &Path) -> Result<Option<NodeFile>, Error> {
    match files::read_regular(path) {
        Ok(bytes) => decode(path, &bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

impl NodeFile {
    fn identity(&self) -> Identity {
        Identity {
            disk: self.disk,
            incarnation: self.incarnation,
        }
    }
}

impl Disk {
    /// # Errors
    /// [`Error::BadRequest`] if the folder belongs to another node, [`Error::Corrupted`] or [`Error::Io`] if the file cannot be
    /// read.
    pub fn open(data: &Path, cluster: &str, name: &str, fsync: Fsync) -> Result<Disk, Error> {
        let path = data.join(FILE);
        let stored = read(&path)?;
        if let Some(it) = &stored
            && (it.cluster != cluster || it.name != name)
        {
            return Err(Error::BadRequest(format!(
                "{} belongs to node {} of cluster {}, and this is node {name} of cluster {cluster}: start it with its own \
                 name, or use another data folder",
                data.display(),
                it.name,
                it.cluster
            )));
        }
        let is_log_complete = stored.as_ref().is_none_or(|it| {
            it.is_stopped || fsync == Fsync::Always || it.boot == read_boot_id().unwrap_or_default()
        });
        Ok(Disk {
            path,
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            previous: stored.clone(),
            registered: Vec::new(),
            stored,
            is_log_complete,
        })
    }

    pub fn identity(&self) -> Option<Identity> {
        self.stored.as_ref().map(NodeFile::identity)
    }

    /// Records that an incarnation has registered.
    pub fn record_registration(&mut self, life: Identity) {
        self.registered.push(life);
    }

    /// Returns whether `other` is an earlier incarnation of this folder: one of this process that has lost its lease, or the
    /// last one of the previous process, which has ended, because only one process uses a folder at a time.
    pub fn is_earlier_incarnation(&self, other: &Registration) -> bool {
        let other = Identity {
            disk: other.disk,
            incarnation: other.incarnation,
        };
        if self.registered.contains(&other) {
            return true;
        }
        self.previous.as_ref().is_some_and(|previous| {
            let (boot, home) = (
                read_boot_id().unwrap_or_default(),
                self.folder_id().unwrap_or_default(),
            );
            previous.identity() == other
                && !home.is_empty()
                && (&previous.boot, &previous.home) == (&boot, &home)
        })
    }

    fn folder_id(&self) -> Result<String, Error> {
        let folder = self.path.parent().expect("a file is in a folder");
        let id = FileId::at(folder).map_err(Error::io("read", folder))?;
        Ok(id.to_string())
    }

    /// Begins an incarnation: with the folder's id if its contents match the map, otherwise with a new one.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::DiskFull`]: it has not begun.
    pub fn begin_incarnation(
        &mut self,
        map: Option<Identity>,
    ) -> Result<StartedIncarnation, Error> {
        let own = self.identity();
        let unproven = prove_disk(own, map, self.is_log_complete).err();
        let may_lack_tail = unproven == Some(ProofError::LostTail);
        let unproven = unproven.filter(|_| !may_lack_tail);
        let disk = match (own, unproven) {
            (Some(own), None) => own.disk,
            _ => random_disk_id()?,
        };
        let last = own.iter().chain(&map).map(|it| it.incarnation.0).max();
        let incarnation = Incarnation(last.unwrap_or(0) + 1);
        self.store(NodeFile {
            format: FORMAT,
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            disk,
            incarnation,
            boot: read_boot_id()?,
            home: self.folder_id()?,
            is_stopped: false,
        })?;
        // From here on, only this process writes the journal.
        self.is_log_complete = true;
        let identity = Identity { disk, incarnation };
        Ok(StartedIncarnation {
            identity,
            unproven,
            may_lack_tail,
        })
    }

    /// Records a graceful end of the process, after its journal is closed.
    ///
    /// # Errors
    /// Like [`Disk::begin_incarnation`]. The next start then checks the machine's boot.
    pub fn record_stop(&mut self) -> Result<(), Error> {
        match self.stored.clone() {
            Some(stored) => self.store(NodeFile {
                is_stopped: true,
                ..stored
            }),
            None => Ok(()),
        }
    }

    fn store(&mut self, stored: NodeFile) -> Result<(), Error> {
        let bytes = serde_json::to_vec_pretty(&stored).expect("plain structs become JSON");
        files::write_durably(&self.path, &bytes)?;
        self.stored = Some(stored);
        Ok(())
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<NodeFile, Error> {
    let wrong = |why: String| {
        Error::Corrupted(format!(
            "{}: {why}; restore the file from a copy, or start with an empty data folder, which the cluster fills",
            path.display()
        ))
    };
    let stored: NodeFile =
        serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    match stored.format {
        FORMAT => Ok(stored),
        other => Err(wrong(format!(
            "it has format {other}, and this version of larder reads format {FORMAT}"
        ))),
    }
}

/// Identifies a boot of the machine.
fn read_boot_id() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    Ok(text.trim().to_owned())
}

fn random_disk_id() -> Result<DiskId, Error> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::io("read", path))?;
    Ok(DiskId(u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, name: &str) -> Result<Disk, Error> {
        Disk::open(folder, "main", name, Fsync::EverySecond)
    }

    fn identity(disk: u64, incarnation: u64) -> Identity {
        Identity {
            disk: DiskId(disk),
            incarnation: Incarnation(incarnation),
        }
    }

    #[test]
    fn incarnations_increase_and_the_folder_keeps_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_incarnation(None).unwrap();
        assert_eq!(first.unproven, Some(ProofError::Empty));
        assert_eq!(first.identity.incarnation, Incarnation(1));
        let second = disk.begin_incarnation(Some(first.identity)).unwrap();
        assert_eq!(second.unproven, None);
        let mut disk = open(folder.path(), "a").unwrap();
        let third = disk.begin_incarnation(Some(first.identity)).unwrap();
        assert_eq!(third.unproven, None, "killed: the system has the journal");
        assert_eq!(third.identity.disk, first.identity.disk);
        assert_eq!(third.identity.incarnation, Incarnation(3));
    }

    #[test]
    fn an_incarnation_that_lost_its_lease_is_recognized_as_this_folders() {
        let folder = tempfile::tempdir().unwrap();
        let registered = |life: Identity| Registration {
            incarnation: life.incarnation,
            disk: life.disk,
            ..crate::cluster::registration("a", 1)
        };
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_incarnation(None).unwrap().identity;
        assert!(
            !disk.is_earlier_incarnation(&registered(first)),
            "it has not registered"
        );
        disk.record_registration(first);
        // The next incarnation has begun, and could not register while the first one's key existed.
        let second = disk.begin_incarnation(Some(first)).unwrap().identity;
        assert!(disk.is_earlier_incarnation(&registered(first)));
        assert!(
            !disk.is_earlier_incarnation(&registered(second)),
            "a copy of the folder may"
        );
        let disk = open(folder.path(), "a").unwrap();
        assert!(
            disk.is_earlier_incarnation(&registered(second)),
            "its process has ended"
        );
    }

    #[test]
    fn a_folder_that_does_not_match_the_map_gets_a_new_disk_id() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_incarnation(Some(identity(7, 5))).unwrap();
        assert_eq!(first.unproven, Some(ProofError::Empty));
        assert_eq!(first.identity.incarnation, Incarnation(6));
        // A copy of the folder, from before the last two incarnations.
        let map = Identity {
            incarnation: Incarnation(8),
            ..first.identity
        };
        let returned = disk.begin_incarnation(Some(map)).unwrap();
        assert_eq!(returned.unproven, Some(ProofError::Old));
        assert_ne!(returned.identity.disk, first.identity.disk);
        assert_eq!(returned.identity.incarnation, Incarnation(9));
    }

    #[test]
    fn a_machine_that_lost_power_may_have_lost_the_end_of_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let started = open(folder.path(), "a")
            .unwrap()
            .begin_incarnation(None)
            .unwrap();
        let path = folder.path().join(FILE);
        let on_another_boot = |path: &Path| {
            let mut stored = decode(path, &std::fs::read(path).unwrap()).unwrap();
            stored.boot = "another".to_owned();
            std::fs::write(path, serde_json::to_vec(&stored).unwrap()).unwrap();
        };
        on_another_boot(&path);
        let mut synced = Disk::open(folder.path(), "main", "a", Fsync::Always).unwrap();
        let map = Some(started.identity);
        assert!(!synced.begin_incarnation(map).unwrap().may_lack_tail);
        on_another_boot(&path);
        let mut disk = open(folder.path(), "a").unwrap();
        disk.record_stop().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        assert!(!disk.begin_incarnation(map).unwrap().may_lack_tail);
        on_another_boot(&path);
        let mut disk = open(folder.path(), "a").unwrap();
        let lost = disk.begin_incarnation(map).unwrap();
        assert!(lost.may_lack_tail && lost.unproven.is_none());
        assert_eq!(
            lost.identity.disk, started.identity.disk,
            "no other node may have the rows"
        );
    }

    #[test]
    fn a_folder_of_another_node_and_a_damaged_file_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), "a")
            .unwrap()
            .begin_incarnation(None)
            .unwrap();
        let why = open(folder.path(), "b").err().unwrap().to_string();
        assert!(why.contains("node a of cluster main"), "{why}");
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let why = open(folder.path(), "a").err().unwrap().to_string();
        assert!(why.contains("node.json"), "{why}");
    }
}
