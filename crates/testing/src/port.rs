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
static TAKEN: Mutex<Taken> = Mutex::new(Taken {
    claims: Vec::new(),
    left: 0..0,
});

struct Taken {
    /// Listeners on the first ports of its blocks.
    claims: Vec<TcpListener>,
    /// The remaining ports of its last block.
    left: Range<u16>,
}

/// Returns a port on which no process listens, and that is not handed out again while this process lives: it stays
/// available for restarting the program that listened on it.
///
/// # Panics
/// If all blocks are taken.
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = taken.left.find(|port| listen(*port).is_some()) {
            return port;
        }
        taken.take_block();
    }
}

impl Taken {
    fn take_block(&mut self) {
        let (first, claim) = claim();
        self.claims.push(claim);
        self.left = first + 1..first + BLOCK;
    }
}

/// Returns the first port of a free block, and a listener on it.
fn claim() -> (u16, TcpListener) {
    let mut firsts = PORTS.step_by(usize::from(BLOCK));
    let claimed = firsts.find_map(|first| Some((first, listen(first)?)));
    claimed.expect("a block of ports that no other process has")
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_out_twice_and_none_of_a_block_that_another_has() {
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
