//! The contents of the frames between two nodes: commands, and messages between engines.

use larder_join::EngineMessage;
use larder_protocol::commands::Batch;
use larder_types::wire::WireReader;

/// Decoded values survive encoding and decoding.
pub fn wire(bytes: &[u8]) {
    if let Ok(batch) = Batch::decode(&mut WireReader::new(bytes)) {
        let written = bytes_of(&batch);
        let again = Batch::decode(&mut WireReader::new(&written)).expect("its own bytes");
        assert_eq!(bytes_of(&again), written);
        assert_eq!(again.len(), batch.len());
        for (one, other) in batch.iter().zip(again.iter()) {
            assert!(one.args().eq(other.args()));
        }
    }
    if let Ok(message) = EngineMessage::decode(&mut WireReader::new(bytes)) {
        let mut written = Vec::new();
        message.encode(&mut written);
        let again = EngineMessage::decode(&mut WireReader::new(&written));
        assert_eq!(again.as_ref(), Ok(&message));
    }
}

/// Returns whether the bytes are a batch of commands or a message.
pub fn is_wire(bytes: &[u8]) -> bool {
    Batch::decode(&mut WireReader::new(bytes)).is_ok()
        || EngineMessage::decode(&mut WireReader::new(bytes)).is_ok()
}

fn bytes_of(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    batch.encode(&mut bytes);
    bytes
}
