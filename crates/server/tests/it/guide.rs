//! The examples of ARCHITECTURE.md and of the reference: the server must return the documented output.

use larder_protocol::resp::client::Reply;
use larder_testing::pages;

use crate::resp::{Client, request};
use crate::support::TestServer;
use crate::wire;

const PROMPT: &str = "$ redis-cli -p 7379 ";

/// Returns the fenced blocks with commands in a page, given by its path in the repository.
fn examples(page: &str) -> Vec<String> {
    let text = pages::read(page);
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
            pages::matches(&answer, expected),
            "{page}: {command}\nshows\n{expected}and it is\n{answer}"
        );
    }
}

#[test]
fn the_walkthrough_of_one_post_matches_a_server() {
    let page = "ARCHITECTURE.md";
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let blocks = examples(page);
    assert_eq!(blocks.len(), 6, "a block for each step");
    for block in blocks {
        check_example(&mut client, page, &block);
    }
}

#[test]
fn examples_in_the_reference_match_a_server() {
    let page = "docs/reference/commands.md";
    // The examples are independent of one another.
    for example in examples(page) {
        let server = TestServer::start();
        check_example(&mut Client::connect(&server), page, &example);
    }
}

#[test]
fn examples_show_all_parts_of_a_join() {
    let guide = pages::read("docs/guide/joins.md");
    let commands = guide.lines().filter(|line| line.starts_with(PROMPT));
    let examples = examples("docs/reference/commands.md");
    let run = commands
        .map(str::to_owned)
        .chain(examples)
        .collect::<String>();
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
