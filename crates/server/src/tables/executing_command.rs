//! The command that a core is executing, for the effects of its changes: events, and invalidations that skip the
//! writer.

use larder_protocol::commands::{Command, Id};

use super::Tables;

/// A command during its execution.
pub struct ExecutingCommand {
    pub id: Id,
    pub writes: bool,
    pub client: u64,
    /// True if the command sets a TTL, and does not keep the existing one.
    pub sets_deadline: bool,
    keys: Vec<Box<[u8]>>,
}

impl ExecutingCommand {
    fn new(command: Command<'_>, client: u64) -> ExecutingCommand {
        ExecutingCommand {
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

    /// Returns whether the command itself makes the changes of this key that are logged during its execution. Other changes are
    /// those of expired values. A command without keys, such as RANGEDEL, may change any key.
    pub fn changes_key(&self, key: &[u8]) -> bool {
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
    /// Returns whether the command that makes a change must be known.
    #[inline]
    fn are_changes_reported(&self) -> bool {
        self.is_tracking() || self.handle.events.is_enabled()
    }

    /// Runs `run`, which executes a client's command.
    pub fn with_executing_command<T>(
        &self,
        command: Command<'_>,
        client: u64,
        run: impl FnOnce() -> T,
    ) -> T {
        if !self.are_changes_reported() {
            return run();
        }
        let executing = ExecutingCommand::new(command, client);
        let before = self.executing.replace(Some(executing));
        let done = run();
        self.executing.replace(before);
        done
    }
}
