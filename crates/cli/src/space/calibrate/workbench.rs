//! The spaces and objects of a calibration: creates, measures, and always removes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_client::RespClient;
use larder_space::plan::{Costs, Deployment, reads_around};

use super::super::info::{SpaceInfo, value};
use super::super::layout::{number, text};
use super::super::nodes::Nodes;
use super::commands::{NO_MATCH, Objects, PREFIX, key, parse_contacts, parts};
use super::fit::{CostSample, cost_mut, fit, median};
use super::kinds::{CommandKind, Contact, SearchSetup, moves, updates};
use super::{notes, rounded};
use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::progress::{Progress, Unit};

/// A space without keys that marks a running calibration. The name of its only attribute contains the number of
/// objects.
const LOCK: &str = "larder-calibrate";
const COUNT: &str = "objects";
const PLAIN: &str = "larder-calibrate-1";
const CUT: &str = "larder-calibrate-2";

/// Number and duration of the turns of each measurement.
const TURNS: u64 = 7;
const TURN_TIME: Duration = Duration::from_millis(200);
/// Duration of the reads by key between any two measurements.
const READ_TIME: Duration = Duration::from_millis(60);
pub const CLIENTS: u64 = 8;
/// The costs that are fitted together, from all kinds of commands.
const COSTS: [&str; 20] = [
    "query_us",
    "server_us",
    "subspace_us",
    "region_us",
    "condition_us",
    "candidate_us",
    "scan_us",
    "match_us",
    "walk_us",
    "found_us",
    "row_us",
    "row_byte_us",
    "result_us",
    "result_byte_us",
    "write_us",
    "commit_us",
    "beside_us",
    "stage_us",
    "move_us",
    "index_entry_us",
];
/// Time limit for filling regions with the minimum number of objects; it grows with their number.
const FILLED_MAX: Duration = Duration::from_secs(30);
/// Progress units for writing, and in total.
const PROGRESS_WRITTEN: u64 = 40;
const PROGRESS_TOTAL: u64 = PROGRESS_WRITTEN + TURNS * 36;

/// The spaces and objects of a calibration, until they are removed.
pub struct Workbench<'a> {
    nodes: &'a Nodes,
    objects: Objects,
    /// One client for each node, to read its processor time.
    each: Vec<RespClient>,
    progress: Progress,
    /// Completed progress units, which also number the commands.
    done: u64,
    /// Processors that are busy without the calibration.
    idle: f64,
    /// The time of a read by key in each measurement.
    reads_us: Vec<f64>,
    is_removed: bool,
}

impl Drop for Workbench<'_> {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Returns how many objects an earlier calibration may have left, from the name of its lock's only attribute.
pub fn find_leftover_objects(nodes: &Nodes) -> Result<Objects, Failure> {
    let lock = SpaceInfo::find(nodes, LOCK)?;
    let name = lock.and_then(|it| Some(it.definition.attributes.first()?.name.clone()));
    let count = name.and_then(|it| it.strip_prefix(COUNT)?.parse().ok());
    Ok(Objects::rounded_up(count.unwrap_or(0)))
}

/// Removes everything that a calibration with `objects` objects may have left.
pub fn clean(nodes: &Nodes, objects: Objects) -> Result<(), Failure> {
    let drop_space = |name: &str| match nodes.long_command(&["FT.DROPINDEX", name]) {
        Err(failure) if !failure.message.contains("Unknown index") => Err(failure),
        _ => Ok(()),
    };
    drop_space(PLAIN)?;
    drop_space(CUT)?;
    let keys: Vec<String> = (0..objects.count()).map(key).collect();
    for some in keys.chunks(500) {
        // Each key has its own command, sent to the node that owns it, because nodes may be configured not to forward.
        let deletions = some.iter().map(|key| vec![&b"DEL"[..], key.as_bytes()]);
        let deletions: Vec<Vec<&[u8]>> = deletions.collect();
        for reply in nodes.client().pipeline(&deletions)? {
            reply?;
        }
    }
    drop_space(LOCK)
}

impl<'a> Workbench<'a> {
    pub fn new(nodes: &'a Nodes, objects: Objects) -> Result<Workbench<'a>, Failure> {
        let each = nodes.connect_each()?;
        let count = objects.count();
        let line =
            format!("FT.CREATE {LOCK} PREFIX 1 larder-calibrate-none: SCHEMA {COUNT}{count} TAG");
        let words: Vec<&str> = line.split(' ').collect();
        nodes.long_command(&words).map_err(|failure| if failure.message.contains("already exists") { Failure::refused(
                "another calibration is under way; or one was killed, and `larder space calibrate --clean` removes what it has left",
            ) } else { failure })?;
        Ok(Workbench {
            nodes,
            objects,
            each,
            progress: Progress::new(Unit::Steps, "writing", false),
            done: PROGRESS_WRITTEN,
            idle: 0.0,
            reads_us: Vec::new(),
            is_removed: false,
        })
    }

    /// Removes the spaces and objects. Further calls are no-ops.
    ///
    /// # Errors
    /// A server failed. This is already printed on standard error, with the command that removes the rest.
    pub fn remove(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_removed, true) {
            return Ok(());
        }
        self.progress
            .set("removing", PROGRESS_TOTAL - 1, PROGRESS_TOTAL);
        clean(self.nodes, self.objects).inspect_err(|failure| {
            eprintln!(
                "larder: the objects of the calibration could not be removed ({failure}); remove them with `larder space calibrate --clean`"
            );
        })
    }

    pub fn write_objects(&self) -> Result<(), Failure> {
        let count = self.objects.count();
        for first in (0..count).step_by(200) {
            interrupt::check()?;
            self.progress
                .set("writing", first * PROGRESS_WRITTEN / count, PROGRESS_TOTAL);
            let commands: Vec<Vec<String>> = (first..first + 200)
                .map(|it| self.objects.write(it))
                .collect();
            let commands: Vec<Vec<&[u8]>> = commands.iter().map(|it| parts(it)).collect();
            for reply in self.nodes.client().pipeline(&commands)? {
                reply?;
            }
        }
        Ok(())
    }

    pub fn measure(&mut self) -> Result<Deployment, Failure> {
        self.declare(PLAIN, "")?;
        self.progress.set("measuring", self.done, PROGRESS_TOTAL);
        let (before, started) = (self.cpu_us()?, Instant::now());
        interrupt::wait(Duration::from_secs(1));
        interrupt::check()?;
        self.idle = (self.cpu_us()? - before) / 1e6 / started.elapsed().as_secs_f64();
        let mut costs = Costs::default();
        let objects = self.objects;
        let (_, places) = self.count_contacts(PLAIN, NO_MATCH)?;
        let owners = Contact {
            subspaces: 0,
            // In the model, each owner has one region that contains everything.
            regions: places,
            servers: places,
        };
        let plain = SearchSetup {
            space: PLAIN,
            objects,
            contact: owners,
        };
        let mut kinds = plain.without_subspaces();
        kinds.extend(updates(objects, 0, places));
        kinds.extend([1, 3, 5, 8].map(|of_ten| plain.mixed(of_ten)));
        let mut samples = self.samples(&kinds)?;
        let mut guessed = Vec::new();
        if places == 1 {
            guessed.extend([
                "server_us",
                "subspace_us",
                "region_us",
                "stage_us",
                "move_us",
            ]);
        } else {
            self.nodes.long_command(&["FT.DROPINDEX", PLAIN])?;
            self.declare(CUT, "SUBSPACES 1 k:8 REGIONS 256 ")?;
            self.wait_until_filled(1)?;
            let contact = |of: (u64, u64)| Contact {
                subspaces: 1,
                regions: of.0,
                servers: of.1,
            };
            let near = contact(self.count_contacts(CUT, NO_MATCH)?);
            let (regions, servers) = self.count_contacts(CUT, &objects.many_regions_query())?;
            let far = contact((if regions == 0 { servers } else { regions }, servers));
            let contact_with = |subspaces: u64| Contact {
                subspaces,
                ..owners
            };
            let cut = |contact: Contact| SearchSetup {
                space: CUT,
                objects,
                contact,
            };
            let mut kinds = cut(near).with_subspace(far, contact_with(1));
            kinds.extend(updates(objects, 1, places));
            kinds.push(moves(objects, places));
            samples.extend(self.samples(&kinds)?);
            self.nodes.long_command(&["FT.DROPINDEX", CUT])?;
            self.declare(CUT, "SUBSPACES 3 k:8 n2:8 n3:8 REGIONS 256 ")?;
            self.wait_until_filled(3)?;
            let [one, _] = updates(objects, 3, places);
            samples.extend(self.samples(&[cut(contact_with(3)).no_match_outside_subspace(), one])?);
            // The server's work when a copy leaves is part of the cost of a move.
            costs.leave_us = Some(0.0);
            if far.regions <= near.regions.max(places) {
                // With few servers, these regions are on all of them, and the search contacts the owners instead.
                guessed.push("region_us");
            }
        }
        costs.get_us = median(self.reads_us.clone());
        let turns = samples.iter_mut().flat_map(|it| &mut it.turns_us);
        turns.for_each(|reads| *reads *= costs.get_us);
        let mut names = COSTS.to_vec();
        names.retain(|name| !guessed.contains(name));
        let mut uncertain = Vec::new();
        for cost in fit(&names, &samples, &costs) {
            *cost_mut(&mut costs, cost.name) = cost.us;
            if cost.us <= cost.spread_us {
                uncertain.push(cost);
            }
        }
        Ok(Deployment {
            servers: u32::try_from(places).unwrap_or(u32::MAX).max(1),
            message_us: self.message_us()?,
            guessed: guessed.into_iter().map(str::to_owned).collect(),
            warnings: notes(&uncertain, self.idle),
            costs: rounded(costs),
            ..Deployment::default()
        })
    }

    /// Declares a space over the objects, and waits until it contains them.
    fn declare(&self, name: &str, layout: &str) -> Result<(), Failure> {
        let line = format!(
            "FT.CREATE {name} PREFIX 1 {PREFIX} {layout}SCHEMA k NUMERIC a TAG b TAG n1 NUMERIC n2 NUMERIC n3 NUMERIC n4 NUMERIC n5 NUMERIC"
        );
        let words: Vec<&str> = line.split(' ').collect();
        self.nodes.long_command(&words)?;
        self.wait_for(name, "objects are found", self.objects.count(), || {
            let info = self.nodes.long_command(&["FT.INFO", name])?;
            Ok(value(&info, "num_docs").and_then(number).unwrap_or(0))
        })
    }

    /// Waits until each object has `copies` copies.
    fn wait_until_filled(&self, copies: u64) -> Result<(), Failure> {
        let copies = copies * self.objects.count();
        self.wait_for(CUT, "copies are in regions", copies, || {
            let info = self.nodes.long_command(&["FT.INFO", CUT])?;
            let counted = |name| value(&info, name).and_then(number).unwrap_or(0);
            // A place has its copies slightly before it knows that they are complete. Cells are cut by the objects'
            // values, once these are known.
            let (regions, _) = self.count_contacts(CUT, NO_MATCH)?;
            let is_ready = regions > 0 && counted("cuts") > 0;
            Ok(counted("copies").min(if is_ready { copies } else { copies - 1 }))
        })
    }

    fn wait_for(
        &self,
        space: &str,
        what: &str,
        all: u64,
        count: impl Fn() -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let times = self.objects.count().div_ceil(Objects::COUNT_MIN);
        let filled_max = FILLED_MAX * u32::try_from(times).unwrap_or(u32::MAX);
        loop {
            interrupt::check()?;
            let there = count()?;
            if there >= all {
                return Ok(());
            }
            if started.elapsed() > filled_max {
                return Err(Failure::new(format!(
                    "{there} of {all} {what} of {space} after {}: the servers are too busy to be measured",
                    output::duration(started.elapsed())
                )));
            }
            interrupt::wait(Duration::from_millis(50));
        }
    }

    /// Returns how many regions and places a search contacts; 0 regions means all owners.
    fn count_contacts(&self, space: &str, query: &str) -> Result<(u64, u64), Failure> {
        let reply = self.nodes.long_command(&["FT.EXPLAIN", space, query])?;
        let plan = text(&reply).unwrap_or_default();
        parse_contacts(&plan).ok_or_else(|| {
            Failure::new(
                "FT.EXPLAIN does not name the contacted regions and nodes: run the same version of larder on the server",
            )
        })
    }

    /// Returns the processor time of all nodes, in microseconds.
    fn cpu_us(&self) -> Result<f64, Failure> {
        let mut seconds = 0.0;
        for node in &self.each {
            let reply = node.command(&[b"INFO", b"cpu"])?;
            let info = text(&reply).unwrap_or_default();
            for name in ["used_cpu_user:", "used_cpu_sys:"] {
                let line = info.lines().find_map(|line| line.strip_prefix(name));
                let own: Option<f64> = line.and_then(|it| it.trim().parse().ok());
                seconds += own.ok_or_else(|| {
                    Failure::new("INFO cpu does not return the processor time of a node")
                })?;
            }
        }
        Ok(seconds * 1e6)
    }

    /// Measures kinds of commands, in units of reads by key, which are measured between any two because the speed of
    /// processors varies. The kinds take turns, so that a disturbance affects all of them.
    fn samples(&mut self, kinds: &[CommandKind]) -> Result<Vec<CostSample>, Failure> {
        let sample = |kind: &CommandKind| CostSample {
            steps: kind.steps.clone(),
            turns_us: Vec::new(),
        };
        let mut samples: Vec<CostSample> = kinds.iter().map(sample).collect();
        let (first, mut turns) = (self.reads_us.len(), Vec::new());
        for _ in 0..TURNS {
            for (at, kind) in kinds.iter().enumerate() {
                self.progress.set("measuring", self.done, PROGRESS_TOTAL);
                // Use other numbers each time, so that writes change the values.
                let us =
                    self.measure_once(self.done * self.objects.count(), TURN_TIME, &kind.command)?;
                turns.push((at, us));
                self.read()?;
                self.done += 1;
            }
        }
        let reads_us = &self.reads_us[first..];
        for (number, (at, us)) in turns.into_iter().enumerate() {
            let reads = us / median(reads_around(reads_us, number).to_vec());
            samples[at].turns_us.push(reads);
        }
        Ok(samples)
    }

    /// Measures reads by key.
    fn read(&mut self) -> Result<(), Failure> {
        let objects = self.objects;
        let first = self.reads_us.len() as u64 * 7919;
        let read = move |at| vec!["HGETALL".to_owned(), key(objects.scattered(at))];
        let us = self.measure_once(first, READ_TIME, &read)?;
        self.reads_us.push(us);
        Ok(())
    }

    fn measure_once(
        &self,
        first: u64,
        time: Duration,
        command: &(dyn Fn(u64) -> Vec<String> + Sync),
    ) -> Result<f64, Failure> {
        // Use separate connections: those of one measurement may all be on one core, which then processes many commands
        // per turn.
        let client = self.nodes.another_client();
        let next = AtomicU64::new(first);
        let drive = |time: Duration| {
            let begun = Instant::now();
            let run = || -> Result<(), Failure> {
                while begun.elapsed() < time {
                    interrupt::check()?;
                    let words = command(next.fetch_add(1, Ordering::Relaxed));
                    client.command(&parts(&words))?;
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(run)).collect();
                clients.into_iter().try_for_each(|client| {
                    let panicked =
                        |_| Err(Failure::new("a client of the calibration has panicked"));
                    client.join().unwrap_or_else(panicked)
                })
            })
        };
        // Connects, and learns which node owns which slots.
        drive(time / 10)?;
        let (before, begun, first) = (self.cpu_us()?, Instant::now(), next.load(Ordering::Relaxed));
        drive(time)?;
        let spent = self.cpu_us()? - before - self.idle * begun.elapsed().as_secs_f64() * 1e6;
        Ok(spent / (next.into_inner() - first).max(1) as f64)
    }

    /// Returns half of a round trip without work, the median.
    fn message_us(&self) -> Result<f64, Failure> {
        let mut times = Vec::with_capacity(500);
        for _ in 0..500 {
            interrupt::check()?;
            let started = Instant::now();
            self.nodes.single_node().command(&[b"PING"])?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok((times[times.len() / 2].as_secs_f64() * 1e6 / 2.0).round())
    }
}
