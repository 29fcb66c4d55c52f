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
use larder_cluster::replication::recovery::{Identity, Unproven, prove};
use larder_protocol::config::Fsync;
use serde::{Deserialize, Serialize};

use crate::error::Error;

const FILE: &str = "node.json";
const FORMAT: u32 = 1;

pub struct Disk {
    path: PathBuf,
    cluster: String,
    name: String,
    stored: Option<Stored>,
    /// The stored state when this process began.
    found: Option<Stored>,
    /// The incarnations that this process has registered.
    registered: Vec<Identity>,
    /// The journal has everything that it acknowledged before this process began.
    is_log_whole: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
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
pub struct Begun {
    pub identity: Identity,
    /// The reason why the rows of the folder do not count, if so; the folder then has a new id.
    pub unproven: Option<Unproven>,
    /// The machine lost power, so the end of the journal may be missing, as much as `tables.fsync` allows. The rows count
    /// nevertheless. If another node has them, this node was removed from the in-sync set when it died, and is filled again; if
    /// none has, these are the best copy.
    pub may_lack_the_end: bool,
}

/// Returns the identity of a data folder; `None` if no incarnation has begun on it.
///
/// # Errors
/// Like [`Disk::open`].
pub fn identity(data: &Path) -> Result<Option<Identity>, Error> {
    let stored = read(&data.join(FILE))?;
    Ok(stored.as_ref().map(Stored::identity))
}

fn read(path: &Path) -> Result<Option<Stored>, Error> {
    match files::read_regular(path) {
        Ok(bytes) => decode(path, &bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

impl Stored {
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
                "{} is the folder of node {} of cluster {}, and this is to be node {name} of cluster {cluster}: start it with its own \
                 name, or with a data folder of its own",
                data.display(),
                it.name,
                it.cluster
            )));
        }
        let is_log_whole = stored.as_ref().is_none_or(|it| {
            it.is_stopped || fsync == Fsync::Always || it.boot == boot().unwrap_or_default()
        });
        Ok(Disk {
            path,
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            found: stored.clone(),
            registered: Vec::new(),
            stored,
            is_log_whole,
        })
    }

    pub fn identity(&self) -> Option<Identity> {
        self.stored.as_ref().map(Stored::identity)
    }

    /// Records that an incarnation has registered.
    pub fn note_registered(&mut self, life: Identity) {
        self.registered.push(life);
    }

    /// Returns whether `other` is an earlier incarnation of this folder: one of this process that has lost its lease, or the
    /// last one of the previous process, which has ended, because only one process uses a folder at a time.
    pub fn was(&self, other: &Registration) -> bool {
        let other = Identity {
            disk: other.disk,
            incarnation: other.incarnation,
        };
        if self.registered.contains(&other) {
            return true;
        }
        self.found.as_ref().is_some_and(|found| {
            let (boot, home) = (boot().unwrap_or_default(), self.home().unwrap_or_default());
            found.identity() == other
                && !home.is_empty()
                && (&found.boot, &found.home) == (&boot, &home)
        })
    }

    fn home(&self) -> Result<String, Error> {
        let folder = self.path.parent().expect("a file is in a folder");
        let id = FileId::at(folder).map_err(Error::io("read", folder))?;
        Ok(id.to_string())
    }

    /// Begins an incarnation: with the folder's id if its contents match the map, otherwise with a new one.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::DiskFull`]: it has not begun.
    pub fn begin_life(&mut self, map: Option<Identity>) -> Result<Begun, Error> {
        let own = self.identity();
        let unproven = prove(own, map, self.is_log_whole).err();
        let may_lack_the_end = unproven == Some(Unproven::LostTail);
        let unproven = unproven.filter(|_| !may_lack_the_end);
        let disk = match (own, unproven) {
            (Some(own), None) => own.disk,
            _ => new_disk()?,
        };
        let last = own.iter().chain(&map).map(|it| it.incarnation.0).max();
        let incarnation = Incarnation(last.unwrap_or(0) + 1);
        self.store(Stored {
            format: FORMAT,
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            disk,
            incarnation,
            boot: boot()?,
            home: self.home()?,
            is_stopped: false,
        })?;
        // From here on, only this process writes the journal.
        self.is_log_whole = true;
        let identity = Identity { disk, incarnation };
        Ok(Begun {
            identity,
            unproven,
            may_lack_the_end,
        })
    }

    /// Records a graceful end of the process, after its journal is closed.
    ///
    /// # Errors
    /// Like [`Disk::begin_life`]. The next start then checks the machine's boot.
    pub fn stopped(&mut self) -> Result<(), Error> {
        match self.stored.clone() {
            Some(stored) => self.store(Stored {
                is_stopped: true,
                ..stored
            }),
            None => Ok(()),
        }
    }

    fn store(&mut self, stored: Stored) -> Result<(), Error> {
        let bytes = serde_json::to_vec_pretty(&stored).expect("plain structs become JSON");
        files::write_durably(&self.path, &bytes)?;
        self.stored = Some(stored);
        Ok(())
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Stored, Error> {
    let wrong = |why: String| {
        Error::Corrupted(format!(
            "{}: {why}; bring the file back from a copy, or start with an empty data folder: what the cluster has is copied to it",
            path.display()
        ))
    };
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    match stored.format {
        FORMAT => Ok(stored),
        other => Err(wrong(format!(
            "it has format {other}, and this program knows format {FORMAT}"
        ))),
    }
}

/// Identifies a boot of the machine.
fn boot() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    Ok(text.trim().to_owned())
}

fn new_disk() -> Result<DiskId, Error> {
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
    fn each_life_is_counted_on_and_the_folder_keeps_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_life(None).unwrap();
        assert_eq!(first.unproven, Some(Unproven::Empty));
        assert_eq!(first.identity.incarnation, Incarnation(1));
        let second = disk.begin_life(Some(first.identity)).unwrap();
        assert_eq!(second.unproven, None);
        let mut disk = open(folder.path(), "a").unwrap();
        let third = disk.begin_life(Some(first.identity)).unwrap();
        assert_eq!(third.unproven, None, "killed: the system has the journal");
        assert_eq!(third.identity.disk, first.identity.disk);
        assert_eq!(third.identity.incarnation, Incarnation(3));
    }

    #[test]
    fn a_life_that_lost_its_lease_is_not_taken_for_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let registered = |life: Identity| Registration {
            incarnation: life.incarnation,
            disk: life.disk,
            ..crate::cluster::registration("a", 1)
        };
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_life(None).unwrap().identity;
        assert!(!disk.was(&registered(first)), "it has not registered");
        disk.note_registered(first);
        // The next incarnation has begun, and could not register while the first one's key existed.
        let second = disk.begin_life(Some(first)).unwrap().identity;
        assert!(disk.was(&registered(first)));
        assert!(!disk.was(&registered(second)), "a copy of the folder may");
        let disk = open(folder.path(), "a").unwrap();
        assert!(disk.was(&registered(second)), "its process has ended");
    }

    #[test]
    fn a_folder_that_the_map_does_not_mean_is_another_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        let first = disk.begin_life(Some(identity(7, 5))).unwrap();
        assert_eq!(first.unproven, Some(Unproven::Empty));
        assert_eq!(first.identity.incarnation, Incarnation(6));
        // A copy of the folder, from before the last two incarnations.
        let map = Identity {
            incarnation: Incarnation(8),
            ..first.identity
        };
        let returned = disk.begin_life(Some(map)).unwrap();
        assert_eq!(returned.unproven, Some(Unproven::Old));
        assert_ne!(returned.identity.disk, first.identity.disk);
        assert_eq!(returned.identity.incarnation, Incarnation(9));
    }

    #[test]
    fn a_machine_that_lost_power_may_have_lost_the_end_of_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let begun = open(folder.path(), "a").unwrap().begin_life(None).unwrap();
        let path = folder.path().join(FILE);
        let on_another_boot = |path: &Path| {
            let mut stored = decode(path, &std::fs::read(path).unwrap()).unwrap();
            stored.boot = "another".to_owned();
            std::fs::write(path, serde_json::to_vec(&stored).unwrap()).unwrap();
        };
        on_another_boot(&path);
        let mut synced = Disk::open(folder.path(), "main", "a", Fsync::Always).unwrap();
        let map = Some(begun.identity);
        assert!(!synced.begin_life(map).unwrap().may_lack_the_end);
        on_another_boot(&path);
        let mut disk = open(folder.path(), "a").unwrap();
        disk.stopped().unwrap();
        let mut disk = open(folder.path(), "a").unwrap();
        assert!(!disk.begin_life(map).unwrap().may_lack_the_end);
        on_another_boot(&path);
        let mut disk = open(folder.path(), "a").unwrap();
        let lost = disk.begin_life(map).unwrap();
        assert!(lost.may_lack_the_end && lost.unproven.is_none());
        assert_eq!(
            lost.identity.disk, begun.identity.disk,
            "nobody else may have the rows"
        );
    }

    #[test]
    fn another_nodes_folder_is_refused_and_a_damaged_file_too() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), "a").unwrap().begin_life(None).unwrap();
        let why = open(folder.path(), "b").err().unwrap().to_string();
        assert!(why.contains("node a of cluster main"), "{why}");
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let why = open(folder.path(), "a").err().unwrap().to_string();
        assert!(why.contains("node.json"), "{why}");
    }
}
