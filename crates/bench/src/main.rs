//! Benchmarks: a running server as seen by a client, the join engine, and the ordered table (`table`). `bench/peers`
//! compares stores with other engines.
//!
//! ```text
//!  store (a small version, built here) ──> process (larder, redis-server) <── load (RESP over loopback)
//!                                                └── server, swap_latency: the requests, and the report
//! ```
//!
//! The bench `counts` counts instructions of hot paths; `cargo xtask counts` compares them with the recorded ones.
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
    bench: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// GETs per second and per CPU second on one core, compared with redis-server
    Server(server::ServerArgs),
    /// CPU time per operation in clusters of 1, 2, 4 and 8 nodes, for local and forwarded requests, compared with Redis Cluster
    Cluster(cluster::cost::ClusterArgs),
    /// Timelines over 1, 2, 4 and 8 nodes: CPU time per operation, and the busiest node's share
    ClusterTwip(cluster::twip::ClusterTwipArgs),
    /// CPU time of a write with 1, 2 and 3 copies, acknowledged by the owner or by all copies
    ClusterReplicas(cluster::replicas::ClusterReplicasArgs),
    /// Failover of killed and partitioned nodes: unavailability and lost acknowledged writes, compared with Redis Cluster
    ClusterFailover(cluster::failover::ClusterFailoverArgs),
    /// A fourth node joins three under load: latency during the move, and bytes moved
    ClusterGrowth(cluster::growth::ClusterGrowthArgs),
    /// Latency of GETs with and without concurrent pulls and swaps; failed reads; rollback time
    SwapLatency(swap_latency::SwapLatencyArgs),
    /// Lookups in a version, in process: from the mapped file, and by positional reads
    Lookups(lookups::LookupsArgs),
    /// A daily delta compared with a complete build, and lookups in several layers compared with one
    Increments(increments::IncrementsArgs),
    /// The ordered table alone, in process, compared with BTreeMaps: puts, range reads, bytes per row
    Table(table::TableArgs),
    /// Timelines in process, in the join engine alone: CPU seconds, rows, bytes
    Twip(twip::TwipArgs),
    /// Vote counts in process, in the join engine alone: in bulk, and one vote at a time
    Karma(karma::KarmaArgs),
    /// Latency for other clients while one client's command computes, reads, drops or expires a million rows
    FirstFill(first_fill::FirstFillArgs),
    /// Trace records validated per second, on many items and on a single one
    Validate(validate::ValidateArgs),
    /// All in-process results of the join engine compared with their targets, each in its own process
    TwipBars(twip_bars::TwipBarsArgs),
    /// Timelines over the network, compared with Redis, memcached and PostgreSQL with client-side fan-out
    TwipNet(net::twip::TwipNetArgs),
    /// A news site's page over the network, as one read from larder and as separate reads from Redis
    Newp(net::newp::NewpArgs),
    /// Searches of hotels by attributes, compared with PostgreSQL
    Spaces(spaces::comparison::SpacesArgs),
    /// CPU time of searches of a space: one match to half of all objects, one to four predicates, sort orders, cursors
    SpaceShapes(spaces::shapes::SpaceShapesArgs),
    /// Predictions of the subspace model compared with measurements, over sampled configurations
    SpaceModel(spaces::model::SpaceModelArgs),
    /// CPU time of searches over 1, 2, 4 and 8 servers, with and without a subspace; and region sizes after a drift
    SpaceServers(spaces::servers::SpaceServersArgs),
    /// Latency and errors for clients while the subspaces of a space change
    SpaceOnline(spaces::online::SpaceOnlineArgs),
    /// A space with four times as much data as the server has memory
    SpaceOutgrown(spaces::larger_than_memory::SpaceOutgrownArgs),
}

fn main() -> ExitCode {
    let done = match Args::parse().bench {
        BenchCommand::Server(args) => server::run(&args),
        BenchCommand::Cluster(args) => cluster::cost::run(&args),
        BenchCommand::ClusterTwip(args) => cluster::twip::run(&args),
        BenchCommand::ClusterReplicas(args) => cluster::replicas::run(&args),
        BenchCommand::ClusterFailover(args) => cluster::failover::run(&args),
        BenchCommand::ClusterGrowth(args) => cluster::growth::run(&args),
        BenchCommand::SwapLatency(args) => swap_latency::run(&args),
        BenchCommand::Lookups(args) => lookups::run(&args),
        BenchCommand::Increments(args) => increments::run(&args),
        BenchCommand::Table(args) => table::run(&args),
        BenchCommand::Twip(args) => twip::run(&args),
        BenchCommand::Karma(args) => karma::run(&args),
        BenchCommand::FirstFill(args) => first_fill::run(&args),
        BenchCommand::Validate(args) => validate::run(&args),
        BenchCommand::TwipBars(args) => twip_bars::run(&args),
        BenchCommand::TwipNet(args) => net::twip::run(&args),
        BenchCommand::Newp(args) => net::newp::run(&args),
        BenchCommand::Spaces(args) => spaces::comparison::run(&args),
        BenchCommand::SpaceShapes(args) => spaces::shapes::run(&args),
        BenchCommand::SpaceModel(args) => spaces::model::run(&args),
        BenchCommand::SpaceServers(args) => spaces::servers::run(&args),
        BenchCommand::SpaceOnline(args) => spaces::online::run(&args),
        BenchCommand::SpaceOutgrown(args) => spaces::larger_than_memory::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("larder-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
