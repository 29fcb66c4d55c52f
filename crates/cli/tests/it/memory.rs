//! Peak memory of processes: files that decompress to gigabytes, and the largest values.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Server, larder, run_ok, spawn_server, spawn_server_with};

const MIB: u64 = 1 << 20;
/// Memory that a process may use in addition to `--memory`.
const EXTRA_MEMORY: u64 = 128 * MIB;

/// The outcome of a process.
struct Measured {
    exit_code: Option<i32>,
    stderr: String,
    peak_bytes: u64,
}

/// Runs the command in its arguments after the first, and writes the peak memory in KiB to the file in the first
/// argument.
const MEASURE: &str = "import resource, subprocess, sys\n\
    ended = subprocess.run(sys.argv[2:]).returncode\n\
    open(sys.argv[1], 'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
    sys.exit(ended)";

/// A child's peak memory begins with the memory of its parent, and this process is large. A small process therefore
/// starts the command.
fn run_measured(command: &Command, folder: &Path) -> Measured {
    let (log, peak) = (folder.join("stderr"), folder.join("peak"));
    let mut measure = Command::new("python3");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => measure.env(name, value),
            None => measure.env_remove(name),
        };
    }
    let status = measure
        .args(["-c", MEASURE])
        .args([peak.as_os_str(), command.get_program()])
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .status()
        .unwrap();
    let peak_kib: u64 = std::fs::read_to_string(peak).unwrap().parse().unwrap();
    Measured {
        exit_code: status.code(),
        stderr: std::fs::read_to_string(log).unwrap(),
        peak_bytes: peak_kib * 1024,
    }
}

fn build(input: &Path, memory: &str, columns: &[&str], folder: &Path) -> Measured {
    let mut command = larder();
    command
        .args([
            "build",
            "--store",
            "s",
            "--partitions",
            "1",
            "--memory",
            memory,
        ])
        .args(columns)
        .arg("--out")
        .arg(folder.join("out"))
        .arg("--temp")
        .arg(folder)
        .arg(input);
    run_measured(&command, folder)
}

#[test]
fn files_that_unpack_to_gigabytes_stay_within_the_memory() {
    let temp = tempfile::tempdir().unwrap();
    let endless = temp.path().join("endless.csv.zst");
    let mut packed = zstd::Encoder::new(File::create(&endless).unwrap(), 1).unwrap();
    packed.write_all(b"arr,value\n1,").unwrap();
    for _ in 0..3 << 10 {
        packed.write_all(&[b'x'; 1 << 20]).unwrap();
    }
    packed.finish().unwrap();
    assert!(endless.metadata().unwrap().len() < MIB);

    let mut files = vec![endless];
    files.extend(larder_testing::external_data(
        "ingest/parquet-bad/large_string_map.brotli.parquet",
    ));
    for file in files {
        let built = build(&file, "256MiB", &["--key", "arr"], temp.path());
        let name = file.file_name().unwrap().to_str().unwrap();
        assert_eq!(built.exit_code, Some(1), "{name}: {}", built.stderr);
        assert!(built.stderr.contains(name), "{}", built.stderr);
        let most = 256 * MIB + EXTRA_MEMORY;
        assert!(
            built.peak_bytes <= most,
            "{name}: {} MiB",
            built.peak_bytes / MIB
        );
        eprintln!(
            "{name}: {} MiB; {}",
            built.peak_bytes / MIB,
            built.stderr.trim()
        );
    }
}

#[test]
fn very_many_rows_of_one_key_stay_within_the_memory() {
    const ROWS: usize = 30_000;
    let temp = tempfile::tempdir().unwrap();
    let input = temp.path().join("one_key.csv.zst");
    let mut packed = zstd::Encoder::new(File::create(&input).unwrap(), 1).unwrap();
    packed.write_all(b"k,v\n").unwrap();
    let zeros = "0".repeat(8187);
    for row in 0..ROWS {
        let row = format!("one,{zeros}{row:05}\n");
        packed.write_all(row.as_bytes()).unwrap();
    }
    packed.finish().unwrap();
    // 234 MiB of values.
    let build = |how: &str| {
        let what = ["--key", "k", "--value", "v", "--on-duplicate", how];
        let built = build(&input, "64MiB", &what, temp.path());
        eprintln!("{how}: {} MiB", built.peak_bytes / MIB);
        assert!(
            built.peak_bytes <= 64 * MIB + EXTRA_MEMORY,
            "{how}: {} MiB",
            built.peak_bytes / MIB
        );
        built
    };
    let refused = build("collect");
    assert_eq!(refused.exit_code, Some(1), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("collecting the 30000 values of key \"one\" needs 235.1MiB")
            && refused.stderr.contains("6MiB are available for one key")
            && refused.stderr.contains("give --memory 2586MiB or more"),
        "{}",
        refused.stderr
    );
    let refused = build("error");
    assert!(
        refused.stderr.contains("one_key.csv.zst, line 2 and ")
            && refused.stderr.contains("one_key.csv.zst, line 3)"),
        "{}",
        refused.stderr
    );
    let built = build("last");
    assert_eq!(built.exit_code, Some(0), "{}", built.stderr);
    let value = run_ok(["get", temp.path().join("out").to_str().unwrap(), "one"]);
    assert_eq!(value.trim_end(), format!("{zeros}{:05}", ROWS - 1));
}

/// The 200,000 rows of the file share one text of 8 MiB, so its 1.6 kB represent 1.6 TB of values.
#[test]
fn a_long_value_shared_by_many_rows_stays_within_the_memory_and_is_interruptible() {
    let temp = tempfile::tempdir().unwrap();
    let input =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ingest/tests/golden/long_value.parquet");
    let log = temp.path().join("stderr");
    // Limits the file size, so that a build that does not stop fails before it fills the disk.
    let build = "ulimit -f 8388608; exec \"$0\" build --store s --memory 256MiB --key id --value v \
         --out \"$1/out\" --temp \"$1\" \"$2\"";
    let mut child = Command::new("sh")
        .args(["-c", build])
        .args([Path::new(env!("CARGO_BIN_EXE_larder")), temp.path(), &input])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let number = |file: &str, name: &str| -> u64 {
        let text = std::fs::read_to_string(process.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    // Far more data than the memory holds has been written.
    while number("io", "wchar:") < 600 * MIB && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let peak = number("status", "VmHWM:") * 1024;
    // SAFETY: the child is ours and has not been waited for; the call only sends a signal.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = child.wait().unwrap();
    let output = std::fs::read_to_string(log).unwrap();
    assert_eq!(status.code(), Some(130), "{output}");
    assert!(output.contains("interrupted"), "{output}");
    assert!(
        peak > 0 && peak <= 256 * MIB + EXTRA_MEMORY,
        "{} MiB",
        peak / MIB
    );
    assert!(!temp.path().join("out").exists());
}

/// Returns the byte at offset `at` of the large value.
fn byte(at: u64) -> u8 {
    b'!' + (at % 1_000_003 % 89) as u8
}

/// Writes the rows `big` (`size` bytes) and `small` as a TSV file without quotes.
fn write_large(path: &Path, size: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    file.write_all(b"key\tvalue\nbig\t").unwrap();
    let pattern: Vec<u8> = (0..1_000_003).map(|at| byte(at).max(b'#')).collect();
    let mut left = size as usize;
    while left > 0 {
        let part = left.min(pattern.len());
        file.write_all(&pattern[..part]).unwrap();
        left -= part;
    }
    file.write_all(b"\nsmall\tv\n").unwrap();
}

/// Sends a command for one key, and verifies every byte of its bulk reply without storing it.
fn check_part(server: &Server, command: &str, from: u64, size: u64) {
    let mut stream = TcpStream::connect(&server.resp).unwrap();
    stream
        .write_all(format!("{command}\r\n").as_bytes())
        .unwrap();
    let mut reply = BufReader::with_capacity(1 << 20, stream);
    let mut line = String::new();
    reply.read_line(&mut line).unwrap();
    assert_eq!(line, format!("${size}\r\n"));
    let mut at = from;
    while at < from + size {
        let bytes = reply.fill_buf().unwrap();
        assert!(
            !bytes.is_empty(),
            "the reply ends after {} bytes",
            at - from
        );
        let count = bytes.len().min((from + size - at) as usize);
        let first_wrong = bytes[..count]
            .iter()
            .zip(at..)
            .find(|(found, at)| **found != byte(*at).max(b'#'));
        assert_eq!(first_wrong, None);
        reply.consume(count);
        at += count as u64;
    }
}

#[test]
fn a_value_of_exactly_a_gibibyte_is_built_pushed_and_read_and_one_byte_more_is_refused() {
    if !larder_testing::is_enabled("LARDER_SLOW_TESTS", "it takes a minute and 3 GiB") {
        return;
    }
    const GIB: u64 = 1 << 30;
    let temp = tempfile::tempdir().unwrap();
    let input = temp.path().join("large.tsv");
    let columns = ["--key", "key", "--value", "value"];

    write_large(&input, GIB + 1);
    let over = build(&input, "6GiB", &columns, temp.path());
    assert_eq!(over.exit_code, Some(1));
    assert!(
        over.stderr.contains("the value has 1073741825 bytes"),
        "{}",
        over.stderr
    );
    write_large(&input, GIB);
    let little = build(&input, "1GiB", &columns, temp.path());
    assert_eq!(little.exit_code, Some(1));
    assert!(
        little.stderr.contains("give more --memory"),
        "{}",
        little.stderr
    );
    assert!(
        little.peak_bytes <= GIB + EXTRA_MEMORY,
        "{} MiB",
        little.peak_bytes / MIB
    );
    let built = build(&input, "5GiB", &columns, temp.path());
    assert_eq!(built.exit_code, Some(0), "{}", built.stderr);
    assert!(
        built.peak_bytes <= 5 * GIB + EXTRA_MEMORY,
        "{} MiB",
        built.peak_bytes / MIB
    );
    std::fs::remove_file(&input).unwrap();

    let data = temp.path().join("data");
    let out = temp.path().join("out");
    let server = spawn_server(&data);
    run_ok([
        "push",
        out.to_str().unwrap(),
        "--store",
        "s",
        "--server",
        &server.http,
    ]);
    std::fs::remove_dir_all(&out).unwrap();
    server.reset_peak();
    check_part(&server, "GET s:big", 0, GIB);
    check_part(&server, "GETRANGE s:big 1000 1009", 1000, 10);
    check_part(
        &server,
        "GETRANGE s:big -5000000 -1",
        GIB - 5_000_000,
        5_000_000,
    );
    let warm = server.peak_anonymous_bytes();

    // Verification reads the complete value through the map. A read from disk uses the kernel's page cache, not the
    // server's memory.
    assert!(server.stop().success());
    let segment = data.join("stores/s/v0000000001/p00000.segment");
    evict(&segment);
    let server = spawn_server_with(&data, |command| {
        command.env("LARDER_FETCH_WARM", "false");
    });
    for command in ["GETRANGE s:big 7 16", "GET s:big", "GETRANGE s:big 7 16"] {
        evict(&segment);
        let (from, size) = if command.starts_with("GET ") {
            (0, GIB)
        } else {
            (7, 10)
        };
        check_part(&server, command, from, size);
    }
    let cold = server.peak_anonymous_bytes();
    eprintln!(
        "build: {} MiB; server beyond the map: {} MiB warm, {} MiB cold",
        built.peak_bytes / MIB,
        warm / MIB,
        cold / MIB
    );
    assert!(warm <= 64 * MIB, "{} MiB", warm / MIB);
    assert!(cold <= 64 * MIB, "{} MiB", cold / MIB);
}

/// Drops the file from the page cache, except for pages that a process has mapped and accessed.
fn evict(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the descriptor is open; the call only gives advice.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

impl Server {
    fn reset_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// Returns the peak memory, without the file mappings that exist now.
    fn peak_anonymous_bytes(&self) -> u64 {
        let bytes = |figure: &str| larder_testing::memory_bytes(self.pid(), figure);
        bytes("VmHWM").saturating_sub(bytes("RssFile"))
    }
}
