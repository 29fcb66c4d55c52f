//! Determines the target nodes of a command from the command table.

use larder_protocol::commands::{self, Group, Id, InMulti, Keys, Spec};

use super::topology::Topology;

/// The target of a command, and whether it may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// The slot of its first key, or of the start of its range; `None` if any node can execute it.
    pub slot: Option<u16>,
    /// It is idempotent and changes nothing.
    pub is_read: bool,
    /// It reads only records of stores: any node with the slot can execute it.
    pub of_stores: bool,
    /// It reads one key.
    pub is_point: bool,
}

impl Route {
    /// Returns `None` for a command that changes its connection, since connections are shared here.
    pub fn of(topology: &Topology, parts: &[&[u8]]) -> Option<Route> {
        let name = parts.first().copied().unwrap_or_default();
        let Some(spec) = commands::find(name) else {
            // A command of a later version, perhaps. It may be a write.
            return Some(Route {
                slot: parts.get(1).map(|key| topology.slot(key)),
                is_read: false,
                of_stores: false,
                is_point: false,
            });
        };
        if is_connection_bound(spec, parts) {
            return None;
        }
        let mut keys = spec.keys.positions(parts.len());
        let lo = match spec.keys {
            Keys::Range => parts.get(1),
            Keys::JoinRange => parts.get(2),
            _ => None,
        };
        // A scan's cursors belong to the node that returned them.
        let scanned = (spec.id == Id::Scan).then(|| parts.get(3)).flatten();
        let first = keys.clone().next().and_then(|at| parts.get(at));
        let slot = first.or(lo).or(scanned).map(|key| topology.slot(key));
        let is_store = |at| matches!(topology.store_of(parts[at]), Some(Some(_)));
        Some(Route {
            slot,
            is_read: is_read(spec),
            of_stores: keys.len() > 0 && keys.all(is_store),
            is_point: spec.keys == Keys::One,
        })
    }
}

/// Returns whether the command is read-only, so that it can be repeated.
pub(crate) fn is_read_only(name: &[u8]) -> bool {
    commands::find(name).is_some_and(is_read)
}

fn is_read(spec: &Spec) -> bool {
    let is_node_command = matches!(
        spec.id,
        Id::Ping | Id::Echo | Id::Info | Id::Time | Id::Command | Id::Cluster
    );
    is_node_command || spec.flags.split(' ').any(|flag| flag == "readonly")
}

fn is_connection_bound(spec: &Spec, parts: &[&[u8]]) -> bool {
    let is_setting = matches!(
        spec.id,
        Id::Asking | Id::Auth | Id::Hello | Id::ReadOnly | Id::ReadWrite | Id::Unwatch
    );
    let reads_client = [&b"LIST"[..], b"KILL", b"ID", b"INFO", b"GETNAME"];
    let is_client = spec.id == Id::Client
        && !(parts.get(1))
            .is_some_and(|sub| reads_client.iter().any(|it| sub.eq_ignore_ascii_case(it)));
    // Commands on spaces are rejected in a transaction because of their cost; a cursor belongs to the node that
    // returned it.
    let is_of_spaces = spec.group == Group::Spaces && spec.id != Id::FtCursor;
    is_setting || is_client || (spec.in_multi != InMulti::Queued && !is_of_spaces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_types::slot_of;

    fn route(command: &str) -> Option<Route> {
        let mut topology = Topology::single_node("a:1");
        topology.stores = Some([b"pymk".to_vec()].into());
        let parts: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        Route::of(&topology, &parts)
    }

    #[test]
    fn commands_are_routed_by_their_first_key() {
        for (command, key, is_read, of_stores) in [
            ("get pymk:1", "pymk:1", true, true),
            ("MGET pymk:1 t|bob|1", "pymk:1", true, false),
            ("SET post|bob|1 x", "bob", false, false),
            ("RANGE post|bob| post|bob} LIMIT 3", "bob", true, false),
            ("RANGEDEL post|bob| post|bob}", "bob", false, false),
            ("MEMORY USAGE post|bob|1", "bob", true, false),
            ("JOIN.EXPLAIN name t|bob| t|bob}", "bob", true, false),
            ("COPY t|ann|1 t|bob|1", "ann", false, false),
            ("NEWER t|ann|1 t|bob|1", "ann", false, false),
        ] {
            let route = route(command).expect(command);
            assert_eq!(route.slot, Some(slot_of(key.as_bytes())), "{command}");
            assert_eq!(
                (route.is_read, route.of_stores),
                (is_read, of_stores),
                "{command}"
            );
        }
        assert_eq!(
            route("PING").map(|it| (it.slot, it.is_read)),
            Some((None, true))
        );
        assert_eq!(
            route("FLUSHALL").map(|it| (it.slot, it.is_read)),
            Some((None, false))
        );
        assert_eq!(
            route("SCAN 0 MATCH t|bob|*").map(|it| it.slot),
            Some(Some(slot_of(b"bob")))
        );
    }

    #[test]
    fn connection_bound_commands_have_no_route() {
        for command in [
            "MULTI",
            "EXEC",
            "WATCH a",
            "SUBSCRIBE a",
            "HELLO 3",
            "AUTH x",
            "CLIENT REPLY ON",
            "ASKING",
            "RESET",
            "QUIT",
        ] {
            assert_eq!(route(command), None, "{command}");
        }
        assert!(route("CLIENT LIST").is_some());
        assert_eq!(route("FT.CURSOR READ hotels 1"), None);
        let search = route("FT.SEARCH hotels *").expect("any node answers it");
        assert_eq!((search.slot, search.is_read), (None, true));
    }
}
