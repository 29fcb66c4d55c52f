//! The coordination service: what every kind of it promises (`conformance`), and what becomes of it when things break.

mod conformance;
mod embedded;
mod etcd;
mod faults;
mod model;
mod simulated;

use std::future::Future;
use std::time::Duration;

use larder_cluster::coordination::{Etcd, EtcdConfig};

/// Waits, and fails only when it hangs.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(60), what).await;
    waited.expect("it comes within a minute")
}

/// A client of its own keys.
pub fn client(endpoints: Vec<String>, prefix: &str) -> Etcd {
    let prefix = format!("/larder/{prefix}/");
    let config = EtcdConfig {
        endpoints,
        prefix,
        ..EtcdConfig::default()
    };
    Etcd::new(config).expect("it can be used")
}
