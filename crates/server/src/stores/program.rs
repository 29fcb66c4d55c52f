//! The user's own gate: a program that looks at a version and says by its exit status whether it may go live.
//!
//! It is run with the version's folder as its last argument. At its standard input it finds a description as JSON ([`description`]); what it writes to its
//! standard error is told with its refusal. It runs in a process group of its own, which is ended when it takes too long or is not wanted any more.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use larder_batch::Manifest;
use rustix::fs::{MemfdFlags, memfd_create};

/// Of what it says, the end is told.
const SAID_BYTES_MAX: u64 = 2 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    command: Vec<String>,
    limit: Duration,
}

impl Program {
    /// `None` of an empty command.
    pub fn new(command: &[String], limit: Duration) -> Option<Program> {
        (!command.is_empty()).then(|| Program {
            command: command.to_vec(),
            limit,
        })
    }

    /// Runs it to its end. `go_on` is asked while it runs; false ends it.
    ///
    /// # Errors
    /// Why the version is not let through, as a sentence.
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
        let mut said = scratch("larder-gate-said").map_err(|error| failed("listened to", error))?;
        let child = self.start(folder, description, &said);
        let mut child = child.map_err(|error| failed("started", error))?;
        let ended = self.wait(&mut child, go_on);
        // What it has started and left behind goes with it.
        // SAFETY: takes integers; the group is the child's own, made when it was started.
        unsafe { libc::killpg(child.id() as libc::pid_t, libc::SIGKILL) };
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
                    tail(&mut said)
                ));
            }
        };
        match status.success() {
            true => Ok(()),
            false => Err(format!(
                "the gate's program {name} refuses the version ({status}){}",
                tail(&mut said)
            )),
        }
    }

    fn start(
        &self,
        folder: &Path,
        description: &serde_json::Value,
        said: &File,
    ) -> std::io::Result<Child> {
        let mut input = scratch("larder-gate-input")?;
        serde_json::to_writer(&mut input, description)?;
        input.write_all(b"\n")?;
        input.seek(SeekFrom::Start(0))?;
        Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg(folder)
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(said.try_clone()?)
            .process_group(0)
            .spawn()
    }

    fn wait(&self, child: &mut Child, go_on: &dyn Fn() -> bool) -> Ended {
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
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

enum Ended {
    By(std::io::Result<ExitStatus>),
    Late,
    NotWanted,
}

/// What a program learns of a version, and of the one that it is to replace: the store, how much there is, and the profiles.
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

/// A file in memory: no pipe that fills, and none that a process left behind holds open.
fn scratch(name: &str) -> std::io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn tail(said: &mut File) -> String {
    let read = || -> std::io::Result<String> {
        let length = said.metadata()?.len();
        said.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        said.take(SAID_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    let mut read = read;
    match read() {
        Ok(text) if !text.is_empty() => format!(": {text}"),
        _ => String::new(),
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
}
