//! Writes this node's report, `reports/<name>`: complete each time, and at most a few times per second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use larder_cluster::controller::Report;
use larder_cluster::coordination::{Coordination, LeaseId, Outcome, Revision, Writer};
use larder_cluster::map::{Incarnation, NodeName};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::coordination_state::{CoordinationState, REPORTS};
use super::write::settle;

/// The pause between two reports of a node, per `NODES_PER_PAUSE` nodes of the cluster.
const REPORT_PAUSE: Duration = Duration::from_millis(200);
const NODES_PER_PAUSE: usize = 16;

/// The incarnation for which reports are written.
pub struct Reporter<'a> {
    pub service: &'a dyn Coordination,
    pub writer: Writer,
    pub name: &'a NodeName,
    pub lease: LeaseId,
    pub incarnation: Incarnation,
    /// This node's registration key, and the revision that created it.
    pub registration: (String, Revision),
    pub updates: watch::Receiver<CoordinationState>,
}

/// The report, updated by the parts of the server.
#[derive(Default)]
pub struct Reports {
    report: Mutex<Report>,
    changed: Notify,
}

impl Reports {
    pub fn change(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.changed.notify_one();
        }
    }

    /// Writes changes during one incarnation; returns when it has ended.
    pub async fn run(&self, reporter: Reporter<'_>) {
        let Reporter {
            service,
            mut writer,
            name,
            lease,
            incarnation,
            registration: (registration, registered),
            updates,
        } = reporter;
        let key = format!("{REPORTS}{name}");
        let mut written = Revision(0);
        // The report of an earlier incarnation is written again.
        self.changed.notify_one();
        loop {
            self.changed.notified().await;
            let mut report = self
                .report
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            report.incarnation = incarnation;
            let text = serde_json::to_vec(&report).expect("plain structs become JSON");
            loop {
                let change = writer
                    .change()
                    .if_unchanged(&key, written)
                    .if_created_at(&registration, registered)
                    .put_bound(&key, text.clone(), Some(lease));
                match settle(service, &change).await {
                    Ok(Outcome::Done(at)) => {
                        written = at;
                        break;
                    }
                    Ok(Outcome::Conflict(now)) => {
                        let is_ours = now.get(1).is_some_and(|it| {
                            it.as_ref().is_some_and(|it| it.created == registered)
                        });
                        if !is_ours {
                            return;
                        }
                        written = now
                            .first()
                            .and_then(Option::as_ref)
                            .map_or(Revision(0), |it| it.modified);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "this node's report is not written");
                        return;
                    }
                }
            }
            // Every node receives all reports.
            let map = updates.borrow().map.as_ref().map(|it| it.map.clone());
            let nodes = map.map_or(1, |map| map.members().len());
            sleep(REPORT_PAUSE * nodes.div_ceil(NODES_PER_PAUSE) as u32).await;
        }
    }
}
