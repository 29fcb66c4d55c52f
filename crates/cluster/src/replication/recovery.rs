//! What a node that returns may keep, and who becomes the owner when all holders of a slot had died.
//!
//! # One disk
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
//!
//! # All holders of a slot
//!
//! A change is acknowledged when it is durable at the owner and at each replica in sync, and a replica is in sync only when it has all that is
//! acknowledged. So *each* proven disk among the last holders of a slot has every acknowledged write, and the first that returns may be made the owner.
//! Where disks lie about what they synced, the one with the most is better: [`choose`] waits for all holders for a time, and then takes that one.

use crate::map::{DiskId, Incarnation, NodeId};

use super::change::Position;

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

/// What a holder that returned has of a slot, if its disk is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub node: NodeId,
    pub last: Position,
    pub is_whole: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Owner(NodeId),
    /// Holders that may have more could still come.
    Wait,
    /// None of those that came back has a whole copy: a person must bring one of these back, or give the slot's rows up.
    Ask(Vec<NodeId>),
}

/// Who is to own a slot all of whose holders had died. `has_waited`: others need not be waited for any more.
pub fn choose(holders: &[NodeId], claims: &[Claim], has_waited: bool) -> Choice {
    let of_holders = claims.iter().filter(|it| holders.contains(&it.node));
    let whole = of_holders.filter(|it| it.is_whole);
    let best = whole.max_by_key(|it| (it.last, std::cmp::Reverse(it.node)));
    let absent = holders
        .iter()
        .filter(|node| !claims.iter().any(|it| it.node == **node));
    let absent: Vec<NodeId> = absent.copied().collect();
    match best {
        Some(best) if has_waited || absent.is_empty() => Choice::Owner(best.node),
        _ if !has_waited && !absent.is_empty() => Choice::Wait,
        _ => Choice::Ask(match absent.is_empty() {
            true => holders.to_vec(),
            false => absent,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Term;

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

    fn claim(node: u32, term: u64, number: u64) -> Claim {
        Claim {
            node: NodeId(node),
            last: Position {
                term: Term(term),
                number,
            },
            is_whole: true,
        }
    }

    #[test]
    fn of_all_that_died_the_one_with_the_most_is_made_the_owner() {
        let holders = [1, 2, 3].map(NodeId);
        let some = [claim(1, 4, 10), claim(2, 5, 9)];
        assert_eq!(choose(&holders, &some, false), Choice::Wait);
        assert_eq!(choose(&holders, &some, true), Choice::Owner(NodeId(2)));
        let all = [claim(1, 4, 10), claim(2, 5, 9), claim(3, 5, 11)];
        assert_eq!(choose(&holders, &all, false), Choice::Owner(NodeId(3)));
        // A node that was dropped before has perhaps more, and none of it counts.
        let stranger = [claim(9, 6, 99)];
        assert_eq!(
            choose(&holders, &stranger, true),
            Choice::Ask(holders.to_vec())
        );
    }

    #[test]
    fn a_person_is_told_whom_to_bring_back() {
        let broken = Claim {
            is_whole: false,
            ..claim(1, 4, 10)
        };
        let holders = [1, 2].map(NodeId);
        assert_eq!(
            choose(&holders, &[broken], true),
            Choice::Ask(vec![NodeId(2)])
        );
        assert_eq!(
            choose(&holders[..1], &[broken], true),
            Choice::Ask(vec![NodeId(1)])
        );
    }
}
