//! The scripts in `testdata/scripts`, which cover every command of the table and its errors.
//!
//! A script consists of lines: `# a comment`, a request, and below it, indented by two spaces, the reply in the
//! format of the tests' client. Words of a request may be quoted; in quotes, `\x00` is a byte below 80. `...` in a
//! reply matches anything. Each script starts with a new server and one connection. If its first line is
//! `# cluster.mode = one`, the server is a cluster of one node. `LARDER_UPDATE_SCRIPTS=1` writes the server's replies
//! into the scripts, for review after a change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use larder_protocol::commands::COMMANDS;
use larder_protocol::config::ClusterMode;

use crate::resp::{Client, request, server_with};

const ANYTHING: &str = "...";

/// Returns the paths of all scripts. Scripts do not cover wrong numbers of arguments; see
/// `wrong_numbers_of_arguments_return_an_error_with_the_commands_name`.
fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/scripts");
    let files = std::fs::read_dir(folder).expect("the scripts");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    paths
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a script")
}

/// Splits a request into words. A quoted text is one word.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![unescaped(part)],
        })
        .collect()
}

fn unescaped(word: &str) -> String {
    let mut parts = word.split("\\x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |word, part| {
        let (digits, rest) = part.split_at(2);
        let byte = u8::from_str_radix(digits, 16).expect("two digits");
        assert!(byte < 0x80, "{part}");
        word + &char::from(byte).to_string() + rest
    })
}

fn matches_pattern(pattern: &str, reply: &str) -> bool {
    let mut parts = pattern.split(ANYTHING);
    let Some(mut rest) = parts.next().and_then(|first| reply.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = pattern
        .rsplit(ANYTHING)
        .next()
        .filter(|_| pattern.contains(ANYTHING))
    else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    reply.ends_with(last)
}

/// Replays a script. Returns its text with the actual replies, and a description of the first reply that differs.
fn replay(script: &str, threads: u32) -> (String, Option<String>) {
    let server = server_with(|config| {
        config.server.threads = threads;
        if script.starts_with("# cluster.mode = one\n") {
            config.cluster.mode = ClusterMode::One;
        }
    });
    let mut client = Client::connect(&server);
    let (mut out, mut wrong) = (String::new(), None);
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let expected = lines.next().and_then(|line| line.strip_prefix("  "));
        let expected = expected.unwrap_or_else(|| panic!("{line} has no reply"));
        let words = words(line);
        client.send(&request(
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
        // Replies with several lines are shown on one line.
        let reply = client.reply().replace("\r\n", "|").replace('\n', "|");
        let is_right = matches_pattern(expected, &reply);
        if !is_right && wrong.is_none() {
            wrong = Some(format!("{line}\n expected {expected}\n answered {reply}"));
        }
        out += &format!("  {}\n", if is_right { expected } else { &reply });
    }
    (out, wrong)
}

#[test]
fn every_script_matches_on_one_core_and_on_several() {
    for path in scripts() {
        for threads in [1, 3] {
            let (right, wrong) = replay(&text(&path), threads);
            if std::env::var_os("LARDER_UPDATE_SCRIPTS").is_some() {
                std::fs::write(&path, right).expect("written");
            } else if let Some(wrong) = wrong {
                panic!("{} on {threads} cores: {wrong}", path.display());
            }
        }
    }
}

#[test]
fn every_command_has_a_script_with_a_reply_and_an_error() {
    let (mut answered, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for script in scripts() {
        let script = text(&script);
        let mut lines = script
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        while let (Some(line), Some(reply)) = (lines.next(), lines.next()) {
            let words: Vec<String> = words(line).iter().map(|word| word.to_uppercase()).collect();
            let which = if reply.trim_start().starts_with('-') {
                &mut refused
            } else {
                &mut answered
            };
            which.insert(words[0].clone());
            which.extend(words.get(1).map(|second| format!("{} {second}", words[0])));
        }
    }
    let mut missing = Vec::new();
    for command in COMMANDS {
        let name = command.name.to_owned();
        if !answered.contains(&name) && !ALWAYS_REFUSED.contains(&command.name) {
            missing.push(format!("{name}: an answer"));
        }
        // A command with subcommands rejects unknown ones.
        if command.arity != 1 && !refused.contains(&name) && !NEVER_REFUSED.contains(&command.name)
        {
            missing.push(format!("{name}: a refusal"));
        }
        for sub in command.subcommands {
            let name = format!("{name} {}", sub.name);
            if !answered.contains(&name) && !refused.contains(&name) {
                missing.push(name);
            }
        }
    }
    assert!(missing.is_empty(), "testdata/scripts lacks {missing:#?}");
}

/// Commands without a successful reply. The scripts' server has no password.
const ALWAYS_REFUSED: [&str; 1] = ["AUTH"];

/// Commands for which no argument is invalid. KEYS reports an error only if more keys match than it may list.
const NEVER_REFUSED: [&str; 7] = [
    "ECHO",
    "INFO",
    "KEYS",
    "MGET",
    "PUNSUBSCRIBE",
    "QUIT",
    "UNSUBSCRIBE",
];

#[test]
fn wrong_numbers_of_arguments_return_an_error_with_the_commands_name() {
    let server = server_with(|config| config.server.threads = 2);
    let mut client = Client::connect(&server);
    // `arity` is the exact number of words, or, if negative, the minimum.
    let wrong = |arity: i32| match arity {
        exact @ 1.. => vec![exact as usize - 1, exact as usize + 1],
        least => vec![least.unsigned_abs() as usize - 1],
    };
    for command in COMMANDS {
        for count in wrong(command.arity).into_iter().filter(|count| *count > 0) {
            let words = [vec![command.name], vec!["x"; count - 1]].concat();
            client.send(&request(&words));
            let name = command.name.to_lowercase();
            let expected = format!("-ERR wrong number of arguments for '{name}' command");
            assert_eq!(client.reply(), expected, "{words:?}");
        }
        for sub in command.subcommands {
            for count in wrong(sub.arity).into_iter().filter(|count| *count > 1) {
                let words = [vec![command.name, sub.name], vec!["x"; count - 2]].concat();
                client.send(&request(&words));
                let name = format!("{}|{}", command.name, sub.name).to_lowercase();
                let expected = format!("-ERR wrong number of arguments for '{name}' command");
                assert_eq!(client.reply(), expected, "{words:?}");
            }
        }
    }
}
