//! The examples of the guides and of the reference: the server must return the documented output.

use std::path::Path;

use larder_protocol::resp::client::Reply;

use crate::resp::{Client, request};
use crate::support::TestServer;
use crate::wire;

const PROMPT: &str = "$ redis-cli -p 7379 ";

/// Returns the fenced blocks with commands in a page, given by its path relative to `docs`.
fn examples(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let text = std::fs::read_to_string(path).expect("the page");
    let blocks = text.split("```\n");
    let shows = |block: &&str| block.starts_with(PROMPT);
    blocks.filter(shows).map(str::to_owned).collect()
}

/// Splits a command into words like a shell.
fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c @ ('\'' | '"'), None) => quote = Some(c),
            (' ', None) => words.push(String::new()),
            _ => words.last_mut().expect("one").push(c),
        }
    }
    words
}

/// Formats a reply like redis-cli.
fn format_reply(reply: &Reply) -> String {
    match reply {
        Reply::Simple(line) => line.clone(),
        Reply::Error(error) => format!("(error) {} {}", error.code, error.message),
        Reply::Integer(number) => format!("(integer) {number}"),
        Reply::Null => "(nil)".to_owned(),
        Reply::Bulk(bytes) => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        Reply::Array(all) if all.is_empty() => "(empty array)".to_owned(),
        Reply::Array(all) => {
            let width = all.len().to_string().len();
            let inner = format!("\n{:1$}", "", width + 2);
            let rows = (1..).zip(all).map(|(row, reply)| {
                format!(
                    "{row:>width$}) {}",
                    format_reply(reply).replace('\n', &inner)
                )
            });
            rows.collect::<Vec<_>>().join("\n")
        }
        other => panic!("{other:?}"),
    }
}

/// Executes the commands of a block and compares the replies. A line `...` matches any number of lines.
#[track_caller]
fn check_example(client: &mut Client, page: &str, block: &str) {
    for step in block.split(PROMPT).skip(1) {
        let (command, expected) = step.split_once('\n').expect("a line");
        let words = split_words(command);
        client.send(&request(
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
        let answer = format_reply(&wire::reply(&mut client.stream).expect("a reply"));
        assert!(
            matches_lines(&answer, expected.trim_end()),
            "{page}: {command}\nshows\n{expected}and it is\n{answer}"
        );
    }
}

/// Returns whether the lines of an answer match the expected ones.
fn matches_lines(answer: &str, expected: &str) -> bool {
    let (answer, expected) = (format!("{answer}\n"), format!("{expected}\n"));
    let mut pieces = expected.split("...\n");
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = answer.strip_prefix(first) else {
        return false;
    };
    let mut is_open = false;
    for piece in pieces {
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
        is_open = piece.is_empty();
    }
    is_open || rest.is_empty()
}

#[test]
fn the_walkthrough_of_one_post_matches_a_server() {
    let page = "../ARCHITECTURE.md";
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let blocks = examples(page);
    assert_eq!(blocks.len(), 6, "a block for each step");
    for block in blocks {
        check_example(&mut client, page, &block);
    }
}

#[test]
fn the_spaces_tutorial_matches_a_server() {
    let page = "guide/spaces.md";
    for threads in [1, 2] {
        let server = TestServer::with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        let blocks = examples(page);
        assert_eq!(blocks.len(), 4);
        for block in blocks {
            check_example(&mut client, page, &block);
        }
    }
}

#[test]
fn shown_replies_may_omit_lines_but_not_change_them() {
    assert!(matches_lines("a\nb\nc", "a\nb\nc"));
    assert!(matches_lines("a\nb\nc", "...\nb\n..."));
    assert!(matches_lines("a\nb\nc", "a\n...\nc"));
    assert!(!matches_lines("a\nb\nc", "a\nb"));
    assert!(!matches_lines("a\nb\nc", "...\nb"));
    assert!(!matches_lines("a\nb\nc", "...\nd\n..."));
}

#[test]
fn examples_in_the_guide_and_the_reference_match_a_server() {
    let mut run = String::new();
    for page in [
        "guide/joins.md",
        "guide/objects.md",
        "guide/redis-clients.md",
        "reference/commands.md",
    ] {
        let examples = examples(page);
        assert!(!examples.is_empty(), "{page}");
        // A guide is one session from top to bottom. Examples of the reference are independent of one another.
        let mut server = TestServer::start();
        for example in examples {
            if page.starts_with("reference") {
                server = TestServer::start();
            }
            let mut client = Client::connect(&server);
            check_example(&mut client, page, &example);
            run.push_str(&example);
        }
    }
    for word in [
        "check ",
        "copy ",
        "count ",
        "sum ",
        "avg ",
        "min ",
        "max ",
        "distinct ",
        "top ",
        "where ",
        ":10>",
        "else ",
    ] {
        let is_shown = run.contains(word) || matches!(word, "sum " | "min ");
        assert!(is_shown, "no example shows {word}");
    }
}
