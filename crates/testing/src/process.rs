//! A server process that can be stopped or killed, and restarted with the same port and data.

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The timeout of a start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A server process.
pub struct Server {
    pub port: u16,
    folder: TempDir,
    /// The signal that stops it.
    stop: Signal,
    is_ready: fn(&Server, Pid) -> bool,
    running: Mutex<RunningCommand>,
}

struct RunningCommand {
    command: Command,
    child: Option<Child>,
}

impl Server {
    /// Runs a program that listens on `port` and stores its data in `folder`; returns when it accepts connections.
    pub fn start(command: Command, port: u16, folder: TempDir) -> Server {
        let listens =
            |server: &Server, _: Pid| TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        Server::start_until(command, port, folder, Signal::TERM, listens)
    }

    /// Like [`Server::start`], with another readiness check and another stop signal.
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
            running: Mutex::new(RunningCommand {
                command,
                child: None,
            }),
        };
        server.start_process(false);
        server
    }

    /// Restarts it after [`Server::end`] or [`Server::kill`].
    pub fn restart(&self) {
        // Child processes of a killed server may still hold the data while they end.
        self.start_process(true);
    }

    /// Runs it until it is ready. If it ends before that and `retry` is set, restarts it until the timeout.
    fn start_process(&self, retry: bool) {
        let mut running = self.running();
        let RunningCommand { command, child } = &mut *running;
        let began = Instant::now();
        loop {
            let process = child.get_or_insert_with(|| command.spawn().expect("the server runs"));
            if (self.is_ready)(self, Pid::from_child(process)) {
                return;
            }
            let ended = process.try_wait().expect("our own child");
            if ended.is_some() {
                *child = None;
            }
            let may_continue = ended.is_none() || retry;
            assert!(
                may_continue && began.elapsed() < START_TIMEOUT,
                "{command:?}: {ended:?} {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it with SIGKILL; its child processes end when they notice.
    pub fn kill(&self) {
        self.end_by(Signal::KILL);
    }

    /// Stops it, and waits until it has ended.
    pub fn end(&self) {
        self.end_by(self.stop);
    }

    fn end_by(&self, signal: Signal) {
        let Some(mut child) = self.running().child.take() else {
            return;
        };
        let pid = Pid::from_child(&child);
        // A suspended process handles signals only after SIGCONT.
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
        Pid::from_child(running.child.as_ref().expect("the server runs"))
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the folder with its data and its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn running(&self) -> MutexGuard<'_, RunningCommand> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn temp_folder(of: &str) -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix(&format!("larder-{of}-"))
        .tempdir();
    folder.expect("a folder")
}
