//! `larder space calibrate`: what each step of a search and of a write costs on a deployment, as the file that `larder space plan` reads.
//!
//! Costs are processor time of the servers (INFO tells it), so that neither the client beside them nor waiting counts. Each is a difference: of two commands that differ in
//! one step, or of the same command with a subspace and without. What the deployment does by itself is measured first, and taken off.
//!
//! | what | measured as |
//! |---|---|
//! | `get_us` | HGETALL |
//! | `server_us`, `query_us` | a search that finds nothing, where there is a subspace: of all servers, and of one region |
//! | `condition_us` | the same of all servers, with two conditions and with one |
//! | `subspace_us` | a search of all servers that finds nothing: with three subspaces, with one, and with none |
//! | `region_us` | the same, of several regions |
//! | `candidate_us`, `scan_us` | a search that looks at some hundred objects, or at all of them, and one that looks at none |
//! | `found_us` | a search that finds two objects, and one that finds none |
//! | `match_us` | a search that finds 100 objects and answers one, and one that counts them |
//! | `result_us`, `result_byte_us` | a search that answers 100 objects, or 100 long ones, and one that answers one |
//! | `index_entry_us`, `write_us` | an update of five attributes, and of one |
//! | `stage_us` | an update with one copy in regions, with three, and with none |
//! | `move_us` | an update by which the copy moves to another server, as often as the next value is on another one |
//!
//! A difference that is less than what its measurements differ by among themselves is told as such.
//!
//! All of it is done with spaces and keys of its own, which [`Workbench`] removes whatever happens. Where a server stands alone there are no copies: what cannot be measured
//! is guessed, and the file says so.

mod commands;
mod took;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::RespClient;
use larder_space::plan::{Costs, Deployment};

use self::commands::{
    FEW, GROUP, GROUPS, NOTHING_BY_TWO, OBJECTS, PREFIX, RARE, SHORT_GROUPS, bytes_of, change,
    contacted_in, few, key, many, object, parts, rare, scattered, search,
};
use self::took::{Found, Took};
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

It takes about three quarters of a minute, best while nobody else uses the servers. It uses spaces and keys that begin with larder-calibrate, and
removes them, also with ctrl-c. What a killed one has left, --clean removes.";

/// Which calibration is under way: it covers no keys.
const LOCK: &str = "larder-calibrate";
const PLAIN: &str = "larder-calibrate-1";
const CUT: &str = "larder-calibrate-2";

/// Between two values that there are.
const NOTHING: &str = "@k:[100.5 100.5]";
/// The same of an attribute that no subspace is made of.
const NOWHERE: &str = "@n4:[100.5 100.5]";
/// Each measurement is done so often, each time for so long.
const TURNS: u64 = 7;
const TIME: Duration = Duration::from_millis(250);
const CLIENTS: u64 = 8;
/// Indexes that have an object: of k, of five numbers, and of a or b that of one object of five.
const INDEXES: f64 = 6.2;
/// Regions are waited for no longer.
const FILLED_MAX: Duration = Duration::from_secs(30);
/// Of the progress.
const STEPS: u64 = 220;

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
    uncertain: Vec<(&'static str, Took)>,
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
    for (name, took) in &measured.uncertain {
        text += &format!(
            "# {name} is so little that it cannot be told from nothing: {:.3}, give or take {:.3}.\n",
            took.us, took.spread_us
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
        self.progress.set("measuring", 45, STEPS);
        let (before, begun) = (self.cpu_us()?, Instant::now());
        interrupt::wait(Duration::from_secs(1));
        interrupt::check()?;
        self.idle = (self.cpu_us()? - before) / 1e6 / begun.elapsed().as_secs_f64();
        let (_, places) = self.contacted(PLAIN, NOTHING)?;
        let of_group = |k: u64| format!("@k:[{k} {k}]");
        let (short, long) = (
            |at: u64| of_group(at % SHORT_GROUPS),
            |at: u64| of_group(SHORT_GROUPS + at % (GROUPS - SHORT_GROUPS)),
        );
        let [
            get,
            all,
            by_two,
            counted,
            first,
            listed,
            listed_long,
            looked_at,
            found_few,
            scanned,
            update,
            five,
        ] = self.costs(
            50,
            [
                &|at| vec!["HGETALL".to_owned(), key(scattered(at))],
                &|_| search(PLAIN, NOTHING, 0),
                &|_| search(PLAIN, NOTHING_BY_TWO, 0),
                &|at| search(PLAIN, &short(at), 0),
                &|at| search(PLAIN, &short(at), 1),
                &|at| search(PLAIN, &short(at), GROUP),
                &|at| search(PLAIN, &long(at), GROUP),
                &|at| search(PLAIN, &few(at), 0),
                &|at| search(PLAIN, &rare(at), GROUP),
                &|at| search(PLAIN, &many(at), 0),
                &|at| change(at, &["n1"]),
                &|at| change(at, &["n1", "n2", "n3", "n4", "n5"]),
            ],
        )?;
        let mut found = Found::default();
        found.add("get_us", get);
        // Each place sends one.
        let (group, each) = (GROUP as f64, places.max(1) as f64);
        let result = listed.less(first).over((group - each).max(1.0));
        let longer = listed_long.less(listed);
        let [bytes, more] = [bytes_of(0), bytes_of(OBJECTS - 1) - bytes_of(0)];
        let byte = found.add("result_byte_us", longer.over(GROUP as f64 * more));
        let of_bytes = byte.times(bytes);
        found.add("result_us", result.less(of_bytes));
        let condition = found.add("condition_us", by_two.less(all).over(each));
        let two = all.plus(condition.times(each));
        let candidate = found.add("candidate_us", looked_at.less(two).over(FEW as f64));
        // How many places find something, of so few.
        let finding = each * (1.0 - (1.0 - RARE).powf(group / each));
        let few = found_few.less(two).less(candidate.times(group));
        let few = few.less(result.times(RARE * group));
        let some = found.add("found_us", few.over(finding));
        let matched = first.less(counted).less(result.plus(some).times(each));
        found.add("match_us", matched.over(group));
        found.add("scan_us", scanned.less(two).over(OBJECTS as f64));
        // Each value that changes leaves an entry and makes one.
        let entry = found.add("index_entry_us", five.less(update).over(8.0));
        let write = found.add("write_us", update.less(entry.times(2.0)));
        if places == 1 {
            let (server, region) = (found.costs.server_us, found.costs.region_us);
            found.guessed.extend([
                "server_us",
                "subspace_us",
                "region_us",
                "stage_us",
                "move_us",
            ]);
            found.add("query_us", all.less(Took::exactly(server + region)));
        } else {
            self.nodes.patient(&["FT.DROPINDEX", PLAIN])?;
            self.declare(CUT, "SUBSPACES 1 k:8 REGIONS 256 ")?;
            self.wait_until_filled(OBJECTS)?;
            // A range of which nothing is found, since no object has the flag.
            let wide = "@a:{none} @k:[60.5 90.5]";
            let (regions_near, near) = self.contacted(CUT, NOTHING)?;
            let (regions_far, far) = self.contacted(CUT, wide)?;
            let [region, everywhere, some, kept, moved] = self.costs(
                140,
                [
                    &|_| search(CUT, NOTHING, 0),
                    &|_| search(CUT, NOWHERE, 0),
                    &|_| search(CUT, wide, 0),
                    &|at| change(at, &["n1"]),
                    &|at| change(at, &["k"]),
                ],
            )?;
            let entries = entry.times(2.0);
            let one = kept.less(update).less(entries);
            self.nodes.patient(&["FT.DROPINDEX", CUT])?;
            self.declare(CUT, "SUBSPACES 3 k:8 n2:8 n3:8 REGIONS 256 ")?;
            self.wait_until_filled(3 * OBJECTS)?;
            let [kept, of_three] = self.costs(
                170,
                [&|at| change(at, &["n1"]), &|_| search(CUT, NOWHERE, 0)],
            )?;
            let three = kept.less(update).less(entries.times(3.0));
            // The line through nothing that is nearest to both.
            let of_three = of_three.less(all).times(3.0);
            let subspace = everywhere.less(all).plus(of_three).over(10.0);
            let subspace = found.add("subspace_us", subspace);
            // One region's search asks fewer servers by so many; then many regions' more, and more regions.
            let fewer = places.saturating_sub(near).max(1) as f64;
            let server = found.add("server_us", everywhere.less(region).over(fewer));
            let region = region.less(subspace);
            let some = some.less(subspace);
            let further = server.times(far.saturating_sub(near) as f64);
            let regions = regions_far.saturating_sub(regions_near).max(1) as f64;
            match regions_far > regions_near {
                true => {
                    found.add("region_us", some.less(region).less(further).over(regions));
                }
                // Of a few servers these regions are on all, and then owners are asked.
                false => found.guessed.push("region_us"),
            }
            found.add("query_us", region.less(server.times(near as f64)));
            // As near.
            let stage = found.add("stage_us", one.plus(three.times(3.0)).over(10.0));
            // As often as that the new value is on another server.
            let other = (places - 1) as f64 / places as f64;
            let others = write.plus(entries).plus(stage);
            let entries_moved = 2.0 * (other * INDEXES + 1.0 - other);
            let others = others.plus(entry.times(entries_moved));
            // What the server does that it leaves is in it.
            found.costs.leave_us = Some(0.0);
            found.add("move_us", moved.less(others).over(other));
        }
        Ok(Measured {
            deployment: Deployment {
                servers: u32::try_from(places).unwrap_or(u32::MAX).max(1),
                message_us: self.message_us()?,
                costs: rounded(found.costs),
                ..Deployment::default()
            },
            guessed: found.guessed,
            uncertain: found.uncertain,
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

    /// What each of some commands costs, of which each has a number. They take turns, so that what disturbs them does not disturb one alone.
    fn costs<const N: usize>(
        &self,
        step: u64,
        commands: [&(dyn Fn(u64) -> Vec<String> + Sync); N],
    ) -> Result<[Took; N], Failure> {
        let mut times = [(); N].map(|()| Vec::new());
        for turn in 0..TURNS {
            for (at, command) in commands.iter().enumerate() {
                let done = turn * N as u64 + at as u64;
                self.progress.set("measuring", step + done, STEPS);
                // Other numbers each time: what is written differs from what was there.
                let first = (step + done) * OBJECTS;
                times[at].push(self.cost_once(first, *command)?);
            }
        }
        Ok(times.map(Took::of))
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
        stage_us: round(costs.stage_us),
        leave_us: costs.leave_us.map(round),
        move_us: round(costs.move_us),
        index_entry_us: round(costs.index_entry_us),
    }
}
