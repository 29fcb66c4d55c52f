//! What the rating ran on.

use std::fs;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Facts of the machine that made the load. What the system does not tell is `unknown`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub system: String,
    pub kernel: String,
    pub bg: String,
    /// When this was asked, in UTC: `2031-02-03 04:05`.
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
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let minutes = seconds % 86_400 / 60;
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}",
        minutes / 60,
        minutes % 60
    )
}

/// The date so many days after 1970-01-01, by the Gregorian calendar; years counted from March, so that the leap day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_513), (2026, 3, 1));
    }
}
