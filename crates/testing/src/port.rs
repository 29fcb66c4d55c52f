//! Ports that no two tests have at once, in whatever processes they run.
//!
//! A test draws a port before whoever is to listen on it is started, and that one may be killed and started again: in between nobody listens there.
//! So ports are had in blocks. A process has a block while it listens on the first port of it, and gives out the others, each once. The system gives
//! none of them to who asks for any, which gets 32,768 or more.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

const PORTS: Range<u16> = 10_000..32_000;
const BLOCK: u16 = 100;

/// What this process has taken; it has it to its end.
static TAKEN: Mutex<Taken> = Mutex::new(Taken {
    claims: Vec::new(),
    left: 0..0,
});

struct Taken {
    /// Listeners on the first ports of its blocks.
    claims: Vec<TcpListener>,
    /// Not yet given out, of its last block.
    left: Range<u16>,
}

/// A port on which nothing listens, and that is given to nobody else while this process lives: it is still free when whoever listened on it is
/// started again.
///
/// # Panics
/// All blocks are taken.
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

/// The first port of a block that nobody has, and a listener on it.
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
