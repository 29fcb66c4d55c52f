//! What the server keeps for its clients: how much of it one may have, and all together.
//!
//! ```text
//!  unread requests ── queued by MULTI ── unread replies ── elsewhere: on other cores, long answers, what they keep
//!  └──────────────────────────── noted once a batch ───────────────────────────┘   └─ as it changes (`Charge`) ─┘
//!                                         │
//!                  more than one may have: that one is closed        more than all may have: the largest are closed first
//! ```
//!
//! 1. A client with little ([`SMALL_BYTES`]) costs nothing but plain stores to memory of its own.
//! 2. What is counted is never less than what is kept, but for buffers that are shared and for what a single command needs
//!    while it is executed. What a command may answer at once is bounded by what one client may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use larder_protocol::config::ServerConfig;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};

use super::clients::Client;
use crate::tables::Refusal;

/// Changes smaller than this are not worth to be told to others.
pub(super) const SMALL_BYTES: usize = 16 << 10;
/// The least that all clients together may have, unless another number is configured.
const ALL_MIN: u64 = 64 << 20;
/// What the machine is taken to have if it does not say.
const MACHINE_BYTES: u64 = 4 << 30;

/// In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub each: usize,
    pub all: usize,
}

impl Limits {
    pub fn of(config: &ServerConfig) -> Limits {
        Limits::on(config, machine_bytes())
    }

    fn on(config: &ServerConfig, machine: u64) -> Limits {
        let tables = match config.tables.memory.0 {
            0 => u64::MAX,
            bytes => bytes,
        };
        let all = match config.server.clients_memory.0 {
            0 => (machine / 4).min(tables).max(ALL_MIN),
            bytes => bytes,
        };
        let each = config.server.client_memory.0.min(all);
        let bytes = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
        Limits {
            each: bytes(each),
            all: bytes(all),
        }
    }

    /// How long an answer may be before what comes next is refused: the rest is for its last value, and for the request.
    pub fn answer(self) -> usize {
        self.each / 2
    }

    /// The refusal of an answer that would be longer than that.
    pub fn too_long(self) -> Refusal {
        let message = format!(
            "the answer is longer than {} bytes, half of what may be kept for one client (server.client_memory): ask for less at a time",
            self.answer()
        );
        (Code::OutOfMemory, message)
    }

    /// As [`Limits::too_long`], as a whole reply.
    pub fn too_long_reply(self) -> Vec<u8> {
        let (code, message) = self.too_long();
        let (mut out, proto) = (Vec::new(), Proto::Resp2);
        let out_of = &mut out;
        Encoder { out: out_of, proto }.error(code, &message);
        out
    }
}

/// What this process may use: of the machine, or of the control group that it is in.
fn machine_bytes() -> u64 {
    let number = |path: &str| {
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemTotal:"))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        });
    let group = number("/sys/fs/cgroup/memory.max")
        .or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    machine
        .unwrap_or(MACHINE_BYTES)
        .min(group.unwrap_or(u64::MAX))
}

/// Bytes that are counted as a client's, until this is dropped.
pub(super) struct Charge {
    to: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    pub fn new(client: &Client) -> Charge {
        Charge {
            to: client.elsewhere.clone(),
            bytes: 0,
        }
    }

    /// There are so many now. Small changes are not noted.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= SMALL_BYTES {
            self.to.fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.to.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use larder_types::ByteSize;

    use super::*;

    #[track_caller]
    fn check(clients: u64, client: u64, tables: u64, expected: (usize, usize)) {
        let mut config = ServerConfig::default();
        config.server.clients_memory = ByteSize(clients);
        config.server.client_memory = ByteSize(client);
        config.tables.memory = ByteSize(tables);
        let limits = Limits::on(&config, 16 << 30);
        assert_eq!((limits.each, limits.all), expected);
    }

    #[test]
    fn all_clients_may_have_a_quarter_of_the_machine_or_as_much_as_the_tables() {
        check(0, 1 << 30, 0, (1 << 30, 4 << 30));
        check(0, 1 << 30, 256 << 20, (256 << 20, 256 << 20));
        check(0, 1 << 30, 1 << 20, (64 << 20, 64 << 20));
        check(8 << 20, 1 << 30, 256 << 20, (8 << 20, 8 << 20));
        check(8 << 30, 2 << 30, 256 << 20, (2 << 30, 8 << 30));
    }
}
