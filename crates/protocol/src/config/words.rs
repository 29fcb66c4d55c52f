//! Settings with a fixed set of words. Each is an enum. Parsing a text returns a variant, or an error for an unknown word.

use std::fmt;

use super::ConfigValue;

macro_rules! words {
    ($(
        $(#[doc = $doc:literal])*
        $Name:ident { $( $(#[doc = $word_doc:literal])* $Word:ident = $word:literal, )* }
    )*) => { $(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Name {
            $( $(#[doc = $word_doc])* $Word, )*
        }

        impl $Name {
            /// All variants, in the order in which messages list them.
            pub const ALL: &[$Name] = &[ $( $Name::$Word, )* ];

            /// Returns the word in the configuration.
            pub const fn word(self) -> &'static str {
                match self {
                    $( $Name::$Word => $word, )*
                }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl ConfigValue for $Name {
            const TYPE: &'static str = "word";

            fn words() -> Vec<&'static str> {
                $Name::ALL.iter().map(|one| one.word()).collect()
            }

            fn from_text(text: &str) -> Result<$Name, String> {
                let mut all = $Name::ALL.iter().copied();
                all.find(|one| one.word() == text).ok_or_else(|| either(&Self::words()))
            }

            fn from_toml(value: &toml::Value) -> Result<$Name, String> {
                $Name::from_text(value.as_str().unwrap_or_default())
            }

            fn to_toml(&self) -> toml::Value {
                toml::Value::String(self.word().to_owned())
            }
        }
    )* };
}

words! {
    /// `tables.fsync`: the time at which a write is synced to disk.
    Fsync {
        /// Before it is acknowledged.
        Always = "always",
        /// Within a second.
        EverySecond = "everysec",
        /// When the operating system decides.
        No = "no",
    }
    /// `postgres.slot`: the lifetime of the replication slot in PostgreSQL.
    SlotLife {
        /// The slot is dropped when the connection ends.
        Temporary = "temporary",
        /// The slot survives a lost connection.
        Permanent = "permanent",
    }
    /// `cluster.mode`.
    ClusterMode {
        /// The server is standalone.
        Off = "off",
        /// The server is a cluster of one node.
        One = "one",
        /// The server is a node of a cluster whose map is in etcd.
        Etcd = "etcd",
    }
    /// `tables.acknowledge`: the time at which a write to a cluster is acknowledged.
    Acknowledge {
        /// When the owner has the write.
        Owner = "owner",
        /// When all replicas in sync also have the write.
        Replicas = "replicas",
    }
    /// `cluster.roles`: the tasks of a node.
    NodeRoles {
        /// The node owns rows and data sets.
        Base = "base",
        /// The node computes outputs of joins.
        Compute = "compute",
        Both = "both",
    }
    /// `cluster.routing`: the handling of a request for a key of another node.
    Routing {
        /// The node forwards the request.
        Proxy = "proxy",
        /// The node answers `MOVED`.
        Redirect = "redirect",
    }
    /// `cluster.cut_off_reads`: reads of stores on a node that cannot reach etcd while other nodes have a newer map.
    CutOffReads {
        /// The node forwards the reads to nodes that have the versions of the newer map.
        Forward = "forward",
        /// The node rejects the reads.
        Refuse = "refuse",
    }
    /// `log.format`.
    LogFormat {
        Text = "text",
        Json = "json",
    }
    /// `tables.<name>.write`: the handling of clients' writes to a mapped table.
    Writes {
        Refused = "refuse",
        /// PostgreSQL executes the writes.
        Through = "through",
    }
}

/// Formats a list as `a, b or c`.
pub(super) fn either(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ServerConfig, keys};

    #[test]
    fn an_unknown_word_is_refused_with_the_known_words() {
        for (toml, expected) in [
            (
                "[tables]\nfsync = 'sometimes'",
                "larder.toml: tables.fsync is \"sometimes\"; it must be always, everysec or no",
            ),
            (
                "[tables]\nfsync = false",
                "larder.toml: tables.fsync is false; it must be always, everysec or no",
            ),
            (
                "[postgres]\nslot = 'Permanent'",
                "larder.toml: postgres.slot is \"Permanent\"; it must be temporary or permanent",
            ),
            (
                "[log]\nformat = ''",
                "larder.toml: log.format is \"\"; it must be text or json",
            ),
        ] {
            let applied = ServerConfig::default().apply_toml(toml, "larder.toml");
            assert_eq!(applied.unwrap_err().to_string(), expected);
        }
        let env = [("LARDER_TABLES_FSYNC".to_owned(), "daily".to_owned())];
        assert_eq!(
            ServerConfig::default()
                .apply_env(env)
                .unwrap_err()
                .to_string(),
            "LARDER_TABLES_FSYNC: tables.fsync is daily; it must be always, everysec or no"
        );
    }

    #[test]
    fn every_word_of_the_reference_round_trips() {
        let of_words: Vec<_> = keys()
            .into_iter()
            .filter(|key| key.kind == "word")
            .collect();
        assert!(of_words.iter().any(|key| key.path() == "tables.fsync"));
        for key in of_words {
            for word in key
                .allowed
                .split(", ")
                .flat_map(|words| words.split(" or "))
            {
                let mut config = ServerConfig::default();
                config.set(&key.path(), word, "here").unwrap();
                let shown = config.get(key.section, key.name).unwrap();
                assert_eq!(shown.as_str(), Some(word));
            }
        }
    }
}
