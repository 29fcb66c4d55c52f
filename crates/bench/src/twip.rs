//! Twip in process: users post, follow and read timelines, with the join engine alone.
//!
//! The load is that of the Pequod paper. There are 10 new subscriptions, 5 logouts and 100 timeline checks for each
//! post. 70 % of the users are active, and their timelines are filled before the clock starts. One operation is one
//! tick of time. A check reads the rows since the last one, without the newest 100,000 ticks.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use larder_join::{Engine, Limits};
use larder_types::Random;

use crate::Result;
use crate::twip_graph::{self, Graph, Weighted};

#[derive(Args)]
pub struct TwipArgs {
    /// Method that computes timelines
    #[arg(long, value_enum, default_value = "join")]
    mode: TwipMode,
    /// Number of operations
    #[arg(long, default_value_t = 500_000)]
    operations: usize,
    /// Number of users in the generated graph
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// A file with lines `follower followed`, used instead of the generated graph
    #[arg(long)]
    edges: Option<PathBuf>,
    /// Use text keys: users of 8 digits, times of 10; otherwise both are 4 raw bytes
    #[arg(long)]
    text_keys: bool,
    /// Percentage of active users
    #[arg(long, default_value_t = 70)]
    active: usize,
    /// Memory limit in megabytes
    #[arg(long)]
    memory_limit: Option<usize>,
    /// In mode celebrity: users with more followers than this are celebrities
    #[arg(long, default_value_t = 400)]
    celebrity: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TwipMode {
    /// A push join
    Join,
    /// Plain tables with client-side fan-out
    ClientPush,
    /// A pull join, computed on each read
    Pull,
    /// An auto join: push or pull for each author, whichever costs less
    Auto,
    /// Explicit celebrities: they post to a separate table, and a second join, a pull join, merges it into timelines
    Celebrity,
}

pub const START: u64 = 1_000_000_000;
const LOGIN_WINDOW: u64 = 1_000_000;
const HELD_BACK: u64 = 100_000;
const TWEET: &[u8] = b"tweet";

pub fn run(args: &TwipArgs) -> Result<()> {
    let mut random = Random::new(args.seed);
    let graph = match &args.edges {
        Some(path) => twip_graph::read(path)?,
        None => twip_graph::generate(args.users, &mut random),
    };
    let mut graph = graph;
    let mut twip = Twip::new(args, &graph, &mut random)?;
    twip.subscribe_all(&graph)?;
    // Free the client's own memory, which must not be measured.
    let subscriptions = std::mem::take(&mut graph.edges).len();
    for user in twip.active.clone() {
        twip.check(user, START)?;
    }
    (twip.rows_read, twip.logged_in) = (0, VecDeque::new());
    twip.last_read.fill(None);
    let started = cpu_seconds();
    twip.run(args.operations, &graph, &mut random)?;
    let seconds = cpu_seconds() - started;
    let report = serde_json::json!({
        "mode": format!("{:?}", args.mode),
        "users": graph.users,
        "subscriptions": subscriptions,
        "operations": args.operations,
        "cpu_seconds": seconds,
        "posts": twip.posts,
        "rows_read": twip.rows_read,
        "rows": twip.engine.row_count(),
        "engine_bytes": twip.engine.memory_bytes(),
        "engine_bytes_max": twip.engine_bytes_max,
        "resident_bytes": resident_bytes(),
        "evicted": twip.engine.list().iter().map(|join| join.evicted).sum::<u64>(),
    });
    if args.json {
        println!("{report}");
        return Ok(());
    }
    println!(
        "twip {:?}: {} users, {subscriptions} subscriptions, {} operations: {seconds:.2} CPU s, {:.2} us/op",
        args.mode,
        graph.users,
        args.operations,
        seconds * 1e6 / args.operations as f64
    );
    println!(
        "  posts {}, rows read {}, rows {}, engine {:.1} MB, resident {:.1} MB",
        twip.posts,
        twip.rows_read,
        twip.engine.row_count(),
        twip.engine.memory_bytes() as f64 / 1e6,
        resident_bytes() as f64 / 1e6
    );
    for join in twip.engine.list() {
        println!(
            "  {}: {} ranges, {} rows, {} updaters, {:.1} MB, {} evicted",
            join.name,
            join.ranges,
            join.rows,
            join.updaters,
            join.memory_bytes as f64 / 1e6,
            join.evicted
        );
    }
    Ok(())
}

struct Twip {
    engine: Engine,
    mode: TwipMode,
    text_keys: bool,
    active: Vec<u32>,
    next_active: usize,
    last_read: Vec<Option<u64>>,
    logged_in: VecDeque<u32>,
    posters: Weighted,
    /// The users who post to the celebrities' table.
    celebrities: Vec<bool>,
    is_limited: bool,
    /// The peak memory use of the engine, if it is limited.
    engine_bytes_max: usize,
    posts: u64,
    rows_read: u64,
    key: Vec<u8>,
    end: Vec<u8>,
}

impl Twip {
    fn new(args: &TwipArgs, graph: &Graph, random: &mut Random) -> Result<Self> {
        let mut engine = Engine::new();
        let (user, time) = if args.text_keys { (8, 10) } else { (4, 4) };
        let mode = match args.mode {
            TwipMode::Join | TwipMode::Celebrity => "push",
            TwipMode::Pull => "pull",
            TwipMode::Auto => "auto",
            TwipMode::ClientPush => "",
        };
        if !mode.is_empty() {
            let definition = format!(
                "t|<user:{user}>|<time:{time}>|<poster:{user}> = {mode} check s|<user>|<poster> copy p|<poster>|<time>"
            );
            engine.create("timeline", &definition, 0)?;
        }
        if args.mode == TwipMode::Celebrity {
            for (name, definition) in [
                (
                    "recent",
                    format!("ct|<time:{time}>|<poster:{user}> = copy cp|<poster>|<time>"),
                ),
                (
                    "fans",
                    format!(
                        "cs|<user:{user}>|<poster:{user}> = check s|<user>|<poster> copy c|<poster>"
                    ),
                ),
                (
                    "merged",
                    format!(
                        "t|<user:{user}>|<time:{time}>|<poster:{user}> = pull copy ct|<time>|<poster> check cs|<user>|<poster>"
                    ),
                ),
            ] {
                engine.create(name, &definition, 0)?;
            }
        }
        engine.set_memory_limit(args.memory_limit.map(|mb| mb * 1_000_000));
        let mut followers = vec![0_u32; graph.users];
        for (_, followed) in &graph.edges {
            followers[*followed as usize] += 1;
        }
        let mut active: Vec<u32> = (0..graph.users as u32).collect();
        random.shuffle(&mut active);
        active.truncate(graph.users * args.active / 100);
        let is_celebrity = |f: &u32| args.mode == TwipMode::Celebrity && *f > args.celebrity;
        let celebrities: Vec<bool> = followers.iter().map(is_celebrity).collect();
        for (user, _) in celebrities.iter().enumerate().filter(|(_, is)| **is) {
            let mut row = b"c|".to_vec();
            push(&mut row, args.text_keys, Part::User(user as u32));
            engine.put(&row, b"1", 0)?;
        }
        Ok(Twip {
            celebrities,
            is_limited: args.memory_limit.is_some(),
            engine_bytes_max: 0,
            engine,
            mode: args.mode,
            text_keys: args.text_keys,
            active,
            next_active: 0,
            last_read: vec![None; graph.users],
            logged_in: VecDeque::new(),
            posters: Weighted::new(
                &followers
                    .iter()
                    .map(|&f| poster_weight(f, random))
                    .collect::<Vec<_>>(),
            ),
            posts: 0,
            rows_read: 0,
            key: Vec::new(),
            end: Vec::new(),
        })
    }

    fn subscribe_all(&mut self, graph: &Graph) -> Result<()> {
        for &(user, poster) in &graph.edges {
            self.subscribe(user, poster, 0)?;
        }
        Ok(())
    }

    fn run(&mut self, operations: usize, graph: &Graph, random: &mut Random) -> Result<()> {
        for tick in 0..operations as u64 {
            let now = START + tick;
            if self.is_limited && tick % 64 == 0 {
                self.engine_bytes_max = self.engine_bytes_max.max(self.engine.memory_bytes());
            }
            match random.index(116) {
                0 => {
                    let poster = self.posters.pick(random) as u32;
                    self.post(poster, now)?;
                }
                1..=10 => {
                    let user = self.active[random.index(self.active.len())];
                    let poster = graph.popularity.pick(random) as u32;
                    if poster != user {
                        self.subscribe(user, poster, now)?;
                    }
                }
                11..=15 => {
                    if let Some(user) = self.logged_in.pop_front() {
                        self.last_read[user as usize] = None;
                    }
                }
                _ => {
                    let user = self.active[self.next_active];
                    self.next_active = (self.next_active + 1) % self.active.len();
                    self.check(user, now)?;
                }
            }
        }
        Ok(())
    }

    fn subscribe(&mut self, user: u32, poster: u32, now: u64) -> Result<()> {
        if self.mode != TwipMode::ClientPush {
            key(
                &mut self.key,
                self.text_keys,
                b's',
                &[Part::User(user), Part::User(poster)],
            );
            self.engine.put(&self.key, b"1", now)?;
            return Ok(());
        }
        key(
            &mut self.key,
            self.text_keys,
            b's',
            &[Part::User(poster), Part::User(user)],
        );
        self.engine.put(&self.key, b"1", now)?;
        let mut times = Vec::new();
        self.scan(b'p', poster, |rest| times.push(rest.to_vec()))?;
        for time in times {
            self.timeline_key(user, &time, poster);
            self.engine.put(&self.key, TWEET, now)?;
        }
        Ok(())
    }

    fn post(&mut self, poster: u32, now: u64) -> Result<()> {
        self.posts += 1;
        if self.celebrities[poster as usize] {
            self.key.clear();
            self.key.extend_from_slice(b"cp|");
            push(&mut self.key, self.text_keys, Part::User(poster));
            self.key.push(b'|');
            push(&mut self.key, self.text_keys, Part::Time(now));
            self.engine.put(&self.key, TWEET, now)?;
            return Ok(());
        }
        key(
            &mut self.key,
            self.text_keys,
            b'p',
            &[Part::User(poster), Part::Time(now)],
        );
        self.engine.put(&self.key, TWEET, now)?;
        if self.mode == TwipMode::ClientPush {
            let time = self.key[self.key.len() - if self.text_keys { 10 } else { 4 }..].to_vec();
            let mut followers: Vec<Vec<u8>> = Vec::new();
            self.scan(b's', poster, |rest| followers.push(rest.to_vec()))?;
            for follower in followers {
                self.key.clear();
                self.key.extend_from_slice(b"t|");
                self.key.extend_from_slice(&follower);
                self.key.push(b'|');
                self.key.extend_from_slice(&time);
                self.key.push(b'|');
                push(&mut self.key, self.text_keys, Part::User(poster));
                self.engine.put(&self.key, TWEET, now)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, user: u32, now: u64) -> Result<()> {
        let since = self.last_read[user as usize];
        if since.is_none() {
            self.logged_in.push_back(user);
        }
        let until = now.saturating_sub(HELD_BACK);
        key(
            &mut self.key,
            self.text_keys,
            b't',
            &[
                Part::User(user),
                Part::Time(since.unwrap_or(now - LOGIN_WINDOW)),
            ],
        );
        key(
            &mut self.end,
            self.text_keys,
            b't',
            &[Part::User(user), Part::Time(until)],
        );
        let mut rows = 0;
        let _ = self.engine.range(
            &self.key,
            &self.end,
            Limits::default(),
            now,
            &mut |key, value| {
                std::hint::black_box((key, value));
                rows += 1;
                ControlFlow::Continue(())
            },
        )?;
        self.rows_read += rows;
        self.last_read[user as usize] = Some(until);
        Ok(())
    }

    /// Passes to `each` the part of every key after `table|user|`.
    fn scan(&mut self, table: u8, user: u32, mut each: impl FnMut(&[u8])) -> Result<()> {
        key(&mut self.key, self.text_keys, table, &[Part::User(user)]);
        self.end.clone_from(&self.key);
        self.key.push(b'|');
        self.end.push(b'|' + 1);
        let start = self.key.len();
        let _ = self
            .engine
            .range(&self.key, &self.end, Limits::default(), 0, &mut |key, _| {
                each(&key[start..]);
                ControlFlow::Continue(())
            })?;
        Ok(())
    }

    fn timeline_key(&mut self, user: u32, time: &[u8], poster: u32) {
        key(&mut self.key, self.text_keys, b't', &[Part::User(user)]);
        self.key.push(b'|');
        self.key.extend_from_slice(time);
        self.key.push(b'|');
        push(&mut self.key, self.text_keys, Part::User(poster));
    }
}

/// Users without followers do not post, users with few rarely do, and the others in proportion to the magnitude of
/// their audience.
pub fn poster_weight(followers: u32, random: &mut Random) -> f64 {
    match followers {
        0 => 0.0,
        1..=9 => 0.1,
        _ => 1.0 + random.index((2.0 * f64::from(followers).log10()) as usize) as f64,
    }
}

#[derive(Clone, Copy)]
enum Part {
    User(u32),
    Time(u64),
}

fn key(out: &mut Vec<u8>, text: bool, table: u8, parts: &[Part]) {
    out.clear();
    out.push(table);
    for part in parts {
        out.push(b'|');
        push(out, text, *part);
    }
}

fn push(out: &mut Vec<u8>, text: bool, part: Part) {
    let (number, width) = match part {
        Part::User(user) => (u64::from(user), 8),
        Part::Time(time) => (time, 10),
    };
    if !text {
        return out.extend_from_slice(&(number as u32).to_be_bytes());
    }
    let start = out.len();
    out.resize(start + width, b'0');
    let mut left = number;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// Returns the user and system time of this process, in seconds.
pub fn cpu_seconds() -> f64 {
    // SAFETY: an all-zero rusage is valid, and getrusage writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| {
            s.split_whitespace()
                .nth(1)
                .and_then(|p| p.parse::<u64>().ok())
        });
    pages.unwrap_or(0) * 4096
}
