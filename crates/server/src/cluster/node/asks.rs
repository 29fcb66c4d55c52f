//! Operator requests from this node to the controller: `asks/<id>`, and the answers, `answers/<id>`. Both are bound to this
//! node's lease.

use std::collections::HashMap;

use larder_cluster::controller::Ask;
use larder_cluster::coordination::{Coordination, LeaseId, Outcome, Revision, Writer};
use larder_cluster::map::AskId;
use tokio::sync::{mpsc, oneshot, watch};

use super::known::{ANSWERS, ASKS, Known};
use super::write::settle;

pub type Answer = Result<String, String>;

/// A request on its way to the controller.
pub struct Wanted {
    ask: Ask,
    answer: oneshot::Sender<Answer>,
}

/// # Errors
/// The reason for a rejection, or that the outcome is unknown.
pub async fn ask(asks: &mpsc::UnboundedSender<Wanted>, ask: Ask) -> Answer {
    let (answer, answered) = oneshot::channel();
    let gone = || "this node is stopping".to_owned();
    asks.send(Wanted { ask, answer }).map_err(|_| gone())?;
    answered.await.unwrap_or_else(|_| {
        Err("this node lost its lease before the controller answered: it is unknown whether that was done; look at larder cluster status".to_owned())
    })
}

/// Writes requests and delivers answers during one incarnation; returns when it has ended.
pub async fn run(
    service: &dyn Coordination,
    mut writer: Writer,
    lease: LeaseId,
    mut news: watch::Receiver<Known>,
    asks: &mut mpsc::UnboundedReceiver<Wanted>,
) {
    let mut open: HashMap<AskId, oneshot::Sender<Answer>> = HashMap::new();
    let mut count = 0_u64;
    loop {
        tokio::select! {
            wanted = asks.recv() => {
                let Some(Wanted { ask, answer }) = wanted else {
                    return std::future::pending().await;
                };
                count += 1;
                let id = AskId(format!("{lease}-{count}"));
                let key = format!("{ASKS}{id}");
                let text = serde_json::to_vec(&ask).expect("plain structs become JSON");
                let change = writer
                    .change()
                    .unless_changed(&key, Revision(0))
                    .put_bound(&key, text, Some(lease));
                match settle(service, &change).await {
                    Ok(Outcome::Done(_)) => {
                        open.insert(id, answer);
                    }
                    Ok(Outcome::Conflict(_)) => {
                        let _ = answer.send(Err("the wish is there already".to_owned()));
                    }
                    Err(error) => {
                        let _ = answer.send(Err(format!("it could not be asked for: {error}")));
                        return;
                    }
                }
            }
            changed = news.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let answers = news.borrow_and_update().answers.clone();
        for (id, answered) in answers.iter() {
            // The caller may have disconnected meanwhile.
            let Some(answer) = open.remove(id) else {
                continue;
            };
            let _ = answer.send(answered.answer.clone());
            let key = format!("{ANSWERS}{id}");
            let change = writer
                .change()
                .unless_changed(&key, answered.modified)
                .delete(&key);
            // An answer that is not deleted here is deleted with the lease.
            let _ = settle(service, &change).await;
        }
    }
}
