//! `larder-bench space-model`: the predictions of the subspace model, compared with measurements of larder.
//!
//! ```text
//!  larder space calibrate ─► costs ┐
//!  SPACE.RECORD ─► classes ────────┴─► the model ─► predicted ─┐
//!  configurations (random, chosen, by heuristics) ─► larder ─► measured ─┴─► report
//! ```
//!
//! The measured quantity is the servers' processor time per operation, which other load on the machine and the client
//! hardly affect. The speed of the processors depends on other load. Reads by key are therefore measured between any
//! two turns, and directly before and after the calibration, and times are normalized to the read time of the
//! calibration. The result of a class is the median of its turns, which take place in rounds over all classes.
//! Configurations that matter for a ranking are applied to the space again, in turns, and measured as often again.
//!
//! Read `classes` and `hotels`, then this file, `measured`, and `report`.

mod classes;
mod hotels;
mod measured;
mod plot;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use larder_protocol::resp::client::Reply;
use larder_space::plan::{
    AttributeSet, Configuration, CostModel, Deployment, Heuristic, LarderModel, Layout, Options,
    Workload, plan, reads_around,
};
use larder_types::Random;
use serde_json::{Value, json};

use self::classes::{CLASSES, Class, WORKLOADS, shares, weighted};
use self::hotels::{Hotels, SCHEMA};
pub use self::measured::{MeasuredConfiguration, Measurements, Median};
use super::deployment::{Request, Sequence, SpaceDeployment, load, words_of};
use crate::Result;
use crate::cluster::servers::Cluster;
use crate::process;
use crate::report::median;

#[derive(Args)]
pub struct SpaceModelArgs {
    /// French hotels, one per line: the decompressed file `Hébergements classés` of Atout France
    #[arg(long)]
    file: PathBuf,
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Nodes with one core each, all on one core of this machine; 0 means one server with two cores
    #[arg(long, alias = "nodes", default_value_t = 0)]
    servers: usize,
    /// Number of randomly drawn configurations
    #[arg(long, default_value_t = 128)]
    configurations: usize,
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Duration of each turn, in seconds
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Turns per class and mix, for each configuration
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Additional measurements of each configuration that matters for a ranking
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Start no further configuration after this many minutes; a repeated command resumes
    #[arg(long, default_value_t = 25.0)]
    minutes: f64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// File with the costs of a previous calibration [default: calibrate first]
    #[arg(long)]
    deployment: Option<PathBuf>,
    /// Folder for the measurements, `<name>.jsonl`, and for the report and its plot
    #[arg(long)]
    out: PathBuf,
    #[arg(long, default_value = "space-model")]
    name: String,
    /// Measure nothing; write the report of the existing measurements
    #[arg(long)]
    report: bool,
}

/// The number of requests of each class, and of each workload's mix, in each half of a sequence.
const REQUESTS: usize = 6_000;
/// The duration of measuring reads by key, as a share of a turn.
const READS: f64 = 0.3;
/// The number of bits of a random subspace.
const REGION_BITS: u8 = 8;
/// The number of subspaces from which random configurations are drawn. Subspaces that consecutive configurations have
/// in common are filled once.
const LAYOUTS: usize = 16;

pub fn run(args: &SpaceModelArgs) -> Result<()> {
    let raw = args.out.join(format!("{}.jsonl", args.name));
    if !args.report {
        std::fs::create_dir_all(&args.out)?;
        measure(args, &raw)?;
    }
    report::write(args, &Measurements::read(&raw)?)
}

impl SpaceModelArgs {
    pub fn path(&self, ending: &str) -> PathBuf {
        self.out.join(format!("{}.{ending}", self.name))
    }

    pub fn deployed(&self) -> String {
        match self.servers {
            0 => "one server of two cores".to_owned(),
            nodes => format!("{nodes} servers of one core each, all on one core of the machine"),
        }
    }
}

/// The running servers.
enum Running {
    One(process::Server),
    Nodes(Cluster),
}

impl Running {
    fn start(args: &SpaceModelArgs, binary: &Path, folder: &Path) -> Result<Running> {
        Ok(match args.servers {
            0 => Running::One(process::start_larder_with(binary, folder, None, 2, &[])?),
            nodes => Running::Nodes(Cluster::start_larder(binary, folder, nodes, 1)?),
        })
    }

    fn addresses(&self) -> Result<(String, String)> {
        let (resp, http) = match self {
            Running::One(server) => (server.resp, server.http.clone()),
            Running::Nodes(cluster) => (cluster.nodes[0].resp, cluster.nodes[0].http.clone()),
        };
        Ok((
            resp.to_string(),
            http.ok_or("larder did not print its HTTP address")?,
        ))
    }
}

fn measure(args: &SpaceModelArgs, raw: &Path) -> Result<()> {
    let started = Instant::now();
    let binary = process::larder_binary(args.larder.as_deref())?;
    let hotels = Hotels::read(&args.file, args.hotels)?;
    let folder = tempfile::tempdir()?;
    let running = Running::start(args, &binary, folder.path())?;
    let (resp, http) = running.addresses()?;
    let deployed = SpaceDeployment::at(&resp)?;
    let mut measured = if raw.exists() {
        Measurements::read(raw)?
    } else {
        Measurements {
            read_us: 0.0,
            deployment: Deployment::default(),
            recorded: Workload::from_toml_unchecked("objects = 0").map_err(|it| it.to_string())?,
            all: Vec::new(),
        }
    };
    let create = format!("FT.CREATE hotels ON HASH PREFIX 1 hotel: {SCHEMA}");
    deployed.command(&words_of(&create))?;
    let writes = (0..hotels.all.len()).map(|it| deployed.request(&hotels.words(it)));
    load(&deployed, &writes.collect::<Vec<_>>())?;
    eprintln!("{} hotels after {:?}", hotels.all.len(), started.elapsed());
    let requests = Requests::new(&deployed, &hotels);
    load(&deployed, &read_objects(&deployed, hotels.all.len()))?;
    if measured.recorded.objects == 0 {
        let mut reads_us = reads(args, &deployed, &requests)?;
        measured.deployment = calibrated(args, &binary, &http, folder.path())?;
        measured.deployment.clients = u32::try_from(args.clients)?;
        reads_us.extend(reads(args, &deployed, &requests)?);
        measured.read_us = median(&reads_us);
        measured.recorded = recorded(args, &deployed, &requests.classes)?;
        let line = json!({
            "read_us": measured.read_us, "deployment": measured.deployment.to_toml(), "recorded": measured.recorded.to_toml(),
        });
        append(raw, &line)?;
    }
    for (by, configuration) in configurations(args, &measured)? {
        let lists = texts(&configuration, &measured.recorded);
        if let Some(known) = measured.all.iter().find(|it| it.lists == lists) {
            if !known.origins.contains(&by) {
                note(raw, &mut measured, &json!({"lists": lists, "also": by}))?;
            }
            continue;
        }
        if started.elapsed().as_secs_f64() > args.minutes * 60.0 {
            eprintln!("the time is over; the same command again goes on");
            break;
        }
        deployed.apply_subspaces(&lists)?;
        let is_drawn = by == "drawn";
        let at = measured.all.len();
        let read_us = measured.read_us;
        let one = measure_one(args, &deployed, &requests, read_us, lists, by, |mix| {
            !is_drawn || mix == at % WORKLOADS.len()
        })?;
        note(raw, &mut measured, &one.line())?;
    }
    let again = report::contenders(&measured)?;
    // Alternate the order, so that a drift affects all configurations equally.
    for round in 0..args.rounds {
        let order: Vec<usize> = match round % 2 {
            0 => again.clone(),
            _ => again.iter().rev().copied().collect(),
        };
        for at in order {
            let done = measured.all[at].classes_us[0].len() / args.turns.max(1);
            if done > round + 1 || started.elapsed().as_secs_f64() > args.minutes * 60.0 {
                continue;
            }
            let lists = measured.all[at].lists.clone();
            deployed.apply_subspaces(&lists)?;
            let one = measure_one(
                args,
                &deployed,
                &requests,
                measured.read_us,
                lists,
                "again".to_owned(),
                |_| true,
            )?;
            note(raw, &mut measured, &one.line())?;
        }
    }
    Ok(())
}

/// Stores a line, and adds it to the measurements.
fn note(raw: &Path, measured: &mut Measurements, line: &Value) -> Result<()> {
    append(raw, line)?;
    measured.add_line(line)
}

fn append(raw: &Path, line: &Value) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(raw)?;
    writeln!(file, "{line}")?;
    eprintln!("{line}");
    Ok(())
}

fn calibrated(
    args: &SpaceModelArgs,
    binary: &Path,
    http: &str,
    folder: &Path,
) -> Result<Deployment> {
    let path = match &args.deployment {
        Some(path) => path.clone(),
        None => {
            let path = folder.join("servers.toml");
            let mut calibrate = Command::new(binary);
            calibrate
                .args(["space", "calibrate", "--server", http, "-o"])
                .arg(&path)
                .args(["--objects", &args.hotels.to_string()]);
            if !calibrate.status()?.success() {
                return Err("larder space calibrate has failed".into());
            }
            path
        }
    };
    let text = std::fs::read_to_string(&path)?;
    eprintln!("{text}");
    Ok(Deployment::from_toml(&text).map_err(|error| error.to_string())?)
}

/// The requests to send.
struct Requests {
    classes: Vec<Sequence>,
    /// By workload.
    mixes: Vec<Sequence>,
    /// Reads by key, which no configuration affects. Their time shows the speed of the machine.
    reads: Sequence,
}

impl Requests {
    fn new(deployed: &SpaceDeployment, hotels: &Hotels) -> Requests {
        let mut random = Random::new(5);
        let classes = CLASSES
            .iter()
            .map(|class| sequence(deployed, hotels, &mut random, |_| class));
        let classes: Vec<Sequence> = classes.collect();
        let mixes = WORKLOADS.iter().map(|workload| {
            let shares = shares(*workload);
            sequence(deployed, hotels, &mut random, |random| {
                let mut left = random.index(1_000_000) as f64 / 1e6;
                let class = CLASSES.iter().zip(&shares).find(|(_, share)| {
                    left -= **share;
                    left < 0.0
                });
                class.map_or(&CLASSES[CLASSES.len() - 1], |it| it.0)
            })
        });
        let mixes: Vec<Sequence> = mixes.collect();
        let reads = (0..REQUESTS).map(|_| {
            let key = read_key(random.index(hotels.all.len()));
            deployed.request(&["HGETALL".to_owned(), key])
        });
        Requests {
            reads: Sequence::new(reads.collect()),
            classes,
            mixes,
        }
    }
}

/// Returns requests in which each modification changes another hotel, followed by the same requests with other values.
/// A modification therefore always changes a value, however often the sequence is sent.
fn sequence<'c>(
    deployed: &SpaceDeployment,
    hotels: &Hotels,
    random: &mut Random,
    class: impl Fn(&mut Random) -> &'c Class,
) -> Sequence {
    let mut numbers: Vec<usize> = (0..hotels.all.len()).collect();
    random.shuffle(&mut numbers);
    let mut first = Vec::with_capacity(REQUESTS);
    for number in numbers.iter().take(REQUESTS) {
        let class = class(random);
        first.push((
            class,
            *number,
            (class.build_command)(hotels, *number, random),
        ));
    }
    let again = first.iter().map(|(class, number, words)| {
        loop {
            let other = (class.build_command)(hotels, *number, random);
            let differs = |(one, other): (&String, &String)| one != other;
            let mut values = words.iter().zip(&other).skip(3).step_by(2);
            if class.set.is_some() || values.all(differs) {
                return other;
            }
        }
    });
    let again: Vec<Vec<String>> = again.collect();
    let all = first.iter().map(|it| &it.2).chain(&again);
    Sequence::new(all.map(|words| deployed.request(words)).collect())
}

/// Returns objects like those that `larder space calibrate` reads by key, and as many.
fn read_objects(deployed: &SpaceDeployment, count: usize) -> Vec<Request> {
    let object = |number: usize| {
        let value = |field: usize| (number * 7919 + field * 104_729) % 1_000_003;
        let fields = ["k", "n1", "n2", "n3", "n4", "n5"].into_iter().enumerate();
        let fields = fields.flat_map(|(at, name)| [name.to_owned(), value(at).to_string()]);
        let words = ["HSET".to_owned(), read_key(number)];
        let mut words: Vec<String> = words.into_iter().chain(fields).collect();
        // Every tenth object is longer.
        if number.is_multiple_of(10) {
            let long = (0..14).flat_map(|at| [format!("long{at:02}"), "of 12 bytes.".to_owned()]);
            words.extend(long);
        }
        deployed.request(&words)
    };
    (0..count).map(object).collect()
}

fn read_key(number: usize) -> String {
    format!("read:{number}")
}

/// Returns the current time of reads by key, measured as between turns.
fn reads(
    args: &SpaceModelArgs,
    deployed: &SpaceDeployment,
    requests: &Requests,
) -> Result<Vec<f64>> {
    const TIMES: usize = 20;
    let idle = deployed.idle(Duration::from_millis(200))?;
    let time = Duration::from_secs_f64(args.seconds * READS);
    let drive = |_| {
        Ok(deployed
            .drive(&requests.reads, args.clients, time, idle)?
            .cpu_us)
    };
    (0..TIMES).map(drive).collect()
}

/// Returns larder's recording of the classes.
fn recorded(
    args: &SpaceModelArgs,
    deployed: &SpaceDeployment,
    requests: &[Sequence],
) -> Result<Workload> {
    deployed.command(&["SPACE.RECORD", "START", "hotels"])?;
    for of_class in requests {
        let time = Duration::from_secs_f64(args.seconds.max(1.0));
        deployed.drive(of_class, args.clients, time, 0.0)?;
    }
    let reply = deployed.command(&["SPACE.RECORD", "GET", "hotels"])?;
    deployed.command(&["SPACE.RECORD", "STOP", "hotels"])?;
    let Reply::Bulk(toml) = reply else {
        return Err("SPACE.RECORD GET is answered by something else than a text".into());
    };
    let toml = String::from_utf8_lossy(&toml).into_owned();
    Ok(Workload::from_toml(&toml).map_err(|error| error.to_string())?)
}

/// Returns the configurations chosen by `plan` and by the heuristics, by workload, and then the random ones.
fn configurations(
    args: &SpaceModelArgs,
    bench: &Measurements,
) -> Result<Vec<(String, Configuration)>> {
    let mut all = Vec::new();
    let configuration = |lists: &[String], workload: &Workload| {
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        Configuration::parse(&lists, workload, bench.deployment.regions)
    };
    for workload in WORKLOADS {
        let name = format!("{}{}", workload.0, workload.1);
        let weighted = weighted(&bench.recorded, &shares(workload))?;
        let options = Options {
            // The space has an index for each attribute.
            indexes: Some(AttributeSet::of(0..weighted.attributes.len())),
            ..Options::default()
        };
        let report = plan(&weighted, &bench.deployment, None, &options)?;
        let chosen = configuration(&report.chosen.subspaces, &weighted)?;
        all.push((format!("{name} chosen"), chosen));
        for heuristic in &report.heuristics {
            let of = configuration(&heuristic.prediction.subspaces, &weighted)?;
            all.push((format!("{name} {}", heuristic.name), of));
        }
    }
    let mut random = Random::new(3);
    let layouts: Vec<Layout> = (0..LAYOUTS)
        .map(|_| layout(&bench.recorded, &mut random))
        .collect();
    let mut drawn: Vec<Vec<Layout>> = Vec::new();
    while drawn.len() < args.configurations {
        let subspaces = (0..random.index(4) + 1).map(|_| layouts[random.index(LAYOUTS)].clone());
        let mut subspaces: Vec<Layout> = subspaces.collect();
        subspaces.sort();
        subspaces.dedup();
        drawn.push(subspaces);
    }
    let indexes = AttributeSet::of(0..bench.recorded.attributes.len());
    let in_turn = in_turn(drawn).into_iter();
    all.extend(in_turn.map(|subspaces| ("drawn".to_owned(), Configuration { subspaces, indexes })));
    Ok(all)
}

/// Orders configurations so that few subspaces have to be filled between consecutive ones.
fn in_turn(mut left: Vec<Vec<Layout>>) -> Vec<Vec<Layout>> {
    let mut ordered: Vec<Vec<Layout>> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let new = |it: &Vec<Layout>| {
            let known = ordered.last();
            let is_new = |layout: &&Layout| known.is_none_or(|known| !known.contains(*layout));
            it.iter().filter(is_new).count()
        };
        let next = (0..left.len()).min_by_key(|at| new(&left[*at]));
        ordered.push(left.swap_remove(next.unwrap_or(0)));
    }
    ordered
}

/// Returns a random subspace of one to three attributes with random shares of the bits.
fn layout(workload: &Workload, random: &mut Random) -> Layout {
    let mut attributes: Vec<u8> = (0..workload.attributes.len() as u8).collect();
    let count = 1 + random.index(3);
    let mut left = REGION_BITS;
    let dimensions = (0..count).map(|at| {
        let attribute = attributes.remove(random.index(attributes.len()));
        // At least one bit is left for each following attribute.
        let most = left - (count - 1 - at) as u8;
        let bits = 1 + random.index(usize::from(most)) as u8;
        left -= bits;
        (attribute, bits)
    });
    Layout {
        dimensions: dimensions.collect(),
    }
}

fn texts(configuration: &Configuration, workload: &Workload) -> Vec<String> {
    let lists = configuration.subspaces.iter();
    lists.map(|it| it.text(workload)).collect()
}

fn measure_one(
    args: &SpaceModelArgs,
    deployed: &SpaceDeployment,
    requests: &Requests,
    read_us: f64,
    lists: Vec<String>,
    by: String,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<MeasuredConfiguration> {
    let idle = deployed.idle(Duration::from_millis(200))?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut one = MeasuredConfiguration {
        lists,
        origins: vec![by],
        classes_us: vec![Vec::new(); CLASSES.len()],
        mixes_us: vec![Vec::new(); WORKLOADS.len()],
        reads_us: Vec::new(),
    };
    let drive = |of: &Sequence, time: Duration| -> Result<f64> {
        Ok(deployed.drive(of, args.clients, time, idle)?.cpu_us)
    };
    let mut turn = |of: &Sequence| -> Result<f64> {
        let us = drive(of, time)?;
        one.reads_us
            .push(drive(&requests.reads, time.mul_f64(READS))?);
        Ok(us)
    };
    // The measurements, in the order of the reads.
    let mut turns = Vec::new();
    for _ in 0..args.turns.max(1) {
        for (at, of) in requests.classes.iter().enumerate() {
            turns.push((true, at, turn(of)?));
        }
        let selected = requests.mixes.iter().enumerate();
        for (at, of) in selected.filter(|it| is_wanted(it.0)) {
            turns.push((false, at, turn(of)?));
        }
    }
    // Normalize to the time of reads directly before and after the calibration.
    for (number, (is_class, at, us)) in turns.into_iter().enumerate() {
        let reads_us = median(reads_around(&one.reads_us, number));
        let all = if is_class {
            &mut one.classes_us
        } else {
            &mut one.mixes_us
        };
        all[at].push(us * read_us / reads_us);
    }
    Ok(one)
}

/// Returns the names of the heuristics.
pub fn heuristics() -> impl Iterator<Item = &'static str> {
    Heuristic::ALL.iter().map(|it| it.name())
}

/// The predictions for one configuration, in microseconds per operation.
pub struct PredictedCosts {
    /// Each class by itself.
    pub classes: Vec<f64>,
    /// Each workload, including the contention between its operations.
    pub mixes: Vec<f64>,
}

/// Returns the predictions for each configuration.
pub fn predictions(bench: &Measurements) -> Result<Vec<PredictedCosts>> {
    let alone = (0..CLASSES.len()).map(|at| {
        let mut shares = vec![0.0; CLASSES.len()];
        shares[at] = 1.0;
        shares
    });
    let of_mixes = WORKLOADS.iter().map(|it| shares(*it));
    let workloads: Vec<Workload> = alone
        .chain(of_mixes)
        .map(|shares| weighted(&bench.recorded, &shares))
        .collect::<std::result::Result<_, String>>()?;
    let of = |one: &MeasuredConfiguration| -> Result<PredictedCosts> {
        let lists: Vec<&str> = one.lists.iter().map(String::as_str).collect();
        let mut classes = workloads
            .iter()
            .map(|workload| -> Result<f64> {
                let everything = AttributeSet::of(0..workload.attributes.len());
                let model = LarderModel::new(workload, &bench.deployment, everything)?;
                let configuration =
                    Configuration::parse(&lists, workload, bench.deployment.regions)?;
                Ok(model.predict(&configuration).parts.work())
            })
            .collect::<Result<Vec<f64>>>()?;
        let mixes = classes.split_off(CLASSES.len());
        Ok(PredictedCosts { classes, mixes })
    };
    bench.all.iter().map(of).collect()
}
