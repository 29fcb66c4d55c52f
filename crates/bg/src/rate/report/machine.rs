//! The machine that a rating ran on.

use std::fs;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_types::figures;
use serde::{Deserialize, Serialize};

/// Properties of the machine that generated the load. Properties that the system does not report are `unknown`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub system: String,
    pub kernel: String,
    pub bg: String,
    /// When the properties were read, in UTC: `2031-02-03 04:05`.
    pub time: String,
}

impl Machine {
    /// Reads `/proc` and `/etc/os-release`.
    pub fn here() -> Machine {
        let value = |file: &str, name: &str, sign: char| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| Some(line.split_once(sign)?.1.trim()));
            value.map(|value| value.trim_matches('"').to_owned())
        };
        let unknown = || "unknown".to_owned();
        let memory = value("/proc/meminfo", "MemTotal", ':');
        let kilobytes = memory.and_then(|memory| memory.trim_end_matches(" kB").parse().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Machine {
            processor: value("/proc/cpuinfo", "model name", ':').unwrap_or_else(unknown),
            processors: available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes.unwrap_or(0) * 1024_u64,
            system: value("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(unknown),
            kernel: kernel.map_or_else(|_| unknown(), |kernel| kernel.trim().to_owned()),
            bg: env!("CARGO_PKG_VERSION").to_owned(),
            time: minute(SystemTime::now()),
        }
    }
}

fn minute(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut moment = figures::moment(since.as_secs());
    moment.truncate("2031-02-03 04:05".len());
    moment
}
