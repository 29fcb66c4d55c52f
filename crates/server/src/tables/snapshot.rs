//! Snapshots: writes all base rows and definitions in chunks, while writes continue.
//!
//! Each row is added in its current state; later changes are in the log that begins with the snapshot.

use std::ops::ControlFlow;
use std::time::Duration;

use larder_join::Limits;
use larder_journal::{Entry, Error, LastSnapshot, SnapshotPart};

use super::Tables;

/// Rows and bytes between two turns of the core's loop.
const CHUNK_ROWS: u64 = 512;
const CHUNK_BYTES: usize = 1 << 20;

impl Tables {
    /// Makes a snapshot. A failure is logged, and the journal decides when to retry.
    pub(super) async fn snapshot(&self) {
        if let Err(error) = self.write_snapshot().await {
            tracing::warn!(%error, "a snapshot of the tables was aborted; the log continues");
        }
    }

    /// Returns why the last snapshot failed, if it did.
    pub(super) fn snapshot_failure(&self) -> Option<String> {
        match self.journal.last_snapshot()? {
            LastSnapshot::Made { .. } => None,
            LastSnapshot::Failed(why) => Some(why.to_string()),
        }
    }

    async fn write_snapshot(&self) -> Result<(), Error> {
        let parts = self.journal.begin_snapshot(self.handle.cores())?;
        let mut own = None;
        let mut others = Vec::new();
        for (core, part) in parts.into_iter().enumerate() {
            if core == self.index {
                own = Some(part);
                continue;
            }
            others.push(self.handle.start_on(core, None, move |tables| async move {
                tables.write_part(part, false).await
            }));
        }
        if let Some(part) = own {
            self.write_part(part, true).await?;
        }
        for other in others {
            // A core that has failed ends the server, and the part that it drops invalidates the snapshot.
            if let Ok(written) = other.await {
                written?;
            }
        }
        Ok(())
    }

    /// Writes this core's rows and, if requested, the definitions.
    async fn write_part(&self, mut part: SnapshotPart, definitions: bool) -> Result<(), Error> {
        if let Some(replicated) = &self.replicated {
            // The cluster map holds the definitions.
            self.write_slots(replicated, &mut part).await?;
            part.finish(&mut self.producer.borrow_mut());
            self.wake_maintenance();
            return Ok(());
        }
        let tables = self.read(|engine, _| engine.tables());
        for table in tables.iter().filter(|t| !t.computed && !t.supplied) {
            let mut lo = table.name.clone();
            // Changes of a pause are logged only at its end.
            self.wait_while_paused(None).await;
            self.wait_until_expired_rows_are_removed().await;
            while let Some(last) = self.add_chunk(&mut part, &table.name, &lo)? {
                lo = last;
                lo.push(0);
                while !part.has_room() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                tokio::task::yield_now().await;
                self.wait_while_paused(None).await;
                self.wait_until_expired_rows_are_removed().await;
            }
        }
        self.wait_while_paused(None).await;
        for join in self
            .read(|engine, _| engine.list())
            .into_iter()
            .filter(|_| definitions)
        {
            part.add(Entry::Define {
                name: join.name.as_bytes(),
                text: join.definition.as_bytes(),
            })?;
        }
        if definitions {
            for (name, record) in self.handle.spaces.load().records() {
                let name = name.as_bytes();
                part.add(Entry::Space { name, record })?;
            }
        }
        part.finish(&mut self.producer.borrow_mut());
        self.wake_maintenance();
        Ok(())
    }

    /// Waits until all expired rows are removed, which takes several steps.
    async fn wait_until_expired_rows_are_removed(&self) {
        while self.read(|engine, _| engine.has_expired_rows()) {
            tokio::task::yield_now().await;
        }
    }

    /// Adds a chunk of a table's rows from `lo` on. Returns the last key, or `None` if there were no rows.
    fn add_chunk(
        &self,
        part: &mut SnapshotPart,
        table: &[u8],
        lo: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut hi = table.to_vec();
        if let Some(separator) = hi.last_mut() {
            *separator += 1;
        }
        let mut rows = self.read(|engine, now| {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            let limits = Limits {
                limit: Some(CHUNK_ROWS),
                ..Limits::default()
            };
            if engine.table_of(table) != Some(false) {
                // The table was emptied meanwhile, and may be a join's output now.
                return rows;
            }
            let _ = engine.range(lo, &hi, limits, now, &mut |key, value| {
                bytes += key.len() + value.len();
                rows.push((key.to_vec(), value.to_vec(), None));
                if bytes < CHUNK_BYTES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            if engine.next_expiry().is_some() {
                for (key, _, deadline) in &mut rows {
                    *deadline = engine.expires_at(key, now);
                }
            }
            rows
        });
        for (key, value, deadline_ms) in &rows {
            part.add(Entry::Put {
                key,
                value,
                deadline_ms: *deadline_ms,
            })?;
        }
        Ok(rows.pop().map(|(key, ..)| key))
    }
}
