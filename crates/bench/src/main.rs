//! Benchmarks: a running server as seen by a client, the join engine, and the ordered table (`table`). `bench/peers`
//! compares stores with other engines.
//!
//! ```text
//!  store (a small version, built here) ──> process (larder, redis-server) <── load (RESP over loopback)
//!                                                └── server, swap_latency: the requests, and the report
//! ```
//!
//! Read `server` first, then `load`. `twip` and `karma` drive the join engine in process, `twip` over the graph of
//! `twip_graph`; `twip_bars` runs both and compares their results with the targets. `validate` judges traces in memory.
//! `net` drives servers over loopback: larder, Redis, memcached and PostgreSQL.

mod cluster;
mod first_fill;
mod increments;
mod karma;
mod keys;
mod large_work;
mod load;
mod lookups;
mod net;
mod process;
mod report;
mod server;
mod spaces;
mod store;
mod swap_latency;
mod table;
mod table_alloc;
mod table_rivals;
mod twip;
mod twip_bars;
mod twip_graph;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "larder-bench", about = "Benchmarks of a running larder server")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// GETs per second and per CPU second of one core, beside redis-server
    Server(server::ServerArgs),
    /// CPU time an operation of a cluster of 1, 2, 4 and 8 nodes, of a request that is passed on, and of a Redis Cluster
    Cluster(cluster::cost::ClusterArgs),
    /// Timelines over 1, 2, 4 and 8 nodes: CPU time an operation, and the busiest node's share
    ClusterTwip(cluster::twip::ClusterTwipArgs),
    /// CPU time of a write with 1, 2 and 3 copies, acknowledged by the owner and by all of them
    ClusterReplicas(cluster::replicas::ClusterReplicasArgs),
    /// Nodes killed and cut off: time without answers, acknowledged writes lost; beside a Redis Cluster
    ClusterFailover(cluster::failover::ClusterFailoverArgs),
    /// A fourth node joins three under load: latency meanwhile, and bytes that move
    ClusterGrowth(cluster::growth::ClusterGrowthArgs),
    /// Latency of GETs, quiet and while versions are pulled and swapped; failed reads; rollback time
    SwapLatency(swap_latency::SwapLatencyArgs),
    /// Lookups in a version, in process: out of the map, and by position
    Lookups(lookups::LookupsArgs),
    /// A daily change beside a whole build, and lookups in several layers beside one
    Increments(increments::IncrementsArgs),
    /// The ordered table alone, in process, beside BTreeMaps: puts, range reads, bytes a row
    Table(table::TableArgs),
    /// Timelines in process, by the join engine alone: CPU seconds, rows, bytes
    Twip(twip::TwipArgs),
    /// Counts of votes in process, by the join engine alone: in bulk, and one by one
    Karma(karma::KarmaArgs),
    /// What others wait for while one client has a million rows computed, read, dropped or expired
    FirstFill(first_fill::FirstFillArgs),
    /// Records of benchmark runs judged per second, on many items and on one
    Validate(validate::ValidateArgs),
    /// All in-process figures of the join engine beside their bars, each in a process of its own
    TwipBars(twip_bars::TwipBarsArgs),
    /// Timelines over the network, beside Redis, memcached and PostgreSQL with clients that fan out
    TwipNet(net::twip::TwipNetArgs),
    /// A news site's page over the network, as one read and as separate reads from Redis
    Newp(net::newp::NewpArgs),
    /// Hotels searched by their attributes, beside PostgreSQL
    Spaces(spaces::beside::SpacesArgs),
    /// What searches of a space take: from one row to half of all, one to four predicates, orders, cursors
    SpaceShapes(spaces::shapes::SpaceShapesArgs),
    /// What the model of subspaces predicts, beside what larder takes, over sampled configurations
    SpaceModel(spaces::model::SpaceModelArgs),
    /// What searches take of 1, 2, 4 and 8 servers together, on a subspace and without; and regions after a drift
    SpaceServers(spaces::servers::SpaceServersArgs),
    /// What clients notice while a space gets other subspaces
    SpaceOnline(spaces::online::SpaceOnlineArgs),
    /// A space of four times the data that the server has memory for
    SpaceOutgrown(spaces::outgrown::SpaceOutgrownArgs),
}

fn main() -> ExitCode {
    let done = match Args::parse().bench {
        Bench::Server(args) => server::run(&args),
        Bench::Cluster(args) => cluster::cost::run(&args),
        Bench::ClusterTwip(args) => cluster::twip::run(&args),
        Bench::ClusterReplicas(args) => cluster::replicas::run(&args),
        Bench::ClusterFailover(args) => cluster::failover::run(&args),
        Bench::ClusterGrowth(args) => cluster::growth::run(&args),
        Bench::SwapLatency(args) => swap_latency::run(&args),
        Bench::Lookups(args) => lookups::run(&args),
        Bench::Increments(args) => increments::run(&args),
        Bench::Table(args) => table::run(&args),
        Bench::Twip(args) => twip::run(&args),
        Bench::Karma(args) => karma::run(&args),
        Bench::FirstFill(args) => first_fill::run(&args),
        Bench::Validate(args) => validate::run(&args),
        Bench::TwipBars(args) => twip_bars::run(&args),
        Bench::TwipNet(args) => net::twip::run(&args),
        Bench::Newp(args) => net::newp::run(&args),
        Bench::Spaces(args) => spaces::beside::run(&args),
        Bench::SpaceShapes(args) => spaces::shapes::run(&args),
        Bench::SpaceModel(args) => spaces::model::run(&args),
        Bench::SpaceServers(args) => spaces::servers::run(&args),
        Bench::SpaceOnline(args) => spaces::online::run(&args),
        Bench::SpaceOutgrown(args) => spaces::outgrown::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("larder-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
