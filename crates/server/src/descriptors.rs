//! The number of descriptors (open files and sockets) that the process may have, and its division among purposes.
//!
//! ```text
//!  0                      resp_end         http_end             limit
//!  ├── Redis connections ────┤                │                   │
//!  ├── HTTP connections ──────────────────────┤                   │
//!  └── the journal, the versions' files, pulls, PostgreSQL ───────┘
//! ```
//!
//! The files of a version are open for as long as the version is kept. They are counted before a version is opened, and the
//! version is rejected if too few descriptors would be left for connections.
//!
//! 1. The system assigns the lowest free number. A descriptor whose number is at or beyond the end of its purpose therefore shows
//!    that all lower numbers are in use. It is closed again, and the connection is rejected. The purposes further down in the
//!    diagram can then still get descriptors.
//! 2. This requires no counting, and recovers automatically when descriptors are closed.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use larder_protocol::config::ServerConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Error;

/// Maximum number of descriptors reserved for the journal, the versions and pulls.
const RESERVE_MAX: u64 = 1024;
/// The assumed limit if the system sets none.
const UNLIMITED: u64 = 1 << 20;

/// The purpose of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A connection of the Redis protocol.
    Resp,
    /// A connection of HTTP.
    Http,
}

/// The ends in the diagram above, and the resulting numbers of connections.
#[derive(Debug)]
pub struct Descriptors {
    limit: u64,
    resp_end: u64,
    http_end: u64,
    resp_connections: AtomicU32,
    http_connections: u32,
    /// The number of further files of versions that may be opened.
    files: u64,
}

impl Descriptors {
    /// Divides the descriptors that the system allows.
    pub fn prepare(config: &ServerConfig) -> Descriptors {
        let plan = Descriptors::plan(raise_limit(), count_open(), config);
        let configured = config.server.max_http_connections;
        if plan.http_connections < configured {
            tracing::warn!(
                configured,
                allowed = plan.http_connections,
                limit = plan.limit,
                "the limit of open files allows fewer connections than server.max_http_connections: it is lowered"
            );
        }
        plan
    }

    /// Reduces the number of connections of the Redis protocol by the stores' files, which are open now.
    pub fn count_stores(&self, config: &ServerConfig) {
        let allowed = Descriptors::plan(self.limit, count_open(), config).resp_connections();
        self.resp_connections.store(allowed, Relaxed);
        let configured = config.server.max_connections;
        if allowed < configured {
            tracing::warn!(
                configured,
                allowed,
                limit = self.limit,
                "the limit of open files allows fewer connections than server.max_connections: it is lowered; raise the limit \
                 (ulimit -n, LimitNOFILE)"
            );
        }
    }

    fn plan(limit: u64, open: u64, config: &ServerConfig) -> Descriptors {
        let reserve = RESERVE_MAX.min(limit / 4);
        let http = u64::from(config.server.max_http_connections).min(limit / 8);
        let http_end = limit - reserve;
        let resp_end = http_end - http;
        let connections_min = u64::from(config.server.max_connections).min(limit / 8);
        let most = resp_end.saturating_sub(open).max(1);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Descriptors {
            limit,
            resp_end,
            http_end,
            resp_connections: config.server.max_connections.min(most).into(),
            http_connections: u32::try_from(http.max(1)).unwrap_or(u32::MAX),
            files: resp_end.saturating_sub(open + connections_min),
        }
    }

    /// Maximum number of connections of the Redis protocol: `server.max_connections`, or what the system allows.
    pub fn resp_connections(&self) -> u32 {
        self.resp_connections.load(Relaxed)
    }

    /// Maximum number of HTTP connections: `server.max_http_connections`, or what the system allows.
    pub fn http_connections(&self) -> u32 {
        self.http_connections
    }

    fn ensure_room(&self, files: u64) -> Result<(), Error> {
        if files <= self.files {
            Ok(())
        } else {
            Err(Error::Io(format!(
                "the version has {files} segments; of the {} files that this process may open, {} are left: {ADVICE}",
                self.limit, self.files
            )))
        }
    }

    /// Returns whether the caller may keep this descriptor, because those reserved for other purposes are still free.
    pub fn allow(&self, purpose: Purpose, descriptor: &impl AsRawFd) -> bool {
        let end = match purpose {
            Purpose::Resp => self.resp_end,
            Purpose::Http => self.http_end,
        };
        u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number < end)
    }
}

/// Checks whether this many files of a version may be opened.
///
/// # Errors
/// [`Error::Io`] if too few descriptors would be left for connections.
pub fn ensure_room(files: usize, config: &ServerConfig) -> Result<(), Error> {
    Descriptors::plan(raise_limit(), count_open(), config).ensure_room(files as u64)
}

/// Checks whether a version that is not live may be opened at the start, because live versions, the journal and connections need
/// descriptors too.
///
/// # Errors
/// [`Error::Io`] if half of all descriptors are in use.
pub fn ensure_half_free() -> Result<(), Error> {
    let (limit, open) = (raise_limit(), count_open());
    if open < limit / 2 {
        Ok(())
    } else {
        Err(Error::Io(format!(
            "of the {limit} files that this process may open, {open} are open: {ADVICE}"
        )))
    }
}

/// Advice if there are too few.
pub const ADVICE: &str = "raise the limit of open files (ulimit -n, LimitNOFILE), keep fewer versions (stores.retain_versions), or build with fewer partitions";

/// Raises the limit as far as this process may, and returns it.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current else {
        return UNLIMITED;
    };
    let highest = limit.maximum.unwrap_or(UNLIMITED).max(current);
    let raised = Rlimit {
        current: Some(highest),
        ..limit
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => highest,
        Err(_) => current,
    }
}

/// The approximate number of open descriptors.
fn count_open() -> u64 {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count() as u64,
        // Listeners, runtimes, the journal and the lock of the folder.
        Err(_) => 64,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use super::*;

    struct Number(RawFd);

    impl AsRawFd for Number {
        fn as_raw_fd(&self) -> RawFd {
            self.0
        }
    }

    #[test]
    fn a_high_limit_changes_nothing_and_a_low_one_lowers_the_connections() {
        let config = ServerConfig::default();
        let high = Descriptors::plan(1 << 20, 50, &config);
        assert_eq!(
            (high.resp_connections(), high.http_connections()),
            (20_000, 1_000)
        );
        let low = Descriptors::plan(512, 40, &config);
        assert_eq!(
            (low.resp_connections(), low.http_connections()),
            (512 - 128 - 64 - 40, 64)
        );
        let tiny = Descriptors::plan(16, 40, &config);
        assert_eq!((tiny.resp_connections(), tiny.http_connections()), (1, 2));
    }

    #[test]
    fn versions_leave_descriptors_for_connections() {
        let config = ServerConfig::default();
        let plan = |open| Descriptors::plan(256, open, &config);
        assert!(plan(40).ensure_room(88).is_ok());
        let message = plan(40).ensure_room(89).expect_err("refused").to_string();
        assert!(
            message.contains("89 segments") && message.contains("88 are left"),
            "{message}"
        );
        assert!(plan(200).ensure_room(0).is_ok());
        let high = Descriptors::plan(1 << 20, 50, &config);
        assert!(high.ensure_room(500_000).is_ok());
    }

    #[test]
    fn resp_connections_are_refused_before_http_connections() {
        let plan = Descriptors::plan(512, 40, &ServerConfig::default());
        let allowed =
            |number| [Purpose::Resp, Purpose::Http].map(|p| plan.allow(p, &Number(number)));
        assert_eq!(allowed(319), [true, true]);
        assert_eq!(allowed(320), [false, true]);
        assert_eq!(allowed(383), [false, true]);
        assert_eq!(allowed(384), [false, false]);
    }
}
