//! What this node reports: `reports/<name>`, all of it each time, a few times a second at most.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use larder_cluster::controller::Report;
use larder_cluster::coordination::{Coordination, LeaseId, Outcome, Revision, Writer};
use larder_cluster::map::{Incarnation, NodeName};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::known::REPORTS;
use super::write::settle;

/// Between two reports.
const PAUSE: Duration = Duration::from_millis(200);

/// The report, as the parts of the server change it.
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

    /// Writes what changes, for one life; ends when that has ended.
    pub async fn run(
        &self,
        service: &dyn Coordination,
        mut writer: Writer,
        name: &NodeName,
        lease: LeaseId,
        incarnation: Incarnation,
        (registration, registered): (String, Revision),
    ) {
        let key = format!("{REPORTS}{name}");
        let mut written = Revision(0);
        // What an earlier life reported is told anew.
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
                    .unless_changed(&key, written)
                    .while_since(&registration, registered)
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
            sleep(PAUSE).await;
        }
    }
}
