//! Decides what a returning node may keep.
//!
//! For each member, the map contains a *disk id*, drawn when its folder was created, and an *incarnation*, which increases with
//! each start. The node also stores both on disk. [`prove_disk`] determines whether the disk is the one in the map, and complete. It
//! is not in three cases:
//!
//! * The disk id differs or is missing: the disk is empty or foreign (an old node name without its data).
//! * The incarnation is older than in the map: the disk is a copy from before the last start (from two epochs ago).
//! * The log may have lost acknowledged changes: power was lost, and the log is not synced before changes are acknowledged
//!   (`tables.fsync` other than `always`). A killed process loses nothing, nor does a machine that was shut down properly.
//!
//! An unproven disk gets a new id before the node registers, so that the map drops the node from all its slots. The server keeps
//! a disk that lost only its tail: `tables.fsync` bounds that loss, and after a power failure of all nodes there is no better
//! copy.
//!
//! An image of a disk taken *within* its last incarnation has the right numbers, so the node alone cannot detect it. An
//! owner that begins with such a replica learns that it lacks changes ([`super::Answer::MissingChanges`]). A replica of an owner with such
//! a disk reports that it is ahead ([`super::ReplicaReply::Ahead`]).

use crate::map::{DiskId, Incarnation};

/// The identity of a node's disk, as stored on the disk or in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub disk: DiskId,
    pub incarnation: Incarnation,
}

/// The reason why a disk does not match the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofError {
    /// It has no identity: it is new.
    Empty,
    OtherDisk,
    /// It is from an earlier incarnation.
    Old,
    /// Its log may lack acknowledged changes.
    LostTail,
}

/// Checks whether the contents of this disk count. `is_log_whole`: the log contains everything that it ever acknowledged.
///
/// # Errors
/// The reason why they do not. The disk must then get a new id.
pub fn prove_disk(
    disk: Option<Identity>,
    map: Option<Identity>,
    is_log_whole: bool,
) -> Result<(), ProofError> {
    let disk = disk.ok_or(ProofError::Empty)?;
    // A cluster without this node imposes no conditions.
    if let Some(map) = map {
        if disk.disk != map.disk {
            return Err(ProofError::OtherDisk);
        }
        // A new incarnation is written to the disk before it is in the map.
        if disk.incarnation < map.incarnation {
            return Err(ProofError::Old);
        }
    }
    if is_log_whole {
        Ok(())
    } else {
        Err(ProofError::LostTail)
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
            prove_disk(None, Some(identity(7, 3)), true),
            Err(ProofError::Empty)
        );
        let another = prove_disk(Some(identity(8, 1)), Some(identity(7, 3)), true);
        assert_eq!(another, Err(ProofError::OtherDisk));
    }

    #[test]
    fn a_disk_of_an_earlier_incarnation_keeps_nothing() {
        let old = prove_disk(Some(identity(7, 2)), Some(identity(7, 3)), true);
        assert_eq!(old, Err(ProofError::Old));
        assert_eq!(
            prove_disk(Some(identity(7, 3)), Some(identity(7, 3)), true),
            Ok(())
        );
        // The process was killed after it had written the new incarnation to its disk, before it was in the map.
        assert_eq!(
            prove_disk(Some(identity(7, 4)), Some(identity(7, 3)), true),
            Ok(())
        );
    }

    #[test]
    fn the_last_replica_that_lost_its_unsynced_tail_keeps_nothing() {
        let lost = prove_disk(Some(identity(7, 3)), Some(identity(7, 3)), false);
        assert_eq!(lost, Err(ProofError::LostTail));
    }
}
