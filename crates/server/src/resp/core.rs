//! A core as its sessions use it: its part of the tables, its statistics and its spare buffers.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::commands::{COMMANDS, Id, Spec, spec};
use larder_protocol::resp::Limits;

use super::nodes::Nodes;
use super::tables::RowCounts;
use crate::Shared;
use crate::clients::Clients;
use crate::hot_keys::Sampler;
use crate::stats::{CoreStats, Series};
use crate::tables::Tables;

/// Maximum size of one read from a socket.
pub(super) const READ_BYTES: usize = 64 << 10;
/// A larger buffer is freed when it is empty. The limit leaves room for long replies, because allocating memory
/// repeatedly costs more than filling it.
const SPARE_BYTES_MAX: usize = 2 << 20;
/// Maximum capacity of all spare buffers of a core.
const SPARES_BYTES_MAX: usize = 8 << 20;
const FIRST_BYTES: usize = 4 << 10;
/// Maximum size of a request besides one argument of maximum size.
const REQUEST_REST_BYTES: usize = 64 << 20;

pub(super) struct Core {
    pub index: usize,
    /// The other nodes, in a cluster.
    pub nodes: Option<Rc<Nodes>>,
    pub shared: Arc<Shared>,
    pub clients: Arc<Clients>,
    pub stats: Arc<CoreStats>,
    pub limits: Limits,
    /// The memory limit of one client determines `limits`, because the request limits exceed it.
    is_bounded_by_memory: bool,
    pub output_bytes_max: usize,
    /// The buffer for reads from sockets. All sessions share it, because it is never in use across an await.
    pub read_buffer: RefCell<Box<[u8]>>,
    pub sessions: Cell<usize>,
    /// This core's part of the tables.
    pub tables: Rc<Tables>,
    /// The lengths of previous replies of the tables.
    pub row_counts: RowCounts,
    /// Samples the keys that are read, if the next version should be warmed with them.
    pub hot: Option<Sampler>,
    spares: RefCell<Vec<Vec<u8>>>,
    /// Total capacity of `spares`.
    spare_bytes: Cell<usize>,
    storeless: CommandSeries,
    by_store: RefCell<HashMap<Box<[u8]>, Rc<CommandSeries>>>,
}

/// The statistics of one store's commands, each looked up once.
pub(super) struct CommandSeries {
    store: Option<Box<str>>,
    series: [OnceCell<Arc<Series>>; COMMANDS.len()],
}

impl CommandSeries {
    fn new(store: Option<&str>) -> CommandSeries {
        CommandSeries {
            store: store.map(Box::from),
            series: std::array::from_fn(|_| OnceCell::new()),
        }
    }

    #[inline]
    pub fn of(&self, stats: &CoreStats, command: Id) -> &Arc<Series> {
        self.series[command as usize]
            .get_or_init(|| stats.series(self.store.as_deref(), spec(command).name))
    }
}

impl Core {
    pub fn new(
        index: usize,
        shared: Arc<Shared>,
        clients: Arc<Clients>,
        tables: Rc<Tables>,
        nodes: Option<Rc<Nodes>>,
    ) -> Core {
        let server = &shared.config.server;
        let client_limits = clients.limits;
        let argument_bytes_max = server.max_argument_bytes.0 as usize;
        // No command needs several arguments of maximum size, but some need many short ones.
        let request_bytes_max = argument_bytes_max + REQUEST_REST_BYTES;
        let limits = Limits {
            arguments_max: server.max_arguments as usize,
            argument_bytes_max: argument_bytes_max.min(client_limits.argument_bytes()),
            request_bytes_max: request_bytes_max.min(client_limits.request_bytes()),
            ..Limits::default()
        };
        Core {
            index,
            nodes,
            clients,
            stats: shared.stats.core(index),
            limits,
            is_bounded_by_memory: limits.argument_bytes_max < argument_bytes_max
                || limits.request_bytes_max < request_bytes_max,
            output_bytes_max: (server.output_buffer_bytes.0 as usize)
                .min(client_limits.pipelined_bytes()),
            read_buffer: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
            sessions: Cell::new(0),
            tables,
            row_counts: RowCounts::default(),
            hot: shared.hot_keys.sampler(),
            spares: RefCell::default(),
            spare_bytes: Cell::new(0),
            storeless: CommandSeries::new(None),
            by_store: RefCell::default(),
            shared,
        }
    }

    /// Returns the maximum length of an argument, and the setting that determines it.
    pub fn argument_bytes_max(&self) -> (usize, &'static str) {
        let max = self.limits.argument_bytes_max;
        if (max as u64) < self.shared.config.server.max_argument_bytes.0 {
            (max, "half of server.client_memory")
        } else {
            (max, "server.max_argument_bytes")
        }
    }

    /// Returns whether a request of at least this size is rejected because of the memory limit of one client.
    pub fn exceeds_client_memory(&self, request_bytes: usize) -> bool {
        self.is_bounded_by_memory
            && request_bytes > self.clients.limits.argument_bytes()
            && request_bytes as u64
                <= self.shared.config.server.max_argument_bytes.0 + REQUEST_REST_BYTES as u64
    }

    /// Returns the statistics of a command that concerns no store.
    pub fn plain_series(&self, command: &Spec) -> &Arc<Series> {
        self.storeless.of(&self.stats, command.id)
    }

    /// Returns the statistics of an existing store. Do not call it with other names: the entries are never removed.
    pub fn store_series(&self, store: &str) -> Rc<CommandSeries> {
        if let Some(found) = self.by_store.borrow().get(store.as_bytes()) {
            return found.clone();
        }
        let created = Rc::new(CommandSeries::new(Some(store)));
        self.by_store
            .borrow_mut()
            .insert(store.as_bytes().into(), created.clone());
        created
    }

    /// Returns whether messages of other cores are queued.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.shared.tables.has_messages(self.index)
    }

    /// Returns an empty buffer.
    #[inline]
    pub fn take_buffer(&self) -> Vec<u8> {
        let Some(buffer) = self.spares.borrow_mut().pop() else {
            return Vec::with_capacity(FIRST_BYTES);
        };
        self.spare_bytes
            .set(self.spare_bytes.get() - buffer.capacity());
        buffer
    }

    /// Returns a buffer to the pool, or frees it if it is too large or the pool is full.
    #[inline]
    pub fn give_buffer(&self, mut buffer: Vec<u8>) {
        let bytes = self.spare_bytes.get() + buffer.capacity();
        if bytes <= SPARES_BYTES_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.spare_bytes.set(bytes);
            self.spares.borrow_mut().push(buffer);
        }
    }
}
