//! The state shared by all threads of a server, and its construction from the configuration. `server.rs` starts the
//! threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_protocol::config::{ClusterMode, Routing, ServerConfig};
use larder_protocol::http::{Settings, SettingsInForce};

use crate::catalog::Catalog;
use crate::client_tls::ClientTls;
use crate::clients::Tracking;
use crate::descriptors::Descriptors;
use crate::error::Error;
use crate::fault_monitor::FaultMonitor;
use crate::fetch::Pulls;
use crate::fetch::cluster::Wake;
use crate::guess_limiter::GuessLimiter;
use crate::hot_keys::HotKeys;
use crate::http;
use crate::loading::LoadProgress;
use crate::membership::Membership;
use crate::password::Password;
use crate::settings::RunningSettings;
use crate::spaces;
use crate::stats::Stats;
use crate::stores::Stores;
use crate::supervision::Supervisor;
use crate::tables::postgres::Postgres;
use crate::tables::{Cursors, Shares, TablesHandle};
use crate::watchdog::Turns;

/// The state shared by all threads of a server.
pub struct Shared {
    pub config: ServerConfig,
    /// Receives the failures of threads.
    pub(crate) supervisor: Supervisor,
    pub(crate) loading: LoadProgress,
    /// The last turn of each serving thread.
    pub(crate) turns: Arc<Turns>,
    pub catalog: Arc<Catalog>,
    pub stats: Stats,
    pub started_at: Instant,
    /// `None` if TLS for clients is not configured.
    pub(crate) client_tls: Option<Arc<ClientTls>>,
    pub(crate) descriptors: Descriptors,
    pub(crate) guess_limiter: GuessLimiter,
    pub(crate) stores: Stores,
    pub(crate) pulls: Pulls,
    pub(crate) hot_keys: HotKeys,
    /// For the stores of a cluster.
    pub(crate) agent: Wake,
    pub(crate) samples: http::Samples,
    pub(crate) http_read_limiter: http::ReadLimiter,
    pub(crate) settings: RunningSettings,
    pub(crate) tables: Arc<TablesHandle>,
    pub(crate) postgres: Option<Postgres>,
    /// `None` if the server is not in a cluster.
    pub(crate) membership: Option<Membership>,
    /// The RESP address; `None` before the server listens.
    pub(crate) resp_addr: Option<SocketAddr>,
}

impl Shared {
    /// The mode in Redis's terms.
    pub fn mode(&self) -> &'static str {
        match self.membership {
            Some(_) => "cluster",
            None => "standalone",
        }
    }

    /// Creates the shared state, before any serving threads exist.
    pub(crate) fn new(config: ServerConfig) -> Result<Shared, Error> {
        let settings = RunningSettings::load(&config)?;
        let catalog = Arc::new(Catalog::default());
        let stores = Stores::new(
            &config.server.data,
            catalog.clone(),
            config.cluster.mode == ClusterMode::Etcd,
            crate::stores::gates::signers(&config)?,
            crate::stores::gates::program(&config),
        )?;
        let cores = crate::stats::thread_count(&config);
        let cursors = match config.cluster.mode {
            ClusterMode::Etcd => Cursors::for_node(&config.cluster.node),
            _ => Cursors::default(),
        };
        let space_cursors = match config.cluster.mode {
            ClusterMode::Etcd => spaces::cursors::Cursors::for_node(&config.cluster.node),
            _ => spaces::cursors::Cursors::default(),
        };
        let tracking = Arc::new(Tracking::new(config.server.tracking_keys_max as usize));
        let notified = tracking.clone();
        catalog.on_change(move |store| notified.invalidate_store(store));
        let tables = TablesHandle::new(
            cores,
            !config.mapped.is_empty(),
            cursors,
            space_cursors,
            FaultMonitor::new(Duration::from_secs(config.tables.stall_seconds)),
            config.cluster.routing == Routing::Redirect,
            tracking.clone(),
        );
        let tables = Arc::new(tables);
        let supervisor = Supervisor::default();
        let postgres = Postgres::start(&config, tables.clone(), &supervisor)?;
        let pulls = Pulls::new(&config.fetch)?;
        let throttle = pulls.throttle.clone();
        let filled = move |bytes| {
            throttle.charge(bytes);
            let now = throttle.figures_now();
            Shares {
                background: now.share,
                unhurried: now.low_priority_share,
            }
        };
        // Nothing has set it before.
        let _ = tables.background.set(Box::new(filled));
        let turns = Arc::new(Turns::new(cores));
        tables.fault_monitor.watch_cores(turns.clone());
        Ok(Shared {
            hot_keys: HotKeys::new(config.fetch.warm_keys as usize),
            stats: Stats::new(&config),
            catalog,
            client_tls: ClientTls::open(&config)?,
            started_at: Instant::now(),
            supervisor,
            turns,
            loading: LoadProgress::default(),
            descriptors: Descriptors::prepare(&config),
            guess_limiter: GuessLimiter::default(),
            stores,
            pulls,
            agent: Wake::default(),
            samples: http::Samples::default(),
            http_read_limiter: http::ReadLimiter::new(&config),
            settings,
            tables,
            postgres,
            membership: None,
            resp_addr: None,
            config,
        })
    }

    /// A message about the serving threads that have not turned for a second; `None` if all turn.
    pub fn stall(&self) -> Option<String> {
        let stalls = self.turns.describe_stalls();
        (!stalls.is_empty()).then(|| stalls.join("; "))
    }

    /// The password that clients of either protocol must give.
    pub fn password(&self) -> Password<'_> {
        Password(&self.config.server.password)
    }

    /// Changes the settings that are present in `requested`. `settings.rs` describes how long they apply.
    ///
    /// # Errors
    /// Those of [`RunningSettings::change`]; nothing is changed then.
    pub fn change_settings(&self, requested: Settings) -> Result<SettingsInForce, Error> {
        let changed = self.settings.change(requested)?;
        self.pulls.throttle.set_rate(changed.fetch_bytes_per_second);
        self.stats
            .set_slowlog_threshold_us(changed.slowlog_threshold_us);
        Ok(changed)
    }
}
