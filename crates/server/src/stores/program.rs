//! The user's own gate: a program that examines a version and accepts or rejects it by its exit status.
//!
//! The program's last argument is the version's folder. Its standard input contains a description as JSON ([`description`]). The
//! end of its standard error output is part of the error message if it rejects the version; only that end is kept.
//!
//! 1. It runs in its own process group. When it exits, exceeds its time limit, or is cancelled, the group is killed, and
//!    processes that have left the group are found by the mark that they inherited (`marked.rs`).
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

use super::marked::Mark;

/// The number of bytes of its error output that are reported.
const SAID_BYTES_MAX: usize = 2 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(5);

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

    /// Runs the program to its end. `go_on` is checked meanwhile; if it returns false, the program is killed.
    ///
    /// # Errors
    /// The reason why the version is rejected, as a sentence.
    pub fn judge(
        &self,
        folder: &Path,
        description: &serde_json::Value,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let name = &self.command[0];
        let failed = |what: &str, error: std::io::Error| {
            format!(
                "the gate's program {name} cannot be {what}: {error}; correct its path, or its rights"
            )
        };
        let mark = Mark::new();
        let started = self.start(folder, description, &mark);
        let (mut child, mut said) = started.map_err(|error| failed("started", error))?;
        let ended = self.wait(&mut child, &mut said, go_on);
        // SAFETY: takes integers; the group is the child's own, made when it was started.
        unsafe { libc::killpg(child.id() as libc::pid_t, libc::SIGKILL) };
        mark.end_all();
        said.take_rest();
        let status = match ended {
            Ended::By(Ok(status)) => status,
            Ended::By(Err(error)) => return Err(failed("waited for", error)),
            Ended::NotWanted => {
                let _ = child.wait();
                return Err(format!(
                    "the gate's program {name} was ended: nobody waits for it any more"
                ));
            }
            Ended::Late => {
                let _ = child.wait();
                return Err(format!(
                    "the gate's program {name} did not end within {} s and was ended; give it more time, or less to do{}",
                    self.limit.as_secs(),
                    said.told()
                ));
            }
        };
        if status.success() {
            Ok(())
        } else {
            Err(format!(
                "the gate's program {name} refuses the version ({status}){}",
                said.told()
            ))
        }
    }

    fn start(
        &self,
        folder: &Path,
        description: &serde_json::Value,
        mark: &Mark,
    ) -> std::io::Result<(Child, Said)> {
        let mut input = scratch("larder-gate-input")?;
        serde_json::to_writer(&mut input, description)?;
        input.write_all(b"\n")?;
        input.seek(SeekFrom::Start(0))?;
        let (said, stderr) = std::io::pipe()?;
        let said = Said::of(said)?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg(folder)
            .env(Mark::NAME, mark.value())
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(stderr)
            .process_group(0)
            .spawn()?;
        Ok((child, said))
    }

    fn wait(&self, child: &mut Child, said: &mut Said, go_on: &dyn Fn() -> bool) -> Ended {
        let started = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ended::By(Ok(status)),
                Ok(None) => {}
                Err(error) => return Ended::By(Err(error)),
            }
            if !go_on() {
                return Ended::NotWanted;
            }
            if started.elapsed() >= self.limit {
                return Ended::Late;
            }
            if !said.take() {
                said.wait(LOOK_EVERY);
            }
        }
    }
}

enum Ended {
    By(std::io::Result<ExitStatus>),
    Late,
    NotWanted,
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
struct Said {
    pipe: PipeReader,
    end: Vec<u8>,
    /// All writers have closed the pipe.
    has_ended: bool,
}

impl Said {
    const PART_BYTES: usize = 16 << 10;

    fn of(pipe: PipeReader) -> std::io::Result<Said> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Said {
            pipe,
            end: Vec::new(),
            has_ended: false,
        })
    }

    /// Reads a part of the available output. Returns whether there was any.
    fn take(&mut self) -> bool {
        let mut part = [0; Said::PART_BYTES];
        let length = match self.pipe.read(&mut part) {
            Ok(length @ 1..) => length,
            read => {
                self.has_ended |= read.is_ok();
                return false;
            }
        };
        self.end.extend_from_slice(&part[..length]);
        let beyond = self.end.len().saturating_sub(SAID_BYTES_MAX);
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
    fn take_rest(&mut self) {
        const PIPE_BYTES_MAX: usize = 1 << 20;
        let parts_max = PIPE_BYTES_MAX / Said::PART_BYTES;
        let _ = (0..parts_max).take_while(|_| self.take()).count();
    }

    /// The output as a suffix of a message.
    fn told(&self) -> String {
        match String::from_utf8_lossy(&self.end).trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(script: &str, limit: Duration, go_on: bool) -> Result<(), String> {
        let command = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
        let program = Program::new(&command, limit).expect("a program");
        let description = serde_json::json!({"store": "s"});
        program.judge(Path::new("/some/version"), &description, &|| go_on)
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn the_exit_status_decides_and_what_was_said_is_told() {
        assert_eq!(judged("exit 0", LONG, true), Ok(()));
        let told = judged("echo no such thing >&2; exit 3", LONG, true).expect_err("refused");
        assert!(
            told.contains("exit status: 3") && told.ends_with(": no such thing"),
            "{told}"
        );
        let told = judged("kill -9 $$", LONG, true).expect_err("refused");
        assert!(told.contains("signal: 9"), "{told}");
    }

    #[test]
    fn it_is_given_the_folder_and_the_description() {
        assert_eq!(
            judged(
                "test \"$1\" = /some/version && grep -q '\"store\":\"s\"'",
                LONG,
                true
            ),
            Ok(())
        );
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_what_it_started() {
        let told = judged("sleep 600 & sleep 600", Duration::from_millis(1), true);
        assert!(told.expect_err("late").contains("did not end within"));
        let told = judged("sleep 600", LONG, false).expect_err("not wanted");
        assert!(told.contains("nobody waits"), "{told}");
    }

    #[test]
    fn one_that_is_not_there_refuses() {
        let program = Program::new(&["/no/such/program".to_owned()], LONG).expect("a program");
        let told = program.judge(Path::new("/"), &serde_json::Value::Null, &|| true);
        assert!(
            told.expect_err("refused")
                .contains("/no/such/program cannot be started")
        );
        assert_eq!(Program::new(&[], LONG), None);
    }

    #[test]
    fn of_much_that_is_said_the_end_is_told() {
        let told = judged(
            "head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1",
            LONG,
            true,
        );
        let told = told.expect_err("refused");
        assert!(
            told.ends_with("xend") && told.len() < 3000,
            "{}",
            told.len()
        );
    }

    #[test]
    fn the_program_is_not_waited_for_while_it_writes() {
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        let mut said = Said::of(pipe).expect("listens");
        writer.write_all(b"x").expect("it has room");
        // Waiting for the end of the output would exceed the test's time limit.
        said.wait(LONG);
        assert!(said.take() && !said.take() && !said.has_ended);
        drop(writer);
        said.wait(LONG);
        assert!(!said.take() && said.has_ended);
    }

    /// A program may write endlessly, and processes that it leaves behind may hold its standard error open.
    #[test]
    fn of_what_is_said_no_more_is_kept_than_is_told() {
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        let mut said = Said::of(pipe).expect("listens");
        assert!(!said.take(), "nothing was said yet");
        for _ in 0..200 {
            writer.write_all(&[b'x'; 4096]).expect("it has room");
            said.take_rest();
            assert!(said.end.len() <= SAID_BYTES_MAX);
        }
        writer.write_all(b"the end").expect("it has room");
        said.take_rest();
        assert!(said.told().ends_with("xthe end"));
        let told = judged("yes >&2", Duration::from_millis(50), true).expect_err("late");
        assert!(told.len() < 3000, "{}", told.len());
    }

    #[test]
    fn what_made_itself_a_session_is_ended_too() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = temp.path().join("id");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' & while [ ! -e {0} ]; do :; done",
            file.display()
        );
        assert_eq!(judged(&script, LONG, true), Ok(()));
        let id = std::fs::read_to_string(&file).expect("it was started");
        let stat = format!("/proc/{}/stat", id.trim());
        // The process may be a zombie that has not been reaped yet.
        let is_alive = || std::fs::read_to_string(&stat).is_ok_and(|it| !it.contains(") Z "));
        while is_alive() {
            std::thread::yield_now();
        }
    }
}
