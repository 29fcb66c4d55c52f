//! Every key of `larder.toml`, and how a configuration is assembled.
//!
//! Later sources win: defaults, then the file, then environment variables, then flags. A key is
//! written `section.name` in flags and messages, `LARDER_<SECTION>_<NAME>` in the environment.
//! [`keys`] is the only table: the reference page, the sample file and `larder config show` are generated
//! from it. An unknown key is rejected with an error that suggests the most similar existing key.
//!
//! To add a key, add a field below, with the bounds of a number after its unit. A setting with a fixed set of words is an enum in `words.rs`.
//! Rules that types and bounds cannot express are in `check.rs`. `load.rs` assembles a configuration, `show.rs` prints it.

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
use load::RawValue;
pub use mapped::{MAPPED_KEYS, MappedKey, MappedTable, PatternPart};
pub use show::{reference_markdown, sample_toml};
pub use value::ConfigValue;
pub use words::{
    Acknowledge, ClusterMode, CutOffReads, Fsync, LogFormat, NodeRoles, Routing, SlotLife, Writes,
};

/// A row of the reference: a key's name, meaning and default.
#[derive(Debug, Clone)]
pub struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// `text`, `word`, `path`, `boolean`, `number`, `size` or `list`.
    pub kind: &'static str,
    /// The unit of a number; empty for other kinds.
    pub unit: &'static str,
    pub bounds: Option<Bounds>,
    /// The allowed words or bounds, as text; empty if every value of the type is allowed.
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

/// Returns the allowed range of a key if `amount` is outside it. Checks settings that change at runtime.
pub fn out_of_bounds(path: &str, amount: f64) -> Option<String> {
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

        /// The complete configuration of a server.
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct ServerConfig {
            $( pub $section: $Section, )*
            /// Tables whose rows are in PostgreSQL.
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
            fn set_value(&mut self, section: &str, name: &str, given: RawValue<'_>) -> Option<Result<(), String>> {
                match (section, name) {
                    $( $( (stringify!($section), stringify!($name)) => {
                        let read = match given {
                            RawValue::Text(text) => <$Type as ConfigValue>::from_text(text),
                            RawValue::Toml(value) => <$Type as ConfigValue>::from_toml(value),
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

            /// Checks the bounds of all numbers: a configuration built in code has not been through [`Self::set_value`].
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
    /// The server's addresses, data folder, and limits for clients.
    server: ServerSection {
        /// The folder with all of the server's data. The server creates it if it does not exist. Only one server can use it at a time.
        data: PathBuf = PathBuf::from("larder-data"), "";
        /// Address and port of the Redis protocol. With port 0, the system chooses a free port.
        resp: String = "127.0.0.1:7379".to_owned(), "";
        /// Address and port of the HTTP API, the metrics and the console. With port 0, the system chooses a free port.
        http: String = "127.0.0.1:7070".to_owned(), "";
        /// Number of threads that serve the Redis protocol. 0: one per core.
        threads: u32 = 0, "threads", at_most(1024);
        /// Number of threads for disk reads, shared by all connections. Reads from memory never wait for them.
        disk_threads: u32 = 16, "threads", between(1, 1024);
        /// The password that every client must send: Redis clients with `AUTH` or `HELLO`, HTTP clients as `Authorization: Basic` (with any user name) or `Bearer`, `larder` commands with `--password` or `LARDER_PASSWORD`. Only `/healthz` and `/readyz` need no password. Empty: no password is required.
        password: String = String::new(), "";
        /// PEM file with this server's certificate and the intermediate certificates of its authority. If set, both ports accept only TLS. If the file is replaced, new connections use the new certificate without a restart. Empty: no TLS.
        tls_cert: String = String::new(), "";
        /// PEM file with the private key of `tls_cert`.
        tls_key: String = String::new(), "";
        /// PEM file with certificates of authorities. If set, every client must present a certificate signed by one of them. Empty: client certificates are not required.
        tls_client_ca: String = String::new(), "";
        /// If `true`, the server does not start when `resp` or `http` is an address that other machines can reach and neither `password` nor `tls_client_ca` is set. If `false`, it starts without protection: anyone who can reach the port can read and change all data.
        protected_mode: bool = true, "";
        /// Maximum number of concurrent connections of the Redis protocol. The server sends an error to any further connection and closes it. If the limit of open files (`ulimit -n`) is too low for these connections and the server's own files, the server uses a lower number. The log reports it at startup; `INFO` and `CONFIG GET` show the effective number.
        max_connections: u32 = 20_000, "connections", at_least(1);
        /// Maximum number of concurrent HTTP connections. The server sends an error to any further connection and closes it, but answers `/healthz` and `/readyz` even then.
        max_http_connections: u32 = 1_000, "connections", at_least(1);
        /// Timeout of an HTTP connection, applied separately to the wait for the next request, the arrival of a complete request, any progress in sending a response, and the wait in the queue of `server.http_reads`.
        http_timeout_seconds: u64 = 30, "seconds", between(1, 86_400);
        /// Maximum number of samples, dumps, comparisons, verifications and large values that HTTP serves concurrently. Up to four times as many wait in a queue; further requests are rejected with `OVERLOADED`.
        http_reads: u32 = 16, "requests", between(1, 1024);
        /// Time after which the server closes a connection that sends nothing. 0: no limit.
        idle_timeout_seconds: u64 = 0, "seconds";
        /// Maximum number of arguments of one command.
        max_arguments: u32 = 1_048_576, "arguments", at_least(1);
        /// Maximum length of one argument of a command.
        max_argument_bytes: ByteSize = ByteSize(512 << 20), "bytes", between(1 << 10, 4 << 30);
        /// Maximum length to which `SETRANGE` can extend a value. The server fills a gap between the end of the value and the offset with zeros, and it stores, logs and replicates these zeros although no client sent them.
        max_setrange_bytes: ByteSize = ByteSize(64 << 20), "bytes", at_least(1 << 10);
        /// Size of unread replies above which the server stops reading requests from a connection, until the client reads some replies.
        output_buffer_bytes: ByteSize = ByteSize(1 << 20), "bytes", at_least(4 << 10);
        /// Maximum size of the unread notifications of one connection (`SUBSCRIBE`). The server closes a connection that exceeds it.
        subscriber_buffer_bytes: ByteSize = ByteSize(32 << 20), "bytes", at_least(4 << 10);
        /// Maximum number of keys that the server tracks for client-side caching (`CLIENT TRACKING`), like Redis's `tracking-table-max-keys`. Above it, the server invalidates some keys in the clients' caches.
        tracking_keys_max: u64 = 1_000_000, "keys", at_least(1);
        /// Maximum memory of one client of the Redis protocol. It includes incomplete requests, commands queued by `MULTI`, unread replies, previous values of rows that a long reply in progress still needs, subscriptions and their pending messages, and tracked keys (`CLIENT TRACKING`). The server closes a client that exceeds it, and rejects a `SUBSCRIBE` that would exceed it. An argument or a reply larger than half of it is rejected with `OOM`. At most `clients_memory`.
        client_memory: ByteSize = ByteSize(1 << 30), "bytes", at_least(1 << 20);
        /// Maximum memory of all clients of the Redis protocol together, like Redis's `maxmemory-clients`. Above it, the server closes the clients with the most memory, largest first. 0: a quarter of the machine's memory, at most `tables.memory` if that is set, and at least 64 MiB.
        clients_memory: ByteSize = ByteSize(0), "bytes", zero_or(at_least(1 << 20));
        /// Time after which the server closes a client of the Redis protocol that reads none of its pending replies, like Redis's `client-output-buffer-limit`. 0: no limit.
        unread_timeout_seconds: u64 = 60, "seconds";
        /// Maximum number of commands that `MULTI` queues. `EXEC` executes them without interruption, so all other clients wait for them.
        max_transaction_commands: u32 = 100_000, "commands", at_least(1);
        /// Maximum time that a stopping server waits for clients to read their replies.
        stop_timeout_seconds: u64 = 10, "seconds";
    }
    /// Pulls of new versions, and the rate limits of background work.
    fetch: FetchSection {
        /// Maximum combined transfer rate of all pulls and of replica fills. 0: unlimited. `PATCH /v1/settings` changes it until the next restart.
        bytes_per_second: u64 = 0, "bytes a second";
        /// Maximum rate at which background work (verification, warm-up and compaction together) reads this server's own files. 0: unlimited.
        verify_bytes_per_second: u64 = 0, "bytes a second";
        /// Threshold at which background work on stores yields to reads. If serving threads with work wait longer than this for a processor, averaged over a tenth of a second, the background work's share of time and both of its rates are halved, down to a tenth. When the wait falls below the threshold, they rise again. 0: never yield.
        yield_at_us: u64 = 200, "microseconds";
        /// Number of segments that one pull fetches concurrently. From a local source, at most one per four cores, because more would take processor time from reads.
        parallel: u32 = 4, "segments", between(1, 256);
        /// Maximum number of pulls that run concurrently; others wait in a queue.
        pulls: u32 = 4, "pulls", between(1, 1024);
        /// Maximum number of waiting pulls; further pulls are rejected with `OVERLOADED`.
        queue: u32 = 100, "pulls";
        /// Sources that a pull may read: folders and URL prefixes. `https://` allows every host, `s3://bucket/dir` everything below that path. Addresses of this machine and of its local link, where clouds also serve secrets, are allowed only if an entry names the host, such as `http://localhost:8000/`. In the environment, entries are separated by commas.
        allow: Vec<String> = ["/", "http://", "https://", "s3://", "gs://", "az://", "hdfs://"].map(str::to_owned).to_vec(), "";
        /// Time without received data after which a transfer is aborted and retried.
        stall_timeout_seconds: u64 = 30, "seconds", at_least(1);
        /// Number of times that an interrupted transfer is resumed from where it stopped before the pull fails.
        retries: u32 = 8, "times";
        /// Read a new version into memory before it goes live.
        warm: bool = true, "";
        /// Number of the live version's most frequently read keys that are read from a new version before it goes live, even if that version is too large to be read into memory completely. The read frequencies are estimated from a sample of one read in 61. 0: read none, and do not sample.
        warm_keys: u32 = 0, "keys", at_most(1_000_000);
    }
    /// Retention of versions, and conditions that a new version must meet. A pull can specify stricter conditions.
    stores: StoresSection {
        /// Number of versions kept of each store, including the live one. `PATCH /v1/settings` changes this setting and the next two permanently, until their value here changes.
        retain_versions: u32 = 3, "versions", at_least(1);
        /// Age above which versions are removed, except the live and the previous version. 0: no limit.
        retain_age_hours: u64 = 0, "hours";
        /// Maximum disk space of one store's versions. The oldest versions are removed first, but never the live and the previous version. 0: unlimited.
        retain_bytes: ByteSize = ByteSize(0), "bytes";
        /// Maximum number of layers of a live version (`larder build --on`). A version with more layers is compacted into a complete one at low priority. If that fails, it is not retried until the next start. 0: only `larder store compact` compacts. Automatic compaction is disabled in a cluster and if `signed_by` is set; use `larder compact` where versions are built.
        compact_layers: u32 = 6, "layers", between(0, 8);
        /// A new version with fewer records does not go live.
        min_records: u64 = 0, "records";
        /// A new version does not go live if its number of records is lower than the live version's by more than this percentage. 100: no limit.
        max_shrink_percent: f64 = 100.0, "percent", between(0, 100);
        /// A new version does not go live if its number of records is higher than the live version's by more than this percentage. 0: no limit.
        max_growth_percent: f64 = 0.0, "percent", at_least(0);
        /// Maximum percentage of nulls in a column of a new version, as `STORE/COLUMN:PERCENT`. `*` stands for every store or every column. A field that is missing from a JSON object counts as null. In the environment, entries are separated by commas.
        max_nulls: Vec<String> = Vec::new(), "";
        /// Maximum percentage of empty texts in a column of a new version, in the format of `max_nulls`.
        max_empty: Vec<String> = Vec::new(), "";
        /// Maximum shift of a column's distribution from the live version's, as `STORE/COLUMN:INDEX`. The index is a population stability index: 0.1 is a small shift, 0.25 a large one. docs/guide/quality.md describes the measurement.
        max_shift: Vec<String> = Vec::new(), "";
        /// Program with its arguments that checks every new version before it goes live. The server runs it with the version's folder as the last argument and a JSON description on standard input. An exit status other than 0 rejects the version. Empty: none. In the environment, entries are separated by commas.
        gate_program: Vec<String> = Vec::new(), "";
        /// Timeout of `gate_program`. When it expires, the server ends the program and rejects the version.
        gate_program_seconds: u64 = 300, "seconds", between(1, 86_400);
        /// If `true`, `/readyz` answers 503 while a store is damaged or its files cannot be read, so that load balancers avoid this server. If `false`, the server stays ready, `/readyz` names the store, and only reads of that store are answered with `CORRUPTED` or `IOERR`.
        unready_when_damaged: bool = false, "";
        /// Public keys as printed by `larder keygen`. If set, only versions signed by one of these keys (`larder build --sign`) are pulled and go live. A version that is already live when the first key is configured stays live. In the environment, keys are separated by commas. Use the same value on all nodes of a cluster.
        signed_by: Vec<String> = Vec::new(), "";
    }
    /// Spaces: searches of objects by their attributes.
    spaces: SpacesSection {
        /// Reject searches that no index can serve and that would therefore examine all objects of a space. These are searches of attributes without an index (not listed in `INDEX`), searches with only negated conditions (`-@city:{rome}`), and `*` in an aggregation that is not read in pages (`WITHCURSOR`). FT.SEARCH with `*` is still answered, up to `LIMIT`, in the order of keys or of an indexed attribute. The error describes the remedy, and FT.EXPLAIN shows the plan of a search. The setting of the node that receives the search applies; use the same value on all nodes of a cluster.
        refuse_full_scans: bool = false, "";
        /// If `true`, `FLUSHALL` and `FLUSHDB` drop all spaces and their aliases before they remove the rows, as in RediSearch, and are rejected within `MULTI`. If `false`, spaces are kept, and index objects that are written later. Enable it for test suites that begin with `FLUSHALL` and declare their spaces each time. The setting of the node that receives the command applies; use the same value on all nodes of a cluster.
        flush_drops_spaces: bool = false, "";
        /// Timeout of a search or an aggregation. When it expires, the command fails with `Timeout limit was reached` and never returns a partial result. A command's own `TIMEOUT` takes precedence, even if it is longer. The timeout applies to each read of a cursor separately, and not to FT.CHANGE. 0: no limit. In RediSearch the default is 500 ms, after which it returns what it has found. Each node applies its own setting.
        search_timeout_ms: u64 = 10_000, "milliseconds", between(0, 86_400_000);
    }
    /// Tables and joins: memory, durability and replication.
    tables: TablesSection {
        /// When the journal is synced to disk, like Redis's `appendfsync`: `always` before a write is acknowledged, `everysec` within a second, `no` when the operating system decides. With all three, the operating system has the write before it is acknowledged, so no acknowledged write is lost if only the process dies. If the machine fails, `always` loses nothing, `everysec` at most the last second, and `no` whatever the operating system had not yet written. docs/guide/joins.md has the details.
        fsync: Fsync = Fsync::EverySecond, "";
        /// Time without a completed write or sync of the journal, or with every write failing, after which `/readyz` reports that the server cannot serve requests, and a node of a cluster gives up its slots to their replicas.
        stall_seconds: u64 = 5, "seconds", between(1, 86_400);
        /// Maximum memory of tables and join outputs. At the limit, outputs are evicted first, and computed again when they are read; after that, writes are rejected with `OOM`. 0: unlimited.
        memory: ByteSize = ByteSize(0), "bytes";
        /// Minimum size of values that are stored in a file in the data folder instead of in memory. The operating system caches the parts of the file that are in use, so the data can exceed the memory. An object counts as one value. Keys, the indexes of spaces, and rows that joins read or produce stay in memory. 0: all values stay in memory. Otherwise, the file's blocks are reserved as it grows, and values stay in memory if the disk is full.
        values_on_disk: ByteSize = ByteSize(0), "bytes";
        /// Number of nodes in a cluster that store each row, including its owner. Initial value for a new cluster.
        replicas: u32 = 1, "nodes", between(1, 16);
        /// When a write in a cluster is acknowledged: `owner` when the row's owner has it, `replicas` when all replicas in sync also have it, so that it survives the loss of any of these nodes. Initial value for a new cluster.
        acknowledge: Acknowledge = Acknowledge::Replicas, "";
    }
    /// Connection to the PostgreSQL database that holds the rows of the tables declared by `[tables.<name>]`.
    postgres: PostgresSection {
        /// Address of the database: `postgres://user:password@host:port/database?sslmode=verify-full`. The role needs `REPLICATION`, and `SELECT` on the tables. To keep the password out of this file, set the environment variable. Empty: no table is in PostgreSQL.
        url: String = String::new(), "";
        /// The publication from which larder receives changes. It must publish inserts, updates, deletes and truncates of every mapped table.
        publication: String = "larder".to_owned(), "";
        /// Lifetime of the replication slot. `temporary`: PostgreSQL drops the slot when the connection ends, so a stopped larder never fills PostgreSQL's disk. After a lost connection, rows are loaded again when they are read. `permanent`: the slot and the loaded rows outlive a lost connection. larder creates the slot again at startup and drops it when it stops. If larder is killed, the slot retains PostgreSQL's WAL until larder runs again or the slot is dropped.
        slot: SlotLife = SlotLife::Temporary, "";
        /// The name of a permanent slot. Each server needs its own name; a node of a cluster appends its node name.
        slot_name: String = "larder".to_owned(), "";
        /// Number of connections for loads and writes, in addition to the replication connection.
        connections: u32 = 4, "connections", between(1, 100);
        /// Maximum number of rows of one load. A read that needs more is rejected; use a narrower range.
        load_rows_max: u64 = 1_000_000, "rows";
        /// Maximum number of changes of one transaction that become visible atomically. A transaction with more changes, or with more than 64 MiB, is applied in parts of at most 1024 changes, between which other clients are served and read partial results. While a serving thread applies a transaction atomically, it serves no client: about a microsecond for each change and each row that joins compute from it.
        atomic_changes_max: u64 = 1024, "changes", between(1, 100_000);
        /// Timeout of a load or a write.
        statement_timeout_seconds: u64 = 30, "seconds", between(1, 86_400);
        /// Time without received data after which a connection is considered lost. larder requests a keepalive from PostgreSQL every second.
        silence_timeout_seconds: u64 = 20, "seconds", between(1, 86_400);
        /// Time after a lost connection during which loaded rows are still served in their last known state. After that, reads of them are rejected until the connection is restored. 0: reject immediately.
        stale_seconds: u64 = 60, "seconds";
    }
    /// Cluster membership of this server.
    cluster: ClusterSection {
        /// `off`: the server is standalone, and rejects `CLUSTER`. `one`: the server is a cluster of one node that owns every slot, for clients of Redis Cluster; the node's id is stored in `cluster.json` in the data folder. `etcd`: the server is a node of a cluster whose map is stored in etcd.
        mode: ClusterMode = ClusterMode::Off, "";
        /// The name of the cluster. Several clusters can share one etcd.
        name: String = "larder".to_owned(), "";
        /// The name of this node, which never changes: 1 to 64 letters, digits, `_`, `-` and `.`, beginning with a letter or digit.
        node: String = "node-1".to_owned(), "";
        /// The address announced to clients, as `host:port` or `host`. Set it if clients reach the server through an address other than its own, such as that of a proxy. Empty: the address through which the client connected.
        announce: String = String::new(), "";
        /// Address and port for the other nodes of the cluster. With port 0, the system chooses a free port.
        peer: String = "127.0.0.1:7380".to_owned(), "";
        /// The address announced to the other nodes, as `host:port` or `host`. Empty: the address in `cluster.peer`.
        peer_announce: String = String::new(), "";
        /// Addresses of etcd's members. In the environment, entries are separated by commas.
        etcd: Vec<String> = vec!["http://127.0.0.1:2379".to_owned()], "";
        /// The user name for etcd, if it requires one.
        etcd_user: String = String::new(), "";
        /// The password of `etcd_user`.
        etcd_password: String = String::new(), "";
        /// PEM file with certificates of authorities, used to verify etcd's certificates. Empty: the system's authorities.
        etcd_ca: String = String::new(), "";
        /// PEM file with the certificate that this server presents to etcd. Empty: none.
        etcd_cert: String = String::new(), "";
        /// PEM file with the private key of `etcd_cert`.
        etcd_key: String = String::new(), "";
        /// The failure domain of this node, such as a rack, a room or a data center. Copies of a slot are placed in different zones if there are enough.
        zone: String = String::new(), "";
        /// This node's share of the slots, relative to the weights of the other nodes.
        weight: u32 = 1, "shares", between(1, 1_000_000);
        /// `base`: the node owns rows and data sets. `compute`: the node computes join outputs for reads. `both`: both.
        roles: NodeRoles = NodeRoles::Both, "";
        /// Handling of a request for a key that another node owns: `proxy` forwards it to that node. `redirect` answers `MOVED`, as in Redis Cluster; SCAN, KEYS and DBSIZE then cover only the node's own slots.
        routing: Routing = Routing::Proxy, "";
        /// Handling of reads of stores on a node that cannot reach etcd, once its lease has expired and another node reports a newer map: `forward` forwards them to nodes that have the versions that are then live, `refuse` answers `CLUSTERDOWN`. In both cases `/readyz` reports the condition.
        cut_off_reads: CutOffReads = CutOffReads::Forward, "";
        /// PEM file with the certificate of the authority that signs the nodes' certificates. Only nodes with such a certificate can connect.
        tls_ca: String = String::new(), "";
        /// PEM file with this node's certificate, issued for its name or for the host of its address.
        tls_cert: String = String::new(), "";
        /// PEM file with the private key of `tls_cert`.
        tls_key: String = String::new(), "";
        /// If `true`, communicate with other nodes without TLS even if `cluster.peer` is an address that other machines can reach. Anyone who can reach the port can then read and change all data.
        plain: bool = false, "";
        /// Number of nodes that must register before a new cluster assigns its slots. Initial value for a new cluster.
        start_nodes: u32 = 1, "nodes", between(1, 10_000);
        /// Duration of a node's lease. A node that does not renew it in this time is considered dead, and its replicas take over. Initial value for a new cluster.
        lease_seconds: u64 = 4, "seconds", between(2, 3_600);
        /// Time after which the copies of a dead node are recreated on other nodes. Initial value for a new cluster.
        replace_after_seconds: u64 = 300, "seconds";
        /// Minimum number of copies of a slot, including the owner's, that must be in sync for the slot to accept writes. With fewer, writes are rejected with `NOREPLICAS`. At most `tables.replicas`. Initial value for a new cluster.
        min_copies: u32 = 1, "copies", between(1, 16);
    }
    /// The log, which is written to standard error.
    log: LogSection {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter per module, such as `info,larder_server=debug`.
        level: String = "info".to_owned(), "";
        /// Format of a line: plain text, or a JSON object.
        format: LogFormat = LogFormat::Text, "";
    }
    /// The slow log that `SLOWLOG GET` shows.
    slowlog: SlowlogSection {
        /// Minimum duration of a command that the slow log records. 0: record every command. `PATCH /v1/settings` changes it until the next restart.
        threshold_us: u64 = 10_000, "microseconds";
        /// Maximum number of entries. The oldest are removed first.
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
