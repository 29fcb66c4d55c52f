//! Measures the effect of a fault on clients: the time for which keys of the affected node are unavailable, and the
//! lost acknowledged writes.
//!
//! ```text
//!      0.5 s        the fault, until all keys are available again     restarted or healed, until the cluster settles
//!  |---------|fault|----------------------------------------------|back|------------------------------------------|  writes are counted
//!  probes: read a few keys of the affected node in turn, each probe in a thread ─────────────────────────────────►
//!  writers: write each row once, at the affected node while it accepts writes, and at the owner of the row ───────►
//! ```
//!
//! A key is unavailable between two successful replies. The longest such interval counts, so a request that waits
//! counts like one that fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_client::{ClusterClient, Error, RespClient, RespOptions};
use larder_protocol::resp::client::Reply;
use larder_testing::SetOnDrop;
use larder_types::{Random, SLOTS, slot_of};

use super::map;
use crate::{Result, store};

/// The number of records in the probed store, if there is one.
pub const RECORDS: u64 = 2_000;
/// The number of keys that each probe reads in turn.
pub const KEYS: usize = 8;
/// The pause between two requests of a probe.
const PROBE_PAUSE: Duration = Duration::from_millis(4);
/// The number of writes that are sent together, and the pause until the next ones.
const BATCH: usize = 8;
const BATCH_PAUSE: Duration = Duration::from_millis(10);
/// The rate of each writer without delays.
pub const WRITES_A_SECOND: u128 = BATCH as u128 * 1_000 / BATCH_PAUSE.as_millis();
/// The number of hash tags in the rows of all writers.
const TAGS: u64 = 1_000;
const AROUND: Duration = Duration::from_millis(500);
/// The time limit until all keys are available again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
const WRITERS_TIMEOUT: Duration = Duration::from_secs(3);

/// The servers that are subject to faults.
pub trait Service {
    /// Returns the address of each node for clients.
    fn addresses(&self) -> Vec<String>;
    fn kill(&mut self, node: usize);
    fn restart(&mut self, node: usize) -> Result<()>;
    /// Partitions a node from all others, but not from its clients.
    fn cut(&mut self, node: usize);
    fn heal(&mut self);
    /// Waits until the cluster has nothing left to do.
    fn settle(&mut self) -> Result<()>;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Cut,
    /// No fault, for comparison.
    Nothing,
}

/// The node to which a client sends its requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One node that survives the fault.
    Survivor,
    /// The owner according to the survivors. The client fetches the owners again after each failure.
    Owner,
    /// The route of the Rust client.
    Rust,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    ReadRow,
    WriteRow,
    ReadRecord,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    pub target: Target,
    pub kind: ProbeKind,
}

impl Probe {
    pub fn title(self) -> String {
        let what = match self.kind {
            ProbeKind::ReadRow => "reads of rows",
            ProbeKind::WriteRow => "writes",
            ProbeKind::ReadRecord => "reads of a store",
        };
        let way = match self.target {
            Target::Survivor => "through a surviving node",
            Target::Owner => "at the owner",
            Target::Rust => "Rust client",
        };
        format!("{what}, {way}")
    }
}

/// The measurements of a probe.
#[derive(Clone, Copy, Default)]
pub struct ProbeResult {
    /// The longest time for which a key was unavailable: during the fault, and after the node came back.
    pub unanswered_s: f64,
    pub unanswered_back_s: f64,
    /// The number of failed requests.
    pub failed: usize,
    pub failed_back: usize,
}

/// The result of one fault.
pub struct Outcome {
    /// In the order of the requested probes.
    pub probe_results: Vec<ProbeResult>,
    pub acknowledged: usize,
    /// The number of acknowledged rows that are missing afterwards.
    pub lost: usize,
    /// The time from the node's return until the cluster settled.
    pub back_s: f64,
}

/// One request of a probe.
struct Attempt {
    key: usize,
    ended: Instant,
    is_answered: bool,
}

/// A row whose write was acknowledged.
struct Row {
    slot: u16,
    key: String,
}

/// Causes a fault of this duration at a node, while clients read and write.
pub fn run_fault(
    service: &mut dyn Service,
    fault: Fault,
    node: usize,
    lasts: Duration,
    probes: &[Probe],
) -> Result<Outcome> {
    // Each row is written only once, over all faults.
    static PLAYED: AtomicU64 = AtomicU64::new(0);
    let played = PLAYED.fetch_add(1, Ordering::Relaxed);
    let addresses = service.addresses();
    let victim = addresses[node].clone();
    let survivors: Vec<String> = addresses.into_iter().filter(|it| *it != victim).collect();
    let mut owners = Owners::from_nodes(&survivors)?;
    let is_its = |slot: u16| owners.of_slot[usize::from(slot)] == victim;
    let tags: Vec<u64> = (0..TAGS).filter(|tag| is_its(slot_of_tag(*tag))).collect();
    let records = (0..RECORDS).map(store::redis_key);
    let records: Vec<String> = records
        .filter(|key| is_its(slot_of(key.as_bytes())))
        .take(KEYS)
        .collect();
    if tags.len() < KEYS {
        return Err(format!("{victim} owns too little to be looked at").into());
    }
    let rows: Vec<String> = tags
        .iter()
        .take(KEYS)
        .map(|tag| format!("probe|{{{tag}}}|0"))
        .collect();
    for row in &rows {
        owners.send_to_owner(&[b"SET", row.as_bytes(), b"0"])?;
    }
    let stop = AtomicBool::new(false);
    let run_of_answers: Vec<AtomicU64> = probes.iter().map(|_| AtomicU64::new(0)).collect();
    let began = Instant::now();
    let (attempts, rows_written, times) = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let asking: Vec<_> = probes
            .iter()
            .zip(&run_of_answers)
            .map(|(&probe, answers)| {
                let keys = match probe.kind {
                    ProbeKind::ReadRecord => &records,
                    _ => &rows,
                };
                let (survivors, stop) = (&survivors, &stop);
                scope.spawn(move || run_probe(probe, keys, survivors, stop, answers))
            })
            .collect();
        let at_victim = scope.spawn(|| write_at(&victim, &tags, played, &stop));
        let at_owners = scope.spawn(|| write_at_owners(&survivors, played, &stop));
        let mut happen = || -> Result<[Instant; 3]> {
            std::thread::sleep(AROUND);
            let fault_at = Instant::now();
            match fault {
                Fault::Kill => service.kill(node),
                Fault::Cut => service.cut(node),
                Fault::Nothing => {}
            }
            std::thread::sleep(lasts);
            let is_answered = || {
                let enough = 3 * KEYS as u64;
                run_of_answers
                    .iter()
                    .all(|it| it.load(Ordering::Relaxed) >= enough)
            };
            while !is_answered() {
                if fault_at.elapsed() > RECOVERY_TIMEOUT {
                    return Err("a node's slots are not served again".into());
                }
                std::thread::sleep(PROBE_PAUSE);
            }
            let back_at = Instant::now();
            match fault {
                Fault::Kill => service.restart(node)?,
                Fault::Cut => service.heal(),
                Fault::Nothing => {}
            }
            service.settle()?;
            let rest_at = Instant::now();
            std::thread::sleep(AROUND);
            Ok([fault_at, back_at, rest_at])
        };
        let times = happen();
        drop(stopping);
        let attempts = asking.into_iter().map(|it| it.join().expect("it goes on"));
        let attempts: Vec<Vec<Attempt>> = attempts.collect();
        let mut rows = at_victim.join().expect("it goes on");
        rows.extend(at_owners.join().expect("it goes on"));
        (attempts, rows, times)
    });
    let [fault_at, back_at, rest_at] = times?;
    let ended = Instant::now();
    let seen = attempts.iter().map(|attempts| {
        let mut seen = longest(attempts, [began, fault_at, back_at, ended]);
        for attempt in attempts
            .iter()
            .filter(|it| !it.is_answered && it.ended >= fault_at)
        {
            if attempt.ended < back_at {
                seen.failed += 1
            } else {
                seen.failed_back += 1
            }
        }
        seen
    });
    Ok(Outcome {
        probe_results: seen.collect(),
        acknowledged: rows_written.len(),
        lost: Owners::from_nodes(&survivors)?.count_lost(&rows_written)?,
        back_s: (rest_at - back_at).as_secs_f64(),
    })
}

/// Returns the longest time between two successful replies for one key, before and after the node came back.
fn longest(attempts: &[Attempt], [began, fault_at, back_at, ended]: [Instant; 4]) -> ProbeResult {
    let mut seen = ProbeResult::default();
    for key in 0..KEYS {
        let answers = attempts.iter().filter(|it| it.key == key && it.is_answered);
        let mut last = began;
        for at in answers.map(|it| it.ended).chain([ended]) {
            let gap = (at - last).as_secs_f64();
            if last >= back_at {
                seen.unanswered_back_s = seen.unanswered_back_s.max(gap);
            } else if at >= fault_at {
                seen.unanswered_s = seen.unanswered_s.max(gap);
            }
            last = at;
        }
    }
    seen
}

/// Reads one key after another until stopped.
fn run_probe(
    probe: Probe,
    keys: &[String],
    survivors: &[String],
    stop: &AtomicBool,
    answers: &AtomicU64,
) -> Vec<Attempt> {
    let node = client(&survivors[0], TIMEOUT);
    let rust = ClusterClient::new(survivors);
    let mut owners = Owners::default();
    survivors.clone_into(&mut owners.sources);
    let mut attempts = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = keys[number % keys.len()].as_bytes();
        let value = number.to_string();
        let parts: &[&[u8]] = match probe.kind {
            ProbeKind::WriteRow => &[b"SET", key, value.as_bytes()],
            _ => &[b"GET", key],
        };
        let reply = match probe.target {
            Target::Survivor => node.command(parts),
            Target::Owner => owners.send_to_owner(parts),
            Target::Rust => rust.command(parts),
        };
        let is_answered = match (probe.kind, reply) {
            (ProbeKind::WriteRow, Ok(Reply::Simple(word))) => word == "OK",
            (ProbeKind::WriteRow, _) => false,
            (_, reply) => matches!(reply, Ok(Reply::Bulk(_))),
        };
        if is_answered {
            answers.fetch_add(1, Ordering::Relaxed)
        } else {
            answers.swap(0, Ordering::Relaxed)
        };
        attempts.push(Attempt {
            key: number % keys.len(),
            ended: Instant::now(),
            is_answered,
        });
        std::thread::sleep(PROBE_PAUSE);
    }
    attempts
}

fn slot_of_tag(tag: u64) -> u16 {
    slot_of(tag.to_string().as_bytes())
}

/// Writes rows at one node, whatever happens to it. Returns the acknowledged rows.
fn write_at(address: &str, tags: &[u64], played: u64, stop: &AtomicBool) -> Vec<Row> {
    let node = client(address, WRITERS_TIMEOUT);
    let mut written = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let tag = tags[number % tags.len()];
        let rows = format!("written|{{{tag}}}|{played}|at|{number}");
        write_batch(&node, &rows, slot_of_tag(tag), &mut written);
        std::thread::sleep(BATCH_PAUSE);
    }
    written
}

/// Writes rows of all slots, each at its owner. Returns the acknowledged rows.
fn write_at_owners(survivors: &[String], played: u64, stop: &AtomicBool) -> Vec<Row> {
    let mut owners = Owners::default();
    survivors.clone_into(&mut owners.sources);
    let mut random = Random::new(3);
    let mut written = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let tag = random.below(TAGS);
        let rows = format!("written|{{{tag}}}|{played}|owner|{number}");
        let slot = slot_of_tag(tag);
        let is_done = match owners.client(slot) {
            Ok(node) => write_batch(node, &rows, slot, &mut written),
            Err(_) => false,
        };
        if !is_done {
            // If this fails, the next request fails too and reports it.
            let _ = owners.refresh();
        }
        std::thread::sleep(BATCH_PAUSE);
    }
    written
}

/// Writes some rows with this key prefix. Returns whether all were acknowledged.
fn write_batch(node: &RespClient, rows: &str, slot: u16, written: &mut Vec<Row>) -> bool {
    let keys = (0..BATCH).map(|at| format!("{rows}|{at}"));
    let keys: Vec<String> = keys.collect();
    let commands: Vec<[&[u8]; 3]> = keys
        .iter()
        .map(|key| [&b"SET"[..], key.as_bytes(), b"x"])
        .collect();
    let commands: Vec<&[&[u8]]> = commands.iter().map(|it| &it[..]).collect();
    let Ok(replies) = node.pipeline(&commands) else {
        return false;
    };
    let before = written.len();
    let acknowledged = keys
        .into_iter()
        .zip(replies)
        .filter(|(_, reply)| matches!(reply, Reply::Simple(_)));
    written.extend(acknowledged.map(|(key, _)| Row { slot, key }));
    written.len() == before + BATCH
}

/// A client that sends requests to the owners reported by some nodes.
#[derive(Default)]
pub struct Owners {
    sources: Vec<String>,
    /// The address of each slot's owner; empty if it has none.
    of_slot: Vec<String>,
    clients: HashMap<String, RespClient>,
}

impl Owners {
    pub fn from_nodes(nodes: &[String]) -> Result<Owners> {
        let mut owners = Owners {
            sources: nodes.to_vec(),
            ..Default::default()
        };
        owners.refresh()?;
        Ok(owners)
    }

    /// Returns every owner once, in the order of its first slot.
    pub fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for owner in &self.of_slot {
            if !all.contains(owner) {
                all.push(owner.clone());
            }
        }
        all
    }

    fn refresh(&mut self) -> Result<()> {
        let text = self
            .sources
            .iter()
            .find_map(|node| map::slots(&client(node, WRITERS_TIMEOUT)).ok());
        let mut of_slot = vec![String::new(); usize::from(SLOTS)];
        for (from, to, port) in text.ok_or("no node returns the owners of the slots")? {
            of_slot[from..=to].fill(format!("127.0.0.1:{port}"));
        }
        self.of_slot = of_slot;
        Ok(())
    }

    fn client(&mut self, slot: u16) -> Result<&RespClient> {
        if self.of_slot.is_empty() {
            self.refresh()?;
        }
        let owner = &self.of_slot[usize::from(slot)];
        let known = self.clients.entry(owner.clone());
        Ok(known.or_insert_with(|| client(owner, TIMEOUT)))
    }

    /// Sends a command to the owner of its first key.
    fn send_to_owner(&mut self, parts: &[&[u8]]) -> std::result::Result<Reply, Error> {
        let slot = slot_of(parts[1]);
        let unknown = |error: Box<dyn std::error::Error>| Error::Protocol {
            address: "the cluster".to_owned(),
            detail: error.to_string(),
        };
        let reply = self.client(slot).map_err(unknown)?.command(parts);
        if reply.is_err() {
            let _ = self.refresh();
        }
        reply
    }

    /// Returns the number of these rows that are missing.
    fn count_lost(&mut self, rows: &[Row]) -> Result<usize> {
        let mut by_owner: HashMap<u16, Vec<&Row>> = HashMap::new();
        for row in rows {
            by_owner.entry(row.slot).or_default().push(row);
        }
        let mut lost = 0;
        for (slot, rows) in by_owner {
            let commands: Vec<[&[u8]; 2]> = rows
                .iter()
                .map(|row| [&b"GET"[..], row.key.as_bytes()])
                .collect();
            let commands: Vec<&[&[u8]]> = commands.iter().map(|it| &it[..]).collect();
            for reply in self.client(slot)?.pipeline(&commands)? {
                match reply {
                    Reply::Bulk(_) => {}
                    Reply::Null => lost += 1,
                    other => return Err(format!("a row is answered by {other:?}").into()),
                }
            }
        }
        Ok(lost)
    }
}

fn client(address: &str, timeout: Duration) -> RespClient {
    let options = RespOptions {
        timeout,
        ..Default::default()
    };
    RespClient::with_options(address, options)
}
