//! An HDFS for one test: Hadoop's mini cluster, from `.hdfs-mini-cluster`, which `scripts/setup test` creates.
//!
//! One Java process runs a namenode and several datanodes on free loopback ports, with its data in a folder that is
//! removed with it. It reads commands as lines and acknowledges each on completion;
//! `scripts/hdfs-mini-cluster/Main.java` defines them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::temp_folder;

pub struct Hdfs {
    port: u16,
    folder: TempDir,
    child: Child,
    console: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Hdfs {
    /// Starts a cluster with this number of datanodes, which is also the replication factor. `None`, with a message,
    /// if it is not installed.
    #[track_caller]
    pub fn start(datanodes: usize) -> Option<Hdfs> {
        let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.hdfs-mini-cluster");
        if !jars.join("Main.class").is_file() {
            crate::report_missing("Hadoop's mini cluster");
            return None;
        }
        let folder = temp_folder("hdfs");
        let log = File::create(folder.path().join("log")).expect("a file");
        let classes = format!("{}:{}/*", jars.display(), jars.display());
        let mut child = Command::new("java")
            // For a fast start and little memory.
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Xmx400m",
                "-cp",
            ])
            .args([&classes, "Main"])
            .arg(folder.path().join("data"))
            .args([
                datanodes.to_string(),
                format!("dfs.replication={datanodes}"),
            ])
            // Blocks of 1 MiB: files of a few megabytes have several.
            .args([
                "dfs.blocksize=1048576",
                "dfs.namenode.fs-limits.min-block-size=1024",
            ])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("Java runs");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        output.read_line(&mut ready).expect("a line");
        let port = ready.trim().strip_prefix("ready ");
        let port = port.and_then(|port| port.parse().ok());
        let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        Some(Hdfs {
            port: port
                .unwrap_or_else(|| panic!("the mini cluster does not start: {ready} {}", log())),
            folder,
            child,
            console: Mutex::new((input, output)),
        })
    }

    /// Returns `hdfs://` and the address of the namenode, which does not change when it is restarted.
    pub fn url(&self, path: &str) -> String {
        format!("hdfs://127.0.0.1:{}{path}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Executes a command and returns its reply.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn send_command(&self, line: &str) -> String {
        let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(console.0, "{line}").expect("the mini cluster runs");
        let mut reply = String::new();
        console
            .1
            .read_line(&mut reply)
            .expect("the mini cluster runs");
        let result = reply.trim().strip_prefix("ok");
        result
            .unwrap_or_else(|| panic!("{line}: {reply}"))
            .trim()
            .to_owned()
    }

    /// Returns the paths of the files below a folder, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let found = self.send_command(&format!("list {path}"));
        let mut names: Vec<String> = found
            .split(' ')
            .filter_map(|entry| Some(entry.rsplit_once('=')?.0.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// Creates a file with a delegation token of this user.
    pub fn token(&self, user: &str) -> PathBuf {
        let path = self.folder.path().join(format!("token-of-{user}"));
        let count = self.send_command(&format!("token {user} {}", path.display()));
        assert_eq!(count, "1");
        path
    }
}

impl Drop for Hdfs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
