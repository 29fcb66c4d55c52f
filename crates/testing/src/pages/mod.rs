//! Executes the commands of a documentation page from top to bottom, and compares their output with the page.
//!
//! | block | treatment |
//! |---|---|
//! | `sh` that begins with `$ ` | Each command after a `$ ` is executed. The lines below it are its output, in which `...` stands for omitted text. A command without output must succeed |
//! | `sh` without prompts | The block is one script, in which each command must succeed. A `text` block directly below it is its output |
//! | `console` | Not executed. The paragraph above it names what the commands need |
//! | `text`, `toml`, `json`, `python`, `rust`, `sql` | Not executed. It contains no shell commands |
//!
//! Any other block is an error, so that new blocks are executed or marked on purpose.
//!
//! All commands of a page run in one shell, in a folder that already has other files, and a link to the repository's
//! `examples`. `python3` is the one of `.venv`. Ports that the page mentions are replaced by free ones. After a line that
//! starts a server in the background (with `&` at its end), the shell waits until the server is ready. The server ends
//! with the page.

mod blocks;
mod compare;

use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{etcd, find, free_port, report_missing};
use blocks::Step;
pub use compare::matches;

/// A bound on the time of a page, in seconds. It only ends pages that hang.
const SECONDS_MAX: &str = "240";

/// Files that the folder has before the first command.
const OTHER_FILES: [(&str, &str); 2] = [
    ("notes.txt", "call the dentist\n"),
    ("data.csv", "a;b\n\"not closed\n"),
];

/// The documented ports of Redis clients, HTTP, nodes and two decks.
const PORTS: [u16; 5] = [7379, 7070, 7380, 6001, 6002];

/// The documented port of the first node of a local cluster, which has the same meaning as in `larder cluster local
/// --port`: the other nodes have the next ports, and HTTP has the ports above by 1,000.
const CLUSTER_PORT: u16 = 7301;
const CLUSTER_NODES: u16 = 3;
/// The ports from which those of a cluster are chosen, without the higher ones of HTTP. `free_port` uses none of them.
const CLUSTER_PORTS: Range<u16> = 4_000..5_000;

/// Runs before the first command. `ready ADDRESS` waits until the last background process responds, or has ended.
const PROLOGUE: &str = r#"
shopt -s expand_aliases
enable -n bg
status=0
trap 'exec > /dev/null 2>&1; trap - EXIT; kill $(jobs -p); wait' EXIT
ready() {
    until curl -sfko /dev/null "http://$1" || curl -sfko /dev/null "https://$1"; do
        kill -0 $! || return
        sleep 0.02
    done
}
"#;

/// Returns the paths of all guides and of the README.
pub fn all() -> Vec<String> {
    let guides = fs::read_dir(repository().join("docs/guide")).expect("the guides");
    let names = guides.map(|guide| guide.expect("a guide").file_name());
    let guides = names.map(|name| format!("docs/guide/{}", name.display()));
    let mut pages: Vec<String> = guides.chain(["README.md".to_owned()]).collect();
    pages.sort();
    pages
}

/// Returns the text of a page, which is given by its path in the repository.
pub fn read(page: &str) -> String {
    let path = repository().join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder, programs and ports with which a page is executed.
pub struct Reader {
    folder: TempDir,
    ports: Vec<(u16, u16)>,
    replacements: Vec<(&'static str, &'static str)>,
    environment: Vec<(&'static str, String)>,
    skipped: Option<&'static str>,
    only: Option<&'static str>,
}

impl Reader {
    /// Returns a reader without programs of this workspace. `None` if a program is not installed that pages need.
    pub fn new() -> Option<Reader> {
        for program in ["bash", "curl", "redis-cli", "timeout"] {
            if find(program).is_none() {
                report_missing(program);
                return None;
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        for made in ["bin", "output", "work", "work/empty"] {
            fs::create_dir(folder.path().join(made)).expect("a folder");
        }
        let reader = Reader {
            folder,
            ports: PORTS.map(|port| (port, free_port())).to_vec(),
            replacements: Vec::new(),
            environment: Vec::new(),
            skipped: None,
            only: None,
        };
        for (name, text) in OTHER_FILES {
            fs::write(reader.work().join(name), text).expect("a file");
        }
        link(
            &repository().join("examples"),
            &reader.work().join("examples"),
        );
        let python = repository().join(".venv/bin/python");
        if python.is_file() {
            reader.script("python3", &format!("exec {} \"$@\"", python.display()));
        }
        if let Some(etcd) = etcd::program() {
            reader.program("etcd", &etcd);
        }
        Some(reader)
    }

    /// Makes a program available under this name.
    pub fn program(&self, name: &str, path: &Path) {
        link(path, &self.folder.path().join("bin").join(name));
    }

    /// Makes a shell script available under this name.
    pub fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own file");
    }

    /// Replaces a port of the page by the port of a server that already runs.
    pub fn map_port(&mut self, documented: u16, port: u16) {
        self.ports.retain(|(known, _)| *known != documented);
        self.ports.push((documented, port));
    }

    /// Replaces the ports of a local cluster by free ones.
    pub fn map_cluster_ports(&mut self) {
        let ports = |first: u16| {
            let nodes = (0..CLUSTER_NODES).map(move |node| first + node);
            nodes.flat_map(|port| [port, port + 1000])
        };
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        // Concurrent processes begin at different ports.
        let begin = (std::process::id() % 100) as usize;
        let mut firsts = CLUSTER_PORTS.step_by(10).cycle().skip(begin).take(100);
        let first = firsts
            .find(|first| ports(*first).all(is_free))
            .expect("free ports for a cluster");
        self.ports.extend(ports(CLUSTER_PORT).zip(ports(first)));
    }

    /// Replaces a text in all commands, such as a duration that is too long for a test.
    pub fn replace(&mut self, from: &'static str, to: &'static str) {
        self.replacements.push((from, to));
    }

    /// Sets an environment variable.
    pub fn set(&mut self, name: &'static str, value: &str) {
        self.environment.push((name, value.to_owned()));
    }

    /// Returns the port that replaces one of the page.
    pub fn port(&self, documented: u16) -> u16 {
        let port = self.ports.iter().find(|(known, _)| *known == documented);
        port.expect("a port of the page").1
    }

    /// Leaves out a section, which another test executes.
    pub fn skip_section(&mut self, heading: &'static str) {
        self.skipped = Some(heading);
    }

    /// Executes only this section.
    pub fn only_section(&mut self, heading: &'static str) {
        self.only = Some(heading);
    }

    /// Executes a page, which is given by its path in the repository.
    ///
    /// # Panics
    /// A block is neither executed nor marked, a command fails, or its output differs from the page.
    #[track_caller]
    pub fn check(&self, page: &str) {
        let is_selected = |section: &str| {
            self.only.is_none_or(|only| only == section) && self.skipped != Some(section)
        };
        let steps = blocks::steps(&read(page), is_selected);
        let steps = steps.unwrap_or_else(|why| panic!("{page}: {why}"));
        let has_section = self.only.is_none() || !steps.is_empty();
        assert!(has_section, "{page} has no section {:?}", self.only);
        let script = self.folder.path().join("script");
        fs::write(&script, self.script_of(&steps)).expect("a file");
        let mut shell = Command::new("timeout");
        shell.args(["-k", "10", SECONDS_MAX, "bash"]).arg(&script);
        for (name, _) in std::env::vars() {
            if name.starts_with("LARDER_") || name.starts_with("BG_") {
                shell.env_remove(name);
            }
        }
        let path = std::env::var("PATH").expect("PATH is set");
        let path = format!("{}:{path}", self.folder.path().join("bin").display());
        let shell = shell
            .current_dir(self.work())
            .env("PATH", path)
            .env("NO_COLOR", "1")
            // redis-cli shows the types of replies, as on a terminal.
            .env("FAKETTY", "1")
            .env("LARDER_SERVER", format!("http://{}", self.address(7070)))
            .env("LARDER_SERVER_RESP", self.address(7379))
            .env("LARDER_SERVER_HTTP", self.address(7070))
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = shell.output().expect("timeout runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        for (number, step) in steps.iter().enumerate() {
            self.compare(page, number, step, &errors);
        }
        for (name, text) in OTHER_FILES {
            let left = fs::read_to_string(self.work().join(name)).unwrap_or_default();
            assert_eq!(
                left, text,
                "{page} changed a file that it did not create: {name}"
            );
        }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn output(&self, number: usize) -> PathBuf {
        self.folder.path().join("output").join(number.to_string())
    }

    fn address(&self, documented: u16) -> String {
        format!("127.0.0.1:{}", self.port(documented))
    }

    /// Returns a script that executes the steps, and writes each step's output and exit status to files.
    fn script_of(&self, steps: &[Step]) -> String {
        let mut script = PROLOGUE.to_owned();
        for (number, step) in steps.iter().enumerate() {
            let output = self.output(number);
            let output = output.display();
            // A command may print the status of the previous one.
            let before = if step.is_script {
                "set -e"
            } else {
                "(exit $status)"
            };
            let commands = self.executable(&step.commands);
            script += &format!("exec > {output} 2>&1 < /dev/null\n{before}\n{commands}");
            script += &format!("status=$?\nset +e\necho $status > {output}.status\n");
        }
        script
    }

    /// Returns the commands with free ports, and with a pause until a background server is ready.
    fn executable(&self, commands: &str) -> String {
        let mut executable = String::new();
        for line in commands.lines() {
            let mut command = self.with_ports(line);
            for (from, to) in &self.replacements {
                command = command.replace(from, to);
            }
            executable += &format!("{command}\n");
            if let Some(address) = self.server_address(line) {
                executable += &format!("ready {address} 2> /dev/null\n");
            }
        }
        executable
    }

    /// Returns the address at which the server that a line starts in the background responds when it is ready.
    fn server_address(&self, line: &str) -> Option<String> {
        if !line.ends_with('&') {
            return None;
        }
        let option = |name: &str| {
            let mut words = line.split(' ').skip_while(|word| *word != name);
            words.nth(1)
        };
        let address = if line.contains("bg ") && line.contains("deck") {
            "127.0.0.1:6001/v1/state".to_owned()
        } else if line.contains("larder serve") {
            let http = option("--http").unwrap_or("127.0.0.1:7070");
            let port = http.rsplit(':').next()?;
            format!("127.0.0.1:{port}/readyz")
        } else if line.contains("larder cluster local") {
            let port = option("--port")?.parse::<u16>().ok()?;
            format!("127.0.0.1:{}/readyz", port + 1000)
        } else {
            return None;
        };
        Some(self.with_ports(&address))
    }

    /// Replaces the ports of the page in a text.
    fn with_ports(&self, text: &str) -> String {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, number) = rest.split_at(at);
            let end = number
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            let mut ports = self.ports.iter();
            let port = ports.find(|(documented, _)| number == documented.to_string());
            replaced += before;
            replaced += &port.map_or_else(|| number.to_owned(), |(_, port)| port.to_string());
            rest = after;
        }
        replaced + rest
    }

    #[track_caller]
    fn compare(&self, page: &str, number: usize, step: &Step, errors: &str) {
        let Step { line, commands, .. } = step;
        let place = format!("{page}, line {line}:\n{commands}");
        let path = self.output(number);
        let output = fs::read(&path).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let status = fs::read_to_string(path.with_extension("status")).unwrap_or_default();
        assert!(
            !status.is_empty(),
            "{place}ends the session with\n{output}{errors}"
        );
        if let Some(shown) = step.output.as_ref().map(|shown| self.with_ports(shown)) {
            let without_times = compare::without_times;
            assert!(
                matches(&without_times(&output), &without_times(&shown)),
                "{place}shows\n{shown}and the output is\n{output}"
            );
        }
        let must_succeed = step.output.as_ref().is_none_or(String::is_empty);
        assert!(!must_succeed || status == "0\n", "{place}fails:\n{output}");
    }
}

fn link(path: &Path, name: &Path) {
    std::os::unix::fs::symlink(path, name).expect("a link");
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Returns whether a page passes its check.
    fn passes(text: &str) -> bool {
        let reader = Reader::new().expect("bash, curl and redis-cli");
        let page = reader.folder.path().join("page.md");
        fs::write(&page, text).expect("a file");
        let page = page.to_str().expect("a path in UTF-8");
        catch_unwind(AssertUnwindSafe(|| reader.check(page))).is_ok()
    }

    #[test]
    fn the_output_of_each_command_is_compared() {
        assert!(passes(
            "```sh\n$ echo one\none\n$ (exit 3)\n...\n$ echo $?\n3\n```\n"
        ));
        assert!(passes("```sh\n$ cat <<'END'\n> one\n> END\none\n```\n"));
        assert!(!passes("```sh\n$ echo one\ntwo\n```\n"));
        assert!(!passes("```sh\n$ echo one\n```\n"));
        assert!(!passes("```sh\n$ false\n```\n"));
    }

    #[test]
    fn a_script_ends_at_its_first_error() {
        assert!(passes("```sh\nx=one\necho $x\n```\n\n```text\none\n```\n"));
        assert!(!passes(
            "```sh\nfalse\necho one\n```\n\n```text\none\n```\n"
        ));
        assert!(!passes("```sh\necho one\n```\n\n```text\ntwo\n```\n"));
    }

    #[test]
    fn a_page_leaves_other_files_unchanged() {
        assert!(!passes("```sh\nrm notes.txt\n```\n"));
    }
}
