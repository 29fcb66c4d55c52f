//! Rules that a key's type and bounds cannot express.

use std::fmt;

use super::{ConfigError, ServerConfig};
use crate::http::StoreLimit;

impl ServerConfig {
    /// # Errors
    /// The first violated rule: the key, its value, and the allowed values.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_bounds()?;
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
            ("cluster.peer", &self.cluster.peer),
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
        for entry in &self.fetch.allow {
            rule(
                entry.starts_with('/') || entry.contains("://"),
                "fetch.allow",
                &format!("{entry:?}"),
                "folders such as /data/exports, or URL prefixes such as https:// or s3://bucket/dir",
            )?;
        }
        for key in &self.stores.signed_by {
            let digits = key.strip_prefix("ed25519:").unwrap_or_default();
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            rule(
                digits.len() == 64 && digits.bytes().all(is_digit),
                "stores.signed_by",
                &format!("{key:?}"),
                "public keys, as `larder keygen` prints them: ed25519: and 64 hexadecimal digits",
            )?;
        }
        for (key, entries) in [
            ("stores.max_nulls", &self.stores.max_nulls),
            ("stores.max_empty", &self.stores.max_empty),
            ("stores.max_shift", &self.stores.max_shift),
        ] {
            for entry in entries {
                rule(
                    entry.parse::<StoreLimit>().is_ok(),
                    key,
                    &format!("{entry:?}"),
                    "limits of columns such as prices/price:5, STORE/COLUMN:LIMIT, with * for every store or column",
                )?;
            }
        }
        if let (true, Some(mapped)) = (self.postgres.url.is_empty(), self.mapped.first()) {
            return Err(ConfigError(format!(
                "postgres.url is empty; it must be a PostgreSQL address, because [tables.{}] is in PostgreSQL, such as postgres://larder@127.0.0.1/shop",
                mapped.name
            )));
        }
        for (key, file, other) in [
            (
                "server.tls_cert",
                &self.server.tls_cert,
                &self.server.tls_key,
            ),
            (
                "server.tls_key",
                &self.server.tls_key,
                &self.server.tls_cert,
            ),
            (
                "cluster.tls_cert",
                &self.cluster.tls_cert,
                &self.cluster.tls_key,
            ),
            (
                "cluster.tls_key",
                &self.cluster.tls_key,
                &self.cluster.tls_cert,
            ),
            (
                "cluster.etcd_cert",
                &self.cluster.etcd_cert,
                &self.cluster.etcd_key,
            ),
            (
                "cluster.etcd_key",
                &self.cluster.etcd_key,
                &self.cluster.etcd_cert,
            ),
        ] {
            rule(
                file.is_empty() == other.is_empty(),
                key,
                &format!("{file:?}"),
                "set together with its counterpart: a certificate needs its key",
            )?;
        }
        rule(
            self.cluster.min_copies <= self.tables.replicas.max(1),
            "cluster.min_copies",
            &self.cluster.min_copies,
            "at most tables.replicas: no slot has more copies than that",
        )?;
        rule(
            self.server.tls_client_ca.is_empty() || !self.server.tls_cert.is_empty(),
            "server.tls_client_ca",
            &format!("{:?}", self.server.tls_client_ca),
            "empty if server.tls_cert is empty: without TLS, clients present no certificates",
        )?;
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
                "a name of lowercase letters, digits and _",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{keys, reference_markdown};
    use super::*;

    fn refusal_of(path: &str, text: &str) -> Option<String> {
        let set = ServerConfig::default().set(path, text, "here");
        set.err().map(|error| error.to_string())
    }

    #[test]
    fn an_invalid_value_is_reported_with_the_expected_form() {
        let mut config = ServerConfig::default();
        config.server.resp = "localhost".to_owned();
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "server.resp is localhost; it must be an address and a port, such as 127.0.0.1:7379"
        );
        ServerConfig::default().check().unwrap();
    }

    #[test]
    fn exactly_the_numbers_outside_the_documented_bounds_are_refused() {
        let reference = reference_markdown();
        let mut bounded = 0;
        for key in keys() {
            let Some(bounds) = key.bounds else { continue };
            bounded += 1;
            let path = key.path();
            let shown = format!(
                "| `{}` | {} | `{}` | {} |",
                key.name, key.kind, key.default, key.allowed
            );
            assert!(reference.contains(&shown), "{shown}");
            let beyond = [
                bounds
                    .least
                    .and_then(|least| least.checked_sub(1))
                    .filter(|&less| less > 0 || !bounds.or_zero),
                bounds.most.map(|most| most + 1),
            ];
            for beyond in beyond.into_iter().flatten() {
                let expected = format!("here: {path} is {beyond}; it must be {}", key.allowed);
                assert_eq!(refusal_of(&path, &beyond.to_string()), Some(expected));
            }
            let zero = bounds.or_zero.then_some(0);
            for edge in [bounds.least, bounds.most, zero].into_iter().flatten() {
                assert_eq!(
                    refusal_of(&path, &edge.to_string()),
                    None,
                    "{path} = {edge}"
                );
            }
        }
        assert!(bounded > 20, "{bounded} keys have bounds");
        for (path, allowed) in [
            ("server.threads", "at most 1024"),
            ("server.max_argument_bytes", "from 1KiB to 4GiB"),
            ("server.clients_memory", "0, or at least 1MiB"),
            ("stores.retain_versions", "at least 1"),
        ] {
            let key = keys().into_iter().find(|key| key.path() == path).unwrap();
            assert_eq!(key.allowed, allowed);
        }
    }

    #[test]
    fn a_number_out_of_bounds_is_refused_from_every_source() {
        let mut config = ServerConfig::default();
        config.fetch.parallel = 257;
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "fetch.parallel is 257; it must be from 1 to 256"
        );
    }
}
