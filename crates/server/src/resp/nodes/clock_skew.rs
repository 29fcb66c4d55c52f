//! Measures the difference between the clocks of other nodes and this node's clock: core 0 requests the time of each
//! connected node.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_cluster::map::{NodeId, NodeName};
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::resp::client::Token;
use tokio::time::timeout;

use super::request_reply;
use crate::Shared;
use crate::clock::unix_time;
use crate::cluster::Peers;
use crate::membership::ClockSkew;

/// Interval between two measurements of a node, in iterations of `keep_connected`.
pub(super) const CHECKS_PER_MEASUREMENT: u64 = 30;
/// A reply with a longer round trip is discarded, because it is too inaccurate.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);

/// Requests a node's time, and records the difference. If the node does not reply in time, the last measurement is
/// kept.
pub(super) async fn measure(shared: Arc<Shared>, peers: Rc<Peers>, node: NodeId, name: NodeName) {
    let (requested_at, started_at) = (unix_time(), Instant::now());
    let time = OwnedCommand::of(Id::Time, std::iter::empty());
    let Ok(Some(reply)) = timeout(ROUND_TRIP_MAX, request_reply(&peers, node, time)).await else {
        return;
    };
    let round_trip = started_at.elapsed();
    if let (Some(theirs_us), Some(membership)) = (decode_time_us(&reply), &shared.membership) {
        membership.note_clock(name, skew(requested_at, round_trip, theirs_us));
    }
}

/// Computes the skew. The other node read its clock at some moment of the round trip, most likely in its middle.
fn skew(requested_at: Duration, round_trip: Duration, theirs_us: u64) -> ClockSkew {
    let half = round_trip / 2;
    let ours_ms = (requested_at + half).as_millis() as i64;
    ClockSkew {
        ahead_ms: (theirs_us / 1_000) as i64 - ours_ms,
        within_ms: half.as_millis() as u64 + 1,
    }
}

/// Decodes the reply of TIME, an array of seconds and microseconds, into microseconds.
fn decode_time_us(reply: &[u8]) -> Option<u64> {
    let (Token::Array(2), mut at) = Token::first(reply)? else {
        return None;
    };
    let mut number = || {
        let (Token::Bulk(text), size) = Token::first(reply.get(at..)?)? else {
            return None;
        };
        at += size;
        std::str::from_utf8(text).ok()?.parse::<u64>().ok()
    };
    let (seconds, micros) = (number()?, number()?);
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_round_trip() {
        let theirs = decode_time_us(b"*2\r\n$3\r\n130\r\n$6\r\n250000\r\n");
        assert_eq!(theirs, Some(130_250_000));
        let skew = skew(
            Duration::from_secs(100),
            Duration::from_millis(500),
            130_250_000,
        );
        assert_eq!((skew.ahead_ms, skew.within_ms), (30_000, 251));
        assert_eq!(decode_time_us(b"-ERR\r\n"), None);
    }
}
