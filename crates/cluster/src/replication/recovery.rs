//! What a node that returns may keep.
//!
//! The map knows of each member a *disk id*, drawn when its folder was made, and its *incarnation*, which rises with each start; the node keeps both on disk
//! too. [`prove`] says whether the disk is the one that the map means, and whole:
//!
//! * another disk id, or none: an empty disk, or a stranger's (an old name with nothing behind it);
//! * an incarnation that is older than the map's: a copy of the disk from before the last start (a disk of two epochs ago);
//! * a log that may have lost what it had acknowledged: power was lost, and the log is not synced before it is acknowledged (`tables.fsync`
//!   other than `always`). A process that was killed loses nothing of it, nor does a machine that was shut down in order.
//!
//! A disk that is not proven is given a new id before the node registers: so the map drops it from all that it had. (The server keeps one that lost only
//! its tail: `tables.fsync` says how much that may be, and where power failed everywhere there is nothing better.) An image of a disk from *within* its last
//! life has the right numbers: of it nothing can be told by the node alone; an owner that begins with it finds that it lacks changes
//! ([`super::Answer::Lacks`]), a replica that an owner with such a disk begins with finds itself ahead ([`super::Answer::Ahead`]).

use crate::map::{DiskId, Incarnation};

/// What a node's disk says of itself, or the map of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub disk: DiskId,
    pub incarnation: Incarnation,
}

/// Why a disk is not what the map means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// It has no identity: it is new.
    Empty,
    OtherDisk,
    /// It was left behind in an earlier life.
    Old,
    /// Its log may lack what it had acknowledged.
    LostTail,
}

/// Whether what is on this disk counts. `is_log_whole`: all that the log ever acknowledged is in it.
///
/// # Errors
/// Why it does not; then the disk is to be given a new id.
pub fn prove(
    disk: Option<Identity>,
    map: Option<Identity>,
    is_log_whole: bool,
) -> Result<(), Unproven> {
    let disk = disk.ok_or(Unproven::Empty)?;
    // A cluster that never heard of the node has nothing to hold it to.
    if let Some(map) = map {
        if disk.disk != map.disk {
            return Err(Unproven::OtherDisk);
        }
        // The disk is told of a new life before the map is.
        if disk.incarnation < map.incarnation {
            return Err(Unproven::Old);
        }
    }
    match is_log_whole {
        true => Ok(()),
        false => Err(Unproven::LostTail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(disk: u64, incarnation: u64) -> Identity {
        Identity {
            disk: DiskId(disk),
            incarnation: Incarnation(incarnation),
        }
    }

    #[test]
    fn an_empty_disk_with_the_old_name_keeps_nothing() {
        assert_eq!(
            prove(None, Some(identity(7, 3)), true),
            Err(Unproven::Empty)
        );
        let another = prove(Some(identity(8, 1)), Some(identity(7, 3)), true);
        assert_eq!(another, Err(Unproven::OtherDisk));
    }

    #[test]
    fn a_disk_of_two_epochs_ago_keeps_nothing() {
        let old = prove(Some(identity(7, 2)), Some(identity(7, 3)), true);
        assert_eq!(old, Err(Unproven::Old));
        assert_eq!(
            prove(Some(identity(7, 3)), Some(identity(7, 3)), true),
            Ok(())
        );
        // Killed when it had told its disk of the new life, and not yet the map.
        assert_eq!(
            prove(Some(identity(7, 4)), Some(identity(7, 3)), true),
            Ok(())
        );
    }

    #[test]
    fn the_last_replica_that_lost_its_unsynced_tail_keeps_nothing() {
        let lost = prove(Some(identity(7, 3)), Some(identity(7, 3)), false);
        assert_eq!(lost, Err(Unproven::LostTail));
    }
}
