//! `larder space calibrate`: what each step of a search and of a write costs on a deployment, as the file that `larder space plan` reads.
//!
//! Costs are processor time of the servers (INFO tells it), so that neither the client beside them nor waiting counts. Many kinds of commands are measured, each as often as the
//! others, and the costs are those by which the model comes nearest to all of them. What the deployment does by itself is measured first, and taken off.
//!
//! | costs | known from |
//! |---|---|
//! | `get_us` | HGETALL |
//! | `query_us`, `server_us`, `region_us`, `subspace_us` | searches that find nothing: of all servers, of one region, of several, beside one subspace and beside three |
//! | `condition_us`, `candidate_us`, `scan_us` | searches with two conditions that look at nothing, at some hundred objects, or at all of them |
//! | `match_us`, `found_us`, `result_us`, `result_byte_us` | searches that find few, a hundred or five hundred, and answer one, twenty or all, of short objects and of long ones |
//! | `write_us`, `index_entry_us`, `stage_us`, `move_us` | updates of one attribute and of five, with no copy in regions, with one and with three; and such that move a copy |
//! | `commit_us`, `beside_us` | searches and updates at once: one update of ten, and five |
//!
//! [`kinds`] has them all, and [`fit`] finds the costs. A cost that is less than what the measurements differ by among themselves is told as such.
//!
//! All of it is done with spaces and keys of its own, which [`Workbench`] removes whatever happens. Where a server stands alone there are no copies: what cannot be measured
//! is guessed, and the file says so.

mod commands;
mod fit;
mod kinds;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::RespClient;
use larder_space::plan::{Costs, Deployment};

use self::commands::{NOTHING, OBJECTS, PREFIX, WIDE, contacted_in, key, object, parts, scattered};
use self::fit::{Cost, Sample, fit, median, place};
use self::kinds::{Contact, Kind, mixed, moves, nowhere, searches, searches_of_regions, updates};
use super::info::value;
use super::layout::{number, text};
use super::nodes::Nodes;
use super::record::may_write;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::progress::{Progress, Unit};

const EXAMPLES: &str = "\
Examples:
    larder space calibrate -o servers.toml
    larder space plan --workload hotels.toml --deployment servers.toml

It takes about a minute, best while nobody else uses the servers. It uses spaces and keys that begin with larder-calibrate, and
removes them, also with ctrl-c. What a killed one has left, --clean removes.";

/// Which calibration is under way: it covers no keys.
const LOCK: &str = "larder-calibrate";
const PLAIN: &str = "larder-calibrate-1";
const CUT: &str = "larder-calibrate-2";

/// Each measurement is done so often, each time for so long.
const TURNS: u64 = 7;
const TIME: Duration = Duration::from_millis(250);
const CLIENTS: u64 = 8;
/// What is found together, from all kinds of commands.
const COSTS: [&str; 17] = [
    "query_us",
    "server_us",
    "subspace_us",
    "region_us",
    "condition_us",
    "candidate_us",
    "scan_us",
    "match_us",
    "found_us",
    "result_us",
    "result_byte_us",
    "write_us",
    "commit_us",
    "beside_us",
    "stage_us",
    "move_us",
    "index_entry_us",
];
/// Regions are waited for no longer.
const FILLED_MAX: Duration = Duration::from_secs(30);
/// Of the progress: what is written, and what is measured.
const WRITTEN: u64 = 40;
const STEPS: u64 = WRITTEN + TURNS * 31;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Where the deployment goes, a file in TOML [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Remove what a calibration has left that was killed, and do nothing else
    #[arg(long, conflicts_with = "output")]
    clean: bool,
}

pub fn run(args: CalibrateArgs) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        may_write(path)?;
    }
    let nodes = Nodes::of(&args.server)?;
    if args.clean {
        clean(&nodes)?;
        return output::print_line("nothing of a calibration is left");
    }
    interrupt::listen()?;
    let begun = Instant::now();
    let measured = {
        let mut bench = Workbench::new(&nodes)?;
        bench.write_objects()?;
        bench.measure()?
    };
    let toml = told(&measured);
    match &args.output {
        None => output::print_line(toml.trim_end()),
        Some(path) => {
            let written = std::fs::write(path, toml);
            written.map_err(Failure::io(format!("write {}", path.display())))?;
            let took = output::duration(begun.elapsed());
            output::print_line(&format!("measured in {took}: {}", path.display()))
        }
    }
}

/// What came of it.
struct Measured {
    deployment: Deployment,
    /// Of these it is not known, and the guess is kept.
    guessed: Vec<&'static str>,
    /// These cannot be told from nothing: what came out, and how sure that is.
    uncertain: Vec<Cost>,
    /// How busy the servers were by themselves, in processors.
    busy: f64,
}

fn told(measured: &Measured) -> String {
    let mut text =
        "# Measured by `larder space calibrate`: processor time of the servers, in microseconds.\n"
            .to_owned();
    if !measured.guessed.is_empty() {
        text += &format!(
            "# There are too few servers to measure what copies cost: {} are guesses.\n",
            measured.guessed.join(", ")
        );
    }
    for cost in &measured.uncertain {
        text += &format!(
            "# {} is so little that it cannot be told from nothing: {:.3}, give or take {:.3}.\n",
            cost.name, cost.us, cost.spread_us
        );
    }
    if measured.busy > 0.1 {
        text += &format!(
            "# The servers had other work, {:.1} processors of it: measure again when they have none.\n",
            measured.busy
        );
    }
    text + &measured.deployment.to_toml()
}

/// The spaces and objects that are measured with, until they are removed.
struct Workbench<'a> {
    nodes: &'a Nodes,
    /// One for each node, for its processor time.
    each: Vec<RespClient>,
    progress: Progress,
    /// Of the progress, and by which commands are numbered.
    done: u64,
    /// Processors that are busy without us.
    idle: f64,
}

impl Drop for Workbench<'_> {
    fn drop(&mut self) {
        self.progress.set("removing", STEPS - 1, STEPS);
        if let Err(failure) = clean(self.nodes) {
            eprintln!(
                "larder: what was measured with could not be removed ({failure}); `larder space calibrate --clean` does it"
            );
        }
    }
}

/// Removes all that a calibration may have left.
fn clean(nodes: &Nodes) -> Result<(), Failure> {
    let drop_space = |name: &str| match nodes.patient(&["FT.DROPINDEX", name]) {
        Err(failure) if !failure.message.contains("Unknown index") => Err(failure),
        _ => Ok(()),
    };
    drop_space(PLAIN)?;
    drop_space(CUT)?;
    let keys: Vec<String> = (0..OBJECTS).map(key).collect();
    for some in keys.chunks(500) {
        // Each by itself, to the node that has it: nodes may be set to pass nothing on.
        let deletions = some.iter().map(|key| vec![&b"DEL"[..], key.as_bytes()]);
        let deletions: Vec<Vec<&[u8]>> = deletions.collect();
        for reply in nodes.client().pipeline(&deletions)? {
            reply?;
        }
    }
    drop_space(LOCK)
}

impl<'a> Workbench<'a> {
    fn new(nodes: &'a Nodes) -> Result<Workbench<'a>, Failure> {
        let each = nodes.each()?;
        let line = format!("FT.CREATE {LOCK} PREFIX 1 larder-calibrate-none: SCHEMA x TAG");
        let words: Vec<&str> = line.split(' ').collect();
        nodes.patient(&words).map_err(|failure| match failure.message.contains("already exists") {
            true => Failure::refused(
                "another calibration is under way; or one was killed, and `larder space calibrate --clean` removes what it has left",
            ),
            false => failure,
        })?;
        Ok(Workbench {
            nodes,
            each,
            progress: Progress::new(Unit::Steps, "writing", false),
            done: WRITTEN,
            idle: 0.0,
        })
    }

    fn write_objects(&self) -> Result<(), Failure> {
        for first in (0..OBJECTS).step_by(200) {
            interrupt::check()?;
            self.progress
                .set("writing", first * WRITTEN / OBJECTS, STEPS);
            let commands: Vec<Vec<String>> = (first..first + 200).map(object).collect();
            let commands: Vec<Vec<&[u8]>> = commands.iter().map(|it| parts(it)).collect();
            for reply in self.nodes.client().pipeline(&commands)? {
                reply?;
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<Measured, Failure> {
        self.declare(PLAIN, "")?;
        self.progress.set("measuring", self.done, STEPS);
        let (before, begun) = (self.cpu_us()?, Instant::now());
        interrupt::wait(Duration::from_secs(1));
        interrupt::check()?;
        self.idle = (self.cpu_us()? - before) / 1e6 / begun.elapsed().as_secs_f64();
        let mut costs = Costs::default();
        let get = Kind {
            steps: vec![("get_us", 1.0)],
            words: Box::new(|at| vec!["HGETALL".to_owned(), key(scattered(at))]),
        };
        let (_, places) = self.contacted(PLAIN, NOTHING)?;
        let owners = Contact {
            subspaces: 0,
            // As the model has it, each has one region of all.
            regions: places,
            servers: places,
        };
        let mut kinds = searches(PLAIN, owners);
        kinds.extend(updates(0, places));
        kinds.extend([1, 5].map(|of_ten| mixed(PLAIN, owners, of_ten)));
        kinds.push(get);
        let mut samples = self.samples(&kinds)?;
        costs.get_us = samples.pop().map_or(0.0, |it| median(it.turns_us));
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
            self.nodes.patient(&["FT.DROPINDEX", PLAIN])?;
            self.declare(CUT, "SUBSPACES 1 k:8 REGIONS 256 ")?;
            self.wait_until_filled(OBJECTS)?;
            let contact = |of: (u64, u64)| Contact {
                subspaces: 1,
                regions: of.0,
                servers: of.1,
            };
            let near = contact(self.contacted(CUT, NOTHING)?);
            let (regions, servers) = self.contacted(CUT, WIDE)?;
            let far = contact((if regions == 0 { servers } else { regions }, servers));
            let beside = |subspaces: u64| Contact {
                subspaces,
                ..owners
            };
            let mut kinds = searches_of_regions(CUT, near, far, beside(1));
            kinds.extend(updates(1, places));
            kinds.push(moves(places));
            samples.extend(self.samples(&kinds)?);
            self.nodes.patient(&["FT.DROPINDEX", CUT])?;
            self.declare(CUT, "SUBSPACES 3 k:8 n2:8 n3:8 REGIONS 256 ")?;
            self.wait_until_filled(3 * OBJECTS)?;
            let [one, _] = updates(3, places);
            samples.extend(self.samples(&[nowhere(CUT, beside(3)), one])?);
            // What the server does that a copy leaves is in what a move costs.
            costs.leave_us = Some(0.0);
            if far.regions <= near.regions.max(places) {
                // Of a few servers these regions are on all, and then owners are asked.
                guessed.push("region_us");
            }
        }
        let mut names = COSTS.to_vec();
        names.retain(|name| !guessed.contains(name));
        let mut uncertain = Vec::new();
        for cost in fit(&names, &samples, &costs) {
            *place(&mut costs, cost.name) = cost.us;
            if cost.us <= cost.spread_us {
                uncertain.push(cost);
            }
        }
        Ok(Measured {
            deployment: Deployment {
                servers: u32::try_from(places).unwrap_or(u32::MAX).max(1),
                message_us: self.message_us()?,
                costs: rounded(costs),
                ..Deployment::default()
            },
            guessed,
            uncertain,
            busy: self.idle,
        })
    }

    /// Declares a space over the objects, and waits until it has them.
    fn declare(&self, name: &str, layout: &str) -> Result<(), Failure> {
        let line = format!(
            "FT.CREATE {name} PREFIX 1 {PREFIX} {layout}SCHEMA k NUMERIC a TAG b TAG n1 NUMERIC n2 NUMERIC n3 NUMERIC n4 NUMERIC n5 NUMERIC"
        );
        let words: Vec<&str> = line.split(' ').collect();
        self.nodes.patient(&words)?;
        self.wait_for(name, "objects are found", OBJECTS, || {
            let info = self.nodes.patient(&["FT.INFO", name])?;
            Ok(value(&info, "num_docs").and_then(number).unwrap_or(0))
        })
    }

    fn wait_until_filled(&self, copies: u64) -> Result<(), Failure> {
        self.wait_for(CUT, "copies are in regions", copies, || {
            let info = self.nodes.patient(&["FT.INFO", CUT])?;
            let counted = |name| value(&info, name).and_then(number).unwrap_or(0);
            // A place has its copies a little before it knows that they are all. And they are cut by what objects have once these are known.
            let (regions, _) = self.contacted(CUT, NOTHING)?;
            let is_whole = regions > 0 && counted("cuts") > 0;
            Ok(counted("copies").min(if is_whole { copies } else { copies - 1 }))
        })
    }

    fn wait_for(
        &self,
        space: &str,
        what: &str,
        all: u64,
        count: impl Fn() -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let there = count()?;
            if there >= all {
                return Ok(());
            }
            if begun.elapsed() > FILLED_MAX {
                return Err(Failure::new(format!(
                    "{there} of {all} {what} of {space} after {}: the servers are too busy to be measured",
                    output::duration(begun.elapsed())
                )));
            }
            interrupt::wait(Duration::from_millis(50));
        }
    }

    /// How many regions and places a search asks; 0 regions: all who own objects.
    fn contacted(&self, space: &str, query: &str) -> Result<(u64, u64), Failure> {
        let reply = self.nodes.patient(&["FT.EXPLAIN", space, query])?;
        let told = text(&reply).unwrap_or_default();
        contacted_in(&told).ok_or_else(|| {
            Failure::new(
                "FT.EXPLAIN does not tell whom a search asks: bring the server to the version of this program",
            )
        })
    }

    /// Processor time of all nodes, in microseconds.
    fn cpu_us(&self) -> Result<f64, Failure> {
        let mut seconds = 0.0;
        for node in &self.each {
            let reply = node.command(&[b"INFO", b"cpu"])?;
            let told = text(&reply).unwrap_or_default();
            for name in ["used_cpu_user:", "used_cpu_sys:"] {
                let line = told.lines().find_map(|line| line.strip_prefix(name));
                let own: Option<f64> = line.and_then(|it| it.trim().parse().ok());
                seconds += own.ok_or_else(|| {
                    Failure::new("INFO cpu does not tell the processor time of a node")
                })?;
            }
        }
        Ok(seconds * 1e6)
    }

    /// What commands of some kinds take. They take turns, so that what disturbs them does not disturb one alone.
    fn samples(&mut self, kinds: &[Kind]) -> Result<Vec<Sample>, Failure> {
        let sample = |kind: &Kind| Sample {
            steps: kind.steps.clone(),
            turns_us: Vec::new(),
        };
        let mut samples: Vec<Sample> = kinds.iter().map(sample).collect();
        for _ in 0..TURNS {
            for (sample, kind) in samples.iter_mut().zip(kinds) {
                self.progress.set("measuring", self.done, STEPS);
                // Other numbers each time: what is written differs from what was there.
                let us = self.cost_once(self.done * OBJECTS, &kind.words)?;
                sample.turns_us.push(us);
                self.done += 1;
            }
        }
        Ok(samples)
    }

    fn cost_once(
        &self,
        first: u64,
        command: &(dyn Fn(u64) -> Vec<String> + Sync),
    ) -> Result<f64, Failure> {
        let (before, begun) = (self.cpu_us()?, Instant::now());
        let next = AtomicU64::new(first);
        let run = || -> Result<(), Failure> {
            while begun.elapsed() < TIME {
                interrupt::check()?;
                let words = command(next.fetch_add(1, Ordering::Relaxed));
                self.nodes.command(&parts(&words))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(run)).collect();
            clients.into_iter().try_for_each(|client| {
                let panicked = |_| Err(Failure::new("a client of the calibration has panicked"));
                client.join().unwrap_or_else(panicked)
            })
        })?;
        let spent = self.cpu_us()? - before - self.idle * begun.elapsed().as_secs_f64() * 1e6;
        Ok(spent / (next.into_inner() - first).max(1) as f64)
    }

    /// Half of a round trip in which nothing is done, the median.
    fn message_us(&self) -> Result<f64, Failure> {
        let mut times = Vec::with_capacity(500);
        for _ in 0..500 {
            interrupt::check()?;
            let begun = Instant::now();
            self.nodes.one().command(&[b"PING"])?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        Ok((times[times.len() / 2].as_secs_f64() * 1e6 / 2.0).round())
    }
}

/// Three digits behind the point: nanoseconds.
fn rounded(costs: Costs) -> Costs {
    let round = |cost: f64| (cost * 1e3).round() / 1e3;
    // Of what is so little, six.
    let finer = |cost: f64| (cost * 1e6).round() / 1e6;
    Costs {
        get_us: round(costs.get_us),
        query_us: round(costs.query_us),
        server_us: round(costs.server_us),
        subspace_us: round(costs.subspace_us),
        condition_us: round(costs.condition_us),
        region_us: round(costs.region_us),
        candidate_us: round(costs.candidate_us),
        scan_us: costs.scan_us.map(finer),
        match_us: costs.match_us.map(round),
        found_us: round(costs.found_us),
        result_us: round(costs.result_us),
        result_byte_us: finer(costs.result_byte_us),
        write_us: round(costs.write_us),
        commit_us: round(costs.commit_us),
        beside_us: round(costs.beside_us),
        stage_us: round(costs.stage_us),
        leave_us: costs.leave_us.map(round),
        move_us: round(costs.move_us),
        index_entry_us: round(costs.index_entry_us),
    }
}
