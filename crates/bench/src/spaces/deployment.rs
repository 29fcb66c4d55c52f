//! A server or the nodes of a cluster: clients that each wait for a reply, the processor time of all servers, and
//! changes of a space's subspaces.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use larder_client::{ClusterClient, RespClient};
use larder_protocol::resp::client::{Reply, request};
use larder_types::{SLOTS, slot_of};

use crate::Result;
use crate::cluster::map;
use crate::net::resp::Replies;

/// A request, and the node to which it is sent without a cluster client. `None`: any node.
pub struct Request {
    words: Vec<String>,
    node: Option<usize>,
}

/// Requests that are sent in sequence and repeated from the start. The next user of the sequence continues where the
/// previous one stopped.
pub struct Sequence {
    requests: Vec<Request>,
    next: AtomicUsize,
}

impl Sequence {
    pub fn new(requests: Vec<Request>) -> Sequence {
        Sequence {
            requests,
            next: AtomicUsize::new(0),
        }
    }

    fn next_request(&self) -> &Request {
        &self.requests[self.next.fetch_add(1, Ordering::Relaxed) % self.requests.len()]
    }
}

pub struct SpaceDeployment {
    addresses: Vec<String>,
    /// The owner of each slot, as an index into `addresses`.
    owners: Vec<usize>,
    nodes: Vec<RespClient>,
}

/// The maximum number of regions of a subspace.
const REGIONS: &str = "256";
const FILL_TIMEOUT: Duration = Duration::from_secs(600);
/// The polling interval until all regions are complete.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunCost {
    /// The processor time of all servers per operation, in microseconds.
    pub cpu_us: f64,
}

impl SpaceDeployment {
    /// Connects to a server, or to a cluster with a node at this address.
    pub fn at(address: &str) -> Result<SpaceDeployment> {
        let one = RespClient::new(address.to_owned());
        let mut deployed = SpaceDeployment {
            addresses: vec![address.to_owned()],
            owners: vec![0; usize::from(SLOTS)],
            nodes: Vec::new(),
        };
        // A standalone server has no cluster map.
        let ports = map::slots(&one).unwrap_or_default();
        let host = address.rsplit_once(':').map_or("127.0.0.1", |it| it.0);
        for (from, to, port) in ports {
            let address = format!("{host}:{port}");
            let known = deployed.addresses.iter().position(|it| *it == address);
            let node = known.unwrap_or_else(|| {
                deployed.addresses.push(address);
                deployed.addresses.len() - 1
            });
            deployed.owners[from..=to].fill(node);
        }
        let clients = deployed.addresses.iter().cloned().map(RespClient::new);
        deployed.nodes = clients.collect();
        Ok(deployed)
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn command(&self, words: &[&str]) -> Result<Reply> {
        let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Ok(self.nodes[0].command(&parts)?)
    }

    pub fn request(&self, words: &[String]) -> Request {
        let is_search = words[0].starts_with("FT.");
        let owner = || self.owners[usize::from(slot_of(words[1].as_bytes()))];
        Request {
            words: words.to_vec(),
            node: (!is_search).then(owner),
        }
    }

    /// Opens a connection to each node.
    pub fn connect(&self) -> Result<Vec<TcpStream>> {
        let connect = |address: &String| -> Result<TcpStream> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        self.addresses.iter().map(connect).collect()
    }

    /// Changes the subspaces of the space `hotels`. Returns after the new ones serve and the old ones have been freed.
    pub fn apply_subspaces(&self, lists: &[String]) -> Result<()> {
        let started = Instant::now();
        match self.begin_subspaces(lists) {
            Err(error) if error.to_string().contains("already") => return Ok(()),
            done => done?,
        }
        match self.switch_subspaces() {
            Err(error) if lists.is_empty() => eprintln!("{error}"),
            done => done?,
        }
        while self.idle(POLL_INTERVAL)? > 0.1 && started.elapsed() < FILL_TIMEOUT {}
        Ok(())
    }

    /// Starts to fill new subspaces while the current ones serve.
    pub fn begin_subspaces(&self, lists: &[String]) -> Result<()> {
        let count = lists.len().to_string();
        let mut words = vec!["FT.ALTER", "hotels", "SUBSPACES", &count];
        words.extend(lists.iter().map(String::as_str));
        if !lists.is_empty() {
            words.extend(["REGIONS", REGIONS]);
        }
        self.retry_command(&words)
    }

    /// Switches to the new subspaces as soon as they are complete.
    pub fn switch_subspaces(&self) -> Result<()> {
        self.retry_command(&["FT.ALTER", "hotels", "SUBSPACES", "SWITCH"])
    }

    /// Repeats a command until the reply is no longer TRYAGAIN.
    fn retry_command(&self, words: &[&str]) -> Result<()> {
        let started = Instant::now();
        loop {
            match self.command(words) {
                Ok(_) => return Ok(()),
                Err(error) if error.to_string().contains("TRYAGAIN") => {
                    if started.elapsed() > FILL_TIMEOUT {
                        return Err(error);
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the processor time of all nodes so far, in microseconds.
    pub fn cpu_us(&self) -> Result<f64> {
        let mut all = 0.0;
        for node in &self.nodes {
            let Reply::Bulk(text) = node.command(&[b"INFO", b"cpu"])? else {
                return Err("INFO cpu is answered by something else than a text".into());
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            for name in ["used_cpu_user:", "used_cpu_sys:"] {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                let seconds: f64 = line.ok_or("INFO cpu lacks a time")?.trim().parse()?;
                all += seconds * 1e6;
            }
        }
        Ok(all)
    }

    /// Returns the load of idle servers, in processors.
    pub fn idle(&self, time: Duration) -> Result<f64> {
        let (before, started) = (self.cpu_us()?, Instant::now());
        std::thread::sleep(time);
        Ok((self.cpu_us()? - before) / 1e6 / started.elapsed().as_secs_f64())
    }

    /// Sends these requests with this number of clients for a while. Subtracts the load of idle servers from the
    /// result.
    pub fn drive(
        &self,
        requests: &Sequence,
        clients: usize,
        time: Duration,
        idle: f64,
    ) -> Result<RunCost> {
        // Use the same client as `larder space calibrate`, because with another client the same read took eight servers
        // three times as long. Use new connections each time, because the previous ones may all have reached one core,
        // which then answers many requests at a time.
        let client = ClusterClient::new(self.addresses.clone());
        let drive = |time: Duration| -> Result<u64> {
            let started = Instant::now();
            let run = || -> std::result::Result<u64, larder_client::Error> {
                let mut answered = 0;
                while started.elapsed() < time {
                    client.command(&requests.next_request().parts())?;
                    answered += 1;
                }
                Ok(answered)
            };
            let run = &run;
            let answered = std::thread::scope(|scope| {
                let running: Vec<_> = (0..clients).map(|_| scope.spawn(run)).collect();
                let joined = running.into_iter();
                let joined = joined.map(|it| it.join().expect("no client panics"));
                joined.collect::<std::result::Result<Vec<_>, _>>()
            })?;
            Ok(answered.into_iter().sum())
        };
        // The client connects, and learns the owners.
        drive(time / 10)?;
        let (before, started) = (self.cpu_us()?, Instant::now());
        let answered = drive(time)?;
        let elapsed = started.elapsed().as_secs_f64();
        let spent = self.cpu_us()? - before - idle * elapsed * 1e6;
        Ok(RunCost {
            cpu_us: spent / answered.max(1) as f64,
        })
    }
}

/// Splits a command into words, of which `''` is an empty one.
pub fn words_of(command: &str) -> Vec<&str> {
    let words = command.split_whitespace();
    words
        .map(|word| if word == "''" { "" } else { word })
        .collect()
}

impl Request {
    fn parts(&self) -> Vec<&[u8]> {
        self.words.iter().map(|word| word.as_bytes()).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        request(&mut bytes, &self.parts());
        bytes
    }

    /// Sends the request to its node, or to the node selected by `number`, and reads the reply.
    ///
    /// # Errors
    /// The request is rejected, or not answered.
    pub fn send(&self, streams: &mut [TcpStream], number: usize) -> Result<()> {
        let node = self.node.unwrap_or(number % streams.len());
        exchange(&mut streams[node], &self.bytes())
    }
}

/// Sends a request and reads its reply.
fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes)?;
    let (mut replies, mut input) = (Replies::default(), Vec::new());
    let mut some = [0; 16 << 10];
    loop {
        let count = stream.read(&mut some)?;
        if count == 0 {
            return Err("the server closed a connection".into());
        }
        input.extend_from_slice(&some[..count]);
        if replies.size(&input)?.is_some() {
            return Ok(());
        }
    }
}

/// Loads objects at their owners, in batches.
pub fn load(deployed: &SpaceDeployment, requests: &[Request]) -> Result<()> {
    const BATCH: usize = 256;
    for node in 0..deployed.nodes() {
        let mut stream = TcpStream::connect(&deployed.addresses[node])?;
        let own: Vec<&Request> = requests.iter().filter(|it| it.node == Some(node)).collect();
        for some in own.chunks(BATCH) {
            let bytes: Vec<u8> = some.iter().flat_map(|it| it.bytes()).collect();
            stream.write_all(&bytes)?;
            let (mut replies, mut input, mut left) = (Replies::default(), Vec::new(), some.len());
            let mut part = [0; 16 << 10];
            while left > 0 {
                let count = stream.read(&mut part)?;
                if count == 0 {
                    return Err("the server closed a connection".into());
                }
                input.extend_from_slice(&part[..count]);
                while left > 0
                    && let Some(size) = replies.size(&input)?
                {
                    input.drain(..size);
                    left -= 1;
                }
            }
        }
    }
    Ok(())
}
