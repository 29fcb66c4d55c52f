//! A connection that many calls share, for protocols that answer requests in order.
//!
//! A call appends its request to the output, and queues for its reply. Two other tasks write the accumulated output and
//! read the replies. Requests of calls that were ready together are therefore sent together.
//!
//! Invariants:
//!
//! 1. The front of the queue is the call whose reply comes next. A dropped call stays in the queue; its reply is read
//!    and discarded.
//! 2. After any failure, or an invalid reply, the pipe is lost permanently, and every call in the queue is
//!    [`Failure::Unknown`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::links::Link;
use crate::stores::contract::Failure;

/// Finds the end of a reply.
pub trait Framing: 'static {
    /// Returns the size of the reply at the start of `bytes`, which may exceed the available bytes. `None` if more
    /// bytes are needed to determine it.
    ///
    /// # Errors
    ///
    /// The reason why the bytes are not a reply.
    fn size(bytes: &[u8]) -> Result<Option<usize>, String>;
}

/// The maximum size of a valid reply.
const REPLY_SIZE_MAX: usize = 1 << 28;

pub struct Pipe<F> {
    shared: Rc<PipeState>,
    framing: PhantomData<F>,
}

struct PipeState {
    output: RefCell<Vec<u8>>,
    has_output: Notify,
    queue: RefCell<VecDeque<oneshot::Sender<Bytes>>>,
    /// The reason of the loss.
    lost: RefCell<Option<String>>,
    ends: Notify,
    is_lost: Cell<bool>,
}

impl<F: Framing> Pipe<F> {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Refused, because nothing was sent.
    pub async fn open(address: &str) -> Result<Pipe<F>, Failure> {
        let cannot = |error: std::io::Error| {
            Failure::Refused(format!("cannot connect to {address}: {error}"))
        };
        let stream = TcpStream::connect(address).await.map_err(cannot)?;
        stream.set_nodelay(true).map_err(cannot)?;
        let (input, output) = stream.into_split();
        let shared = Rc::new(PipeState {
            output: RefCell::default(),
            has_output: Notify::new(),
            queue: RefCell::default(),
            lost: RefCell::default(),
            ends: Notify::new(),
            is_lost: Cell::new(false),
        });
        tokio::task::spawn_local(drive(shared.clone(), read::<F>(shared.clone(), input)));
        tokio::task::spawn_local(drive(shared.clone(), write(shared.clone(), output)));
        Ok(Pipe {
            shared,
            framing: PhantomData,
        })
    }

    /// Gives up the connection. Calls in progress have an unknown outcome.
    pub fn fail(&self, why: &str) {
        self.shared.fail(why);
    }

    /// Sends the request that `encode` appends, and waits for its reply.
    pub async fn call(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, Failure> {
        let receiver = {
            let shared = &self.shared;
            if shared.is_lost.get() {
                // The request was not sent.
                return Err(Failure::Refused(shared.failure_reason()));
            }
            let (sender, receiver) = oneshot::channel();
            encode(&mut shared.output.borrow_mut());
            shared.queue.borrow_mut().push_back(sender);
            shared.has_output.notify_one();
            receiver
        };
        let reply = receiver.await;
        reply.map_err(|_| Failure::Unknown(self.shared.failure_reason()))
    }
}

impl<F> Link for Pipe<F> {
    fn is_lost(&self) -> bool {
        self.shared.is_lost.get()
    }
}

impl<F> Drop for Pipe<F> {
    fn drop(&mut self) {
        self.shared.fail("the connection was closed");
    }
}

impl PipeState {
    fn fail(&self, why: &str) {
        if !self.is_lost.replace(true) {
            *self.lost.borrow_mut() = Some(why.to_owned());
        }
        self.queue.borrow_mut().clear();
        self.ends.notify_waiters();
    }

    fn failure_reason(&self) -> String {
        self.lost.borrow().clone().unwrap_or_default()
    }
}

/// Runs one direction until it fails or the other one does.
async fn drive(shared: Rc<PipeState>, direction: impl Future<Output = Result<(), String>>) {
    let ended = shared.ends.notified();
    tokio::pin!(ended);
    ended.as_mut().enable();
    if shared.is_lost.get() {
        return;
    }
    tokio::select! {
        () = ended => {}
        result = direction => {
            shared.fail(&result.err().unwrap_or_default());
        }
    }
}

async fn write(shared: Rc<PipeState>, mut stream: OwnedWriteHalf) -> Result<(), String> {
    let mut sending = Vec::new();
    loop {
        shared.has_output.notified().await;
        std::mem::swap(&mut sending, &mut *shared.output.borrow_mut());
        let sent = stream.write_all(&sending).await;
        sent.map_err(|error| format!("the connection was lost: {error}"))?;
        sending.clear();
    }
}

async fn read<F: Framing>(shared: Rc<PipeState>, mut stream: OwnedReadHalf) -> Result<(), String> {
    let mut input = BytesMut::with_capacity(READ_SIZE);
    loop {
        let missing_bytes = loop {
            let size = F::size(&input)?;
            match size {
                Some(size) if size > REPLY_SIZE_MAX => {
                    return Err(format!("a reply of {size} bytes"));
                }
                Some(size) if size <= input.len() => {
                    let reply = input.split_to(size).freeze();
                    let caller = shared.queue.borrow_mut().pop_front();
                    let caller = caller.ok_or("the server sent an unexpected reply")?;
                    // The call may have been dropped.
                    let _ = caller.send(reply);
                }
                Some(size) => break size - input.len(),
                None => break 0,
            }
        };
        input.reserve(missing_bytes.max(READ_SIZE));
        let read = stream.read_buf(&mut input).await;
        let read = read.map_err(|error| format!("the connection was lost: {error}"))?;
        if read == 0 {
            return Err("the connection was closed by the server".to_owned());
        }
    }
}

const READ_SIZE: usize = 64 << 10;
