//! Ports that no two concurrent tests share, in any process.
//!
//! A test chooses a port before it starts the program that listens on it, and may kill and restart that program: in
//! between, the port is free. Ports are therefore allocated in blocks. A process owns a block while it listens on the
//! block's first port, and hands out each of the others once. The system never assigns these ports automatically; it
//! uses 32,768 and above.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

const PORTS: Range<u16> = 10_000..32_000;
const BLOCK: u16 = 100;

/// The blocks of this process, which it keeps until it ends.
static PORT_BLOCKS: Mutex<PortBlocks> = Mutex::new(PortBlocks {
    claims: Vec::new(),
    remaining: 0..0,
});

struct PortBlocks {
    /// Listeners on the first ports of its blocks.
    claims: Vec<TcpListener>,
    /// The remaining ports of its last block.
    remaining: Range<u16>,
}

/// Returns a port on which no process listens, and that is not handed out again while this process lives: it stays
/// available for restarting the program that listened on it.
///
/// # Panics
/// If all blocks are taken.
pub fn free_port() -> u16 {
    let mut blocks = PORT_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = blocks.remaining.find(|port| listen(*port).is_some()) {
            return port;
        }
        blocks.claim_block();
    }
}

impl PortBlocks {
    fn claim_block(&mut self) {
        let (first, claim) = claim();
        self.claims.push(claim);
        self.remaining = first + 1..first + BLOCK;
    }
}

/// Returns the first port of a free block, and a listener on it.
fn claim() -> (u16, TcpListener) {
    let mut firsts = PORTS.step_by(usize::from(BLOCK));
    let claimed = firsts.find_map(|first| Some((first, listen(first)?)));
    claimed.expect("a free block of ports")
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_are_unique_and_outside_blocks_of_other_processes() {
        let (first, _claim) = claim();
        let ports: Vec<u16> = (0..3 * BLOCK).map(|_| free_port()).collect();
        let different: BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), ports.len());
        assert!(
            !ports
                .iter()
                .any(|port| (first..first + BLOCK).contains(port))
        );
        assert!(ports.iter().all(|port| listen(*port).is_some()));
    }
}
