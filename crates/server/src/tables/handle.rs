//! What other threads have of the tables: figures, and a way to ask their core.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use larder_join::{JoinInfo, TableInfo};
use tokio::sync::{mpsc, oneshot};

use super::Tables;
use crate::error::Error;
use crate::resp::Moved;

/// A task for the core that owns the tables.
type Call = Box<dyn FnOnce(Rc<Tables>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What the core that owns the tables is told.
pub enum Message {
    /// A connection with a command on tables.
    Connection(Moved),
    Call(Call),
}

/// What there is, at about one moment.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub tables: Vec<TableInfo>,
    pub joins: Vec<JoinInfo>,
    /// Base rows of all tables.
    pub rows: u64,
    /// Rows and all that keeps them fresh.
    pub memory_bytes: u64,
    pub log_bytes: u64,
    pub snapshot_bytes: u64,
    pub backlog_bytes: u64,
}

/// Shared by all threads.
pub struct TablesHandle {
    messages: mpsc::UnboundedSender<Message>,
    receiver: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
    figures: Mutex<Figures>,
}

impl Default for TablesHandle {
    fn default() -> TablesHandle {
        let (messages, receiver) = mpsc::unbounded_channel();
        TablesHandle {
            messages,
            receiver: Mutex::new(Some(receiver)),
            figures: Mutex::default(),
        }
    }
}

impl TablesHandle {
    /// For the owner, once.
    pub fn take_receiver(&self) -> Option<mpsc::UnboundedReceiver<Message>> {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.take()
    }

    pub fn send(&self, message: Message) {
        // Without an owner the server is stopping: the connection is closed with the message.
        let _ = self.messages.send(message);
    }

    /// Runs `task` on the core that owns the tables.
    ///
    /// # Errors
    /// [`Error::Io`] if the server is stopping.
    pub async fn call<T, F>(
        &self,
        task: impl FnOnce(Rc<Tables>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Call(Box::new(move |tables| {
            Box::pin(async move {
                // An error means that nobody waits any more.
                let _ = answer.send(task(tables).await);
            })
        })));
        answered
            .await
            .map_err(|_| Error::Io("the server is stopping".to_owned()))
    }

    pub fn figures(&self) -> Figures {
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.clone()
    }

    pub(super) fn set_figures(&self, new: Figures) {
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}
