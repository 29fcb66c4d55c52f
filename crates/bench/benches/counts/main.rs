//! Instruction counts of hot paths, under valgrind's tool callgrind: unlike times, they are the same in each run.
//!
//! ```text
//!  this program ──► valgrind ──► this program: setup, count("store get, hit", ...), setup, count(...), ...
//!       ▲                                          └─► callgrind.out: one part per call of `counted_region`
//!       └── totals of the parts, divided by the calls ◄───┘
//! ```
//!
//! `cargo xtask counts` runs this program and compares its output with `bench/counts.toml`. `stores`, `tables` and
//! `inputs` contain the paths.
//!
//! Invariants:
//! 1. The measured program does not depend on its environment: of the environment variables it inherits only `PATH`, its
//!    seeds are fixed, and it uses files of an empty folder by relative names.
//! 2. A path is executed once before it is counted, so that lazy initialization is not counted.

mod inputs;
mod stores;
mod tables;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Set in the environment of the program that runs under valgrind.
const IS_MEASURED: &str = "LARDER_COUNTS";

const DUMPS: &str = "callgrind.out";

fn main() -> ExitCode {
    let done = if std::env::var_os(IS_MEASURED).is_some() {
        // Last the builds of stores: their threads leave the allocator in a state that depends on their timing.
        tables::count_tables()
            .and_then(|()| inputs::count_inputs())
            .and_then(|()| stores::count_stores())
    } else {
        measure()
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts `calls` calls of `path`, each of which processes `units` rows or records. Prints the name and the number of
/// units; the counts are in callgrind's output. `path` receives the number of the call.
pub fn count(name: &str, calls: u64, units: u64, path: &mut dyn FnMut(u64)) {
    path(0);
    counted_region(calls, path);
    println!("{name}\t{}", calls * units);
}

/// Callgrind recognizes this function by its name: it discards what it has counted at the start of each call, and
/// writes its counts at the end.
#[inline(never)]
fn counted_region(calls: u64, path: &mut dyn FnMut(u64)) {
    for call in 1..=calls {
        path(std::hint::black_box(call));
    }
}

/// Replaces the C library's function, from which the standard library takes the seeds of hash maps, so that these are
/// the same in each run.
///
/// # Safety
/// `bytes` must be valid for writes of `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(bytes: *mut u8, size: usize, _: u32) -> isize {
    // SAFETY: required of the caller.
    unsafe { bytes.write_bytes(7, size) };
    size as isize
}

/// Runs this program under valgrind. Prints the machine, and each path with its number of instructions.
fn measure() -> Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("counts");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--combine-dumps=yes"])
        .arg(format!("--callgrind-out-file={DUMPS}"))
        .args([
            "--zero-before=counts::counted_region",
            "--dump-after=counts::counted_region",
        ])
        .arg(std::env::current_exe()?)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env(IS_MEASURED, "1")
        .current_dir(&folder)
        .output()?;
    let (printed, log) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    if !ran.status.success() {
        return Err(format!("valgrind failed ({}): {log}", ran.status).into());
    }
    let dumps = fs::read_to_string(folder.join(DUMPS))?;
    let mut totals = totals(&dumps)?.into_iter();
    println!("machine\t{}", machine()?);
    for line in printed.lines() {
        let (name, units) = line.split_once('\t').ok_or("a path without units")?;
        let total = totals
            .next()
            .ok_or_else(|| format!("callgrind has counted nothing for {name:?}: {log}"))?;
        let units: u64 = units.parse()?;
        println!("{name}\t{}", (total + units / 2) / units);
    }
    Ok(())
}

/// Returns the numbers of instructions in the parts that `counted_region` ended. The last part is the program's end.
fn totals(dumps: &str) -> Result<Vec<u64>> {
    let mut totals = Vec::new();
    let mut is_region = false;
    for line in dumps.lines() {
        if let Some(trigger) = line.strip_prefix("desc: Trigger: ") {
            is_region = trigger.contains("counted_region");
        }
        if let Some(total) = line.strip_prefix("totals: ").filter(|_| is_region) {
            totals.push(total.trim().parse()?);
        }
    }
    Ok(totals)
}

/// Returns what the counts depend on besides this repository: the instructions that valgrind offers to programs, which
/// select SIMD code at run time, and the versions of valgrind and of the C library.
fn machine() -> Result<String> {
    let version = Command::new("valgrind").arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    // SAFETY: the function returns a static string.
    let libc = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let avx2 = if has_avx2() { " with AVX2" } else { "" };
    let arch = std::env::consts::ARCH;
    Ok(format!("{arch}{avx2}, {version}, glibc {}", libc.to_str()?))
}

/// Valgrind offers AVX2, and nothing newer, to programs on processors that have it.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}
