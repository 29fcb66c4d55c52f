//! The greeting between two nodes, and the checks that reject a node.

use larder_types::wire::{Malformed, WireReader};

use super::frame::{put_text, text};
use crate::map::{Epoch, Incarnation, NodeId};

/// The format of frames. Nodes with different formats reject each other.
pub const FORMAT: u32 = 1;

const NAME_BYTES_MAX: usize = 255;

/// The first frame of the connecting side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// If it differs from [`FORMAT`], the other fields are not decoded.
    pub format: u32,
    pub cluster: String,
    /// The node to which the sender wants to connect.
    pub receiver: NodeId,
    pub from: PeerInfo,
}

/// The first frame of the accepting side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// As in [`Hello`].
    pub format: u32,
    pub from: PeerInfo,
}

/// A side's description of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerInfo {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub core: u16,
    /// The epoch of its map.
    pub epoch: Epoch,
    /// The time for which it trusts the peer's rows after an answered ping, counted from when the ping was sent.
    pub lease_ms: u64,
    /// The number of streams of the peer that it serves concurrently.
    pub streams_max: u32,
    /// The number of unacknowledged pieces of a response that it accepts.
    pub pieces_max: u32,
}

impl Hello {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format.to_le_bytes());
        put_text(out, &self.cluster);
        out.extend_from_slice(&self.receiver.0.to_le_bytes());
        self.from.encode(out);
    }

    pub(super) fn decode(bytes: &mut WireReader<'_>) -> Result<Hello, Malformed> {
        let format = bytes.u32()?;
        if format != FORMAT {
            skip_rest(bytes);
            return Ok(Hello {
                format,
                cluster: String::new(),
                receiver: NodeId::default(),
                from: PeerInfo::default(),
            });
        }
        Ok(Hello {
            format,
            cluster: text(bytes.bytes()?, NAME_BYTES_MAX)?.to_owned(),
            receiver: NodeId(bytes.u32()?),
            from: PeerInfo::decode(bytes)?,
        })
    }
}

impl Welcome {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format.to_le_bytes());
        self.from.encode(out);
    }

    pub(super) fn decode(bytes: &mut WireReader<'_>) -> Result<Welcome, Malformed> {
        let format = bytes.u32()?;
        if format != FORMAT {
            skip_rest(bytes);
            let from = PeerInfo::default();
            return Ok(Welcome { format, from });
        }
        let from = PeerInfo::decode(bytes)?;
        Ok(Welcome { format, from })
    }
}

/// Skips the fields of another format.
fn skip_rest(bytes: &mut WireReader<'_>) {
    *bytes = WireReader::new(&[]);
}

impl PeerInfo {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.extend_from_slice(&self.incarnation.0.to_le_bytes());
        out.extend_from_slice(&self.core.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.lease_ms.to_le_bytes());
        out.extend_from_slice(&self.streams_max.to_le_bytes());
        out.extend_from_slice(&self.pieces_max.to_le_bytes());
    }

    fn decode(bytes: &mut WireReader<'_>) -> Result<PeerInfo, Malformed> {
        let peer = PeerInfo {
            node: NodeId(bytes.u32()?),
            incarnation: Incarnation(bytes.u64()?),
            core: bytes.u16()?,
            epoch: Epoch(bytes.u64()?),
            lease_ms: bytes.u64()?,
            streams_max: bytes.u32()?,
            pieces_max: bytes.u32()?,
        };
        if peer.streams_max > 0 && peer.pieces_max > 0 {
            Ok(peer)
        } else {
            Err(Malformed("a node accepts no streams or no pieces"))
        }
    }
}

/// Rejects any other format.
pub(super) fn check_format(theirs: u32) -> Result<(), String> {
    match theirs {
        FORMAT => Ok(()),
        _ if theirs < FORMAT => Err(format!(
            "your frames have format {theirs}, and this node uses format {FORMAT}: upgrade your node to this node's version"
        )),
        _ => Err(format!(
            "your frames have format {theirs}, and this node uses format {FORMAT}: upgrade this node to your version first"
        )),
    }
}

/// Checks a hello independently of its sender, and returns a reason for the sender's operators. `me` is the receiving node.
pub(super) fn check_hello(hello: &Hello, cluster: &str, me: NodeId) -> Result<(), String> {
    check_format(hello.format)?;
    if hello.cluster != cluster {
        return Err(format!(
            "this node belongs to the cluster {cluster:?}, and yours to {:?}: one of the two has a wrong cluster.name or address",
            hello.cluster
        ));
    }
    if hello.receiver != me {
        return Err(format!(
            "your connection is to node {}, and this is node {me}: the address was reused; retry after the next map",
            hello.receiver
        ));
    }
    if hello.from.node == me {
        Err(format!(
            "your connection claims to be node {me}, which is this node"
        ))
    } else {
        Ok(())
    }
}

/// Checks a node's incarnation against the one in the map, `known`. A later incarnation is accepted: the node has registered, and
/// the map will follow.
pub(super) fn check_incarnation(
    from: &PeerInfo,
    known: Option<Incarnation>,
    epoch: Epoch,
) -> Result<(), String> {
    match known {
        None => Err(format!(
            "node {} is not a member in the map of epoch {epoch}; if it has just joined, retry later",
            from.node
        )),
        Some(known) if from.incarnation < known => Err(format!(
            "node {} has a later incarnation ({known}) than yours ({}): stop this process if the other one is correct",
            from.node, from.incarnation
        )),
        Some(_) => Ok(()),
    }
}
