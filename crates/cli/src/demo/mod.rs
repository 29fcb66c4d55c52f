//! `larder demo`: demonstrates the life cycle of a store, then timelines, then searches for hotels, in numbered steps
//! on its own data.
//!
//! `graph` has the friendships, `neighbours` the batch job, and `readers` checks that no read fails or mixes two
//! versions; the first act is in this file. It uses the same code as `larder build` and `larder push`. The second act
//! is in `timelines`, with `social`; the third in `hotels`.

mod graph;
mod hotel;
mod hotels;
mod neighbours;
mod readers;
mod social;
mod timelines;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::{AdminClient, RespClient};
use larder_protocol::config::ServerConfig;
use larder_server::Server;
use larder_types::StoreName;

use crate::build::{self, BuildArgs};
use crate::command_line::parse_count;
use crate::demo::graph::Graph;
use crate::demo::readers::Readers;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{StepPrinter, count, duration, print_line, rate};
use crate::push;

const STORE: &str = "pymk";
const READER_THREADS: usize = 4;
/// Time for which readers run before the second version is pushed, and after the rollback.
const READ_TIME: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
    larder demo
    larder demo --exit --users 2000
    larder demo --edges facebook_combined.txt.gz";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Exit after the demonstration, instead of serving until ctrl-c
    #[arg(long)]
    exit: bool,
    /// A file of friendships: two names per line, separated by spaces or tabs; .gz and .zst are decompressed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["users"])]
    edges: Option<PathBuf>,
    /// The number of users in the generated graph
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    users: u32,
    /// The seed of the generated graph
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count::<u64>)]
    seed: u64,
    /// Address and port for Redis clients; port 0: a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    resp: String,
    /// Address and port for the HTTP API and the console; port 0: a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    http: String,
}

pub fn run(args: DemoArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let folder = build::temp_folder(None)?;
    let mut story = StepPrinter::default();
    let graph = friendships(&args, &mut story)?;
    let demo = Demo {
        folder: folder.path(),
        store: STORE.parse().expect("a constant name is allowed"),
    };

    let first = demo.build(&graph, 1, &mut story)?;
    let server = DemoServer::start(&args, folder.path())?;
    story.print_step(
        "Serve",
        &[format!(
            "Redis protocol on {}, console on http://{}/",
            server.resp, server.http
        )],
    )?;
    let admin = AdminClient::new(&server.http.to_string())?;
    demo.push(&admin, &first, &mut story)?;
    demo.read_one(&server, &graph, &mut story)?;
    demo.replace_under_load(&server, &admin, &graph, args.seed, &mut story)?;
    timelines::run(&server.resp.to_string(), &graph, args.seed, &mut story)?;
    hotels::run(&server.resp.to_string(), graph.len(), args.seed, &mut story)?;
    print_next_steps(&server, &demo, &graph, args.exit)?;
    if !args.exit {
        while !interrupt::is_interrupted() {
            interrupt::wait(Duration::from_secs(3600));
        }
    }
    server.stop()?;
    drop(folder);
    print_line("The server is stopped and the demo's folder removed.")
}

fn friendships(args: &DemoArgs, story: &mut StepPrinter) -> Result<Graph, Failure> {
    let started = Instant::now();
    let (graph, origin) = match &args.edges {
        Some(path) => (Graph::read(path)?, format!("read from {}", path.display())),
        None => (
            Graph::generate(args.users, args.seed),
            format!("made from seed {}", args.seed),
        ),
    };
    let friends = 2.0 * graph.friendships() as f64 / graph.len() as f64;
    story.print_step(
        "Generate friendships",
        &[
            format!(
                "{} users, {} friendships, {origin} in {}",
                count(graph.len() as u64),
                count(graph.friendships() as u64),
                duration(started.elapsed())
            ),
            format!(
                "{friends:.1} friends on average, {} at most",
                count(graph.most_friends() as u64)
            ),
        ],
    )?;
    Ok(graph)
}

struct Demo<'a> {
    folder: &'a Path,
    store: StoreName,
}

impl Demo<'_> {
    /// Runs the batch job and the build. Every value contains `build`, so that readers can distinguish the versions.
    fn build(
        &self,
        graph: &Graph,
        build: u32,
        story: &mut StepPrinter,
    ) -> Result<PathBuf, Failure> {
        let started = Instant::now();
        let rows = self.folder.join(format!("rows-{build}"));
        std::fs::create_dir(&rows).map_err(Failure::io("make a folder for the demo"))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        neighbours::write_recommendations(graph, build, &rows, threads)?;
        let computed = started.elapsed();
        let mut lines = vec![format!(
            "the 20 who share most friends with each user: {} users in {} ({} users/s, {threads} threads)",
            count(graph.len() as u64),
            duration(computed),
            count(rate(graph.len() as u64, computed) as u64)
        )];
        let hubs = neighbours::hubs(graph);
        if hubs > 0 {
            lines.push(format!(
                "of users with over {} friends (there are {}), a sample was looked at, to bound the work",
                count(neighbours::hub_friends_min() as u64),
                count(hubs as u64)
            ));
        }
        story.print_step("Compute \"people you may know\"", &lines)?;

        let out = self.folder.join(format!("version-{build}"));
        let input = rows.join("*.jsonl").display().to_string();
        let args = BuildArgs::json_lines("member");
        let built = build::build_into(
            &[input],
            &args,
            &self.store,
            &out,
            &out.display().to_string(),
            true,
        )?;
        story.print_step(
            "Build a version: sorted, packed, checked, immutable",
            &[built.summary()],
        )?;
        std::fs::remove_dir_all(&rows).map_err(Failure::io("tidy the demo's folder"))?;
        Ok(out)
    }

    fn push(
        &self,
        admin: &AdminClient,
        version: &Path,
        story: &mut StepPrinter,
    ) -> Result<u64, Failure> {
        let started = Instant::now();
        let request = push::request_for_folder(version)?;
        let pull = push::pull_to_end(admin, &self.store, &request, false)?;
        story.print_step(
            "Push it: the server pulls, verifies, warms up and swaps it in",
            &[format!(
                "{} version {} is live, {} after the request",
                self.store,
                pull.version,
                duration(started.elapsed())
            )],
        )?;
        Ok(pull.version)
    }

    fn read_one(
        &self,
        server: &DemoServer,
        graph: &Graph,
        story: &mut StepPrinter,
    ) -> Result<(), Failure> {
        let client = RespClient::new(server.resp.to_string());
        let key = format!("{}:{}", self.store, graph.name((graph.len() / 2) as u32));
        let value = client.get(&key)?.ok_or_else(|| {
            Failure::new(format!(
                "{key} is absent from the store that was just built"
            ))
        })?;
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..200 {
            let started = Instant::now();
            client.get(&key)?;
            times.push(started.elapsed());
        }
        times.sort();
        let text = String::from_utf8_lossy(&value);
        let shown: String = text.chars().take(96).collect();
        story.print_step(
            "Read it, as any Redis client can",
            &[
                format!("$ redis-cli -p {} GET {key}", server.resp.port()),
                format!("{shown}... ({} bytes)", text.len()),
                format!(
                    "one request and its answer: {} (median of 200)",
                    duration(times[100])
                ),
            ],
        )
    }

    /// Pushes the second version and rolls it back, while readers run.
    fn replace_under_load(
        &self,
        server: &DemoServer,
        admin: &AdminClient,
        graph: &Graph,
        seed: u64,
        story: &mut StepPrinter,
    ) -> Result<(), Failure> {
        let tomorrow = graph.with_more_friendships(graph.friendships() / 50 + 1, seed);
        print_line(&format!(
            "Overnight, {} friendships are added; the same again:\n",
            count((tomorrow.friendships() - graph.friendships()) as u64)
        ))?;
        let second = self.build(&tomorrow, 2, story)?;

        let keys: Vec<String> = (0..graph.len() as u32)
            .map(|user| format!("{}:{}", self.store, graph.name(user)))
            .collect();
        let readers = Readers::start(&server.resp.to_string(), &keys, READER_THREADS)?;
        interrupt::wait(READ_TIME);
        let version = self.push(admin, &second, story)?;
        interrupt::wait(READ_TIME);
        let rollback = admin.rollback(&self.store, None)?;
        interrupt::wait(READ_TIME);
        let seen = readers.stop()?;
        story.print_step(
            "Readers went on through the swap and a rollback",
            &[
                format!(
                    "{} MGETs of {} keys each in {} ({} keys/s over {READER_THREADS} connections)",
                    count(seen.requests),
                    readers::KEYS_PER_REQUEST,
                    duration(seen.took),
                    count(rate(seen.requests * readers::KEYS_PER_REQUEST as u64, seen.took) as u64)
                ),
                format!(
                    "half within {}, 99% within {}, the slowest {}",
                    duration(seen.median),
                    duration(seen.p99),
                    duration(seen.slowest)
                ),
                format!(
                    "from version 1: {}, from version 2: {}",
                    count(seen.first_build),
                    count(seen.second_build)
                ),
                format!(
                    "failed: {}, answers that mixed versions: {}",
                    seen.failed, seen.mixed
                ),
            ],
        )?;
        if let Some(problem) = seen.problem {
            return Err(Failure::new(problem));
        }
        story.print_step(
            "The rollback",
            &[format!(
                "{} version {} is live again instead of {version}: it took {}",
                self.store,
                rollback.live,
                duration(Duration::from_micros(rollback.took_us))
            )],
        )
    }
}

fn print_next_steps(
    server: &DemoServer,
    demo: &Demo<'_>,
    graph: &Graph,
    exits: bool,
) -> Result<(), Failure> {
    if exits {
        return print_line("Run `larder demo` without --exit to try it by hand.");
    }
    let store = &demo.store;
    let user = graph.name((graph.len() / 2) as u32);
    print_line(&format!(
        "The server stays up until ctrl-c. Try, from another terminal:\n\n  \
         redis-cli -p {} MGET {store}:1 {store}:2\n  \
         redis-cli -p {} RANGE 'tline|{user}|' 'tline|{user}}}' REV LIMIT 5\n  \
         redis-cli -p {} FT.SEARCH hotels '@city:{{rome}} @stars:[4 5]' SORTBY price LIMIT 0 3\n  \
         larder store info {store} --server http://{}\n  \
         larder store diff {store} 1 2 --limit 5 --server http://{}\n  \
         larder store swap {store} 2 --server http://{}\n  \
         open http://{}/ in a browser\n",
        server.resp.port(),
        server.resp.port(),
        server.resp.port(),
        server.http,
        server.http,
        server.http,
        server.http
    ))
}

/// A server in this process, on a separate thread.
struct DemoServer {
    resp: SocketAddr,
    http: SocketAddr,
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<Result<(), larder_server::Error>>,
}

impl DemoServer {
    fn start(args: &DemoArgs, folder: &Path) -> Result<DemoServer, Failure> {
        let mut config = ServerConfig::default();
        config.server.data = folder.join("data");
        config.server.resp.clone_from(&args.resp);
        config.server.http.clone_from(&args.http);
        config
            .check()
            .map_err(|error| Failure::usage(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("start the server"))?;
        let server = runtime
            .block_on(Server::start(config))
            .map_err(|error| Failure::new(error.to_string()))?;
        let (resp, http) = (server.resp_addr(), server.http_addr());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                // An error means that the sender was dropped: stop as well.
                let _ = stopped.await;
                server.stop().await
            })
        });
        Ok(DemoServer {
            resp,
            http,
            stop,
            thread,
        })
    }

    fn stop(self) -> Result<(), Failure> {
        let _ = self.stop.send(());
        self.thread
            .join()
            .map_err(|_| Failure::new("the server's thread panicked; this is a bug in larder"))?
            .map_err(|error| Failure::new(error.to_string()))
    }
}
