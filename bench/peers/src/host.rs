//! The machine, in the words of the report.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn describe(folder: &std::path::Path) -> Vec<(&'static str, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |text: &str, name: &str| {
        text.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(':'))
            .map_or_else(
                || "unknown".to_owned(),
                |(_, value)| value.trim().to_owned(),
            )
    };
    let cores = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_gib = field(&memory, "MemTotal")
        .trim_end_matches(" kB")
        .parse::<f64>()
        .unwrap_or(0.0)
        / 1048576.0;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        (
            "cpu",
            format!(
                "{}, {cores} cores, {} cache",
                field(&cpuinfo, "model name"),
                field(&cpuinfo, "cache size")
            ),
        ),
        ("memory", format!("{memory_gib:.1} GiB")),
        (
            "kernel",
            format!(
                "Linux {}",
                kernel.split('-').next().unwrap_or_default().trim()
            ),
        ),
        ("disk", disk(folder)),
        (
            "huge pages",
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
                .unwrap_or_default()
                .trim()
                .to_owned(),
        ),
    ]
}

fn disk(folder: &std::path::Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::metadata(folder) else {
        return "unknown".into();
    };
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let system = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(&format!("{major}:{minor}")))
        .and_then(|line| line.split(" - ").nth(1))
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or("unknown file system");
    let rotates = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/rotational"))
        .unwrap_or_default();
    let kind = match rotates.trim() {
        "0" => "no rotating disk",
        "1" => "rotating, or a virtual disk that reports itself as rotating",
        _ => "unknown disk",
    };
    format!("{system}, {kind}")
}

/// Today, as 2026-01-31, in UTC.
pub fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    // Civil date of a day count, with years that begin in March.
    let day = (seconds / 86_400) as i64 + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

pub fn name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "host".into(), |name| name.trim().to_owned())
}
