//! The memory that the server holds for its clients: limits for one client, and for all together.
//!
//! ```text
//!  unread requests ── queued by MULTI ── unread replies ── elsewhere: other cores, long replies, their retained rows
//!  └────────────────────────── recorded once per batch ─────────────────────────┘   └─ as it changes (`Charge`) ──┘
//!                                         │
//!                  above the limit for one: that client is closed     above the limit for all: the largest are closed first
//! ```
//!
//! 1. A client with little memory ([`SMALL_BYTES`]) costs only plain stores to its own memory.
//! 2. The counted memory is never less than the held memory, except for shared buffers and for what a single command needs during
//!    its execution. The input of a command and its immediate reply are bounded by the limit for one client.
//! 3. A client is never closed because of a command in execution: an excessive request is rejected before, and an excessive reply
//!    is replaced by an error. A request and a reply of half the limit each, with [`Limits::pipelined_bytes`] before them, fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use larder_protocol::config::ServerConfig;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};

use super::Client;
use crate::error::Refusal;

/// Smaller changes are not published to other threads.
pub const SMALL_BYTES: usize = 16 << 10;
/// The minimum for all clients together, unless configured otherwise.
const TOTAL_BYTES_MIN: u64 = 64 << 20;
/// The assumed memory of the machine if it is unknown.
const MACHINE_BYTES: u64 = 4 << 30;

/// Limits in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub per_client_bytes: usize,
    pub total_bytes: usize,
    /// For the messages that wait for one client (`server.subscriber_buffer_bytes`).
    pub mailbox_bytes: usize,
}

impl Limits {
    pub fn from_config(config: &ServerConfig) -> Limits {
        Limits::for_machine(config, machine_bytes())
    }

    fn for_machine(config: &ServerConfig, machine: u64) -> Limits {
        let tables = match config.tables.memory.0 {
            0 => u64::MAX,
            bytes => bytes,
        };
        let all = match config.server.clients_memory.0 {
            0 => (machine / 4).min(tables).max(TOTAL_BYTES_MIN),
            bytes => bytes,
        };
        let each = config.server.client_memory.0.min(all);
        let bytes = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
        Limits {
            per_client_bytes: bytes(each),
            total_bytes: bytes(all),
            mailbox_bytes: bytes(config.server.subscriber_buffer_bytes.0),
        }
    }

    /// Maximum size of a reply before the next part is rejected. The rest is reserved for its last value, and for the request.
    pub fn reply_bytes(self) -> usize {
        self.per_client_bytes / 2
    }

    /// Maximum size of an argument. Every value that can be set can be read.
    pub fn argument_bytes(self) -> usize {
        self.reply_bytes()
    }

    /// Maximum size of a request.
    pub fn request_bytes(self) -> usize {
        self.per_client_bytes / 2 + self.per_client_bytes / 16
    }

    /// Maximum bytes of unsent replies before another command is executed.
    pub fn pipelined_bytes(self) -> usize {
        self.per_client_bytes / 4
    }

    /// Maximum bytes of unsent replies. The rest is reserved for requests received after them.
    pub fn unsent_bytes(self) -> usize {
        self.per_client_bytes - self.per_client_bytes / 8
    }

    /// Returns whether a value may be added to a reply of this size.
    pub fn admits(self, queued: usize, value: usize) -> bool {
        queued.max(value) <= self.reply_bytes() && self.fits(queued, value)
    }

    /// Returns whether there is room for the value: the reply to an executed command should be sent if possible.
    pub fn fits(self, queued: usize, value: usize) -> bool {
        queued + value <= self.unsent_bytes()
    }

    /// The error for a request that is too long; nothing of it was executed.
    pub fn request_too_long(self, bytes: usize) -> Refusal {
        let message = format!(
            "the request has {bytes} bytes or more, and server.client_memory allows {} in an argument and {} in all: nothing \
             was executed, and the connection is closed",
            self.argument_bytes(),
            self.request_bytes()
        );
        (Code::OutOfMemory, message)
    }

    /// The error for a command that has changed something, but whose reply is too long.
    pub fn executed_reply_too_long(self, command: &str, bytes: usize) -> Refusal {
        let message = format!(
            "{command} was executed, but its reply of {bytes} bytes exceeds the memory limit of one client (server.client_memory)"
        );
        (Code::OutOfMemory, message)
    }

    /// The error for a reply that would exceed [`Limits::reply_bytes`].
    pub fn reply_too_long(self) -> Refusal {
        let message = format!(
            "the reply is longer than {} bytes, half of one client's memory limit (server.client_memory): request less at a time",
            self.reply_bytes()
        );
        (Code::OutOfMemory, message)
    }

    /// Like [`Limits::reply_too_long`], as a complete reply.
    pub fn encode_reply_too_long(self) -> Vec<u8> {
        encode_refusal(self.reply_too_long())
    }
}

/// Encodes an error as a complete reply.
pub fn encode_refusal((code, message): Refusal) -> Vec<u8> {
    let (mut out, proto) = (Vec::new(), Proto::Resp2);
    let out_of = &mut out;
    Encoder { out: out_of, proto }.error(code, &message);
    out
}

/// The memory available to this process: of the machine, or of its control group.
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

/// Bytes that are charged to a client until this is dropped.
pub struct Charge {
    counter: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    pub fn new(client: &Client) -> Charge {
        Charge {
            counter: client.remote_bytes.clone(),
            bytes: 0,
        }
    }

    /// A charge for what a command of the client needs during its execution.
    pub fn for_execution(client: &Client) -> Charge {
        Charge {
            counter: client.executing_bytes.clone(),
            bytes: 0,
        }
    }

    /// Sets the current number of bytes. Small changes are not recorded.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= SMALL_BYTES {
            self.counter
                .fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Relaxed);
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
        let limits = Limits::for_machine(&config, 16 << 30);
        assert_eq!((limits.per_client_bytes, limits.total_bytes), expected);
    }

    #[test]
    fn a_command_and_its_reply_fit_into_the_client_limit() {
        for each in [1 << 20, 3_000_017, 1 << 30] {
            let limits = Limits {
                per_client_bytes: each,
                total_bytes: each,
                mailbox_bytes: each,
            };
            let bytes_max =
                limits.pipelined_bytes() + limits.argument_bytes().max(limits.reply_bytes());
            assert!(limits.admits(limits.pipelined_bytes(), limits.reply_bytes()));
            assert!(bytes_max <= limits.unsent_bytes() && limits.unsent_bytes() < each);
            assert!(limits.request_bytes() + limits.pipelined_bytes() < each);
            assert!(!limits.admits(0, limits.reply_bytes() + 1));
            assert!(!limits.admits(limits.reply_bytes() + 1, 0));
            assert!(!limits.admits(limits.reply_bytes(), limits.reply_bytes()));
        }
    }

    #[test]
    fn a_charge_shrinks_with_its_bytes_and_ends_when_dropped() {
        let to = Arc::new(AtomicUsize::new(0));
        let charged = || to.load(Relaxed);
        let mut charge = Charge {
            counter: to.clone(),
            bytes: 0,
        };
        charge.set(1 << 20);
        assert_eq!(charged(), 1 << 20);
        charge.set(SMALL_BYTES);
        assert_eq!(charged(), SMALL_BYTES);
        charge.set(1 << 20);
        drop(charge);
        assert_eq!(charged(), 0);
    }

    #[test]
    fn the_total_limit_is_a_quarter_of_the_machine_or_the_table_memory() {
        check(0, 1 << 30, 0, (1 << 30, 4 << 30));
        check(0, 1 << 30, 256 << 20, (256 << 20, 256 << 20));
        check(0, 1 << 30, 1 << 20, (64 << 20, 64 << 20));
        check(8 << 20, 1 << 30, 256 << 20, (8 << 20, 8 << 20));
        check(8 << 30, 2 << 30, 256 << 20, (2 << 30, 8 << 30));
    }
}
