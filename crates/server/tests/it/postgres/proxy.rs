//! A proxy to PostgreSQL whose connections tests can cut and stall.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// The state that all connections share.
#[derive(Default)]
struct Rule {
    /// True if data from PostgreSQL on replication connections is withheld.
    held: bool,
    refuses: bool,
    open: Vec<TcpStream>,
}

#[derive(Clone)]
pub struct Proxy {
    port: u16,
    rule: Arc<(Mutex<Rule>, Condvar)>,
}

impl Proxy {
    pub fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy {
            port: listener.local_addr().expect("bound").port(),
            rule: Arc::default(),
        };
        let accepting = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                accepting.admit(client, port);
            }
        });
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for stream in self.rule.0.lock().unwrap().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Rejects new connections and closes existing ones, or accepts new ones again.
    pub fn refuse(&self, refuses: bool) {
        self.rule.0.lock().unwrap().refuses = refuses;
        if refuses {
            self.cut();
        }
    }

    /// Withholds the data of replication connections, or forwards it again.
    pub fn hold(&self, held: bool) {
        self.rule.0.lock().unwrap().held = held;
        self.rule.1.notify_all();
    }

    fn admit(&self, client: TcpStream, port: u16) {
        if self.rule.0.lock().unwrap().refuses {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
            return;
        };
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            self.rule
                .0
                .lock()
                .unwrap()
                .open
                .push(stream.try_clone().expect("cloned"));
        }
        let replicates = Arc::new(Mutex::new(false));
        let (from, to) = (
            client.try_clone().expect("cloned"),
            server.try_clone().expect("cloned"),
        );
        let connection = replicates.clone();
        std::thread::spawn(move || {
            copy(from, to, |bytes| {
                let start = b"START_REPLICATION";
                if bytes.windows(start.len()).any(|part| part == start) {
                    *connection.lock().unwrap() = true;
                }
            });
        });
        let rule = self.rule.clone();
        std::thread::spawn(move || {
            copy(server, client, |_| {
                if *replicates.lock().unwrap() {
                    let held = rule.0.lock().unwrap();
                    drop(rule.1.wait_while(held, |rule| rule.held).unwrap());
                }
            });
        });
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut before: impl FnMut(&[u8])) {
    let mut bytes = [0; 8192];
    while let Ok(read) = from.read(&mut bytes) {
        before(&bytes[..read]);
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
