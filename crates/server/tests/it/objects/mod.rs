//! Objects, that is, hashes and JSON documents, as clients of Redis use them.

mod changes;
mod documents;
mod fields;
mod groups;
mod hashes;
mod keys;
mod oracle;

use crate::resp::Client;

/// Sends lines and checks their replies. `$?|` in a reply stands for a bulk string's header with the size of the text
/// behind it.
#[track_caller]
fn check_sized(client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        match expected.strip_prefix("$?|") {
            Some(text) => client.check(line, &format!("${}|{text}", text.len())),
            None => client.check(line, expected),
        }
    }
}
