//! A command as a value: a request that was parsed once.
//!
//! ```text
//!  Request ── Command::parse ──► Command     borrowed: executed by the core that received it
//!                                   │ owned, or pushed to a batch
//!                                   ▼
//!                  OwnedCommand, Batch       owned: deferred, queued for EXEC, or sent to another core
//!                                   │ command, get
//!                                   ▼
//!                                Command     the same command, without encoding and decoding
//! ```

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::spec::{Keys, Spec, Subcommand};
use super::{Id, find};
use crate::resp::{OwnedRequest, Request};

/// A request for a known command, with a valid number of arguments.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    pub spec: &'static Spec,
    pub request: Request<'a>,
}

/// The reason why a request is not a valid command.
#[derive(Debug, Clone, Copy)]
pub enum Invalid {
    /// No command has this name.
    Unknown,
    /// The command does not accept this number of arguments.
    Arity(&'static Spec),
    /// The command has no such subcommand.
    Subcommand(&'static Spec),
    /// The subcommand does not accept this number of arguments.
    SubcommandArity(&'static Spec, &'static Subcommand),
}

impl Invalid {
    /// Returns the command with the request's name, if it exists.
    pub fn spec(&self) -> Option<&'static Spec> {
        match *self {
            Invalid::Unknown => None,
            Invalid::Arity(spec)
            | Invalid::Subcommand(spec)
            | Invalid::SubcommandArity(spec, _) => Some(spec),
        }
    }
}

impl<'a> Command<'a> {
    /// Parses a request.
    ///
    /// # Errors
    /// The request is not a valid command.
    #[inline]
    pub fn parse(request: Request<'a>) -> Result<Command<'a>, Invalid> {
        let spec = find(request.arg(0)).ok_or(Invalid::Unknown)?;
        if !spec.accepts(request.len()) {
            return Err(Invalid::Arity(spec));
        }
        let command = Command { spec, request };
        if !spec.subcommands.is_empty() && request.len() > 1 {
            command.check_subcommand()?;
        }
        Ok(command)
    }

    fn check_subcommand(&self) -> Result<(), Invalid> {
        let spec = self.spec;
        let sub = spec
            .subcommand(self.arg(1))
            .ok_or(Invalid::Subcommand(spec))?;
        if sub.accepts(self.len()) {
            Ok(())
        } else {
            Err(Invalid::SubcommandArity(spec, sub))
        }
    }

    #[inline]
    pub fn id(&self) -> Id {
        self.spec.id
    }

    /// Returns the name in capitals.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    #[inline]
    pub fn writes(&self) -> bool {
        self.spec.writes
    }

    /// Returns the number of arguments, including the name.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // the name is always present
    pub fn len(&self) -> usize {
        self.request.len()
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.request.get(index)
    }

    /// Returns the argument at `index`; empty if it is absent.
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.request.arg(index)
    }

    pub fn args(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        self.request.args()
    }

    /// Returns whether the command reads the ranking of a join with `top`, such as ZRANGE.
    #[inline]
    pub fn reads_ranking(&self) -> bool {
        use Id::*;
        matches!(
            self.id(),
            ZCard
                | ZCount
                | ZMScore
                | ZRange
                | ZRangeByScore
                | ZRank
                | ZRevRange
                | ZRevRangeByScore
                | ZRevRank
                | ZScore
        )
    }

    /// Returns whether the command's key is the common prefix of a group of rows, and not the key of one row.
    #[inline]
    pub fn reads_group(&self) -> bool {
        use Id::*;
        matches!(self.id(), SCard | SIsMember | SMembers | SMIsMember) || self.reads_ranking()
    }

    #[inline]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let request = self.request;
        let positions = self.spec.key_positions(request);
        positions.map(move |at| request.arg(at))
    }

    /// Returns the bounds of the range that the command reads or changes.
    #[inline]
    pub fn range(&self) -> Option<(&'a [u8], &'a [u8])> {
        let first = match self.spec.keys {
            Keys::Range => 1,
            Keys::JoinRange => 2,
            _ => return None,
        };
        Some((self.get(first)?, self.get(first + 1)?))
    }

    /// Copies the command to an owned one.
    pub fn owned(&self) -> OwnedCommand {
        self.with_args(self.args())
    }

    /// Returns the same command with other arguments, of which the first is the name.
    pub fn with_args<'b>(&self, args: impl Iterator<Item = &'b [u8]> + Clone) -> OwnedCommand {
        OwnedCommand {
            spec: self.spec,
            request: OwnedRequest::of(args),
        }
    }
}

/// A command with its own copy of the arguments.
#[derive(Debug, Clone)]
pub struct OwnedCommand {
    pub spec: &'static Spec,
    pub request: OwnedRequest,
}

impl OwnedCommand {
    /// Creates a command that the server itself issues. `args` do not include the name.
    pub fn of<'a>(id: Id, args: impl Iterator<Item = &'a [u8]> + Clone) -> OwnedCommand {
        let spec = super::spec(id);
        OwnedCommand {
            spec,
            request: OwnedRequest::of(std::iter::once(spec.name.as_bytes()).chain(args)),
        }
    }

    #[inline]
    pub fn command(&self) -> Command<'_> {
        Command {
            spec: self.spec,
            request: self.request.request(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.request.memory_bytes()
    }
}

/// Commands in one buffer, to be sent to another core.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The arguments of all commands.
    args: OwnedRequest,
    /// Each command, and the end of its arguments.
    commands: Vec<(&'static Spec, usize)>,
}

impl Batch {
    pub fn push(&mut self, command: Command<'_>) {
        self.push_args(command.spec, command.args());
    }

    /// Appends a command with these arguments, which include its name.
    pub fn push_args<'a>(
        &mut self,
        spec: &'static Spec,
        args: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        self.args.extend(args);
        self.commands.push((spec, self.args.len()));
    }

    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the command at `index`, in the order in which commands were pushed.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Command<'_>> {
        (index < self.len()).then(|| self.at(index))
    }

    fn at(&self, index: usize) -> Command<'_> {
        let begin = match index {
            0 => 0,
            _ => self.commands[index - 1].1,
        };
        let (spec, end) = self.commands[index];
        let request = self.args.part(begin..end);
        Command { spec, request }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Command<'_>> + Clone {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Encodes the commands for another node: their number, and the arguments of each.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_count(out, self.len());
        for command in self.iter() {
            put_count(out, command.len());
            command.args().for_each(|arg| put_bytes(out, arg));
        }
    }

    /// Decodes commands that another node sent.
    ///
    /// # Errors
    /// The bytes do not encode commands, or encode commands that this version of larder does not know.
    pub fn decode(bytes: &mut WireReader<'_>) -> Result<Batch, Malformed> {
        const SIZE_BYTES: usize = 4;
        let mut batch = Batch::default();
        let mut args = Vec::new();
        for _ in 0..bytes.count(SIZE_BYTES)? {
            args.clear();
            for _ in 0..bytes.count(SIZE_BYTES)? {
                args.push(bytes.bytes()?);
            }
            let begin = batch.args.len();
            batch.args.extend(args.iter().copied());
            let request = batch.args.part(begin..batch.args.len());
            let command = if request.is_empty() {
                Err(Malformed("a command has no name"))
            } else {
                Command::parse(request)
                    .map_err(|_| Malformed("a command is none that this larder knows"))
            };
            let spec = command?.spec;
            batch.commands.push((spec, batch.args.len()));
        }
        Ok(batch)
    }

    pub fn memory_bytes(&self) -> usize {
        self.args.memory_bytes() + self.commands.capacity() * size_of::<(&Spec, usize)>()
    }
}

impl From<Command<'_>> for Batch {
    fn from(command: Command<'_>) -> Batch {
        let mut batch = Batch::default();
        batch.push(command);
        batch
    }
}

impl From<OwnedCommand> for Batch {
    fn from(command: OwnedCommand) -> Batch {
        let end = command.request.len();
        Batch {
            args: command.request,
            commands: vec![(command.spec, end)],
        }
    }
}

impl<'a> FromIterator<Command<'a>> for Batch {
    fn from_iter<T: IntoIterator<Item = Command<'a>>>(commands: T) -> Batch {
        let mut batch = Batch::default();
        commands.into_iter().for_each(|one| batch.push(one));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> OwnedRequest {
        OwnedRequest::of(words.iter().map(|word| word.as_bytes()))
    }

    #[track_caller]
    fn refused(words: &[&str]) -> Invalid {
        Command::parse(owned(words).request()).expect_err("no command")
    }

    #[test]
    fn a_request_is_parsed_or_refused_for_one_reason() {
        let request = owned(&["mget", "a:1", "b|2"]);
        let command = Command::parse(request.request()).expect("a command");
        assert_eq!((command.id(), command.writes()), (Id::MGet, false));
        assert_eq!(command.keys().collect::<Vec<_>>(), [b"a:1", b"b|2"]);
        assert!(matches!(refused(&["nosuch"]), Invalid::Unknown));
        assert!(matches!(refused(&["GET"]), Invalid::Arity(spec) if spec.id == Id::Get));
        assert!(matches!(
            refused(&["CLIENT", "nosuch"]),
            Invalid::Subcommand(_)
        ));
        let wrong = refused(&["client", "setname"]);
        assert!(matches!(wrong, Invalid::SubcommandArity(_, sub) if sub.name == "SETNAME"));
        assert_eq!(wrong.spec().map(|spec| spec.id), Some(Id::Client));
    }

    #[test]
    fn an_owned_command_equals_the_original() {
        let requests = [
            owned(&["SET", "t|1", ""]),
            owned(&["range", "t|", "t}", "REV"]),
            owned(&["JOIN.EXPLAIN", "j", "lo|", "hi|"]),
        ];
        let mut batch = Batch::default();
        for request in &requests {
            let command = Command::parse(request.request()).expect("a command");
            batch.push(command);
            let kept = command.owned();
            assert!(kept.command().args().eq(command.args()));
        }
        assert_eq!(batch.len(), 3);
        for (kept, request) in batch.iter().zip(&requests) {
            assert!(kept.args().eq(request.request().args()));
        }
        let bounds = |index: usize| batch.get(index).and_then(|command| command.range());
        assert_eq!(bounds(0), None);
        assert_eq!(bounds(1), Some((&b"t|"[..], &b"t}"[..])));
        assert_eq!(bounds(2), Some((&b"lo|"[..], &b"hi|"[..])));
        assert!(batch.get(3).is_none());
        let mut bytes = Vec::new();
        batch.encode(&mut bytes);
        let sent = Batch::decode(&mut WireReader::new(&bytes)).expect("what was encoded");
        assert_eq!(sent.len(), batch.len());
        for (sent, kept) in sent.iter().zip(batch.iter()) {
            assert!(sent.args().eq(kept.args()) && sent.id() == kept.id());
        }
        for cut in 0..bytes.len() {
            Batch::decode(&mut WireReader::new(&bytes[..cut])).expect_err("it is cut");
        }
        let one = Batch::from(OwnedCommand::of(Id::Get, [&b"t|1"[..]].into_iter()));
        let args: Vec<&[u8]> = one.get(0).expect("one").args().collect();
        assert_eq!(args, [&b"GET"[..], b"t|1"]);
    }
}
