//! `larder-bench space-servers`: the cost of a search on 1, 2, 4 and 8 servers together, if it contacts all of them,
//! and if a subspace determines one. Also measures the regions after the values have drifted.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use larder_protocol::resp::client::Reply;
use larder_types::Random;
use serde_json::{Value, json};

use super::deployment::{Request, Sequence, SpaceDeployment, load};
use super::hotels::{Hotels, price_text};
use crate::Result;
use crate::cluster::servers::Cluster;
use crate::process;
use crate::report::{self, median, verdict};

#[derive(Args)]
pub struct SpaceServersArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Numbers of servers to compare, each a process with one thread, all on one core
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    servers: Vec<usize>,
    /// Number of clients per server, so that the load on each server does not depend on their number
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Duration of each measurement, in seconds; each is repeated five times
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "space-servers")]
    name: String,
}

const REQUESTS: usize = 6_000;
/// The number of passes, of which the median counts.
const PASSES: usize = 5;
/// A subspace planned for these searches, all of which name a city.
const SUBSPACE: &str = "city:8";
/// The subspace whose values drift.
const DRIFTING: &str = "price:6";
/// The maximum cost of a search on a subspace on eight servers, as a multiple of that on the fewest servers that hold
/// regions.
const GROWTH_BAR: f64 = 1.1;
const HOTTEST_BAR: f64 = 2.0;
const REPARTITION_TIMEOUT: Duration = Duration::from_secs(120);

/// Creates a query for a random hotel, and others like it.
type Query = fn(&Hotels, &mut Random) -> String;

const QUESTIONS: [(&str, Query); 3] = [
    ("city (50 rows)", |all, random| {
        let hotel = &all.all[all.any(random)];
        format!("@city:{{{}}}", hotel.value("city"))
    }),
    ("city and address (1 row)", |all, random| {
        let hotel = &all.all[all.any(random)];
        let (city, address) = (hotel.value("city"), hotel.value("address"));
        format!("@city:{{{city}}} @address:{{\"{address}\"}}")
    }),
    ("city and a range of prices (5 rows)", |all, random| {
        let hotel = &all.all[all.any(random)];
        let low = 2000 + random.index(43_200) as u32;
        let (from, to) = (price_text(low), price_text(low + 4800));
        format!("@city:{{{}}} @price:[{from} {to}]", hotel.value("city"))
    }),
];

/// One measurement of a question on this number of servers.
struct ServersSample {
    servers: usize,
    question: &'static str,
    /// True if the search uses the subspace; otherwise it contacts all servers.
    planned: bool,
    servers_contacted: f64,
    us: f64,
}

/// The servers and their requests.
struct Deployment {
    servers: usize,
    deployed: SpaceDeployment,
    /// The processor time of the idle servers.
    idle: f64,
    /// One for each of [`QUESTIONS`].
    questions: Vec<QuestionRequests>,
    // Keeps the servers running, and then their data. Dropped in this order.
    _cluster: Cluster,
    _folder: tempfile::TempDir,
}

struct QuestionRequests {
    queries: Vec<String>,
    requests: Sequence,
}

pub fn run(args: &SpaceServersArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let hotels = Hotels::generate(args.hotels, 1);
    let start = |servers: &usize| Deployment::start(&binary, &hotels, *servers);
    let all = args.servers.iter().map(start);
    let mut all: Vec<Deployment> = all.collect::<Result<_>>()?;
    let mut samples = Vec::new();
    for planned in [false, true] {
        if planned {
            let subspaces = [SUBSPACE.to_owned()];
            (all.iter()).try_for_each(|it| it.deployed.apply_subspaces(&subspaces))?;
        }
        samples.extend(measure(args, &all, planned)?);
    }
    let mut raw: Vec<Value> = samples.iter().map(line).collect();
    let last = all.pop().filter(|it| it.servers > 1);
    // The other servers use the same core, and would affect the measurement.
    drop(all);
    let drifted = last.map(|it| drift(&it.deployed, &hotels, it.servers));
    let drifted = drifted.transpose()?;
    raw.extend(drifted.as_ref().map(Drift::line));
    let text = text(args, &samples, drifted.as_ref())?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}

impl Deployment {
    fn start(binary: &Path, hotels: &Hotels, servers: usize) -> Result<Deployment> {
        let folder = tempfile::tempdir()?;
        let cluster = Cluster::start_larder(binary, folder.path(), servers, 1)?;
        let deployed = SpaceDeployment::at(&cluster.nodes[0].resp.to_string())?;
        super::systems::declare(&deployed)?;
        let writes = (0..hotels.all.len()).map(|it| deployed.request(&hotels.words(it)));
        load(&deployed, &writes.collect::<Vec<_>>())?;
        let mut random = Random::new(17);
        let encoded = QUESTIONS.map(|(_, query)| {
            let queries: Vec<String> = (0..REQUESTS).map(|_| query(hotels, &mut random)).collect();
            let requests = queries.iter().map(|query| {
                let words = ["FT.SEARCH", "hotels", query, "LIMIT", "0", "1000"];
                deployed.request(&words.map(str::to_owned))
            });
            let requests = Sequence::new(requests.collect());
            QuestionRequests { queries, requests }
        });
        Ok(Deployment {
            servers,
            idle: deployed.idle(Duration::from_millis(500))?,
            deployed,
            questions: encoded.into(),
            _cluster: cluster,
            _folder: folder,
        })
    }

    /// Returns the mean number of servers that a search contacts.
    fn mean_servers_contacted(&self, requests: &QuestionRequests) -> Result<f64> {
        let some = &requests.queries[..40];
        let all = some
            .iter()
            .map(|query| count_servers_contacted(&self.deployed, query));
        Ok(all.sum::<Result<f64>>()? / some.len() as f64)
    }
}

/// Measures each question on all deployments in turn, repeatedly.
fn measure(
    args: &SpaceServersArgs,
    all: &[Deployment],
    planned: bool,
) -> Result<Vec<ServersSample>> {
    let time = Duration::from_secs_f64(args.seconds);
    let mut samples = Vec::new();
    for (at, (question, _)) in QUESTIONS.iter().enumerate() {
        let mut times_us = vec![Vec::with_capacity(PASSES); all.len()];
        for _ in 0..PASSES {
            for (times_us, of) in times_us.iter_mut().zip(all) {
                let (requests, clients) = (&of.questions[at].requests, args.clients * of.servers);
                let driven = of.deployed.drive(requests, clients, time, of.idle)?;
                times_us.push(driven.cpu_us);
            }
        }
        for (times_us, of) in times_us.iter().zip(all) {
            let sample = ServersSample {
                servers: of.servers,
                question,
                planned,
                servers_contacted: of.mean_servers_contacted(&of.questions[at])?,
                us: median(times_us),
            };
            eprintln!("{}", line(&sample));
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Returns the number of contacted nodes according to FT.EXPLAIN: `.., 1 of 4 nodes`.
fn count_servers_contacted(deployed: &SpaceDeployment, query: &str) -> Result<f64> {
    let reply = deployed.command(&["FT.EXPLAIN", "hotels", query])?;
    let text = text_of(&reply);
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "nodes");
    let count = at.and_then(|at| words.get(at.checked_sub(3)?)?.parse().ok());
    count.ok_or_else(|| {
        format!("FT.EXPLAIN does not return the number of contacted nodes: {text}").into()
    })
}

fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Simple(text) => text.clone(),
        _ => String::new(),
    }
}

/// The size of the fullest region as a multiple of the mean, before, during and after the drift.
struct Drift {
    servers: usize,
    before: f64,
    worst: f64,
    after: f64,
    took: Duration,
}

/// Raises all prices above the previous maximum. Until the subspace is partitioned again, one region has all objects.
fn drift(deployed: &SpaceDeployment, hotels: &Hotels, servers: usize) -> Result<Drift> {
    deployed.apply_subspaces(&[DRIFTING.to_owned()])?;
    let before = fullest_over_mean(deployed)?.ok_or("no region has a copy")?;
    let started = Instant::now();
    let writes = hotels.all.iter().enumerate().map(|(number, hotel)| {
        let price = price_text(100_000 + hotel.price);
        let words = ["HSET".to_owned(), Hotels::key(number), "price".to_owned()];
        deployed.request(&[&words[..], &[price]].concat())
    });
    let writes: Vec<Request> = writes.collect();
    let mut worst = before;
    for some in writes.chunks(16_000) {
        load(deployed, some)?;
        worst = fullest_over_mean(deployed)?.map_or(worst, |it| it.max(worst));
    }
    let mut after = fullest_over_mean(deployed)?;
    while after.is_none_or(|it| it > HOTTEST_BAR) && started.elapsed() < REPARTITION_TIMEOUT {
        std::thread::sleep(Duration::from_millis(250));
        after = fullest_over_mean(deployed)?;
        worst = after.map_or(worst, |it| it.max(worst));
    }
    Ok(Drift {
        servers,
        before,
        worst,
        after: after.ok_or("the re-partitioned regions have no copies yet")?,
        took: started.elapsed(),
    })
}

/// Returns the multiple for the regions of the only subspace. `None` while there are no copies, as directly after
/// partitioning.
fn fullest_over_mean(deployed: &SpaceDeployment) -> Result<Option<f64>> {
    let info = deployed.command(&["FT.INFO", "hotels", "REGIONS"])?;
    let all = value(&info, "subspace regions").ok_or("FT.INFO does not return the regions")?;
    let Reply::Array(subspaces) = all else {
        return Err("FT.INFO does not return the subspaces".into());
    };
    let copies = subspaces.first().and_then(|it| value(it, "copies"));
    let Some(Reply::Array(copies)) = copies else {
        return Err("FT.INFO does not return the sizes of the regions".into());
    };
    let copies = copies.iter().map(|it| match it {
        Reply::Integer(number) => *number as f64,
        _ => 0.0,
    });
    let copies: Vec<f64> = copies.collect();
    let mean = copies.iter().sum::<f64>() / copies.len() as f64;
    Ok((mean > 0.0).then(|| copies.iter().copied().fold(0.0, f64::max) / mean))
}

fn value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let Reply::Array(items) = reply else {
        return None;
    };
    let mut pairs = items.chunks_exact(2);
    pairs.find(|it| text_of(&it[0]) == name).map(|it| &it[1])
}

impl Drift {
    fn line(&self) -> Value {
        json!({
            "servers": self.servers, "drift": DRIFTING, "before": self.before, "worst": self.worst, "after": self.after,
            "took_s": self.took.as_secs_f64(),
        })
    }
}

fn line(one: &ServersSample) -> Value {
    json!({"servers": one.servers, "question": one.question, "planned": one.planned, "asked": one.servers_contacted, "us": one.us})
}

fn text(
    args: &SpaceServersArgs,
    samples: &[ServersSample],
    drift: Option<&Drift>,
) -> Result<String> {
    let mut text = format!(
        "## Searches of 1, 2, 4 and 8 servers\n\n{} generated hotels, fifty in each city; servers of one thread each, all on one core; {} clients for each on another core, which send requests to any server. A figure is the processor time in microseconds that all servers together use \
         for a search (INFO cpu): the median of {PASSES} runs of {} s. The runs alternate between the deployments, because the speed of the processors varies. FT.EXPLAIN gives the number of contacted servers. \"All\": the space has no subspace; \"one\": it has `{SUBSPACE}`. \
         Of n servers one has the objects, so (n - 1) / n of the searches are forwarded; \"forwarded\" is the cost of such a search, if a local one costs as much as on one server.\n\n\
         | | servers | all: contacted | us | one: contacted | us | all / one | one, forwarded: us | times that of the fewest |\n|---|---|---|---|---|---|---|---|---|\n",
        args.hotels, args.clients, args.seconds
    );
    let mut lines = Vec::new();
    for (question, _) in QUESTIONS {
        let of = |servers: usize, planned: bool| {
            let mut all = samples.iter();
            all.find(|it| (it.servers, it.question, it.planned) == (servers, question, planned))
        };
        // A single server has no copies, so its searches use no subspace.
        let several: Vec<usize> = args.servers.iter().copied().filter(|it| *it > 1).collect();
        let home = of(1, true).map(|it| it.us);
        // Estimates the cost of a forwarded search.
        let passed = |one: &ServersSample| {
            let share = 1.0 - 1.0 / one.servers as f64;
            home.map(|home| home + (one.us - home) / share)
        };
        let base = several.iter().min().and_then(|it| of(*it, true));
        for &servers in &args.servers {
            let (Some(all), Some(one)) = (of(servers, false), of(servers, true)) else {
                continue;
            };
            let passed_us = passed(one).filter(|_| servers > 1);
            let times = passed_us.zip(base.and_then(passed));
            let or_none = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
            writeln!(
                text,
                "| {question} | {servers} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {} | {} |",
                all.servers_contacted,
                all.us,
                one.servers_contacted,
                one.us,
                all.us / one.us,
                or_none(passed_us.map(|it| format!("{it:.1}"))),
                or_none(times.map(|(own, base)| format!("{:.2}", own / base))),
            )?;
        }
        let most = several.iter().max().and_then(|it| of(*it, true));
        if let (Some(base), Some(most)) = (base, most) {
            let growth = match (passed(most), passed(base)) {
                (Some(most), Some(base)) => most / base,
                _ => most.us / base.us,
            };
            lines.push(format!(
                "{question}: on {} servers a search contacts {:.1}, and a forwarded one takes {growth:.2} times the time on {} (bars: 1, {}; {GROWTH_BAR}, {}).",
                most.servers,
                most.servers_contacted,
                base.servers,
                verdict(most.servers_contacted < 1.05),
                verdict(growth <= GROWTH_BAR),
            ));
        }
    }
    writeln!(text, "\n{}", lines.join("\n\n"))?;
    if let Some(drift) = drift {
        writeln!(
            text,
            "\nA drift: `{DRIFTING}` on {} servers, and every price rises above the previous maximum. The fullest region has {:.2} times the mean before, {:.1} at worst while prices are written, \
             and {:.2} after re-partitioning, {:.1} s after the first write (bar {HOTTEST_BAR}; {}).",
            drift.servers,
            drift.before,
            drift.worst,
            drift.after,
            drift.took.as_secs_f64(),
            verdict(drift.after <= HOTTEST_BAR)
        )?;
    }
    writeln!(text, "\nCommand: `{}`", report::command())?;
    Ok(text)
}
