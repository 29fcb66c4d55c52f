//! Start and stop: the order in which the parts of a server come up and go down.
//!
//! Up: lock the folder, bind both ports, recover the stores, serve RESP, serve HTTP, look after
//! residency and retention. Down: in the opposite order. Ports are bound before the stores are
//! opened, so that a port in use is reported at once, and accept only after.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_protocol::config::ServerConfig;
use larder_protocol::http::Settings;

use crate::catalog::Catalog;
use crate::error::Error;
use crate::fetch::Pulls;
use crate::http::HttpThread;
use crate::maintenance::Maintenance;
use crate::password::Password;
use crate::stats::Stats;
use crate::stores::{FolderLock, Retention, Stores};
use crate::{http, resp};

/// What every thread of a server sees.
pub struct Shared {
    pub config: ServerConfig,
    pub catalog: Arc<Catalog>,
    pub stats: Stats,
    pub started_at: Instant,
    pub(crate) stores: Stores,
    pub(crate) pulls: Pulls,
    pub(crate) samples: http::Samples,
    settings: Mutex<Settings>,
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    resp: resp::RespThreads,
    resp_addr: SocketAddr,
    http: HttpThread,
    maintenance: Maintenance,
    _lock: FolderLock,
}

impl Server {
    /// Starts a server on `config.server.data`. Opening many large stores takes a while and blocks
    /// the calling task.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder is in use or a port cannot be bound: the message says which.
    pub async fn start(config: ServerConfig) -> Result<Server, Error> {
        let lock = FolderLock::take(&config.server.data)?;
        let resp_listeners = resp::bind(&config)?;
        let resp_addr = resp_listeners.addr();
        let http_listener = bind(&config.server.http, "http")?;
        let catalog = Arc::new(Catalog::default());
        let stores = Stores::recover(&config.server.data, catalog.clone())?;
        let shared = Arc::new(Shared {
            stats: Stats::new(&config),
            catalog,
            started_at: Instant::now(),
            stores,
            pulls: Pulls::new(config.fetch.bytes_per_second),
            samples: http::Samples::default(),
            settings: Mutex::new(Settings {
                fetch_bytes_per_second: Some(config.fetch.bytes_per_second),
                retain_versions: Some(config.stores.retain_versions),
                retain_age_hours: Some(config.stores.retain_age_hours),
                retain_bytes: Some(config.stores.retain_bytes.0),
                slowlog_threshold_us: Some(config.slowlog.threshold_us),
            }),
            config,
        });
        let maintenance = Maintenance::spawn(shared.clone())?;
        let resp = resp::spawn(shared.clone(), resp_listeners)?;
        let http = http::spawn(shared.clone(), http_listener)?;
        tracing::info!(resp = %resp_addr, http = %http.addr(), "serving");
        Ok(Server {
            shared,
            resp,
            resp_addr,
            http,
            maintenance,
            _lock: lock,
        })
    }

    pub fn resp_addr(&self) -> SocketAddr {
        self.resp_addr
    }

    pub fn http_addr(&self) -> SocketAddr {
        self.http.addr()
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends requests in hand and connections, keeps what running pulls fetched, and waits for all threads.
    pub async fn stop(self) {
        let Server {
            shared,
            resp,
            http,
            maintenance,
            ..
        } = self;
        http.stop();
        resp.stop();
        shared.pulls.shut_down();
        maintenance.stop();
        tracing::info!("stopped");
    }
}

impl Shared {
    /// What clients of either protocol must give.
    pub fn password(&self) -> Password<'_> {
        Password(&self.config.server.password)
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        *self.lock_settings()
    }

    /// Changes those settings that `wanted` gives, for as long as the server runs.
    ///
    /// # Errors
    /// [`Error::BadRequest`] names the setting and its range; nothing is changed then.
    pub fn change_settings(&self, wanted: Settings) -> Result<Settings, Error> {
        if wanted.retain_versions == Some(0) {
            return Err(Error::BadRequest(
                "retain_versions is 0; it counts the live version, so give 1 or more".to_owned(),
            ));
        }
        let mut settings = self.lock_settings();
        let merged = Settings {
            fetch_bytes_per_second: wanted
                .fetch_bytes_per_second
                .or(settings.fetch_bytes_per_second),
            retain_versions: wanted.retain_versions.or(settings.retain_versions),
            retain_age_hours: wanted.retain_age_hours.or(settings.retain_age_hours),
            retain_bytes: wanted.retain_bytes.or(settings.retain_bytes),
            slowlog_threshold_us: wanted
                .slowlog_threshold_us
                .or(settings.slowlog_threshold_us),
        };
        *settings = merged;
        if let Some(rate) = wanted.fetch_bytes_per_second {
            self.pulls.throttle.set_rate(rate);
        }
        if let Some(threshold) = wanted.slowlog_threshold_us {
            self.stats.set_slowlog_threshold_us(threshold);
        }
        tracing::info!(?merged, "settings changed");
        Ok(merged)
    }

    pub(crate) fn retention(&self) -> Retention {
        let settings = self.settings();
        Retention {
            versions: settings.retain_versions.unwrap_or(0),
            age_hours: settings.retain_age_hours.unwrap_or(0),
            bytes: settings.retain_bytes.unwrap_or(0),
        }
    }

    fn lock_settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bind(addr: &str, section: &str) -> Result<TcpListener, Error> {
    let refused = |error: std::io::Error| {
        Error::Io(format!(
            "cannot listen on {addr} (server.{section}): {error}; stop what uses that port, or choose another with --{section}"
        ))
    };
    let listener = TcpListener::bind(addr).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}
