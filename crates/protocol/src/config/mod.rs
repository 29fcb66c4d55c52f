//! Every key of `larder.toml`, and how a configuration is put together.
//!
//! Later sources win: defaults, then the file, then environment variables, then flags. A key is
//! written `section.name` in flags and messages, `LARDER_<SECTION>_<NAME>` in the environment.
//! The one table is [`keys`], and it is here: the reference page, the sample file and `larder config
//! show` are printed from it. A key that does not exist is refused by name, with the nearest that does.
//!
//! To add a key, add a field below, with the bounds of a number behind its unit; a setting of few words is an enum of `words.rs`.
//! `check.rs` is the place for a rule that neither can say. `load.rs` puts a configuration together, `show.rs` prints it.

mod bounds;
mod check;
mod load;
mod mapped;
mod show;
mod suggest;
mod value;
mod words;

use std::path::PathBuf;

use larder_types::ByteSize;

pub use bounds::Bounds;
use bounds::{Bounded, at_least, at_most, between, zero_or};
pub use load::ConfigError;
use load::Given;
pub use mapped::{MAPPED_KEYS, MappedKey, MappedTable, PatternPart};
pub use show::{reference_markdown, sample_toml};
pub use value::ConfigValue;
pub use words::{
    Acknowledge, ClusterMode, CutOffReads, Fsync, LogFormat, NodeRoles, Routing, SlotLife, Writes,
};

/// A row of the reference: what a key is called, means and holds unless told otherwise.
#[derive(Debug, Clone)]
pub struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// `text`, `word`, `path`, `boolean`, `number`, `size` or `list`.
    pub kind: &'static str,
    /// What a number counts; empty for other kinds.
    pub unit: &'static str,
    pub bounds: Option<Bounds>,
    /// What it may be, as text: its words or its bounds; empty where its type says all.
    pub allowed: String,
    /// As TOML.
    pub default: String,
    /// The environment variable.
    pub env: String,
    pub doc: &'static str,
}

impl Key {
    /// `section.name`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

/// What the number of a key must be, if it may not be this one: for what changes a setting while the server runs.
pub fn beyond_bounds(path: &str, amount: f64) -> Option<String> {
    let key = keys().into_iter().find(|key| key.path() == path)?;
    (!key.bounds?.allow(amount)).then_some(key.allowed)
}

macro_rules! sections {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident: $Section:ident {
            $( $(#[doc = $doc:literal])* $name:ident: $Type:ty = $default:expr, $unit:literal $(, $bounds:expr)?; )*
        }
    )*) => {
        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $doc])* pub $name: $Type, )*
            }

            impl Default for $Section {
                fn default() -> $Section {
                    $Section { $( $name: $default, )* }
                }
            }
        )*

        /// The whole configuration of a server.
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct ServerConfig {
            $( pub $section: $Section, )*
            /// Tables whose rows live in PostgreSQL, by their names.
            pub mapped: Vec<MappedTable>,
        }

        const SECTIONS: &[(&str, &str)] = &[ $( (stringify!($section), concat!($($section_doc,)*)), )* ];

        /// Every key, in the order of the sample file.
        pub fn keys() -> Vec<Key> {
            vec![ $( $( Key {
                section: stringify!($section),
                name: stringify!($name),
                kind: <$Type as ConfigValue>::TYPE,
                unit: $unit,
                bounds: None$(.or(Some($bounds)))?,
                allowed: words::either(&<$Type as ConfigValue>::words())$( + &<$Type as Bounded>::within(&$bounds))?,
                default: { let default: $Type = $default; default.to_toml().to_string() },
                env: env_name(stringify!($section), stringify!($name)),
                doc: concat!($($doc,)*).trim_ascii_start(),
            }, )* )* ]
        }

        impl ServerConfig {
            fn set_value(&mut self, section: &str, name: &str, given: Given<'_>) -> Option<Result<(), String>> {
                match (section, name) {
                    $( $( (stringify!($section), stringify!($name)) => {
                        let read = match given {
                            Given::Text(text) => <$Type as ConfigValue>::from_text(text),
                            Given::Toml(value) => <$Type as ConfigValue>::from_toml(value),
                        };
                        Some(read.and_then(|value| {
                            $( if !$bounds.allow(value.amount()) {
                                return Err(<$Type as Bounded>::within(&$bounds));
                            } )?
                            self.$section.$name = value;
                            Ok(())
                        }))
                    } )* )*
                    _ => None,
                }
            }

            /// The first number that is out of its bounds, as a configuration that was not read from text may have one.
            fn check_bounds(&self) -> Result<(), ConfigError> {
                $( $( $( if !$bounds.allow(self.$section.$name.amount()) {
                    return Err(ConfigError(format!(
                        "{}.{} is {}; it must be {}",
                        stringify!($section),
                        stringify!($name),
                        self.$section.$name,
                        <$Type as Bounded>::within(&$bounds),
                    )));
                } )? )* )*
                Ok(())
            }

            /// The value of a key, as TOML.
            pub fn get(&self, section: &str, name: &str) -> Option<toml::Value> {
                match (section, name) {
                    $( $( (stringify!($section), stringify!($name)) => Some(self.$section.$name.to_toml()), )* )*
                    _ => None,
                }
            }
        }
    };
}

sections! {
    /// Where the server listens and keeps its data, and what one client may ask of it.
    server: ServerSection {
        /// The folder that holds everything the server keeps. It is created if absent; one server at a time uses it.
        data: PathBuf = PathBuf::from("larder-data"), "";
        /// Address and port of the Redis protocol. Port 0 takes a free one.
        resp: String = "127.0.0.1:7379".to_owned(), "";
        /// Address and port of the HTTP API, the metrics and the console. Port 0 takes a free one.
        http: String = "127.0.0.1:7070".to_owned(), "";
        /// Threads that serve the Redis protocol. 0 means one per core.
        threads: u32 = 0, "threads", at_most(1024);
        /// Threads that wait for the disk, shared by all connections, so that reads from memory never wait.
        disk_threads: u32 = 16, "threads", between(1, 1024);
        /// The password that every client must give: Redis clients with AUTH or HELLO, HTTP clients as `Authorization: Basic` (of any user) or `Bearer`, `larder` commands as `--password` or `LARDER_PASSWORD`. Only `/healthz` and `/readyz` are answered without. Empty asks for none.
        password: String = String::new(), "";
        /// The file with this server's certificate, as PEM, and those between it and its authority. With it both ports speak TLS, and nothing else. Files that are replaced are used for new connections, without a restart. Empty: clients speak plainly.
        tls_cert: String = String::new(), "";
        /// The file with its key, as PEM.
        tls_key: String = String::new(), "";
        /// The file with the certificates of authorities, as PEM: a client must show a certificate that one of them has signed. Empty: none.
        tls_client_ca: String = String::new(), "";
        /// Refuse to start where `resp` or `http` is an address that other machines may reach and there is neither a password nor `tls_client_ca`. `false` says that it is meant: everybody who reaches the port may then read and change everything.
        protected_mode: bool = true, "";
        /// Connections of the Redis protocol at one time; further ones are told so and closed. Where the limit of open files (`ulimit -n`) is too low for them, and for what the server itself needs, it is lowered: the log says so at the start, and INFO and CONFIG GET show what it is.
        max_connections: u32 = 20_000, "connections", at_least(1);
        /// Connections of HTTP at one time; further ones are told so and closed. `/healthz` and `/readyz` are answered beyond that, too.
        max_http_connections: u32 = 1_000, "connections", at_least(1);
        /// How long HTTP waits for a client: for its next request, for the whole of a request, for it to take some of an answer, and in the queue of `server.http_reads`.
        http_timeout_seconds: u64 = 30, "seconds", between(1, 86_400);
        /// Samples, dumps, comparisons, verifies and large values that HTTP answers at one time. Four times as many may wait; further ones are refused with `OVERLOADED`.
        http_reads: u32 = 16, "requests", between(1, 1024);
        /// A connection that is silent for so long is closed. 0 never closes one.
        idle_timeout_seconds: u64 = 0, "seconds";
        /// The most arguments that one command may have.
        max_arguments: u32 = 1_048_576, "arguments", at_least(1);
        /// The longest single argument of a command.
        max_argument_bytes: ByteSize = ByteSize(512 << 20), "bytes", between(1 << 10, 4 << 30);
        /// The length to which SETRANGE may lengthen a value. The bytes between the end of the value and the offset are zeros, which the server makes, logs and replicates though no client has sent them.
        max_setrange_bytes: ByteSize = ByteSize(64 << 20), "bytes", at_least(1 << 10);
        /// A connection whose unread replies exceed this is not read from until it takes some.
        output_buffer_bytes: ByteSize = ByteSize(1 << 20), "bytes", at_least(4 << 10);
        /// A connection that is told of changes (SUBSCRIBE) and does not take them is closed when those that wait exceed this.
        subscriber_buffer_bytes: ByteSize = ByteSize(32 << 20), "bytes", at_least(4 << 10);
        /// How many keys the server remembers for client-side caching (CLIENT TRACKING), as Redis's tracking-table-max-keys. With more, it has clients forget some.
        tracking_keys_max: u64 = 1_000_000, "keys", at_least(1);
        /// The most that the server keeps for one client of the Redis protocol: requests that have not come whole, commands that MULTI has queued, replies that were not taken, what a long answer keeps of rows that changed since, its subscriptions and the messages that wait for it, and the keys that are remembered for its cache (CLIENT TRACKING). A client with more is closed, and a SUBSCRIBE beyond it is refused; an argument that is longer than half of it, and an answer that would be, is refused with OOM. Never more than `clients_memory`.
        client_memory: ByteSize = ByteSize(1 << 30), "bytes", at_least(1 << 20);
        /// The most that the server keeps for all clients of the Redis protocol together, as Redis's maxmemory-clients: beyond it those with the most are closed, the largest first. 0 is a quarter of the machine's memory and no more than `tables.memory` where that is set, but 64 MiB at least.
        clients_memory: ByteSize = ByteSize(0), "bytes", zero_or(at_least(1 << 20));
        /// A client of the Redis protocol that takes nothing of its replies for so long is closed, as with Redis's client-output-buffer-limit. 0 never closes one.
        unread_timeout_seconds: u64 = 60, "seconds";
        /// The most commands that MULTI queues: EXEC executes them with nothing in between, so everybody else waits for them.
        max_transaction_commands: u32 = 100_000, "commands", at_least(1);
        /// How long a stopping server waits for replies to be taken.
        stop_timeout_seconds: u64 = 10, "seconds";
    }
    /// How new versions are pulled.
    fetch: FetchSection {
        /// The most that all pulls together fetch in a second; filling replicas counts too. 0 is unlimited. PATCH /v1/settings changes it until a restart.
        bytes_per_second: u64 = 0, "bytes a second";
        /// The most that background work reads of this server's own files in a second: verification, warm-up and compaction together. 0 is unlimited.
        verify_bytes_per_second: u64 = 0, "bytes a second";
        /// Background work on stores yields to reads: when serving threads that have work wait longer than this for a processor, on average over a tenth of a second, its share of time and of both rates is halved, down to a tenth; when they do not, it comes back. 0 never yields.
        yield_at_us: u64 = 200, "microseconds";
        /// Segments that one pull fetches at a time. Of a local source at most one for every four cores: more would only take them from readers.
        parallel: u32 = 4, "segments", between(1, 256);
        /// Pulls that run at one time; others wait.
        pulls: u32 = 4, "pulls", between(1, 1024);
        /// Pulls that may wait; further ones are refused with `OVERLOADED`.
        queue: u32 = 100, "pulls";
        /// What a pull may read: folders, and beginnings of URLs. `https://` is every host, `s3://bucket/dir` what lies there. Addresses of this machine and its link, where clouds keep secrets too, are read only where an entry names the host, as `http://localhost:8000/` does. In the environment, entries are separated by commas.
        allow: Vec<String> = ["/", "http://", "https://", "s3://", "gs://", "az://", "hdfs://"].map(str::to_owned).to_vec(), "";
        /// A transfer that brings nothing for so long is broken off and tried again.
        stall_timeout_seconds: u64 = 30, "seconds", at_least(1);
        /// How often a broken transfer is tried again, from where it stopped, before the pull fails.
        retries: u32 = 8, "times";
        /// Read a new version into memory before it goes live.
        warm: bool = true, "";
        /// Before a version goes live, read so many of the keys that were read most of the live one, also of a version that is too large to be read into memory as a whole. They are estimated from one read in 61. 0 reads none, and draws none.
        warm_keys: u32 = 0, "keys", at_most(1_000_000);
    }
    /// Which versions are kept, and what a new one must satisfy. A pull may ask for more.
    stores: StoresSection {
        /// Versions kept of each store, the live one included. PATCH /v1/settings changes this and the next two for good, until they are given another value here.
        retain_versions: u32 = 3, "versions", at_least(1);
        /// Versions older than this are removed, except the live and the previous one. 0 keeps them.
        retain_age_hours: u64 = 0, "hours";
        /// The most that one store's versions may take on disk; the oldest go first, never the live and the previous one. 0 is unlimited.
        retain_bytes: ByteSize = ByteSize(0), "bytes";
        /// A live version of more layers than this (`larder build --on`) is compacted to a whole one, at low priority; once, until the next start, if that fails. 0 leaves it to `larder store compact`. In a cluster, and where `signed_by` names keys, it is not done: `larder compact` does it where versions are built.
        compact_layers: u32 = 6, "layers", between(0, 8);
        /// A new version with fewer records does not go live.
        min_records: u64 = 0, "records";
        /// A new version that lost more than this share of the live one's records does not go live. 100 allows any.
        max_shrink_percent: f64 = 100.0, "percent", between(0, 100);
        /// A new version that has more records than the live one by more than this share does not go live. 0 allows any.
        max_growth_percent: f64 = 0.0, "percent", at_least(0);
        /// The most nulls that a column of a new version may have, in percent of its rows, as `STORE/COLUMN:PERCENT`; `*` is every store, or every column. A field that a JSON object does not have is null. In the environment, entries are separated by commas.
        max_nulls: Vec<String> = Vec::new(), "";
        /// The most empty texts that a column may have, written as `max_nulls`.
        max_empty: Vec<String> = Vec::new(), "";
        /// How far the values of a column may have shifted from the live version's, as `STORE/COLUMN:INDEX`: a population stability index, of which 0.1 is a small and 0.25 a large shift. docs/guide/quality.md says how it is measured.
        max_shift: Vec<String> = Vec::new(), "";
        /// A program and its arguments that judges every new version before it goes live: it is run with the version's folder as its last argument and a description in JSON at its standard input, and an exit status other than 0 refuses the version. Empty: none. In the environment, entries are separated by commas.
        gate_program: Vec<String> = Vec::new(), "";
        /// After so long `gate_program` is ended, and the version refused.
        gate_program_seconds: u64 = 300, "seconds", between(1, 86_400);
        /// Answer `/readyz` with 503 while a store is damaged or its files cannot be read, so that a load balancer sends no client to this server. Otherwise the server is ready, `/readyz` names the store, and only reads of that store are answered with CORRUPTED or IOERR.
        unready_when_damaged: bool = false, "";
        /// Public keys, as `larder keygen` prints them: only versions that one of them has signed (`larder build --sign`) are pulled and go live. A version that is live when a key is first named stays so. In the environment, keys are separated by commas. Nodes of a cluster should agree on it.
        signed_by: Vec<String> = Vec::new(), "";
    }
    /// Spaces: searches of objects by their attributes.
    spaces: SpacesSection {
        /// Refuse searches that no index serves, and which therefore look at all objects of a space: what is asked has no index (`INDEX` leaves it out), is only what an object is not (`-@city:{rome}`), or nothing is asked (`*`) of an aggregation other than a page by page `WITHCURSOR`. `*` is answered as far as `LIMIT` says, in the order of keys or of an attribute with an index. The error says what would help. FT.EXPLAIN tells how a search would go. Nodes of a cluster should agree on it: it counts at the node that a client asks.
        refuse_full_scans: bool = false, "";
        /// FLUSHALL and FLUSHDB drop all spaces and their aliases, as RediSearch does, before they remove the rows; within `MULTI` they are refused then. Otherwise spaces stay, and find objects that are written later. Test suites that begin with FLUSHALL and declare their spaces each time need this. Nodes of a cluster should agree on it: it counts at the node that a client asks.
        flush_drops_spaces: bool = false, "";
        /// A search or an aggregation that takes longer is given up with `Timeout limit was reached`; it never returns part of an answer. `TIMEOUT` of a command replaces this, also by a longer time. Each read of a cursor has this time for itself; FT.CHANGE has no limit. 0: no limit. RediSearch's default is 500 ms, after which it returns what it has found. It counts at each node by itself.
        search_timeout_ms: u64 = 10_000, "milliseconds", between(0, 86_400_000);
    }
    /// Tables and joins: their memory, and when writes are durable.
    tables: TablesSection {
        /// When a write is on disk: `always` before it is answered, `everysec` within a second, `no` when the system gets to it. Under all three the system has it before it is answered, so a process that dies loses nothing that was answered; a machine that dies loses nothing under `always`, at most the last second under `everysec`, and what the system had not written under `no`. As Redis's appendfsync; docs/guide/joins.md has the details.
        fsync: Fsync = Fsync::EverySecond, "";
        /// After so long without a completed write or sync of the journal, or while every write fails, `/readyz` reports that the server cannot serve, and a node of a cluster gives up its slots to the nodes that have copies of them.
        stall_seconds: u64 = 5, "seconds", between(1, 86_400);
        /// The most memory that tables and join outputs take. Outputs go first and are computed again when read; then writes are refused with OOM. 0 is unlimited.
        memory: ByteSize = ByteSize(0), "bytes";
        /// Values of at least so many bytes are kept in a file of the data folder, of which the system has in memory what is used, so that there may be more data than memory. Objects are values too, each as a whole. Keys, what spaces find objects by, and rows that joins read or make stay in memory. 0 keeps all in memory; else the file's blocks are reserved as it grows, and values for which the disk has no room stay in memory.
        values_on_disk: ByteSize = ByteSize(0), "bytes";
        /// How many nodes of a cluster have each row, its owner included. It is what a new cluster begins with.
        replicas: u32 = 1, "nodes", between(1, 16);
        /// When a write to a cluster is answered: `owner` when the row's owner has it, `replicas` when all its replicas in sync have it too, so that it outlives the loss of any of them. It is what a new cluster begins with.
        acknowledge: Acknowledge = Acknowledge::Replicas, "";
    }
    /// The PostgreSQL database that keeps the rows of the tables declared by `[tables.<name>]`.
    postgres: PostgresSection {
        /// Where it is: `postgres://user:password@host:port/database?sslmode=verify-full`. The role needs REPLICATION, and SELECT on the tables. In the environment a password is hidden from those who read the file. Empty: no tables are kept there.
        url: String = String::new(), "";
        /// The publication that tells of changes. It must publish inserts, updates, deletes and truncates of every mapped table.
        publication: String = "larder".to_owned(), "";
        /// `temporary`: the replication slot ends with the connection, so that a larder that is gone never fills PostgreSQL's disk; after a lost connection rows are loaded anew when they are read. `permanent`: the slot outlives a lost connection, and rows that are here stay; it is made anew when larder starts and dropped when larder stops, and one that larder left when it was killed holds PostgreSQL's WAL until larder runs again or it is dropped.
        slot: SlotLife = SlotLife::Temporary, "";
        /// The name of a permanent slot. Each larder needs its own; a node of a cluster adds its name.
        slot_name: String = "larder".to_owned(), "";
        /// Connections for loads and writes, beside the one for replication.
        connections: u32 = 4, "connections", between(1, 100);
        /// A load that finds more rows is refused: narrow the read.
        load_rows_max: u64 = 1_000_000, "rows";
        /// A load or write that takes longer is given up.
        statement_timeout_seconds: u64 = 30, "seconds", between(1, 86_400);
        /// A connection on which nothing comes for so long is lost. PostgreSQL is asked for a sign of life every second.
        silence_timeout_seconds: u64 = 20, "seconds", between(1, 86_400);
        /// After the connection was lost, rows that are here are served as they were for so long; then reads of them are refused until it is back. 0 refuses at once.
        stale_seconds: u64 = 60, "seconds";
    }
    /// The cluster that this server is a node of, if it is of one.
    cluster: ClusterSection {
        /// `off`: the server stands alone, and refuses `CLUSTER`. `one`: it is a cluster of one node, which owns every slot, so that clients of Redis Cluster can use it; what they learn is kept in `cluster.json` in the data folder. `etcd`: it is a node of a cluster whose map is kept in etcd.
        mode: ClusterMode = ClusterMode::Off, "";
        /// The name of the cluster. Several may use one etcd.
        name: String = "larder".to_owned(), "";
        /// The name of this node, which never changes: 1 to 64 letters, digits, `_`, `-` and `.`, beginning with a letter or digit.
        node: String = "node-1".to_owned(), "";
        /// The address that clients are told, as `host:port` or `host`: needed where they reach the server by another address than it has, as behind a proxy. Empty: the address by which each reached it.
        announce: String = String::new(), "";
        /// Address and port for the other nodes of the cluster. Port 0 takes a free one.
        peer: String = "127.0.0.1:7380".to_owned(), "";
        /// The address that the other nodes are told, as `host:port` or `host`. Empty: that of `cluster.peer`.
        peer_announce: String = String::new(), "";
        /// etcd's members. In the environment, entries are separated by commas.
        etcd: Vec<String> = vec!["http://127.0.0.1:2379".to_owned()], "";
        /// The user of etcd, where it asks for one.
        etcd_user: String = String::new(), "";
        /// Its password.
        etcd_password: String = String::new(), "";
        /// The file with the certificates of authorities that etcd's own certificates are checked by, as PEM. Empty: those of the system.
        etcd_ca: String = String::new(), "";
        /// The file with the certificate that this server shows to etcd, as PEM. Empty: none.
        etcd_cert: String = String::new(), "";
        /// The file with its key, as PEM.
        etcd_key: String = String::new(), "";
        /// What fails together with this node: a rack, a room, a data centre. Copies of a slot are in different zones where there are enough.
        zone: String = String::new(), "";
        /// This node's share of the slots, in relation to the weights of the others.
        weight: u32 = 1, "shares", between(1, 1_000_000);
        /// `base`: the node owns rows and data sets. `compute`: it computes what joins define, for reads. `both`: it does both.
        roles: NodeRoles = NodeRoles::Both, "";
        /// What a client is told whose key another node has: `proxy` asks that node for it, `redirect` answers MOVED, as Redis Cluster does, and SCAN, KEYS and DBSIZE for the node's own slots alone.
        routing: Routing = Routing::Proxy, "";
        /// What becomes of reads of stores on a node that cannot reach etcd, once its lease has ended and another node shows a newer map: `forward` asks the nodes that have the versions which are live by then, `refuse` answers CLUSTERDOWN. In both cases `/readyz` reports it.
        cut_off_reads: CutOffReads = CutOffReads::Forward, "";
        /// The file with the certificate of the authority whose nodes may connect, as PEM.
        tls_ca: String = String::new(), "";
        /// The file with this node's certificate, as PEM: for its name, or for the host of its address.
        tls_cert: String = String::new(), "";
        /// The file with its key, as PEM.
        tls_key: String = String::new(), "";
        /// Speak to other nodes in plain text though `cluster.peer` is an address that other machines may reach. Everybody who reaches the port may then read and change everything.
        plain: bool = false, "";
        /// How many nodes must have registered before a new cluster gives out its slots. It is what a new cluster begins with.
        start_nodes: u32 = 1, "nodes", between(1, 10_000);
        /// After how long without a sign of life a node is taken for dead, and its replicas take over. It is what a new cluster begins with.
        lease_seconds: u64 = 4, "seconds", between(2, 3_600);
        /// After how long the copies of a dead node are made elsewhere. It is what a new cluster begins with.
        replace_after_seconds: u64 = 300, "seconds";
        /// How many copies of a slot, the owner's among them, must be in sync for its writes to be taken; at most `tables.replicas`. Otherwise they are refused with NOREPLICAS. It is what a new cluster begins with.
        min_copies: u32 = 1, "copies", between(1, 16);
    }
    /// What is written to standard error.
    log: LogSection {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter per module as in `info,larder_server=debug`.
        level: String = "info".to_owned(), "";
        /// How a line is written: for people, or as a JSON object.
        format: LogFormat = LogFormat::Text, "";
    }
    /// The slow log that SLOWLOG GET shows.
    slowlog: SlowlogSection {
        /// Commands that take at least so long are kept. 0 keeps every command. PATCH /v1/settings changes it until a restart.
        threshold_us: u64 = 10_000, "microseconds";
        /// How many are kept; the oldest go first.
        length: u32 = 128, "commands", at_most(1_000_000);
    }
}

fn env_name(section: &str, name: &str) -> String {
    format!("LARDER_{section}_{name}").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented_and_its_default_passes() {
        ServerConfig::default().check().unwrap();
        for key in keys() {
            assert!(
                key.doc.len() > 10 && !key.doc.starts_with(' '),
                "{}",
                key.path()
            );
            assert_eq!(
                key.kind == "number",
                !key.unit.is_empty() && key.kind != "size",
                "{}",
                key.path()
            );
        }
        assert!(reference_markdown().contains("LARDER_FETCH_BYTES_PER_SECOND"));
    }
}
