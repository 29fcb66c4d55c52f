//! A small HTTP server for a folder, with faults that a test chooses.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The fault that affects one request of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Sends this many bytes of the response, then nothing, and keeps the connection open.
    StallAfter(usize),
    /// Sends this many bytes of the response, then closes the connection.
    CutAfter(usize),
    /// Flips the last bit of the response.
    WrongByte,
    /// Responds with this status.
    Status(u16),
    /// Redirects the client to the same file at another path.
    Redirect,
    /// Delays the response until `Source::release_held`.
    Hold,
}

#[derive(Clone)]
pub struct Source {
    state: Arc<State>,
    url: String,
}

struct State {
    folder: PathBuf,
    faults: Mutex<HashMap<String, VecDeque<Fault>>>,
    /// The file and the first byte of every request.
    requests: Mutex<Vec<(String, u64)>>,
    held: Mutex<Vec<std::sync::mpsc::Sender<()>>>,
    seen: std::sync::Condvar,
}

impl Source {
    pub fn serve(folder: impl Into<PathBuf>) -> Source {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State {
            folder: folder.into(),
            faults: Mutex::default(),
            requests: Mutex::default(),
            held: Mutex::default(),
            seen: std::sync::Condvar::new(),
        });
        let source = Source { state, url };
        let accepting = source.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let source = accepting.clone();
                std::thread::spawn(move || source.serve_connection(stream));
            }
        });
        source
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Applies `fault` to the next request of `file`. Several calls apply to successive requests.
    pub fn break_next(&self, file: &str, fault: Fault) {
        let mut faults = self.state.faults.lock().unwrap();
        faults.entry(file.to_owned()).or_default().push_back(fault);
    }

    /// Returns the first bytes of the requests of `file`, in order.
    pub fn requests(&self, file: &str) -> Vec<u64> {
        let requests = self.state.requests.lock().unwrap();
        let of_file = requests.iter().filter(|(name, _)| name == file);
        of_file.map(|(_, from)| *from).collect()
    }

    /// Waits until `file` was requested `count` times.
    pub fn wait_for(&self, file: &str, count: usize) {
        let mut requests = self.state.requests.lock().unwrap();
        while requests.iter().filter(|(name, _)| name == file).count() < count {
            requests = self.state.seen.wait(requests).unwrap();
        }
    }

    /// Releases all responses that [`Fault::Hold`] delays.
    pub fn release_held(&self) {
        self.state.held.lock().unwrap().clear();
    }

    fn serve_connection(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("clone"));
        let mut stream = stream;
        while let Some((file, from)) = read_request(&mut reader) {
            if self.respond(&mut stream, &file, from).is_none() {
                return;
            }
        }
    }

    /// Responds to one request. Returns `None` if the connection must be closed.
    fn respond(&self, stream: &mut TcpStream, file: &str, from: u64) -> Option<()> {
        let file = file.trim_start_matches("/moved").trim_start_matches('/');
        let fault = {
            let mut faults = self.state.faults.lock().unwrap();
            faults.get_mut(file).and_then(VecDeque::pop_front)
        };
        // The hold is registered before the request becomes visible, so that a test cannot release it too early.
        let (hold, held) = std::sync::mpsc::channel();
        if fault == Some(Fault::Hold) {
            self.state.held.lock().unwrap().push(hold);
        }
        self.state
            .requests
            .lock()
            .unwrap()
            .push((file.to_owned(), from));
        self.state.seen.notify_all();
        if fault == Some(Fault::Hold) {
            let _ = held.recv();
        }
        let whole = std::fs::read(self.state.folder.join(file)).ok();
        let (status, extra, mut body) = match (fault, whole) {
            (Some(Fault::Status(status)), _) => (status, String::new(), Vec::new()),
            (Some(Fault::Redirect), _) => (302, format!("Location: /moved/{file}\r\n"), Vec::new()),
            (_, None) => (404, String::new(), Vec::new()),
            (_, Some(whole)) if from > whole.len() as u64 => (416, String::new(), Vec::new()),
            (_, Some(whole)) if from > 0 => {
                let range = format!(
                    "Content-Range: bytes {from}-{}/{}\r\n",
                    whole.len() - 1,
                    whole.len()
                );
                (206, range, whole[from as usize..].to_vec())
            }
            (_, Some(whole)) => (200, String::new(), whole),
        };
        let head = format!(
            "HTTP/1.1 {status} As-Told\r\nContent-Length: {}\r\n{extra}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        match fault {
            Some(Fault::CutAfter(count)) => {
                stream.write_all(&body[..count.min(body.len())]).ok()?;
                return None;
            }
            Some(Fault::StallAfter(count)) => {
                stream.write_all(&body[..count.min(body.len())]).ok()?;
                // Waits until the client gives up and closes the connection.
                let _ = stream.read(&mut [0; 64]);
                return None;
            }
            Some(Fault::WrongByte) => {
                if let Some(last) = body.last_mut() {
                    *last ^= 1;
                }
            }
            _ => {}
        }
        stream.write_all(&body).ok()
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, u64)> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|count| *count > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut from = 0;
    loop {
        line.clear();
        reader
            .read_line(&mut line)
            .ok()
            .filter(|count| *count > 0)?;
        let header = line.trim().to_ascii_lowercase();
        if header.is_empty() {
            return Some((path, from));
        }
        if let Some(range) = header.strip_prefix("range: bytes=") {
            from = range.split('-').next()?.parse().ok()?;
        }
    }
}
