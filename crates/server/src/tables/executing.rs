//! The command that a core executes, for what is made of its changes: events, and invalidations that skip the writer.

use larder_protocol::commands::{Command, Id};

use super::Tables;

/// A command while it is executed.
pub struct Executing {
    pub id: Id,
    pub writes: bool,
    pub client: u64,
    /// It gives its key a time to live, and does not keep the one that there was.
    pub sets_deadline: bool,
    keys: Vec<Box<[u8]>>,
}

impl Executing {
    fn new(command: Command<'_>, client: u64) -> Executing {
        Executing {
            id: command.id(),
            writes: command.writes(),
            client,
            sets_deadline: sets_deadline(command),
            keys: command.keys().map(Box::from).collect(),
        }
    }

    pub fn has_key(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|own| **own == *key)
    }

    /// Whether the command makes the changes of this key that are logged while it is executed. Others come from values whose time has come.
    /// A command without keys, such as RANGEDEL, writes any.
    pub fn makes_change_of(&self, key: &[u8]) -> bool {
        self.writes && (self.keys.is_empty() || self.has_key(key))
    }
}

fn sets_deadline(command: Command<'_>) -> bool {
    match command.id() {
        Id::Set => !(command.args().skip(3)).any(|arg| arg.eq_ignore_ascii_case(b"KEEPTTL")),
        Id::MSetEx => {
            let pairs = larder_types::integer(command.arg(1)).unwrap_or(0);
            let options = usize::try_from(pairs).map_or(2, |pairs| 2 + pairs * 2);
            !(command.args().skip(options)).any(|arg| arg.eq_ignore_ascii_case(b"KEEPTTL"))
        }
        Id::SetEx
        | Id::PSetEx
        | Id::GetEx
        | Id::Expire
        | Id::PExpire
        | Id::ExpireAt
        | Id::PExpireAt => true,
        _ => false,
    }
}

impl Tables {
    /// Whether it matters which command makes a change.
    #[inline]
    fn are_changes_reported(&self) -> bool {
        self.is_tracking() || self.handle.events.are_any()
    }

    /// Runs what executes a client's command.
    pub fn executing<T>(&self, command: Command<'_>, client: u64, run: impl FnOnce() -> T) -> T {
        if !self.are_changes_reported() {
            return run();
        }
        let executing = Executing::new(command, client);
        let before = self.executing.replace(Some(executing));
        let done = run();
        self.executing.replace(before);
        done
    }
}
