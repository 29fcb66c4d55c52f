//! The progress of opening the stores and loading the rows. Meanwhile, `resp/loading.rs` answers clients, and HTTP answers
//! `/healthz` with 200 and `/readyz` with 503 and the progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use larder_journal::Entry;
use larder_protocol::errors::Code;

use crate::error::Error;

/// The progress of a start: the stores are opened first, then the rows are loaded.
#[derive(Default)]
pub struct LoadProgress {
    is_loading: AtomicBool,
    are_stores_open: AtomicBool,
    stores: AtomicU64,
    stores_total: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
    bytes_total: AtomicU64,
}

impl LoadProgress {
    /// `bytes_total` is the size of the journal to read.
    pub fn begin(&self, bytes_total: u64) {
        self.bytes_total.store(bytes_total, Relaxed);
        self.is_loading.store(true, Relaxed);
    }

    pub fn begin_stores(&self, total: u64) {
        self.stores_total.store(total, Relaxed);
    }

    pub fn count_store(&self) {
        self.stores.fetch_add(1, Relaxed);
    }

    pub fn end_stores(&self) {
        self.are_stores_open.store(true, Relaxed);
    }

    pub fn end(&self) {
        self.is_loading.store(false, Relaxed);
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        self.is_loading.load(Relaxed)
    }

    /// The loaded bytes of the journal, and its total.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Relaxed), self.bytes_total.load(Relaxed))
    }

    /// The loaded percentage of the journal.
    pub fn percent(&self) -> u64 {
        let (bytes, total) = self.bytes();
        (bytes * 100).checked_div(total).unwrap_or(0).min(100)
    }

    /// Counts an entry of the journal. Only the thread that reads the journal calls this.
    #[inline]
    pub fn count(&self, entry: &Entry<'_>) {
        let bytes = self.bytes.load(Relaxed) + entry.payload_bytes() as u64;
        self.bytes.store(bytes, Relaxed);
        self.entries.store(self.entries.load(Relaxed) + 1, Relaxed);
    }

    /// The progress as a message, while stores are being opened or rows are being loaded.
    pub fn describe(&self) -> Option<String> {
        if !self.is_loading() {
            return None;
        }
        if !self.are_stores_open.load(Relaxed) {
            let (opened, total) = (&self.stores, &self.stores_total);
            return Some(format!(
                "stores are being opened: {} of {}",
                opened.load(Relaxed),
                total.load(Relaxed)
            ));
        }
        Some(format!(
            "rows are being loaded into memory: {} entries of the journal, {} % of its bytes",
            self.entries.load(Relaxed),
            self.percent()
        ))
    }

    /// # Errors
    /// [`Code::Loading`] until all rows are in memory.
    pub fn ensure_loaded(&self) -> Result<(), Error> {
        match self.describe() {
            None => Ok(()),
            Some(progress) => Err(Error::Tables(Code::Loading, progress)),
        }
    }

    /// # Errors
    /// [`Code::Loading`] until all stores are open.
    pub fn ensure_stores_open(&self) -> Result<(), Error> {
        if self.are_stores_open.load(Relaxed) {
            Ok(())
        } else {
            self.ensure_loaded()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_only_while_the_server_starts() {
        let progress = LoadProgress::default();
        assert!(progress.ensure_loaded().is_ok());
        progress.begin(40);
        progress.begin_stores(2);
        progress.count_store();
        let message = progress.describe().expect("it loads");
        assert_eq!(message, "stores are being opened: 1 of 2");
        assert!(progress.ensure_stores_open().is_err());
        progress.end_stores();
        assert!(progress.ensure_stores_open().is_ok());
        progress.count(&Entry::Put {
            key: b"12345",
            value: b"12345",
            deadline_ms: None,
        });
        let message = progress.describe().expect("it loads");
        assert!(
            message.ends_with("1 entries of the journal, 25 % of its bytes"),
            "{message}"
        );
        progress.end();
        assert_eq!(progress.describe(), None);
    }
}
