//! Repeats Voldemort's own evaluation: the time of builds by size, the latency of reads at a steady rate, and the effect of a new version on
//! reads (R. Sumbaly and others, *Serving large-scale batch computed data with Project Voldemort*, FAST 2012, section 5).
//!
//! ```text
//!  for each size: CSV ─► larder, LMDB, Voldemort's layout (a child process each), MyISAM (LOAD DATA) ─► seconds
//!  at one size:   larder's server and MariaDB, uniform and Zipf, at each rate ─► latency
//!                 a version is pushed, nothing is in memory ─► latency by second
//! ```
//!
//! The table of MyISAM has one index, which is disabled for the load and enabled after it. Both servers are read over a socket of one machine by eight
//! connections; a read is timed from the moment it was due.

mod clients;
mod eviction;
mod myisam;
mod report;
mod serving;
mod steady;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::child::{self, Step, Usage};
use crate::data::DataSet;
use crate::engine::Result;
use crate::host;
use crate::measure::Built;
use myisam::MyIsam;
use steady::{Draw, Second};

const VALUE_BYTES: u64 = 1024;
const KEY_BYTES: u64 = 8;

/// Those that are built in a child process, by their names in `engine`.
const IN_PROCESS: [&str; 3] = ["larder", "lmdb", "voldemort-binary"];

pub struct Options {
    pub sizes_gb: Vec<u64>,
    /// The size at which is read.
    pub read_gb: u64,
    pub rates: Vec<u64>,
    pub seconds: u64,
    pub larder: PathBuf,
    pub work: PathBuf,
    pub folder: PathBuf,
    pub command: String,
}

/// All that was measured, as `evaluation.json` has it.
#[derive(Default, Serialize, Deserialize)]
struct Measured {
    command: String,
    host: Vec<(String, String)>,
    builds: Vec<Build>,
    reads: Vec<Read>,
    swaps: Vec<Swap>,
}

#[derive(Serialize, Deserialize)]
struct Build {
    engine: String,
    gb: u64,
    records: u64,
    seconds: f64,
    file_bytes: u64,
    /// Not of MyISAM, whose server does more than this.
    cpu_s: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Read {
    engine: String,
    draw: Draw,
    rate: u64,
    reads: u64,
    failed: u64,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Serialize, Deserialize)]
struct Swap {
    what: String,
    /// Of the second, counted from the beginning, in which the new version went live.
    at: f64,
    seconds: Vec<Second>,
}

pub fn run(options: &Options) -> Result<()> {
    let mut measured = Measured {
        command: options.command.clone(),
        host: host::describe(&options.work)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        ..Measured::default()
    };
    for &gb in &options.sizes_gb {
        builds(options, gb, &mut measured)?;
        measured.write(&options.folder)?;
    }
    if !options.rates.is_empty() {
        serving::run(options, &mut measured)?;
        measured.write(&options.folder)?;
    }
    Ok(())
}

impl Measured {
    fn write(&self, folder: &Path) -> Result<()> {
        fs::write(
            folder.join("evaluation.json"),
            serde_json::to_string_pretty(self)?,
        )?;
        fs::write(folder.join("evaluation.md"), report::text(self))?;
        fs::write(folder.join("evaluation.html"), report::page(self))?;
        Ok(())
    }
}

/// The rows of one size; written if they are not there.
fn data_of(options: &Options, gb: u64) -> Result<DataSet> {
    let keys = gb * 1_000_000_000 / (KEY_BYTES + VALUE_BYTES);
    let data = DataSet {
        name: format!("{gb} GB"),
        keys,
        value_bytes: VALUE_BYTES,
        csv: options.work.join(format!("{keys}x{VALUE_BYTES}.csv")),
    };
    child::run::<()>(&Step::Generate { data: data.clone() })?;
    Ok(data)
}

/// Measures the build of each engine, into an empty folder, from a file that is in the page cache if it fits, with an idle disk. The
/// output is removed before the next build.
fn builds(options: &Options, gb: u64, measured: &mut Measured) -> Result<()> {
    let data = data_of(options, gb)?;
    let mut note = |engine: &str, built: Built, usage: Option<Usage>| {
        eprintln!("{gb} GB {engine:18} {:8.2} s", built.build_s);
        measured.builds.push(Build {
            engine: engine.to_owned(),
            gb,
            records: data.keys,
            seconds: built.build_s,
            file_bytes: built.file_bytes,
            cpu_s: usage.map(|it| it.cpu_s),
        });
    };
    for engine in IN_PROCESS {
        let out = options.work.join("built");
        prepare(&data, &out)?;
        let step = Step::Build {
            engine: engine.to_owned(),
            data: data.clone(),
            out: out.clone(),
        };
        let done: Result<(Built, Usage)> = child::run(&step);
        fs::remove_dir_all(&out)?;
        let (built, usage) = done?;
        note(engine, built, Some(usage));
    }
    let out = options.work.join("mariadb");
    prepare(&data, &out)?;
    let server = MyIsam::start(&out)?;
    let built = server.load(&data)?;
    note("myisam", built, None);
    drop(server);
    fs::remove_dir_all(&out)?;
    if gb != options.read_gb {
        fs::remove_file(&data.csv)?;
    }
    Ok(())
}

fn prepare(data: &DataSet, out: &Path) -> Result<()> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::create_dir_all(out)?;
    std::io::copy(&mut fs::File::open(&data.csv)?, &mut std::io::sink())?;
    // SAFETY: `sync` takes nothing.
    unsafe { libc::sync() };
    Ok(())
}
