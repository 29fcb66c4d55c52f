//! `larder-bench space-shapes`: the cost of a search, depending on its conditions and its number of matches.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_client::RespClient;
use larder_protocol::resp::client::Reply;
use larder_types::Random;
use serde_json::json;

use super::drive::{EncodedRequests, drive};
use super::hotels::{Hotel, Hotels, price_text};
use super::systems::{Larder, System};
use crate::Result;
use crate::net::services::{CLIENT_CORE, SERVER_CORE};
use crate::process;
use crate::report::{self, verdict};

#[derive(Args)]
pub struct SpaceShapesArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "space-shapes")]
    name: String,
}

/// A query, and a function that returns whether a hotel matches it.
type Predicate = (String, Box<dyn Fn(&Hotel) -> bool>);

/// The selectivities of price ranges, per thousand.
const PER_MILLE: [u32; 6] = [1, 10, 50, 100, 250, 500];

struct Shape {
    title: String,
    more: &'static [&'static str],
    predicates: Vec<Predicate>,
    /// The shape that lacks one predicate of this one.
    without: Option<usize>,
}

fn price(per_mille: u32, low: u32) -> Predicate {
    let high = low + 48 * per_mille - 1;
    let query = format!("@price:[{} {}]", price_text(low), price_text(high));
    (query, Box::new(move |it| (low..=high).contains(&it.price)))
}

fn stars(from: u32) -> Predicate {
    (
        format!("@stars:[{from} +inf]"),
        Box::new(move |it| it.stars >= from),
    )
}

fn pets() -> Predicate {
    ("@pets:{true}".to_owned(), Box::new(|it| it.has_pets))
}

fn kind(kind: &'static str) -> Predicate {
    (
        format!("@kind:{{{kind}}}"),
        Box::new(move |it| it.value("kind") == kind),
    )
}

const TEN: &[&str] = &["LIMIT", "0", "10", "NOCONTENT"];
const TEN_BY_PRICE: &[&str] = &["LIMIT", "0", "10", "NOCONTENT", "SORTBY", "price"];
const NO_TOTAL: &[&str] = &["LIMIT", "0", "10", "NOCONTENT", "WITHOUTCOUNT"];

/// Returns all shapes, with new random values for each request.
fn shapes(random: &mut Random) -> Vec<Shape> {
    let mut low =
        |per_mille: u32| 2000 + random.index((48_000 - 48 * per_mille) as usize + 1) as u32;
    let mut all: Vec<Shape> = Vec::new();
    for per_mille in PER_MILLE {
        all.push(Shape {
            title: format!("price, {}.{} %", per_mille / 10, per_mille % 10),
            more: TEN,
            predicates: vec![price(per_mille, low(per_mille))],
            without: None,
        });
    }
    for (order, more) in [
        ("first ten", TEN),
        ("first ten by price", TEN_BY_PRICE),
        ("first ten, no total", NO_TOTAL),
    ] {
        let at = low(100);
        for count in 1..=4 {
            let mut predicates = vec![price(100, at), stars(3), pets(), kind("hotel")];
            predicates.truncate(count);
            all.push(Shape {
                title: format!("{count} of price 10 %, stars 60 %, pets 50 %, kind 25 %; {order}"),
                more,
                predicates,
                without: (count > 1).then(|| all.len() - 1),
            });
        }
    }
    all
}

pub fn run(args: &SpaceShapesArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    process::pin_self(CLIENT_CORE)?;
    let hotels = Hotels::generate(args.hotels, 1);
    let folder = tempfile::tempdir()?;
    let server = process::start_larder(&binary, folder.path(), Some(SERVER_CORE), 1)?;
    let system = Larder {
        address: server.resp,
        indexes: "",
    };
    system.load(&hotels)?;
    let empty = shapes(&mut Random::new(1)).len();
    let (mut raw, mut took) = (Vec::new(), Vec::new());
    let mut text = String::new();
    writeln!(
        text,
        "## Searches of {} hotels, by what they find\n",
        args.hotels
    )?;
    writeln!(
        text,
        "Microseconds of the server's CPU time for each, one after another on one connection; ten keys are answered with an exact total.\n"
    )?;
    writeln!(
        text,
        "| | us | times with one predicate less | bar | |\n|---|---|---|---|---|"
    )?;
    for at in 0..empty {
        let mut random = Random::new(99);
        let mut requests = EncodedRequests::default();
        let mut shape = None;
        for _ in 0..200 {
            let one = shapes(&mut random).swap_remove(at);
            let query: Vec<&str> = one
                .predicates
                .iter()
                .map(|(query, _)| query.as_str())
                .collect();
            system.search(&mut requests, &query.join(" "), one.more);
            let found = hotels
                .all
                .iter()
                .filter(|it| one.predicates.iter().all(|(_, is_so)| is_so(it)));
            // The reply contains only keys. Two of them count as one row, and a single one as none.
            requests.end(found.take(10).count() / 2);
            shape = Some(one);
        }
        let shape = shape.ok_or("no shape")?;
        let (_, lines) = drive(
            vec![system.connect()?],
            &requests,
            1,
            Duration::from_millis(200),
        )?;
        let before = server.cpu_s()?;
        let (driven, _) = drive(lines, &requests, 1, Duration::from_secs_f64(args.seconds))?;
        let us = (server.cpu_s()? - before) * 1e6 / driven.answered as f64;
        let times = shape.without.map(|at| us / took[at]);
        let (times_text, bar) = times.map_or((String::new(), "| "), |times| {
            (
                format!("{times:.2}"),
                if times <= 2.0 {
                    "<= 2 | met"
                } else {
                    "<= 2 | missed"
                },
            )
        });
        writeln!(text, "| {} | {us:.1} | {times_text} | {bar} |", shape.title)?;
        raw.push(json!({"shape": shape.title, "us": us, "answered": driven.answered}));
        eprintln!("{}", raw[raw.len() - 1]);
        took.push(us);
    }
    cursor(&mut text, &server, args.hotels)?;
    writeln!(text, "\nCommand: `{}`", report::command())?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}

/// Reads all hotels by a cursor, and reports the growth of the server's memory.
fn cursor(text: &mut String, server: &process::Server, count: usize) -> Result<()> {
    let client = RespClient::new(server.resp.to_string());
    let before = server.resident_bytes()?;
    let (cpu, mut most, mut rows) = (server.cpu_s()?, before, 0);
    let mut reply = client.command(&[
        b"FT.AGGREGATE",
        b"hotels",
        b"*",
        b"LOAD",
        b"1",
        b"@price",
        b"WITHCURSOR",
        b"COUNT",
        b"1000",
    ])?;
    loop {
        let Reply::Array(parts) = &reply else {
            return Err(format!("no cursor came: {reply:?}").into());
        };
        let [Reply::Array(page), Reply::Integer(cursor)] = &parts[..] else {
            return Err("no page and cursor came".into());
        };
        rows += page.len().saturating_sub(1);
        most = most.max(server.resident_bytes()?);
        if *cursor == 0 {
            break;
        }
        let cursor = cursor.to_string();
        reply = client.command(&[b"FT.CURSOR", b"READ", b"hotels", cursor.as_bytes()])?;
    }
    if rows != count {
        return Err(format!("the cursor read {rows} rows of {count}").into());
    }
    let us = (server.cpu_s()? - cpu) * 1e6 / rows as f64;
    let grown = (most - before) as f64 / 1e6;
    writeln!(
        text,
        "\nA cursor read all {rows} rows with one field, 1,000 at a time: {us:.2} us of CPU time a row; the server's memory grew by {grown:.1} MB at most \
         ({}, bar 16).",
        verdict(grown <= 16.0)
    )?;
    Ok(())
}
