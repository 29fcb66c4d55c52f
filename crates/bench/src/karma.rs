//! Counts in process: votes on articles, counted for each author, with the join engine alone.
//!
//! *Bulk*: all votes exist, and one read counts them. *Live*: all counts are filled, and each put of a vote updates
//! them; the measured time includes the update. Votes are distinct. They arrive either *anywhere*, in random order over
//! all authors, where cache misses dominate, or *together*, one article after another, where the work itself dominates.

use std::ops::ControlFlow;

use clap::Args;
use larder_join::{Engine, Limits};
use larder_types::Random;

use crate::Result;
use crate::keys::put_digits;
use crate::twip::cpu_seconds;

#[derive(Args)]
pub struct KarmaArgs {
    /// Number of votes
    #[arg(long, default_value_t = 2_000_000)]
    votes: usize,
    #[arg(long, default_value_t = 10_000)]
    authors: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

const KARMA: &str = "k|<author:7> = count v|<author><article:7>|<voter:7>";
const KEY: usize = 24;

pub fn run(args: &KarmaArgs) -> Result<()> {
    let keys = votes(args);
    let bulk = bulk(&keys, args)?;
    let anywhere = live(&keys, args)?;
    let mut keys = keys;
    keys.sort_unstable();
    let together = live(&keys, args)?;
    if args.json {
        println!(
            "{}",
            serde_json::json!({"votes": args.votes, "authors": args.authors, "bulk_ns": bulk, "live_ns": anywhere, "live_together_ns": together})
        );
    } else {
        println!(
            "karma: {} votes for {} authors: bulk {bulk:.1} ns a vote; live {anywhere:.1} ns anywhere, {together:.1} together",
            args.votes, args.authors
        );
    }
    Ok(())
}

/// Returns the keys of the votes.
fn votes(args: &KarmaArgs) -> Vec<[u8; KEY]> {
    let mut random = Random::new(11);
    let mut keys: Vec<[u8; KEY]> = (0..args.votes)
        .map(|vote| {
            let mut key = *b"v|00000000000000|0000000";
            put_digits(&mut key[2..9], random.index(args.authors) as u64);
            put_digits(&mut key[9..16], random.index(100) as u64);
            put_digits(&mut key[17..], vote as u64);
            key
        })
        .collect();
    random.shuffle(&mut keys);
    keys
}

fn read_all(engine: &mut Engine) -> Result<(usize, usize)> {
    let (mut rows, mut sum) = (0, 0);
    let mut failed = None;
    let _ = engine.range(b"k|", b"k}", Limits::default(), 0, &mut |_, value| {
        match std::str::from_utf8(value)
            .ok()
            .and_then(|v| v.parse::<usize>().ok())
        {
            Some(count) => sum += count,
            None => failed = Some("a count is a number"),
        }
        rows += 1;
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok((rows, sum)), |why| Err(why.into()))
}

/// Returns nanoseconds per vote.
fn bulk(keys: &[[u8; KEY]], args: &KarmaArgs) -> Result<f64> {
    let mut engine = Engine::new();
    engine.create("karma", KARMA, 0)?;
    for key in keys {
        engine.put(key, b"1", 0)?;
    }
    let started = cpu_seconds();
    let (_, sum) = read_all(&mut engine)?;
    let seconds = cpu_seconds() - started;
    if sum != args.votes {
        return Err(format!("{sum} votes were counted, {} are there", args.votes).into());
    }
    Ok(seconds * 1e9 / args.votes as f64)
}

/// Returns nanoseconds per vote.
fn live(keys: &[[u8; KEY]], args: &KarmaArgs) -> Result<f64> {
    let mut engine = Engine::new();
    engine.create("karma", KARMA, 0)?;
    read_all(&mut engine)?;
    let started = cpu_seconds();
    for key in keys {
        engine.put(key, b"1", 0)?;
    }
    let seconds = cpu_seconds() - started;
    let (_, sum) = read_all(&mut engine)?;
    if sum != args.votes {
        return Err(format!("{sum} votes were counted, {} were put", args.votes).into());
    }
    Ok(seconds * 1e9 / args.votes as f64)
}
