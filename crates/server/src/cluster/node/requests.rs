//! Operator requests from this node to the controller: `asks/<id>`, and the answers, `answers/<id>`. Both are bound to this
//! node's lease.

use std::collections::HashMap;

use larder_cluster::controller::ControllerRequest;
use larder_cluster::coordination::{Coordination, LeaseId, Outcome, Revision, Writer};
use larder_cluster::map::RequestId;
use tokio::sync::{mpsc, oneshot, watch};

use super::coordination_state::{ANSWERS, ASKS, CoordinationState};
use super::write::settle;

pub type RequestResult = Result<String, String>;

/// A request on its way to the controller.
pub struct QueuedRequest {
    request: ControllerRequest,
    answer: oneshot::Sender<RequestResult>,
}

/// # Errors
/// The reason for a rejection, or that the outcome is unknown.
pub async fn send(
    requests: &mpsc::UnboundedSender<QueuedRequest>,
    request: ControllerRequest,
) -> RequestResult {
    let (answer, answered) = oneshot::channel();
    let gone = || "this node is stopping".to_owned();
    requests
        .send(QueuedRequest { request, answer })
        .map_err(|_| gone())?;
    answered.await.unwrap_or_else(|_| {
        Err("this node lost its lease before the controller answered: it is unknown whether the request was executed; see larder cluster status".to_owned())
    })
}

/// Writes requests and delivers answers during one incarnation; returns when it has ended.
pub async fn run(
    service: &dyn Coordination,
    mut writer: Writer,
    lease: LeaseId,
    mut updates: watch::Receiver<CoordinationState>,
    requests: &mut mpsc::UnboundedReceiver<QueuedRequest>,
) {
    let mut pending: HashMap<RequestId, oneshot::Sender<RequestResult>> = HashMap::new();
    let mut count = 0_u64;
    loop {
        tokio::select! {
            queued = requests.recv() => {
                let Some(QueuedRequest { request, answer }) = queued else {
                    return std::future::pending().await;
                };
                count += 1;
                let id = RequestId(format!("{lease}-{count}"));
                let key = format!("{ASKS}{id}");
                let text = serde_json::to_vec(&request).expect("plain structs become JSON");
                let change = writer
                    .change()
                    .if_unchanged(&key, Revision(0))
                    .put_bound(&key, text, Some(lease));
                match settle(service, &change).await {
                    Ok(Outcome::Done(_)) => {
                        pending.insert(id, answer);
                    }
                    Ok(Outcome::Conflict(_)) => {
                        let _ = answer.send(Err("the request already exists in etcd".to_owned()));
                    }
                    Err(error) => {
                        let _ = answer.send(Err(format!("the request cannot be written to etcd: {error}")));
                        return;
                    }
                }
            }
            changed = updates.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let answers = updates.borrow_and_update().answers.clone();
        for (id, answered) in answers.iter() {
            // The caller may have disconnected meanwhile.
            let Some(answer) = pending.remove(id) else {
                continue;
            };
            let _ = answer.send(answered.answer.clone());
            let key = format!("{ANSWERS}{id}");
            let change = writer
                .change()
                .if_unchanged(&key, answered.modified)
                .delete(&key);
            // An answer that is not deleted here is deleted with the lease.
            let _ = settle(service, &change).await;
        }
    }
}
