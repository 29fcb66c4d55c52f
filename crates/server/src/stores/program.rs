//! The user's own gate: a program that examines a version and accepts or rejects it by its exit status.
//!
//! The program's last argument is the version's folder. Its standard input contains a description as JSON ([`description`]). The
//! end of its standard error output is part of the error message if it rejects the version; only that end is kept.
//!
//! 1. It runs in its own process group. When it exits, exceeds its time limit, or is cancelled, the group is killed, and
//!    processes that have left the group are found by the mark that they inherited (`process_mark.rs`).
//! 2. Its child processes are never waited for, even if they hold the standard error open.

use std::fs::File;
use std::io::{PipeReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use larder_batch::Manifest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};

use super::process_mark::ProcessMark;

/// The number of bytes of its error output that are reported.
const STDERR_BYTES_MAX: usize = 2 << 10;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    command: Vec<String>,
    limit: Duration,
}

impl Program {
    /// Returns `None` for an empty command.
    pub fn new(command: &[String], limit: Duration) -> Option<Program> {
        (!command.is_empty()).then(|| Program {
            command: command.to_vec(),
            limit,
        })
    }

    /// Runs the program to its end. `should_continue` is checked meanwhile; if it returns false, the program is killed.
    ///
    /// # Errors
    /// The reason why the version is rejected, as a sentence.
    pub fn judge(
        &self,
        folder: &Path,
        description: &serde_json::Value,
        should_continue: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let name = &self.command[0];
        let failed = |what: &str, error: std::io::Error| {
            format!(
                "the gate's program {name} cannot be {what}: {error}; check its path and its permissions"
            )
        };
        let mark = ProcessMark::new();
        let started = self.start(folder, description, &mark);
        let (mut child, mut output) = started.map_err(|error| failed("started", error))?;
        let ended = self.wait(&mut child, &mut output, should_continue);
        // SAFETY: takes integers; the group is the child's own, made when it was started.
        unsafe { libc::killpg(child.id() as libc::pid_t, libc::SIGKILL) };
        mark.kill_all();
        output.drain();
        let status = match ended {
            WaitOutcome::Exited(Ok(status)) => status,
            WaitOutcome::Exited(Err(error)) => return Err(failed("waited for", error)),
            WaitOutcome::Cancelled => {
                let _ = child.wait();
                return Err(format!(
                    "the gate's program {name} was killed because its request was cancelled"
                ));
            }
            WaitOutcome::TimedOut => {
                let _ = child.wait();
                return Err(format!(
                    "the gate's program {name} did not end within {} s and was killed; give it more time, or less to do{}",
                    self.limit.as_secs(),
                    output.message_suffix()
                ));
            }
        };
        if status.success() {
            Ok(())
        } else {
            Err(format!(
                "the gate's program {name} refuses the version ({status}){}",
                output.message_suffix()
            ))
        }
    }

    fn start(
        &self,
        folder: &Path,
        description: &serde_json::Value,
        mark: &ProcessMark,
    ) -> std::io::Result<(Child, StderrTail)> {
        let mut input = scratch("larder-gate-input")?;
        serde_json::to_writer(&mut input, description)?;
        input.write_all(b"\n")?;
        input.seek(SeekFrom::Start(0))?;
        let (output, stderr) = std::io::pipe()?;
        let output = StderrTail::of(output)?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg(folder)
            .env(ProcessMark::NAME, mark.value())
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(stderr)
            .process_group(0)
            .spawn()?;
        Ok((child, output))
    }

    fn wait(
        &self,
        child: &mut Child,
        output: &mut StderrTail,
        should_continue: &dyn Fn() -> bool,
    ) -> WaitOutcome {
        let started = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return WaitOutcome::Exited(Ok(status)),
                Ok(None) => {}
                Err(error) => return WaitOutcome::Exited(Err(error)),
            }
            if !should_continue() {
                return WaitOutcome::Cancelled;
            }
            if started.elapsed() >= self.limit {
                return WaitOutcome::TimedOut;
            }
            if !output.take() {
                output.wait(POLL_INTERVAL);
            }
        }
    }
}

enum WaitOutcome {
    Exited(std::io::Result<ExitStatus>),
    TimedOut,
    Cancelled,
}

/// The description of a version, and of the live one that it would replace: store, sizes and profiles.
pub fn description(version: &Manifest, live: Option<&Manifest>) -> serde_json::Value {
    let of = |manifest: &Manifest| {
        serde_json::json!({
            "record_count": manifest.record_count,
            "size_bytes": manifest.size_bytes,
            "digest": manifest.digest,
            "profile": manifest.profile(),
        })
    };
    serde_json::json!({ "store": version.store, "version": of(version), "live": live.map(of) })
}

/// Creates an in-memory file, which unlike a pipe cannot fill up.
fn scratch(name: &str) -> std::io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// The end of the output written to a pipe. It never blocks on a writer.
struct StderrTail {
    pipe: PipeReader,
    end: Vec<u8>,
    /// All writers have closed the pipe.
    has_ended: bool,
}

impl StderrTail {
    const PART_BYTES: usize = 16 << 10;

    fn of(pipe: PipeReader) -> std::io::Result<StderrTail> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(StderrTail {
            pipe,
            end: Vec::new(),
            has_ended: false,
        })
    }

    /// Reads a part of the available output. Returns whether there was any.
    fn take(&mut self) -> bool {
        let mut part = [0; StderrTail::PART_BYTES];
        let length = match self.pipe.read(&mut part) {
            Ok(length @ 1..) => length,
            read => {
                self.has_ended |= read.is_ok();
                return false;
            }
        };
        self.end.extend_from_slice(&part[..length]);
        let beyond = self.end.len().saturating_sub(STDERR_BYTES_MAX);
        self.end.drain(..beyond);
        true
    }

    /// Waits until output is available, but at most `limit`, so that a program that writes much is not delayed.
    fn wait(&self, limit: Duration) {
        if self.has_ended {
            return std::thread::sleep(limit);
        }
        let mut polled = [PollFd::new(&self.pipe, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // If interrupted, the wait is merely shorter.
        let _ = poll(&mut polled, Some(&limit));
    }

    /// Reads the rest of the pipe. Bounded, because a process may still be writing.
    fn drain(&mut self) {
        const PIPE_BYTES_MAX: usize = 1 << 20;
        let parts_max = PIPE_BYTES_MAX / StderrTail::PART_BYTES;
        let _ = (0..parts_max).take_while(|_| self.take()).count();
    }

    /// The output as a suffix of a message.
    fn message_suffix(&self) -> String {
        match String::from_utf8_lossy(&self.end).trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_judge(script: &str, limit: Duration, should_continue: bool) -> Result<(), String> {
        let command = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
        let program = Program::new(&command, limit).expect("a program");
        let description = serde_json::json!({"store": "s"});
        program.judge(Path::new("/some/version"), &description, &|| {
            should_continue
        })
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn the_exit_status_decides_and_stderr_is_reported() {
        assert_eq!(run_judge("exit 0", LONG, true), Ok(()));
        let message = run_judge("echo no such thing >&2; exit 3", LONG, true).expect_err("refused");
        assert!(
            message.contains("exit status: 3") && message.ends_with(": no such thing"),
            "{message}"
        );
        let message = run_judge("kill -9 $$", LONG, true).expect_err("refused");
        assert!(message.contains("signal: 9"), "{message}");
    }

    #[test]
    fn the_program_receives_the_folder_and_the_description() {
        assert_eq!(
            run_judge(
                "test \"$1\" = /some/version && grep -q '\"store\":\"s\"'",
                LONG,
                true
            ),
            Ok(())
        );
    }

    #[test]
    fn a_program_that_exceeds_its_time_is_killed_with_its_children() {
        let message = run_judge("sleep 600 & sleep 600", Duration::from_millis(1), true);
        assert!(message.expect_err("late").contains("did not end within"));
        let message = run_judge("sleep 600", LONG, false).expect_err("not wanted");
        assert!(message.contains("was cancelled"), "{message}");
    }

    #[test]
    fn a_missing_program_rejects_the_version() {
        let program = Program::new(&["/no/such/program".to_owned()], LONG).expect("a program");
        let message = program.judge(Path::new("/"), &serde_json::Value::Null, &|| true);
        assert!(
            message
                .expect_err("refused")
                .contains("/no/such/program cannot be started")
        );
        assert_eq!(Program::new(&[], LONG), None);
    }

    #[test]
    fn only_the_end_of_a_long_stderr_is_reported() {
        let message = run_judge(
            "head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1",
            LONG,
            true,
        );
        let message = message.expect_err("refused");
        assert!(
            message.ends_with("xend") && message.len() < 3000,
            "{}",
            message.len()
        );
    }

    #[test]
    fn waiting_ends_when_the_program_writes() {
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        let mut output = StderrTail::of(pipe).expect("listens");
        writer.write_all(b"x").expect("it has room");
        // Waiting for the end of the output would exceed the test's time limit.
        output.wait(LONG);
        assert!(output.take() && !output.take() && !output.has_ended);
        drop(writer);
        output.wait(LONG);
        assert!(!output.take() && output.has_ended);
    }

    /// A program may write endlessly, and processes that it leaves behind may hold its standard error open.
    #[test]
    fn stderr_is_kept_only_up_to_the_reported_length() {
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        let mut output = StderrTail::of(pipe).expect("listens");
        assert!(!output.take(), "nothing was written yet");
        for _ in 0..200 {
            writer.write_all(&[b'x'; 4096]).expect("it has room");
            output.drain();
            assert!(output.end.len() <= STDERR_BYTES_MAX);
        }
        writer.write_all(b"the end").expect("it has room");
        output.drain();
        assert!(output.message_suffix().ends_with("xthe end"));
        let message = run_judge("yes >&2", Duration::from_millis(50), true).expect_err("late");
        assert!(message.len() < 3000, "{}", message.len());
    }

    #[test]
    fn processes_in_their_own_session_are_killed_too() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = temp.path().join("id");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' & while [ ! -e {0} ]; do :; done",
            file.display()
        );
        assert_eq!(run_judge(&script, LONG, true), Ok(()));
        let id = std::fs::read_to_string(&file).expect("it was started");
        let stat = format!("/proc/{}/stat", id.trim());
        // The process may be a zombie that has not been reaped yet.
        let is_alive = || std::fs::read_to_string(&stat).is_ok_and(|it| !it.contains(") Z "));
        while is_alive() {
            std::thread::yield_now();
        }
    }
}
