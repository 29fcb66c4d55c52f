//! The owners of slots, as reported by a node.

use larder_client::RespClient;
use larder_protocol::resp::client::Reply;

use crate::Result;

/// Executes `CLUSTER SLOTS`. Returns the first slot, the last slot and the owner's port of each range.
pub fn slots(client: &RespClient) -> Result<Vec<(usize, usize, u16)>> {
    let Reply::Array(entries) = client.command(&[b"CLUSTER", b"SLOTS"])? else {
        return Err("CLUSTER SLOTS is answered by something else than an array".into());
    };
    let entry = |entry: &Reply| {
        let Reply::Array(fields) = entry else {
            return None;
        };
        let [
            Reply::Integer(from),
            Reply::Integer(to),
            Reply::Array(owner),
            ..,
        ] = &fields[..]
        else {
            return None;
        };
        let Reply::Integer(port) = owner.get(1)? else {
            return None;
        };
        let number = |number: &i64| usize::try_from(*number).ok();
        Some((number(from)?, number(to)?, u16::try_from(*port).ok()?))
    };
    let read: Option<Vec<_>> = entries.iter().map(entry).collect();
    read.ok_or_else(|| "CLUSTER SLOTS has an entry of another shape".into())
}
