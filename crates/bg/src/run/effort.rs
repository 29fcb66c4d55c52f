//! Measures processor time: of this process, of the calling thread, and of all other processes on this machine.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

pub fn process_cpu() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

pub fn thread_cpu() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The unit in which Linux reports processor time in `/proc`: one hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// Processor time used up to an instant, by user. Without `/proc`, only the time of this process is known.
pub struct Usage {
    own: Duration,
    /// Time of all processes of the machine, without interrupts.
    all: Option<Duration>,
    stolen: Option<Duration>,
    /// Time of each process of the data store's server, by process id.
    servers: HashMap<u32, Duration>,
}

/// Processor time used between two instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageDelta {
    pub own: Duration,
    /// Time of all processes other than this one and the server.
    pub others: Option<Duration>,
    pub stolen: Option<Duration>,
}

impl Usage {
    /// Returns the usage up to now. `servers` holds the names of the data store's server processes.
    pub fn now(servers: &[&str]) -> Usage {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let total = parse_total(&stat);
        Usage {
            own: process_cpu(),
            all: total.map(|(all, _)| all),
            stolen: total.map(|(_, stolen)| stolen),
            servers: match total {
                Some(_) if !servers.is_empty() => read_processes(servers),
                _ => HashMap::new(),
            },
        }
    }

    pub fn until(&self, later: &Usage) -> UsageDelta {
        let own = later.own.saturating_sub(self.own);
        let between =
            |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
        let served = later.servers.iter().map(|(process, used)| {
            let before = self.servers.get(process).copied().unwrap_or_default();
            used.saturating_sub(before)
        });
        let served: Duration = served.sum();
        let all = between(self.all, later.all);
        UsageDelta {
            own,
            others: all.map(|all| all.saturating_sub(own + served)),
            stolen: between(self.stolen, later.stolen),
        }
    }
}

/// Parses the first line of `/proc/stat`: returns the time that processes used and the time stolen by the host.
fn parse_total(stat: &str) -> Option<(Duration, Duration)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u32> = line
        .split_whitespace()
        .map(|ticks| ticks.parse().unwrap_or(u32::MAX))
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let [user, nice, system, _, _, _, _, stolen, ..] = ticks[..] else {
        return None;
    };
    Some((TICK * user + TICK * nice + TICK * system, TICK * stolen))
}

fn read_processes(names: &[&str]) -> HashMap<u32, Duration> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (name, used) = parse_process(&stat)?;
            names.contains(&name).then_some((process, used))
        })
        .collect()
}

/// Returns a process's name and the processor time it used. The name is enclosed in parentheses and may contain
/// parentheses.
fn parse_process(stat: &str) -> Option<(&str, Duration)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((name, TICK * user + TICK * system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_parsed_from_proc_stat() {
        let stat = "cpu  100 20 30 900 5 6 7 8 0 0\ncpu0 1 2 3 4\n";
        let second = |ticks: u32| TICK * ticks;
        assert_eq!(parse_total(stat), Some((second(150), second(8))));
        assert_eq!(parse_total("intr 1 2 3"), None);
        let stat = "77 (a (b) c) S 1 77 77 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 100";
        assert_eq!(parse_process(stat), Some(("a (b) c", second(300))));
        assert_eq!(parse_process("77"), None);
    }

    #[test]
    fn remaining_processor_time_counts_as_other_processes() {
        let usage = |own: u64, all: u64, server: u64| Usage {
            own: Duration::from_millis(own),
            all: Some(Duration::from_millis(all)),
            stolen: Some(Duration::from_millis(all / 10)),
            servers: HashMap::from([(5, Duration::from_millis(server))]),
        };
        let others = usage(100, 1000, 50).until(&usage(300, 2000, 450));
        assert_eq!(
            others,
            UsageDelta {
                own: Duration::from_millis(200),
                others: Some(Duration::from_millis(400)),
                stolen: Some(Duration::from_millis(100)),
            }
        );
        // A server process that started after the first instant counts with all its time.
        let mut early = usage(100, 1000, 0);
        early.servers.clear();
        let others = early.until(&usage(100, 2000, 450)).others;
        assert_eq!(others, Some(Duration::from_millis(550)));
    }
}
