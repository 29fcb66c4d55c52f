//! Reads versions into memory before requests need them, if they fit.
//!
//! A version that does not fit in addition to the served ones would evict their pages without a benefit, so its pages are read on
//! demand.

use std::sync::Arc;

use larder_batch::Version;
use larder_types::{ByteSize, StoreName};

use crate::Shared;
use crate::supervision::contain;

/// Warms a version that will go live, if `fetch.warm` is set and memory allows.
pub fn warm_new(shared: &Shared, version: &Version, should_continue: &dyn Fn() -> bool) {
    let snapshot = shared.catalog.load();
    let served = snapshot
        .iter()
        .map(|live| live.version.residency().resident_bytes);
    let need = version.local_size_bytes().saturating_add(served.sum());
    if shared.config.fetch.warm && fits_in_memory(need) {
        let pace = shared.pulls.throttle.pace();
        version.warm(&|done| pace.advance_to(done, should_continue));
    }
}

/// Reads the most frequently read keys of the store's live version in a version that will go live, if `fetch.warm_keys` is set.
/// Returns how many were found.
pub fn warm_hot_keys(
    shared: &Shared,
    store: &StoreName,
    version: &Version,
    should_continue: &dyn Fn() -> bool,
) -> u64 {
    let pace = shared.pulls.throttle.pace();
    let mut found = 0;
    for key in shared.hot_keys.hottest(store) {
        if !should_continue() {
            break;
        }
        // An error is reported to readers of the key. The key may be new, or on another node.
        if let Ok(Some(value)) = version.get(&key) {
            found += 1;
            pace.step(value.len() as u64, should_continue);
        }
    }
    shared.hot_keys.add_warmed(found);
    if found > 0 {
        tracing::info!(%store, found, "the hottest keys were read in the new version");
    }
    found
}

/// Warms the live versions after a start, one store after the other, until the server stops.
pub fn warm_served(shared: &Arc<Shared>, should_continue: &dyn Fn() -> bool) {
    if !shared.config.fetch.warm {
        return;
    }
    let live: Vec<Arc<Version>> = shared
        .catalog
        .load()
        .iter()
        .map(|live| live.version.clone())
        .collect();
    if fits_in_memory(live.iter().map(|version| version.local_size_bytes()).sum()) {
        live.iter()
            .take_while(|_| should_continue())
            .for_each(|version| {
                let pace = shared.pulls.throttle.pace();
                // An error is reported to readers of the version.
                let _ = contain(&format!("warming {}", version.path().display()), || {
                    version.warm(&|done| pace.advance_to(done, should_continue));
                    Ok(())
                });
            });
    }
}

fn fits_in_memory(need: u64) -> bool {
    let free = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_bytes(&text));
    let fits_in_memory = free.is_none_or(|free| need <= free);
    if !fits_in_memory {
        tracing::info!(need = %ByteSize(need), "the version is not warmed: it does not fit into memory");
    }
    fits_in_memory
}

/// Memory that the system could provide without swapping, which includes the page cache.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let meminfo = "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nBuffers: 1 kB\n";
        assert_eq!(available_bytes(meminfo), Some(8000 * 1024));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
        assert!(fits_in_memory(1));
    }
}
