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

use crate::clients::encode_refusal;
use crate::tables::{NoReply, Refusal};

/// Returns the error if some of the parts failed. For a read, that is the first error.
pub(super) fn combined_error(command: Command<'_>, replies: &[Vec<u8>]) -> Option<Vec<u8>> {
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
    let message = String::from_utf8_lossy(&first[1..]);
    Some(encode_refusal(partially_executed(
        command.name(),
        message.trim_end(),
    )))
}

/// Returns the error of a write that failed after it had written `before` rows.
pub(super) fn partial_write_error(before: usize, command: &str, why: NoReply) -> NoReply {
    match why {
        NoReply::Refused((code, message)) if before > 0 => {
            partially_executed(command, &format!("{} {message}", code.resp_prefix())).into()
        }
        why => why,
    }
}

fn is_unknown(reply: &[u8]) -> bool {
    let word = Code::Unknown.resp_prefix().as_bytes();
    reply
        .get(1..)
        .is_some_and(|message| message.starts_with(word))
}

fn partially_executed(command: &str, message: &str) -> Refusal {
    let text = format!(
        "{} was executed for some of its keys; others were rejected or their outcome is unknown: {message}; read the keys before you retry",
        command.to_ascii_uppercase()
    );
    (Code::Unknown, text)
}

#[cfg(test)]
mod tests {
    use larder_protocol::commands::{Id, OwnedCommand};

    use super::*;

    fn reply_to(id: Id, replies: &[&str]) -> Option<String> {
        let command = OwnedCommand::of(id, [&b"t|1"[..], b"t|2"].into_iter());
        let replies: Vec<Vec<u8>> = replies.iter().map(|it| it.as_bytes().to_vec()).collect();
        let reply = combined_error(command.command(), &replies)?;
        Some(String::from_utf8(reply).expect("text"))
    }

    #[test]
    fn a_write_is_done_or_rejected_or_its_outcome_is_unknown() {
        assert_eq!(reply_to(Id::Del, &[":1\r\n", ":0\r\n"]), None);
        let full = "-OOM full\r\n";
        assert_eq!(
            reply_to(Id::Del, &[full, "-IOERR x\r\n"]).as_deref(),
            Some(full)
        );
        let partial = reply_to(Id::Del, &[":1\r\n", full, ":1\r\n"]).expect("an error");
        assert!(
            partial.starts_with("-UNKNOWN ") && partial.contains(": OOM full;"),
            "{partial}"
        );
        let unknown = "-UNKNOWN cut off\r\n";
        assert_eq!(
            reply_to(Id::Del, &[full, unknown]).as_deref(),
            Some(unknown)
        );
        let partial = reply_to(Id::Del, &[unknown, ":1\r\n"]).expect("an error");
        assert!(partial.contains(": UNKNOWN cut off;"), "{partial}");
    }

    #[test]
    fn a_failed_read_returns_its_first_error() {
        let full = "-OOM full\r\n";
        assert_eq!(
            reply_to(Id::Exists, &[":1\r\n", full]).as_deref(),
            Some(full)
        );
    }

    #[test]
    fn a_write_that_fails_at_its_first_row_is_rejected() {
        let full = || NoReply::from((Code::OutOfMemory, "full".to_owned()));
        let error_after = |before| partial_write_error(before, "MSET", full()).refusal();
        assert_eq!(error_after(0), (Code::OutOfMemory, "full".to_owned()));
        let (code, message) = error_after(1);
        assert_eq!(code, Code::Unknown);
        assert!(message.contains(": OOM full;"), "{message}");
    }
}
