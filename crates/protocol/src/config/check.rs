//! The rules that a key's type cannot say.

use std::fmt;

use super::{ConfigError, ServerConfig};

impl ServerConfig {
    /// # Errors
    /// The first rule that is broken: the key, its value, and what it must be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rule = |holds: bool, key: &str, value: &dyn fmt::Display, expected: &str| {
            if holds {
                Ok(())
            } else {
                Err(ConfigError(format!(
                    "{key} is {value}; it must be {expected}"
                )))
            }
        };
        for (key, address) in [
            ("server.resp", &self.server.resp),
            ("server.http", &self.server.http),
        ] {
            let port = address.rsplit_once(':').and_then(|(host, port)| {
                (!host.is_empty())
                    .then(|| port.parse::<u16>().ok())
                    .flatten()
            });
            rule(
                port.is_some(),
                key,
                address,
                "an address and a port, such as 127.0.0.1:7379",
            )?;
        }
        rule(
            self.server.threads <= 1024,
            "server.threads",
            &self.server.threads,
            "at most 1024",
        )?;
        rule(
            (1..=1024).contains(&self.server.disk_threads),
            "server.disk_threads",
            &self.server.disk_threads,
            "from 1 to 1024",
        )?;
        rule(
            self.server.max_connections > 0,
            "server.max_connections",
            &0,
            "at least 1",
        )?;
        rule(
            self.server.max_http_connections > 0,
            "server.max_http_connections",
            &0,
            "at least 1",
        )?;
        rule(
            (1..=86_400).contains(&self.server.http_timeout_seconds),
            "server.http_timeout_seconds",
            &self.server.http_timeout_seconds,
            "from 1 to 86400",
        )?;
        rule(
            (1..=1024).contains(&self.server.http_reads),
            "server.http_reads",
            &self.server.http_reads,
            "from 1 to 1024",
        )?;
        rule(
            self.server.max_arguments > 0,
            "server.max_arguments",
            &0,
            "at least 1",
        )?;
        rule(
            (1024..=(4 << 30)).contains(&self.server.max_argument_bytes.0),
            "server.max_argument_bytes",
            &self.server.max_argument_bytes,
            "from 1KiB to 4GiB",
        )?;
        rule(
            self.server.output_buffer_bytes.0 >= 4096,
            "server.output_buffer_bytes",
            &self.server.output_buffer_bytes,
            "at least 4KiB",
        )?;
        rule(
            self.server.subscriber_buffer_bytes.0 >= 4096,
            "server.subscriber_buffer_bytes",
            &self.server.subscriber_buffer_bytes,
            "at least 4KiB",
        )?;
        rule(
            self.server.client_memory.0 >= 1 << 20,
            "server.client_memory",
            &self.server.client_memory,
            "at least 1MiB",
        )?;
        rule(
            matches!(self.server.clients_memory.0, 0 | 0x10_0000..),
            "server.clients_memory",
            &self.server.clients_memory,
            "0, or at least 1MiB",
        )?;
        rule(
            self.server.max_transaction_commands > 0,
            "server.max_transaction_commands",
            &0,
            "at least 1",
        )?;
        rule(
            (1..=256).contains(&self.fetch.parallel),
            "fetch.parallel",
            &self.fetch.parallel,
            "from 1 to 256",
        )?;
        rule(
            (1..=1024).contains(&self.fetch.pulls),
            "fetch.pulls",
            &self.fetch.pulls,
            "from 1 to 1024",
        )?;
        for entry in &self.fetch.allow {
            rule(
                entry.starts_with('/') || entry.contains("://"),
                "fetch.allow",
                &format!("{entry:?}"),
                "folders such as /data/exports and beginnings of URLs such as https:// or s3://bucket/dir",
            )?;
        }
        rule(
            self.fetch.stall_timeout_seconds > 0,
            "fetch.stall_timeout_seconds",
            &0,
            "at least 1",
        )?;
        rule(
            self.stores.retain_versions > 0,
            "stores.retain_versions",
            &0,
            "at least 1",
        )?;
        rule(
            self.stores.max_shrink_percent <= 100.0,
            "stores.max_shrink_percent",
            &self.stores.max_shrink_percent,
            "from 0 to 100",
        )?;
        rule(
            ["always", "everysec", "no"].contains(&self.tables.fsync.as_str()),
            "tables.fsync",
            &self.tables.fsync,
            "always, everysec or no",
        )?;
        if let (true, Some(mapped)) = (self.postgres.url.is_empty(), self.mapped.first()) {
            return Err(ConfigError(format!(
                "postgres.url is empty; it must be a PostgreSQL address, since [tables.{}] is kept there, such as postgres://larder@127.0.0.1/shop",
                mapped.name
            )));
        }
        let is_word = |text: &str| {
            !text.is_empty()
                && text.len() <= 63
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        for (key, name) in [
            ("postgres.publication", &self.postgres.publication),
            ("postgres.slot_name", &self.postgres.slot_name),
        ] {
            rule(
                is_word(name),
                key,
                name,
                "a name of small letters, digits and _",
            )?;
        }
        rule(
            ["temporary", "permanent"].contains(&self.postgres.slot.as_str()),
            "postgres.slot",
            &self.postgres.slot,
            "temporary or permanent",
        )?;
        rule(
            (1..=100).contains(&self.postgres.connections),
            "postgres.connections",
            &self.postgres.connections,
            "from 1 to 100",
        )?;
        for (key, seconds) in [
            (
                "postgres.statement_timeout_seconds",
                self.postgres.statement_timeout_seconds,
            ),
            (
                "postgres.silence_timeout_seconds",
                self.postgres.silence_timeout_seconds,
            ),
        ] {
            rule(
                (1..=86_400).contains(&seconds),
                key,
                &seconds,
                "from 1 to 86400",
            )?;
        }
        rule(
            ["text", "json"].contains(&self.log.format.as_str()),
            "log.format",
            &self.log.format,
            "text or json",
        )?;
        rule(
            self.slowlog.length <= 1_000_000,
            "slowlog.length",
            &self.slowlog.length,
            "at most 1000000",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_breaks_a_rule_is_named_with_what_it_must_be() {
        let mut config = ServerConfig::default();
        config.server.resp = "localhost".to_owned();
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "server.resp is localhost; it must be an address and a port, such as 127.0.0.1:7379"
        );
        ServerConfig::default().check().unwrap();
    }
}
