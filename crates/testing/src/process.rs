//! A server process: started, asked to stop or killed, and perhaps started again on its port and its data.

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A start that takes longer has failed.
const STARTED: Duration = Duration::from_secs(60);

/// A server process.
pub struct Server {
    pub port: u16,
    folder: TempDir,
    /// How it is asked to stop.
    stop: Signal,
    is_ready: fn(&Server, Pid) -> bool,
    running: Mutex<Running>,
}

struct Running {
    command: Command,
    child: Option<Child>,
}

impl Server {
    /// Runs what listens on `port` and keeps its data in `folder`, until it accepts connections.
    pub fn start(command: Command, port: u16, folder: TempDir) -> Server {
        let listens =
            |server: &Server, _: Pid| TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        Server::start_until(command, port, folder, Signal::TERM, listens)
    }

    /// The same for what is ready by another sign, and stops by another signal.
    pub(crate) fn start_until(
        mut command: Command,
        port: u16,
        folder: TempDir,
        stop: Signal,
        is_ready: fn(&Server, Pid) -> bool,
    ) -> Server {
        let log = File::create(folder.path().join("log")).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log);
        let server = Server {
            port,
            folder,
            stop,
            is_ready,
            running: Mutex::new(Running {
                command,
                child: None,
            }),
        };
        server.run(false);
        server
    }

    /// Starts it again after [`Server::end`] or [`Server::kill`].
    pub fn begin(&self) {
        // What was killed may still hold the data while its processes end.
        self.run(true);
    }

    /// Runs it until it is ready; if it ends before that, `again` until the time is up.
    fn run(&self, again: bool) {
        let mut running = self.running();
        let Running { command, child } = &mut *running;
        let began = Instant::now();
        loop {
            let process = child.get_or_insert_with(|| command.spawn().expect("it runs"));
            if (self.is_ready)(self, Pid::from_child(process)) {
                return;
            }
            let ended = process.try_wait().expect("our own child");
            if ended.is_some() {
                *child = None;
            }
            let goes_on = ended.is_none() || again;
            assert!(
                goes_on && began.elapsed() < STARTED,
                "{command:?}: {ended:?} {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it at once, as SIGKILL to all its processes does: its children end when they see that it is gone.
    pub fn kill(&self) {
        self.end_by(Signal::KILL);
    }

    /// Asks it to stop, and waits until it has.
    pub fn end(&self) {
        self.end_by(self.stop);
    }

    fn end_by(&self, signal: Signal) {
        let Some(mut child) = self.running().child.take() else {
            return;
        };
        let pid = Pid::from_child(&child);
        // One that a test stopped hears nothing before it goes on.
        for signal in [Signal::CONT, signal] {
            kill_process(pid, signal).expect("our own child");
        }
        child.wait().expect("our own child");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child");
    }

    pub fn pid(&self) -> Pid {
        let running = self.running();
        Pid::from_child(running.child.as_ref().expect("it runs"))
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its data and its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn folder(of: &str) -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix(&format!("larder-{of}-"))
        .tempdir();
    folder.expect("a folder")
}
