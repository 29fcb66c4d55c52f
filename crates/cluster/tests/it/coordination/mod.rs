//! The coordination service: the guarantees of every implementation (`conformance`), and its behavior under faults.

mod conformance;
mod embedded;
mod etcd;
mod faults;
mod model;
mod simulated;

use std::future::Future;
use std::time::Duration;

use larder_cluster::coordination::{Etcd, EtcdConfig};

/// Waits with a timeout that only a hang reaches.
pub async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(60), what).await;
    waited.expect("it comes within a minute")
}

/// A client with its own key prefix.
pub fn client(endpoints: Vec<String>, prefix: &str) -> Etcd {
    let prefix = format!("/larder/{prefix}/");
    let config = EtcdConfig {
        endpoints,
        prefix,
        ..EtcdConfig::default()
    };
    Etcd::new(config).expect("it can be used")
}
