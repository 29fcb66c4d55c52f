//! Measures the cost of the journal: `cargo run --release -p larder-journal --example speed [FOLDER]`.
//!
//! Writes rows with 34-byte keys and 100-byte values, 16 per turn of the core's loop. Prints the CPU time of the
//! core's thread and of all threads together. With a folder on the disk in question it also shows the cost of syncs.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use larder_journal::{Entry, Fsync, Journal, Options, RealDisk, replay};

const ROWS: u64 = 2_000_000;
const TURN: u64 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("larder-journal-speed-{}", std::process::id()));
    for fsync in [Fsync::No, Fsync::EverySecond] {
        appends(&base.join("log"), fsync)?;
        recovery(&base.join("log"), "log")?;
        std::fs::remove_dir_all(base.join("log"))?;
    }
    snapshot(&base.join("snapshot"))?;
    recovery(&base.join("snapshot"), "snapshot")?;
    commits(&base.join("commits"))?;
    std::fs::remove_dir_all(&base)?;
    Ok(())
}

fn row(n: u64, key: &mut [u8; 34], value: &mut [u8; 100]) {
    key[26..].copy_from_slice(&n.to_be_bytes());
    value[..8].copy_from_slice(&n.to_le_bytes());
}

fn appends(folder: &std::path::Path, fsync: Fsync) -> Result<(), larder_journal::Error> {
    let options = Options {
        fsync,
        ..Options::default()
    };
    let (journal, _) = Journal::open(folder, options, &mut |_| ())?;
    let main = std::thread::current();
    let mut producer = journal.producer(move || main.unpark());
    let (mut key, mut value) = ([b'k'; 34], [b'v'; 100]);
    let (thread, process) = (thread_cpu(), process_cpu());
    let begun = Instant::now();
    for n in 0..ROWS {
        row(n, &mut key, &mut value);
        producer.append(Entry::Put {
            key: &key,
            value: &value,
            deadline_ms: None,
        })?;
        if n % TURN == TURN - 1 {
            producer.commit();
            while !producer.has_room() {
                std::thread::park();
            }
        }
    }
    producer.commit();
    let (thread, wall) = (thread_cpu() - thread, begun.elapsed());
    drop(producer);
    journal.close()?;
    let process = process_cpu() - process;
    println!(
        "append, {fsync:?}: {} ns a row on the core ({} ns of all threads; {} ns by the clock)",
        per_row(thread),
        per_row(process),
        per_row(wall)
    );
    Ok(())
}

fn snapshot(folder: &std::path::Path) -> Result<(), larder_journal::Error> {
    let (journal, _) = Journal::open(folder, Options::default(), &mut |_| ())?;
    let main = std::thread::current();
    let mut producer = journal.producer(move || main.unpark());
    let (mut key, mut value) = ([b'k'; 34], [b'v'; 100]);
    let (thread, process) = (thread_cpu(), process_cpu());
    for mut part in journal.begin_snapshot(1)? {
        for n in 0..ROWS {
            row(n, &mut key, &mut value);
            part.add(Entry::Put {
                key: &key,
                value: &value,
                deadline_ms: None,
            })?;
            while !part.has_room() {
                std::thread::park();
            }
        }
        part.finish(&mut producer);
    }
    let thread = thread_cpu() - thread;
    journal.wait_for_snapshot();
    println!(
        "snapshot: {} ns a row on the core ({} ns of all threads)",
        per_row(thread),
        per_row(process_cpu() - process)
    );
    journal.close()
}

fn recovery(folder: &std::path::Path, what: &str) -> Result<(), larder_journal::Error> {
    let process = process_cpu();
    let mut rows = 0u64;
    replay(&RealDisk, folder, &mut |entry| {
        if let Entry::Put { key, value, .. } = black_box(entry) {
            rows += u64::from(!key.is_empty() && !value.is_empty());
        }
    })?;
    let spent = process_cpu() - process;
    assert_eq!(rows, ROWS);
    println!(
        "recovery from a {what}: {:.1} million rows a second of CPU time",
        rows as f64 / spent.as_secs_f64() / 1e6
    );
    Ok(())
}

/// Puts one row at a time and waits for each.
fn commits(folder: &std::path::Path) -> Result<(), larder_journal::Error> {
    const COMMITS: u32 = 500;
    let options = Options {
        fsync: Fsync::Always,
        ..Options::default()
    };
    let (journal, _) = Journal::open(folder, options, &mut |_| ())?;
    let mut producer = journal.producer(|| ());
    let begun = Instant::now();
    for n in 0..COMMITS {
        let ticket = producer.append(Entry::Remove {
            key: &n.to_be_bytes(),
        })?;
        producer.wait_durable(ticket)?;
    }
    println!(
        "always, one at a time: {:?} a commit by the clock",
        begun.elapsed() / COMMITS
    );
    drop(producer);
    journal.close()
}

fn per_row(time: Duration) -> u128 {
    time.as_nanos() / u128::from(ROWS)
}

fn thread_cpu() -> Duration {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn process_cpu() -> Duration {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec that outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "both clocks are always there");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
