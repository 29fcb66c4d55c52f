//! Writes of several rows of which some were rejected. Such a write ends in one of three ways, as every write does.
//!
//! | its parts | reply |
//! |---|---|
//! | all are done | the combined result |
//! | all are rejected | the first error: not done |
//! | some are done, or may be | `UNKNOWN`, with the first error in its message |
//!
//! Redis has no error for the third case: it checks all keys of a command before it executes any of it, and clients of
//! Redis Cluster split such commands themselves. Clients do not retry automatically after `UNKNOWN`.

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;

use crate::clients::as_reply;
use crate::tables::{Refusal, Unanswered};

/// Returns the error if some of the parts failed. For a read, that is the first error.
pub(super) fn refused(command: Command<'_>, replies: &[Vec<u8>]) -> Option<Vec<u8>> {
    let is_error = |reply: &&Vec<u8>| reply.starts_with(b"-");
    let first = replies.iter().find(is_error)?;
    if !command.writes() || replies.iter().all(|reply| is_error(&reply)) {
        let unknown = replies.iter().find(|reply| is_unknown(reply));
        return Some(
            unknown
                .filter(|_| command.writes())
                .unwrap_or(first)
                .clone(),
        );
    }
    let said = String::from_utf8_lossy(&first[1..]);
    Some(as_reply(partly_done(command.name(), said.trim_end())))
}

/// Returns the error of a write that failed after it had written `before` rows.
pub(super) fn behind(before: usize, command: &str, why: Unanswered) -> Unanswered {
    match why {
        Unanswered::Refused((code, said)) if before > 0 => {
            partly_done(command, &format!("{} {said}", code.resp_prefix())).into()
        }
        why => why,
    }
}

fn is_unknown(reply: &[u8]) -> bool {
    let word = Code::Unknown.resp_prefix().as_bytes();
    reply.get(1..).is_some_and(|said| said.starts_with(word))
}

fn partly_done(command: &str, said: &str) -> Refusal {
    let message = format!(
        "{} was executed for some of its keys; for others it was refused, or its outcome is unknown: {said}; read the keys before you send it again",
        command.to_ascii_uppercase()
    );
    (Code::Unknown, message)
}

#[cfg(test)]
mod tests {
    use larder_protocol::commands::{Id, OwnedCommand};

    use super::*;

    fn answered(id: Id, replies: &[&str]) -> Option<String> {
        let command = OwnedCommand::of(id, [&b"t|1"[..], b"t|2"].into_iter());
        let replies: Vec<Vec<u8>> = replies.iter().map(|it| it.as_bytes().to_vec()).collect();
        let answered = refused(command.command(), &replies)?;
        Some(String::from_utf8(answered).expect("text"))
    }

    #[test]
    fn a_write_is_done_or_not_or_it_is_unknown() {
        assert_eq!(answered(Id::Del, &[":1\r\n", ":0\r\n"]), None);
        let full = "-OOM full\r\n";
        assert_eq!(
            answered(Id::Del, &[full, "-IOERR x\r\n"]).as_deref(),
            Some(full)
        );
        let partly = answered(Id::Del, &[":1\r\n", full, ":1\r\n"]).expect("an error");
        assert!(
            partly.starts_with("-UNKNOWN ") && partly.contains(": OOM full;"),
            "{partly}"
        );
        let unknown = "-UNKNOWN cut off\r\n";
        assert_eq!(
            answered(Id::Del, &[full, unknown]).as_deref(),
            Some(unknown)
        );
        let partly = answered(Id::Del, &[unknown, ":1\r\n"]).expect("an error");
        assert!(partly.contains(": UNKNOWN cut off;"), "{partly}");
    }

    #[test]
    fn a_read_has_changed_nothing() {
        let full = "-OOM full\r\n";
        assert_eq!(
            answered(Id::Exists, &[":1\r\n", full]).as_deref(),
            Some(full)
        );
    }

    #[test]
    fn the_first_row_of_several_is_refused_as_one_alone_is() {
        let full = || Unanswered::from((Code::OutOfMemory, "full".to_owned()));
        let told = |before| behind(before, "MSET", full()).refusal();
        assert_eq!(told(0), (Code::OutOfMemory, "full".to_owned()));
        let (code, message) = told(1);
        assert_eq!(code, Code::Unknown);
        assert!(message.contains(": OOM full;"), "{message}");
    }
}
