//! Snapshots of PostgreSQL, which determine the visible transactions, and positions in its log.

use std::collections::BTreeSet;

/// A position in PostgreSQL's write-ahead log.
pub type Lsn = u64;

/// Parses `16/B374D848`.
pub fn parse_lsn(text: &str) -> Option<Lsn> {
    let (high, low) = text.split_once('/')?;
    let part = |text| u32::from_str_radix(text, 16).ok();
    Some(u64::from(part(high)?) << 32 | u64::from(part(low)?))
}

/// Formats a position as PostgreSQL does.
pub fn show_lsn(lsn: Lsn) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

/// The result of `pg_current_snapshot()`: `xmin:xmax:in,progress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// All transactions before this one had ended.
    pub xmin: u64,
    /// No transaction from this one on had ended.
    pub xmax: u64,
    /// The transactions between them that had not ended.
    pub running: BTreeSet<u64>,
}

impl Snapshot {
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.split(':');
        let (xmin, xmax, running) = (parts.next()?, parts.next()?, parts.next()?);
        let running = running.split(',').filter(|xid| !xid.is_empty());
        Some(Snapshot {
            xmin: xmin.parse().ok()?,
            xmax: xmax.parse().ok()?,
            running: running.map(|xid| xid.parse().ok()).collect::<Option<_>>()?,
        })
    }

    /// Returns whether the snapshot includes the changes of a committed transaction. The replication stream contains
    /// only the lower half of a transaction's number; the relevant numbers are never two billion apart.
    pub fn sees(&self, xid: u32) -> bool {
        let xid = self.extend_xid(xid);
        xid < self.xmin || (xid < self.xmax && !self.running.contains(&xid))
    }

    /// Returns whether every later snapshot also includes the transaction, so that it need not be remembered.
    pub fn is_past(&self, xid: u32) -> bool {
        self.extend_xid(xid) < self.xmin
    }

    fn extend_xid(&self, xid: u32) -> u64 {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        self.xmax.saturating_add_signed(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_ended_transactions() {
        let snapshot = Snapshot::parse("10:20:10,14,15").unwrap();
        let seen: Vec<u32> = (8..22).filter(|&xid| snapshot.sees(xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
        assert!(snapshot.is_past(9) && !snapshot.is_past(11));
        assert_eq!(Snapshot::parse("10:10:").unwrap().running.len(), 0);
        assert_eq!(Snapshot::parse("10:x:"), None);
    }

    #[test]
    fn wrapped_transaction_ids_are_distinguished() {
        let snapshot = Snapshot::parse("4294967290:4294967300:4294967297").unwrap();
        assert!(snapshot.sees(4_294_967_289));
        assert!(snapshot.sees(0), "4294967296");
        assert!(!snapshot.sees(1), "running");
        assert!(!snapshot.sees(4), "not begun");
    }

    #[test]
    fn positions_round_trip() {
        assert_eq!(parse_lsn("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(show_lsn(0x16_0374_D848), "16/374D848");
        assert_eq!(parse_lsn("16"), None);
    }
}
