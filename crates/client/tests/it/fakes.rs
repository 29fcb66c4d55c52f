//! A cluster of small servers with scripted replies: they behave like a cluster unless the test specifies otherwise.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_client::{ClusterClient, ClusterOptions};
use larder_types::{SLOTS, row_slot, slot_of};

use super::read_command;

/// The scripted behavior of a node on a command.
pub enum Act {
    Say(String),
    /// Never replies.
    Hang,
    Close,
}

/// Returns the behavior of `node` on a command; `None` means that of a cluster.
pub type Script = dyn Fn(usize, &[String]) -> Option<Act> + Send + Sync;

pub struct Fakes {
    pub addresses: Vec<String>,
    pub world: Arc<World>,
}

pub struct World {
    state: Mutex<State>,
    word: Box<Script>,
}

pub struct State {
    addresses: Vec<String>,
    /// By slot: the nodes that have it, owner first.
    pub having: Vec<Vec<usize>>,
    pub epoch: u64,
    /// The stores that STORE.LIST returns; `None` makes it an unknown command.
    pub stores: Option<Vec<&'static str>>,
    pub rows: HashMap<String, String>,
    /// The commands that each node received, except those that the client sends on its own.
    pub seen: Vec<Vec<Vec<String>>>,
}

impl Fakes {
    /// Starts nodes with equal slot ranges; the next node has copies. Nodes in `absent` are not started.
    pub fn start(
        nodes: usize,
        absent: &[usize],
        word: impl Fn(usize, &[String]) -> Option<Act> + Send + Sync + 'static,
    ) -> Fakes {
        let listeners: Vec<TcpListener> = (0..nodes)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let address = |it: &TcpListener| it.local_addr().unwrap().to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let owner = |slot: u16| usize::from(slot) * nodes / usize::from(SLOTS);
        let having = (0..SLOTS).map(|slot| vec![owner(slot), (owner(slot) + 1) % nodes]);
        let world = Arc::new(World {
            state: Mutex::new(State {
                addresses: addresses.clone(),
                having: having.collect(),
                epoch: 1,
                stores: Some(vec!["s"]),
                rows: HashMap::new(),
                seen: vec![Vec::new(); nodes],
            }),
            word: Box::new(word),
        });
        for (node, listener) in listeners.into_iter().enumerate() {
            if !absent.contains(&node) {
                let world = world.clone();
                std::thread::spawn(move || world.accept(node, &listener));
            }
        }
        Fakes { addresses, world }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.world.state()
    }

    /// Returns options with long timeouts: no call fails by a timeout, unless the machine hangs.
    pub fn options() -> ClusterOptions {
        ClusterOptions {
            timeout: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(60),
            ..ClusterOptions::default()
        }
    }

    pub fn client(&self) -> ClusterClient {
        self.client_with(Fakes::options())
    }

    pub fn client_with(&self, options: ClusterOptions) -> ClusterClient {
        ClusterClient::with_options(self.addresses.clone(), options)
    }

    /// Returns how often a node received this command.
    pub fn count_requests(&self, node: usize, command: &str) -> usize {
        let state = self.state();
        let seen = state.seen[node].iter();
        seen.filter(|parts| parts.join(" ") == command).count()
    }

    /// Returns a key `<prefix><number>` whose slot (of the complete key) `node` owns.
    pub fn key_of(&self, node: usize, prefix: &str) -> String {
        let state = self.state();
        let owner = |key: &String| state.having[usize::from(slot_of(key.as_bytes()))][0];
        let mut keys = (0..).map(|number| format!("{prefix}{number}"));
        keys.find(|key| owner(key) == node).unwrap()
    }
}

impl World {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<World>, node: usize, listener: &TcpListener) {
        for stream in listener.incoming() {
            let (world, mut stream) = (self.clone(), stream.unwrap());
            std::thread::spawn(move || {
                let mut is_asking = false;
                while let Some(parts) = read_command(&mut stream) {
                    match world.act(node, &parts, &mut is_asking) {
                        // The client may have disconnected.
                        Act::Say(reply) => drop(stream.write_all(reply.as_bytes())),
                        Act::Hang => drop(stream.read_to_end(&mut Vec::new())),
                        Act::Close => return,
                    }
                }
            });
        }
    }

    fn act(&self, node: usize, parts: &[String], is_asking: &mut bool) -> Act {
        let command: Vec<&str> = parts.iter().map(String::as_str).collect();
        if let [name] = command[..]
            && name == "READONLY"
        {
            return Act::Say("+OK\r\n".to_owned());
        }
        let is_about_the_cluster = matches!(command[0], "CLUSTER" | "STORE.LIST");
        if !is_about_the_cluster {
            self.state().seen[node].push(parts.to_vec());
        }
        if let Some(act) = (self.word)(node, parts) {
            return act;
        }
        let mut state = self.state();
        Act::Say(match command[..] {
            ["CLUSTER", "SLOTS"] => state.slots(),
            ["CLUSTER", "INFO"] => bulk(&format!(
                "cluster_state:ok\r\ncluster_current_epoch:{}\r\n",
                state.epoch
            )),
            ["STORE.LIST"] => match &state.stores {
                None => "-ERR unknown command 'STORE.LIST'\r\n".to_owned(),
                Some(stores) => array(stores.iter().map(|store| bulk(store))),
            },
            ["ASKING"] => {
                *is_asking = true;
                "+OK\r\n".to_owned()
            }
            _ => state.answer(node, &command, std::mem::take(is_asking)),
        })
    }
}

impl State {
    fn slots(&self) -> String {
        let mut ranges: Vec<(usize, usize, &[usize])> = Vec::new();
        for (slot, having) in self.having.iter().enumerate() {
            match ranges.last_mut() {
                Some((_, to, before)) if *before == having => *to = slot,
                _ => ranges.push((slot, slot, having)),
            }
        }
        let node = |&node: &usize| {
            let (host, port) = self.addresses[node].rsplit_once(':').unwrap();
            array([
                bulk(host),
                format!(":{port}\r\n"),
                bulk(&format!("node{node}")),
                array([]),
            ])
        };
        array(ranges.into_iter().map(|(from, to, having)| {
            let bounds = [format!(":{from}\r\n"), format!(":{to}\r\n")];
            array(bounds.into_iter().chain(having.iter().map(node)))
        }))
    }

    pub fn slot(&self, key: &str) -> u16 {
        let name = key.split([':', '|']).next().unwrap_or_default();
        match &self.stores {
            Some(stores) if !stores.contains(&name) => row_slot(key.as_bytes()),
            _ => slot_of(key.as_bytes()),
        }
    }

    /// Returns MOVED to the owner, if this node must not serve the key.
    fn moved(&self, node: usize, key: &str, writes: bool) -> Option<String> {
        let slot = self.slot(key);
        let having = &self.having[usize::from(slot)];
        let has = if writes {
            having[0] == node
        } else {
            having.contains(&node)
        };
        (!has).then(|| format!("-MOVED {slot} {}\r\n", self.addresses[having[0]]))
    }

    fn answer(&mut self, node: usize, command: &[&str], is_asking: bool) -> String {
        let keys = match command {
            ["GET", key] | ["SET", key, _] | ["INCR", key] => std::slice::from_ref(key),
            ["MGET", keys @ ..] => keys,
            ["STORE.VERSION", _] => return ":1\r\n".to_owned(),
            ["PING"] => return "+PONG\r\n".to_owned(),
            _ => return "-ERR unknown command\r\n".to_owned(),
        };
        let writes = matches!(command[0], "SET" | "INCR");
        let mut moved_keys = keys.iter().filter_map(|key| self.moved(node, key, writes));
        if let (Some(moved), false) = (moved_keys.next(), is_asking) {
            return match keys.len() {
                1 => moved,
                _ => "-CROSSSLOT Keys in request don't hash to the same slot\r\n".to_owned(),
            };
        }
        let value = |key: &str| match self.rows.get(key) {
            Some(value) => bulk(value),
            None => "$-1\r\n".to_owned(),
        };
        match command {
            ["MGET", keys @ ..] => array(keys.iter().map(|key| value(key))),
            ["GET", key] => value(key),
            ["SET", key, to] => {
                self.rows.insert((*key).to_owned(), (*to).to_owned());
                "+OK\r\n".to_owned()
            }
            _ => {
                let row = self.rows.entry(keys[0].to_owned()).or_default();
                let sum = row.parse::<u64>().unwrap_or(0) + 1;
                *row = sum.to_string();
                format!(":{sum}\r\n")
            }
        }
    }
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub fn array(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    format!("*{}\r\n{}", items.len(), items.concat())
}

pub fn encode_reply(reply: &str) -> Option<Act> {
    Some(Act::Say(reply.to_owned()))
}
