//! One connection that many calls share, of protocols that answer requests in their order.
//!
//! A call appends its request to the output and queues for its reply. Two tasks beside the calls write what has gathered, so requests of
//! calls that were ready together travel together, and read replies.
//!
//! Invariants:
//!
//! 1. The front of the queue is whose reply comes next. A call that is dropped stays in the queue; its reply is read and dropped.
//! 2. Once anything fails, or a reply is none, the pipe is lost for good and every call in the queue is [`Failure::Unknown`].

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

/// Where a reply ends.
pub trait Framing: 'static {
    /// The size of the reply that `bytes` begin with; None if more bytes must tell. It may be more than there are.
    ///
    /// # Errors
    ///
    /// Why no reply begins so.
    fn size(bytes: &[u8]) -> Result<Option<usize>, String>;
}

/// A reply that claims to be larger is none.
const REPLY_SIZE_MAX: usize = 1 << 28;

pub struct Pipe<F> {
    shared: Rc<Shared>,
    framing: PhantomData<F>,
}

struct Shared {
    output: RefCell<Vec<u8>>,
    has_output: Notify,
    queue: RefCell<VecDeque<oneshot::Sender<Bytes>>>,
    /// Why it is lost.
    lost: RefCell<Option<String>>,
    ends: Notify,
    is_lost: Cell<bool>,
}

impl<F: Framing> Pipe<F> {
    /// # Errors
    ///
    /// Refused: nothing was asked of anybody.
    pub async fn open(address: &str) -> Result<Pipe<F>, Failure> {
        let cannot = |error: std::io::Error| {
            Failure::Refused(format!("cannot connect to {address}: {error}"))
        };
        let stream = TcpStream::connect(address).await.map_err(cannot)?;
        stream.set_nodelay(true).map_err(cannot)?;
        let (input, output) = stream.into_split();
        let shared = Rc::new(Shared {
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

    /// Gives the connection up; calls under way are of unknown outcome.
    pub fn lose(&self, why: &str) {
        self.shared.lose(why);
    }

    /// Sends what `encode` appends, one request, and waits for its reply.
    pub async fn call(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, Failure> {
        let receiver = {
            let shared = &self.shared;
            if shared.is_lost.get() {
                // It was never sent.
                return Err(Failure::Refused(shared.why_lost()));
            }
            let (sender, receiver) = oneshot::channel();
            encode(&mut shared.output.borrow_mut());
            shared.queue.borrow_mut().push_back(sender);
            shared.has_output.notify_one();
            receiver
        };
        let reply = receiver.await;
        reply.map_err(|_| Failure::Unknown(self.shared.why_lost()))
    }
}

impl<F> Link for Pipe<F> {
    fn is_lost(&self) -> bool {
        self.shared.is_lost.get()
    }
}

impl<F> Drop for Pipe<F> {
    fn drop(&mut self) {
        self.shared.lose("the connection was closed");
    }
}

impl Shared {
    fn lose(&self, why: &str) {
        if !self.is_lost.replace(true) {
            *self.lost.borrow_mut() = Some(why.to_owned());
        }
        self.queue.borrow_mut().clear();
        self.ends.notify_waiters();
    }

    fn why_lost(&self) -> String {
        self.lost.borrow().clone().unwrap_or_default()
    }
}

/// One direction until it fails or the other did.
async fn drive(shared: Rc<Shared>, direction: impl Future<Output = Result<(), String>>) {
    let ended = shared.ends.notified();
    tokio::pin!(ended);
    ended.as_mut().enable();
    if shared.is_lost.get() {
        return;
    }
    tokio::select! {
        () = ended => {}
        result = direction => {
            shared.lose(&result.err().unwrap_or_default());
        }
    }
}

async fn write(shared: Rc<Shared>, mut stream: OwnedWriteHalf) -> Result<(), String> {
    let mut sending = Vec::new();
    loop {
        shared.has_output.notified().await;
        std::mem::swap(&mut sending, &mut *shared.output.borrow_mut());
        let sent = stream.write_all(&sending).await;
        sent.map_err(|error| format!("the connection was lost: {error}"))?;
        sending.clear();
    }
}

async fn read<F: Framing>(shared: Rc<Shared>, mut stream: OwnedReadHalf) -> Result<(), String> {
    let mut input = BytesMut::with_capacity(READ_SIZE);
    loop {
        let wanted = loop {
            let size = F::size(&input)?;
            match size {
                Some(size) if size > REPLY_SIZE_MAX => {
                    return Err(format!("a reply of {size} bytes"));
                }
                Some(size) if size <= input.len() => {
                    let reply = input.split_to(size).freeze();
                    let caller = shared.queue.borrow_mut().pop_front();
                    let caller = caller.ok_or("a reply that nobody asked for")?;
                    // The call may have been dropped.
                    let _ = caller.send(reply);
                }
                Some(size) => break size - input.len(),
                None => break 0,
            }
        };
        input.reserve(wanted.max(READ_SIZE));
        let read = stream.read_buf(&mut input).await;
        let read = read.map_err(|error| format!("the connection was lost: {error}"))?;
        if read == 0 {
            return Err("the connection was closed by the server".to_owned());
        }
    }
}

const READ_SIZE: usize = 64 << 10;
