//! `larder-bench space-outgrown`: a space with four times as much data as the server has memory.
//!
//! The server runs in a control group with a memory limit, which includes mapped files. Values are in a mapped file
//! (`tables.values_on_disk`), and the indexes are in memory.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::RespClient;
use larder_protocol::resp::client::{Reply, request};
use larder_types::Random;
use serde_json::json;

use super::deployment::words_of;
use super::drive::{EncodedRequests, drive, send_all};
use super::hotels::{Hotels, price_text};
use super::systems::{INDEXES_OF_LARDER, Larder, Question, System, declaration, draw_subject};
use crate::Result;
use crate::net::services::{CLIENT_CORE, SERVER_CORE};
use crate::process::{self, Server};
use crate::report::{self, verdict};

#[derive(Args)]
pub struct SpaceOutgrownArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Memory limit of the server, in MiB
    #[arg(long, default_value_t = 384)]
    memory_mib: u64,
    /// Size of the data, as a multiple of the memory limit
    #[arg(long, default_value_t = 4)]
    times: u64,
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Parent folder of the data [default: the system's temporary folder]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "space-outgrown")]
    name: String,
}

const REQUESTS: usize = 20_000;
/// The maximum growth of the server's own memory during a cursor, in megabytes.
const CURSOR_BAR_MB: f64 = 16.0;

/// A measured question: a title, and a function that appends a request with the expected number of rows.
type MeasuredQuestion = fn(&Larder, &mut EncodedRequests, &Hotels, &mut Random);

const QUESTIONS: [(&str, MeasuredQuestion); 4] = [
    ("get", |system, requests, hotels, random| {
        let drawn = draw_subject(hotels, random);
        system.push_request(requests, Question::Get, hotels, drawn.number, drawn.prices);
        requests.end(1);
    }),
    ("city, ten rows", |system, requests, hotels, random| {
        let hotel = &hotels.all[hotels.any(random)];
        let query = format!("@city:{{{}}}", hotel.value("city"));
        system.search(requests, &query, &["LIMIT", "0", "10"]);
        requests.end(hotels.of_city[hotel.city as usize].len().min(10));
    }),
    ("city, keys alone", |system, requests, hotels, random| {
        let hotel = &hotels.all[hotels.any(random)];
        let query = format!("@city:{{{}}}", hotel.value("city"));
        system.search(requests, &query, &["LIMIT", "0", "10", "NOCONTENT"]);
        // Two keys count as one row.
        requests.end(hotels.of_city[hotel.city as usize].len().min(10) / 2);
    }),
    ("update of a price", |_, requests, hotels, random| {
        let (key, price) = (Hotels::key(hotels.any(random)), random.index(48_000));
        let price = price_text(2000 + price as u32);
        let words = [&b"HSET"[..], key.as_bytes(), b"price", price.as_bytes()];
        request(&mut requests.bytes, &words);
        requests.end(1);
    }),
];

/// A control group with a memory limit. It is removed when dropped, which must happen after the server stops.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(bytes: u64) -> Result<MemoryGroup> {
        let name = format!("larder-bench-{}", std::process::id());
        let (root, limit) = if Path::new("/sys/fs/cgroup/memory").is_dir() {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            ("/sys/fs/cgroup", "memory.max")
        };
        let group = Path::new(root).join(name);
        let text = |error: std::io::Error| {
            format!(
                "no group of processes with a limit can be made at {root}: {error}; run this as root"
            )
        };
        fs::create_dir(&group).map_err(text)?;
        let group = MemoryGroup(group);
        fs::write(group.0.join(limit), bytes.to_string()).map_err(text)?;
        Ok(group)
    }

    /// Returns the peak memory use, if the system reports it.
    fn peak_bytes(&self) -> Option<u64> {
        let names = ["memory.max_usage_in_bytes", "memory.peak"];
        let mut read = names.iter().map(|it| fs::read_to_string(self.0.join(it)));
        read.find_map(|it| it.ok()?.trim().parse().ok())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn start(binary: &Path, data: &Path, group: &MemoryGroup, memory: u64) -> Result<Server> {
    let mut command = Command::new("sh");
    let procs = group.0.join("cgroup.procs");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
    command.arg(procs).args(["taskset", "-c"]);
    command.arg(SERVER_CORE.to_string()).arg(binary);
    command.args(["serve", "--json", "--resp", "127.0.0.1:0"]);
    command.args(["--http", "127.0.0.1:0", "--set", "server.threads=1"]);
    command.args(["--set", "tables.values_on_disk=1KiB"]);
    command.args(["--set", &format!("tables.memory={memory}B")]);
    command.arg("--data").arg(data);
    process::serve(&mut command)
}

pub fn run(args: &SpaceOutgrownArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    process::pin_self(CLIENT_CORE)?;
    let hotels = Hotels::generate(args.hotels, 1);
    let folder = match &args.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let given = args.memory_mib << 20;
    let group = MemoryGroup::new(given)?;
    // The rest is for everything but data: code, buffers, and the cached part of the file.
    let server = start(&binary, folder.path(), &group, given * 3 / 4)?;
    let system = Larder {
        address: server.resp,
        indexes: INDEXES_OF_LARDER,
    };
    let started = Instant::now();
    let bytes = load(&system, &hotels, given * args.times)?;
    let loaded_s = started.elapsed().as_secs_f64();
    let mut text = format!(
        "## More data than memory\n\n{} generated hotels with a description each, {:.0} MiB of values; the server, on one core, has {} MiB, in which the system counts what it maps of files \
         (`tables.values_on_disk = 1KiB`, `tables.memory` three quarters of that). {} connections, one request at a time each; {} s for each question. Loaded in {loaded_s:.0} s.\n\n\
         | | a second | a CPU second | p50 us | p99 us |\n|---|---|---|---|---|\n",
        args.hotels,
        bytes as f64 / 1048576.0,
        args.memory_mib,
        args.connections,
        args.seconds
    );
    let mut raw = Vec::new();
    for (title, ask) in QUESTIONS {
        let mut random = Random::new(29);
        let mut requests = EncodedRequests::default();
        (0..REQUESTS).for_each(|_| ask(&system, &mut requests, &hotels, &mut random));
        let lines = (0..args.connections).map(|_| system.connect());
        let lines = lines.collect::<Result<Vec<_>>>()?;
        let before = server.cpu_s()?;
        let took = Duration::from_secs_f64(args.seconds);
        let (driven, _) = drive(lines, &requests, 1, took)?;
        let cpu_s = server.cpu_s()? - before;
        let (per_s, per_cpu_s) = (
            driven.answered as f64 / driven.elapsed.as_secs_f64(),
            driven.answered as f64 / cpu_s,
        );
        let at = |quantile| driven.latencies.value_at_quantile(quantile);
        writeln!(
            text,
            "| {title} | {per_s:.0} | {per_cpu_s:.0} | {} | {} |",
            at(0.5),
            at(0.99)
        )?;
        raw.push(json!({"question": title, "per_s": per_s, "per_cpu_s": per_cpu_s, "p50_us": at(0.5), "p99_us": at(0.99)}));
        eprintln!("{}", raw[raw.len() - 1]);
    }
    cursor(&mut text, &server, args.hotels)?;
    if let Some(most) = group.peak_bytes() {
        writeln!(
            text,
            "\nThe most that the group had: {:.0} MiB of {}.",
            most as f64 / 1048576.0,
            args.memory_mib
        )?;
    }
    writeln!(text, "\nCommand: `{}`", report::command())?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}

/// Loads hotels with descriptions, so that they have about `bytes` bytes in total. Returns the number of bytes sent.
fn load(system: &Larder, hotels: &Hotels, bytes: u64) -> Result<u64> {
    let each = (bytes / hotels.all.len() as u64) as usize;
    let mut random = Random::new(31);
    let (mut requests, mut sent) = (EncodedRequests::default(), 0);
    let create = declaration(system.indexes);
    let create: Vec<&[u8]> = words_of(&create).into_iter().map(str::as_bytes).collect();
    request(&mut requests.bytes, &create);
    requests.end(1);
    for number in 0..hotels.all.len() {
        let mut words = hotels.words(number);
        let letters = (0..each).map(|_| char::from(b'a' + random.below(26) as u8));
        words.extend(["description".to_owned(), letters.collect()]);
        sent += words.iter().map(|it| it.len() as u64).sum::<u64>();
        let words: Vec<&[u8]> = words.iter().map(|it| it.as_bytes()).collect();
        request(&mut requests.bytes, &words);
        requests.end(1);
        if requests.bytes.len() > 64 << 20 {
            send_all(system.connect()?, &std::mem::take(&mut requests))?;
        }
    }
    send_all(system.connect()?, &requests)?;
    Ok(sent)
}

/// Reads all hotels by a cursor, and reports the growth of the server's own memory, without mapped files.
fn cursor(text: &mut String, server: &Server, count: usize) -> Result<()> {
    let client = RespClient::new(server.resp.to_string());
    let before = own_bytes(server)?;
    let (started, mut most, mut rows) = (Instant::now(), before, 0);
    let words = "FT.AGGREGATE hotels * LOAD 1 @price WITHCURSOR COUNT 1000";
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    let mut reply = client.command(&words)?;
    loop {
        let Reply::Array(parts) = &reply else {
            return Err(format!("no cursor came: {reply:?}").into());
        };
        let [Reply::Array(page), Reply::Integer(cursor)] = &parts[..] else {
            return Err("no page and cursor came".into());
        };
        rows += page.len().saturating_sub(1);
        most = most.max(own_bytes(server)?);
        if *cursor == 0 {
            break;
        }
        let cursor = cursor.to_string();
        reply = client.command(&[b"FT.CURSOR", b"READ", b"hotels", cursor.as_bytes()])?;
    }
    if rows != count {
        return Err(format!("the cursor read {rows} rows of {count}").into());
    }
    let grown = (most - before) as f64 / 1e6;
    writeln!(
        text,
        "\nA cursor read all {rows} rows with one field, 1,000 at a time, in {:.1} s; the server's own memory, without what it maps of files, grew by {grown:.1} MB at most (bar {CURSOR_BAR_MB}; {}).",
        started.elapsed().as_secs_f64(),
        verdict(grown <= CURSOR_BAR_MB)
    )?;
    Ok(())
}

fn own_bytes(server: &Server) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|it| it.strip_prefix("RssAnon:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    let kib: u64 = kib
        .ok_or("/proc/PID/status has no RssAnon")?
        .trim()
        .parse()?;
    Ok(kib << 10)
}
