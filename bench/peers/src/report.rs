//! raw.jsonl in, summary.md out.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::child::Usage;
use crate::data::DataSet;
use crate::engine::{self, Result};
use crate::measure::{Built, Cold, Counts, Warm};

/// A line of raw.jsonl.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RawLine {
    Host {
        facts: Vec<(String, String)>,
        command: String,
    },
    Data {
        data: DataSet,
        counts: Counts,
    },
    Build {
        data: String,
        engine: String,
        round: u32,
        built: Built,
        usage: Usage,
    },
    Warm {
        data: String,
        engine: String,
        round: u32,
        warm: Warm,
    },
    Cold {
        data: String,
        engine: String,
        round: u32,
        cold: Cold,
    },
    Failed {
        data: String,
        engine: String,
        reason: String,
    },
}

/// The values of one quantity over the rounds.
#[derive(Clone, Default)]
struct Rounds(Vec<f64>);

impl Rounds {
    fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            count if count % 2 == 1 => Some(sorted[middle]),
            _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        }
    }

    /// `median (min-max)`.
    fn cell(&self, digits: usize) -> String {
        let Some(median) = self.median() else {
            return "-".into();
        };
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(0.0, f64::max);
        if self.0.len() == 1 {
            return format!("{median:.digits$}");
        }
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

struct Results<'a> {
    lines: &'a [RawLine],
    data: &'a DataSet,
}

impl Results<'_> {
    fn built(&self, name: &str, of: impl Fn(&Built, &Usage) -> f64) -> Rounds {
        self.rounds(|line| match line {
            RawLine::Build {
                data,
                engine,
                built,
                usage,
                ..
            } if *data == self.data.name && engine == name => Some(of(built, usage)),
            _ => None,
        })
    }

    fn warm(&self, name: &str, of: impl Fn(&Warm) -> Option<f64>) -> Rounds {
        self.rounds(|line| match line {
            RawLine::Warm {
                data, engine, warm, ..
            } if *data == self.data.name && engine == name => of(warm),
            _ => None,
        })
    }

    fn cold(&self, name: &str, of: impl Fn(&Cold) -> f64) -> Rounds {
        self.rounds(|line| match line {
            RawLine::Cold {
                data, engine, cold, ..
            } if *data == self.data.name && engine == name => Some(of(cold)),
            _ => None,
        })
    }

    fn rounds(&self, of: impl Fn(&RawLine) -> Option<f64>) -> Rounds {
        Rounds(self.lines.iter().filter_map(of).collect())
    }

    fn table(&self, out: &mut String) -> Result<()> {
        let raw = self.data.raw_bytes() as f64;
        writeln!(
            out,
            "\n## {}: {} keys, values of {} bytes, raw {:.0} MB\n",
            self.data.name,
            self.data.keys,
            self.data.value_bytes,
            raw / 1e6
        )?;
        writeln!(out, "Median (minimum-maximum) of the rounds.\n")?;
        writeln!(
            out,
            "| engine | build s | CPU s | peak MB | file MB | file/raw | hit ns | p50 | p99 | miss ns | cold reads | cold us | cold miss reads |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for entry in engine::all() {
            let name = entry.name;
            let files = entry.reads_from.unwrap_or(name);
            let file = self
                .built(files, |built, _| built.file_bytes as f64)
                .median();
            if file.is_none() {
                continue;
            }
            writeln!(
                out,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                self.built(name, |built, _| built.build_s).cell(2),
                self.built(name, |_, usage| usage.cpu_s).cell(2),
                self.built(name, |_, usage| usage.peak_bytes as f64 / 1e6)
                    .cell(0),
                file.map_or("-".into(), |bytes| format!("{:.1}", bytes / 1e6)),
                file.map_or("-".into(), |bytes| format!("{:.3}", bytes / raw)),
                self.warm(name, |warm| Some(warm.hit_ns_mean)).cell(0),
                self.warm(name, |warm| Some(warm.hit_ns_p50)).cell(0),
                self.warm(name, |warm| Some(warm.hit_ns_p99)).cell(0),
                self.warm(name, |warm| Some(warm.miss_ns_mean)).cell(0),
                self.cold(name, |cold| cold.hit_disk_reads).cell(2),
                self.cold(name, |cold| cold.hit_us_mean).cell(0),
                self.cold(name, |cold| cold.miss_disk_reads).cell(2),
            )?;
        }
        Ok(())
    }

    fn bars(&self, out: &mut String) -> Result<()> {
        let build = |name: &str| self.built(name, |built, _| built.build_s).median();
        let hit = |name: &str| self.warm(name, |warm| Some(warm.hit_ns_mean)).median();
        let miss = |name: &str| self.warm(name, |warm| Some(warm.miss_ns_mean)).median();
        let least = |of: &dyn Fn(&str) -> Option<f64>, only: &str| {
            engine::all()
                .iter()
                .filter(|entry| !entry.name.starts_with("larder") && entry.name.starts_with(only))
                .filter_map(|entry| Some((of(entry.name)?, entry.name)))
                .min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let raw = self.data.raw_bytes() as f64;
        let file = self
            .built("larder", |built, _| built.file_bytes as f64)
            .median();
        let directory = self
            .warm("larder", |warm| {
                warm.directory_bytes.map(|bytes| bytes as f64)
            })
            .median();
        let many = self
            .warm("larder", |warm| Some(warm.many_100_ns? / warm.gets_100_ns?))
            .median();
        let against = |of: Option<f64>, other: Option<(f64, &str)>| Some(of? / other?.0);
        let named =
            |other: Option<(f64, &'static str)>| other.map_or("none measured", |other| other.1);
        let any_build = |name: &str| build(name);
        let (lmdb, fastest, fastest_miss) =
            (least(&any_build, "lmdb"), least(&hit, ""), least(&miss, ""));
        let rows = [
            (
                format!("build, against LMDB ({})", named(lmdb)),
                against(build("larder"), lmdb),
                0.6,
            ),
            (
                format!("build with 4 GiB, against LMDB ({})", named(lmdb)),
                against(build("larder-4g"), lmdb),
                0.6,
            ),
            (
                "build, against cdb".into(),
                against(build("larder"), least(&any_build, "cdb")),
                1.5,
            ),
            (
                "build with 4 GiB, against cdb".into(),
                against(build("larder-4g"), least(&any_build, "cdb")),
                1.5,
            ),
            (
                "file, against raw".into(),
                file.map(|bytes| bytes / raw),
                1.06,
            ),
            (
                format!("hit, against the fastest peer ({})", named(fastest)),
                against(hit("larder"), fastest),
                0.75,
            ),
            (
                "hit, against sparkey".into(),
                against(hit("larder"), least(&hit, "sparkey")),
                0.6,
            ),
            (
                "hit, against LMDB".into(),
                against(hit("larder"), least(&hit, "lmdb")),
                0.35,
            ),
            (
                format!("miss, against the fastest peer ({})", named(fastest_miss)),
                against(miss("larder"), fastest_miss),
                1.0,
            ),
            ("100 keys in one call, against 100 calls".into(), many, 0.4),
            (
                "directory in memory, against raw, percent".into(),
                directory.map(|bytes| bytes / raw * 100.0),
                0.5,
            ),
            (
                "cold disk reads per lookup".into(),
                self.cold("larder", |cold| cold.hit_disk_reads).median(),
                1.0,
            ),
        ];
        writeln!(out, "\n| larder | measured | bar | |\n|---|---|---|---|")?;
        for (what, measured, bar) in rows {
            let (shown, verdict) = match measured {
                None => ("-".into(), "not measured"),
                Some(value) => (
                    format!("{value:.3}"),
                    if value <= bar { "met" } else { "missed" },
                ),
            };
            writeln!(out, "| {what} | {shown} | <= {bar} | {verdict} |")?;
        }
        Ok(())
    }
}

/// Makes summary.md of a folder's raw.jsonl.
pub fn write(folder: &Path) -> Result<()> {
    let raw = fs::read_to_string(folder.join("raw.jsonl"))?;
    let lines = raw
        .lines()
        .map(serde_json::from_str)
        .collect::<serde_json::Result<Vec<RawLine>>>()?;
    let mut out = String::from("# Stores, side by side\n\n");
    for line in &lines {
        if let RawLine::Host { facts, command } = line {
            for (name, value) in facts {
                writeln!(out, "- {name}: {value}")?;
            }
            writeln!(out, "- command: `{command}`")?;
        }
    }
    for line in &lines {
        let RawLine::Data { data, counts } = line else {
            continue;
        };
        let results = Results {
            lines: &lines,
            data,
        };
        results.table(&mut out)?;
        results.bars(&mut out)?;
        for line in &lines {
            if let RawLine::Failed {
                data: name,
                engine,
                reason,
            } = line
                && *name == data.name
            {
                writeln!(out, "\nLeft out: {engine} ({reason})")?;
            }
        }
        writeln!(
            out,
            "\n{} untimed lookups for each mean, {} timed singly for p50 and p99 (which include reading the clock, {} ns), {} cold.",
            counts.untimed,
            counts.timed,
            results
                .rounds(|line| match line {
                    RawLine::Warm { warm, .. } => Some(warm.clock_ns),
                    _ => None,
                })
                .median()
                .map_or("-".into(), |ns| format!("{ns:.0}")),
            counts.cold
        )?;
        let cold = lines.iter().find_map(|line| match line {
            RawLine::Cold { cold, .. } => Some(cold),
            _ => None,
        });
        if let Some(cold) = cold {
            writeln!(
                out,
                "Cold: {}; reads counted {}.",
                if cold.dropped_all {
                    "the page cache was dropped (drop_caches)"
                } else {
                    "the files were dropped from the page cache (fadvise)"
                },
                if cold.counted_by_disk {
                    "by the disk, over the whole machine (/proc/diskstats)"
                } else {
                    "as pages of 4 KiB (/proc/self/io)"
                }
            )?;
        }
    }
    // The files that `larder-bench` wrote to the same folder are part of the same report.
    for name in ["server.md", "swap-latency.md"] {
        match fs::read_to_string(folder.join(name)) {
            Ok(part) => write!(out, "\n{part}")?,
            Err(_) => writeln!(out, "\nNot run here: `{name}` of larder-bench.")?,
        }
    }
    writeln!(out, "\n## Engines\n")?;
    for entry in engine::all() {
        writeln!(out, "- {}: {}", entry.name, entry.what)?;
    }
    out.push_str(NOTES);
    fs::write(folder.join("summary.md"), out)?;
    Ok(())
}

const NOTES: &str = "
## How

Every build and every series of lookups runs in a separate process. Builds find the CSV in the page cache and end when the
files are synced. Lookups in larder use the copy that a server makes when it pulls a build (in pieces that can be huge pages); the other engines use the files they built. All peers share one CSV parser; those that need sorted input sort in memory on all cores, without a limit.
Peak MB is the process's largest resident set: for engines that write or read through a map, it counts mapped pages
of the page cache too. Lookups: one thread, random keys, the key compared and every byte of the value read; the mean is not
timed per lookup, so consecutive lookups may overlap in the processor. Cold lookups begin after the engine has been opened, on an empty page cache:
the memory that opening loads (indexes, filters) is not counted.

## Not measured

- More than one reading thread, and reading while something else writes.
- Data larger than memory, other than by an empty page cache; other disks, file systems and processors.
- Longer, unequal or skewed keys, and values of mixed sizes; compression, on either side.
- RocksDB's plain table, and further options of each peer.
- The servers around the engines; `larder-bench -- server` does that.
";
