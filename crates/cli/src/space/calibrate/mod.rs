//! `larder space calibrate`: what each step of a search and of a write costs on a deployment, as the file that `larder space plan` reads.
//!
//! Costs are processor time of the servers (INFO tells it), so that neither the client beside them nor waiting counts. Each is a difference: of two commands that differ in
//! one step, or of the same command with a subspace and without. What the deployment does by itself is measured first, and taken off.
//!
//! | what | measured as |
//! |---|---|
//! | `get_us` | HGETALL |
//! | `server_us`, `query_us` | a search that finds nothing: of all servers, and of one region |
//! | `region_us` | the same, of several regions |
//! | `candidate_us` | a search that looks at many objects and finds none |
//! | `result_us` | a search that answers 100 objects, and 1 |
//! | `index_entry_us` | an update of five attributes, and of one |
//! | `stage_us` | an update with one copy kept in a region |
//! | `move_us` | an update by which the copy moves |
//!
//! All of it is done with spaces and keys of its own, which [`Workbench`] removes whatever happens. Where a server stands alone there are no copies: what cannot be measured
//! is guessed, and the file says so.

mod commands;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::RespClient;
use larder_space::plan::{Costs, Deployment};

use self::commands::{GROUP, MANY, OBJECTS, PREFIX, contacted_in, key, object, parts, search, set};
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

It takes about half a minute, best while nobody else uses the servers. It uses spaces and keys that begin with larder-calibrate, and
removes them, also with ctrl-c. What a killed one has left, --clean removes.";

/// Which calibration is under way: it covers no keys.
const LOCK: &str = "larder-calibrate";
const PLAIN: &str = "larder-calibrate-1";
const CUT: &str = "larder-calibrate-2";

/// Between two values that there are.
const NOTHING: &str = "@k:[100.5 100.5]";
/// Each measurement is done so often, each time for so long; the least counts, since whatever disturbs it adds to it.
const TIMES: u64 = 3;
const TIME: Duration = Duration::from_millis(600);
const CLIENTS: u64 = 4;
/// Attributes that have indexes: k, a, b, and five numbers.
const INDEXES: f64 = 8.0;
/// Regions are waited for no longer.
const FILLED_MAX: Duration = Duration::from_secs(30);
/// Of the progress.
const STEPS: u64 = 200;

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
    /// How busy the servers were by themselves, in processors.
    busy: f64,
}

fn told(measured: &Measured) -> String {
    let mut text =
        "# Measured by `larder space calibrate`: processor time of the servers, in microseconds.\n"
            .to_owned();
    if !measured.guessed.is_empty() {
        text += &format!(
            "# There is one server alone, which keeps no copies: {} are guesses.\n",
            measured.guessed.join(", ")
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
            idle: 0.0,
        })
    }

    fn write_objects(&self) -> Result<(), Failure> {
        for first in (0..OBJECTS).step_by(200) {
            interrupt::check()?;
            self.progress.set("writing", first / 500, STEPS);
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
        self.progress.set("measuring", 50, STEPS);
        let (before, begun) = (self.cpu_us()?, Instant::now());
        interrupt::wait(Duration::from_secs(1));
        interrupt::check()?;
        self.idle = (self.cpu_us()? - before) / 1e6 / begun.elapsed().as_secs_f64();
        let (_, places) = self.contacted(PLAIN, NOTHING)?;
        let group = |at: u64| {
            let k = at % (OBJECTS / GROUP);
            format!("@k:[{k} {k}]")
        };
        let get = self.cost(60, &|at| vec!["HGETALL".to_owned(), key(at % OBJECTS)])?;
        let all = self.cost(72, &|_| search(PLAIN, NOTHING, 0))?;
        let one = self.cost(84, &|at| search(PLAIN, &group(at), 1))?;
        let hundred = self.cost(96, &|at| search(PLAIN, &group(at), GROUP))?;
        let many = self.cost(108, &|_| search(PLAIN, "@a:{yes} @b:{yes}", 0))?;
        let update = self.cost(120, &|at| set(at, &["n1"]))?;
        let five = self.cost(132, &|at| set(at, &["n1", "n2", "n3", "n4", "n5"]))?;
        let mut costs = Costs {
            get_us: get,
            result_us: positive((hundred - one) / (GROUP - 1) as f64),
            candidate_us: positive((many - all) / MANY as f64),
            // Each value that changes leaves an entry and makes one.
            index_entry_us: positive((five - update) / 8.0),
            ..Costs::default()
        };
        let entries = 2.0 * costs.index_entry_us;
        let mut guessed = Vec::new();
        if places > 1 {
            self.nodes.patient(&["FT.DROPINDEX", PLAIN])?;
            self.declare(CUT, "SUBSPACES 1 k:8 REGIONS 256 ")?;
            self.wait_until_filled()?;
            let (_, near) = self.contacted(CUT, NOTHING)?;
            let region = self.cost(150, &|_| search(CUT, NOTHING, 0))?;
            let values = (0..16).map(|it| format!("@k:[{0}.5 {0}.5]", it * 12));
            let values: Vec<String> = values.collect();
            let several = values.join(" | ");
            let (regions, far) = self.contacted(CUT, &several)?;
            let some = self.cost(162, &|_| search(CUT, &several, 0))?;
            // A server with its region, as far as one more was asked; then what more regions cost beside their servers.
            let server = positive((all - region) / places.saturating_sub(near).max(1) as f64);
            let further = far.saturating_sub(near) as f64;
            // Of a few servers several regions are on all, and then owners are asked.
            let more = regions.saturating_sub(far) as f64;
            costs.region_us = match more > 0.0 {
                true => positive((some - region - further * server) / more).min(server),
                false => 0.0,
            };
            costs.server_us = server - costs.region_us;
            costs.query_us = positive(region - near as f64 * server);
            let kept = self.cost(174, &|at| set(at, &["n1"]))?;
            let moved = self.cost(186, &|at| set(at, &["k"]))?;
            costs.stage_us = positive((kept - 2.0 * entries) / 2.0);
            let others = 3.0 * costs.stage_us + entries + 2.0 * INDEXES * costs.index_entry_us;
            costs.move_us = positive(moved - others);
        } else {
            guessed.extend(["server_us", "region_us", "move_us"]);
            costs.query_us = positive(all - costs.server_us - costs.region_us);
            costs.stage_us = positive(update - entries);
        }
        Ok(Measured {
            deployment: Deployment {
                servers: u32::try_from(places).unwrap_or(u32::MAX).max(1),
                message_us: self.message_us()?,
                costs: rounded(costs),
                ..Deployment::default()
            },
            guessed,
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
        self.wait_for(name, "objects are found", || {
            let info = self.nodes.patient(&["FT.INFO", name])?;
            Ok(value(&info, "num_docs").and_then(number).unwrap_or(0))
        })
    }

    fn wait_until_filled(&self) -> Result<(), Failure> {
        self.wait_for(CUT, "copies are in regions", || {
            let info = self.nodes.patient(&["FT.INFO", CUT])?;
            let counted = |name| value(&info, name).and_then(number).unwrap_or(0);
            // A place has its copies a little before it knows that they are all. And they are cut by what objects have once these are known.
            let (regions, _) = self.contacted(CUT, NOTHING)?;
            let is_whole = regions > 0 && counted("cuts") > 0;
            Ok(counted("copies").min(if is_whole { OBJECTS } else { OBJECTS - 1 }))
        })
    }

    fn wait_for(
        &self,
        space: &str,
        what: &str,
        count: impl Fn() -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let there = count()?;
            if there >= OBJECTS {
                return Ok(());
            }
            if begun.elapsed() > FILLED_MAX {
                return Err(Failure::new(format!(
                    "{there} of {OBJECTS} {what} of {space} after {}: the servers are too busy to be measured",
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

    /// What one of these commands costs, of which each has a number.
    fn cost(
        &self,
        step: u64,
        command: &(dyn Fn(u64) -> Vec<String> + Sync),
    ) -> Result<f64, Failure> {
        let mut least = f64::INFINITY;
        for time in 0..TIMES {
            self.progress.set("measuring", step + time * 4, STEPS);
            // Other numbers each time: what is written differs from what was there.
            let first = (step * TIMES + time) * OBJECTS;
            least = least.min(self.cost_once(first, command)?);
        }
        Ok(positive(least))
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

/// What a measurement cannot tell from nothing is nothing.
fn positive(cost: f64) -> f64 {
    cost.max(0.0)
}

/// Three digits behind the point: nanoseconds.
fn rounded(costs: Costs) -> Costs {
    let round = |cost: f64| (cost * 1e3).round() / 1e3;
    Costs {
        get_us: round(costs.get_us),
        query_us: round(costs.query_us),
        server_us: round(costs.server_us),
        region_us: round(costs.region_us),
        candidate_us: round(costs.candidate_us),
        result_us: round(costs.result_us),
        stage_us: round(costs.stage_us),
        move_us: round(costs.move_us),
        index_entry_us: round(costs.index_entry_us),
    }
}
