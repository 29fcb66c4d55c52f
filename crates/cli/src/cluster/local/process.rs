//! A process of a local cluster, which never outlives this one.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::failure::Failure;

/// Interval at which an ending process is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub struct Process {
    pub name: String,
    /// The file that receives its standard error.
    pub log: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command. The process is killed when the current thread ends, for whatever reason, so this thread must
    /// live as long as the process is needed. Signals from the terminal are not sent to it.
    pub fn start(name: &str, mut command: Command, log: PathBuf) -> Result<Process, Failure> {
        let written = File::options().create(true).append(true).open(&log);
        let written = written.map_err(Failure::io(format!("write {}", log.display())))?;
        command
            .stdin(Stdio::null())
            .stderr(written)
            .process_group(0);
        let parent = rustix::process::getpid();
        let dies_with_parent = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the signal was registered.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        };
        // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(dies_with_parent) };
        let child = command
            .spawn()
            .map_err(Failure::io(format!("start {name}")))?;
        Ok(Process {
            name: name.to_owned(),
            log,
            child,
            ended: None,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            // Waiting for a child process does not fail.
            self.ended = self.child.try_wait().unwrap_or_default();
        }
        self.ended
    }

    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // The process has not been reaped, so its id is still valid.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Waits until the process has ended, and kills it after the time limit.
    pub fn stop_within(&mut self, patience: Duration) {
        let started = Instant::now();
        while self.ended().is_none() {
            if started.elapsed() > patience {
                self.signal(Signal::KILL);
                self.ended = self.child.wait().ok();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        last.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Describes how a process ended.
pub fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "it exited with status 0".to_owned(),
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(9)) => "it was killed".to_owned(),
        (None, signal) => format!("it was ended by signal {}", signal.unwrap_or_default()),
    }
}
