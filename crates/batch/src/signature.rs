//! Signatures over manifests: ed25519 (RFC 8032).
//!
//! The owner of the secret key signs the manifest's digest, which covers the digest of every segment, and the digest
//! of its build description. Without the key, no byte of a signed version can be changed. A signed version may still
//! be an outdated one, or one of the same store that was meant for another place.
//!
//! Keys are text, one line:
//!
//! ```text
//! ed25519:<64 hexadecimal digits>            public: for the configuration
//! ed25519-secret:<64 hexadecimal digits>     secret: the seed of RFC 8032
//! ```

use std::fmt;
use std::str::FromStr;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::manifest::Manifest;

/// The `signature` part of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub key: PublicKey,
    /// 64 bytes in hexadecimal.
    pub value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// A signing key. Only [`SecretKey::to_text`] reveals it.
#[derive(Clone)]
pub struct SecretKey {
    seed: [u8; 32],
}

const PUBLIC: &str = "ed25519:";
const SECRET: &str = "ed25519-secret:";

impl SecretKey {
    /// Creates a key from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> SecretKey {
        SecretKey { seed }
    }

    /// Returns the contents of a key file.
    pub fn to_text(&self) -> String {
        format!("{SECRET}{}\n", to_hex(&self.seed))
    }

    pub fn public(&self) -> PublicKey {
        let key = self.pair();
        let bytes = key.public_key().as_ref().first_chunk();
        PublicKey(*bytes.expect("a public key has 32 bytes"))
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.seed).expect("any 32 bytes are a seed")
    }
}

impl FromStr for SecretKey {
    type Err = String;

    fn from_str(text: &str) -> Result<SecretKey, String> {
        let seed = text.trim().strip_prefix(SECRET).and_then(from_hex);
        // The message does not show the text, which may still be a secret.
        let wrong = || {
            format!(
                "a secret key is one line, {SECRET} and 64 hexadecimal digits; `larder keygen FILE` makes one"
            )
        };
        seed.map(SecretKey::from_seed).ok_or_else(wrong)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {}", self.public())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", to_hex(&self.0))
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<PublicKey, String> {
        let key = text.strip_prefix(PUBLIC).and_then(from_hex);
        key.map(PublicKey).ok_or_else(|| {
            format!(
                "a public key is {PUBLIC} and 64 hexadecimal digits, as `larder keygen` prints it"
            )
        })
    }
}

impl TryFrom<String> for PublicKey {
    type Error = String;

    fn try_from(text: String) -> Result<PublicKey, String> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

impl Manifest {
    /// Signs the current contents. The manifest must have a format whose digests are collision resistant.
    pub fn sign(&mut self, key: &SecretKey) {
        assert!(
            self.format >= Manifest::FORMAT_SIGNED_MIN,
            "only BLAKE3 is worth a signature"
        );
        let value = key.pair().sign(&self.signed_text());
        self.signature = Some(Signature {
            key: key.public(),
            value: to_hex(value.as_ref()),
        });
    }

    /// Checks that one of these keys has signed the manifest.
    ///
    /// # Errors
    /// The reason, phrased to follow "the version".
    pub fn check_signature(&self, trusted: &[PublicKey]) -> Result<(), String> {
        let advice = "sign it with `larder build --sign`, or change stores.signed_by";
        let Some(signature) = &self.signature else {
            return Err(format!(
                "is not signed, but stores.signed_by requires a signature; {advice}"
            ));
        };
        let key = signature.key;
        if !trusted.contains(&key) {
            return Err(format!(
                "is signed by {key}, which is not one of the keys in stores.signed_by; {advice}"
            ));
        }
        self.check_own_signature()
    }

    /// Checks that the signature, if there is one, was made by the key that it names.
    ///
    /// # Errors
    /// The reason, phrased to follow "the version".
    pub fn check_own_signature(&self) -> Result<(), String> {
        let Some(signature) = &self.signature else {
            return Ok(());
        };
        let key = signature.key;
        let value: Option<[u8; 64]> = from_hex(&signature.value);
        let fits = value.is_some_and(|value| {
            let key = UnparsedPublicKey::new(&ED25519, key.0);
            key.verify(&self.signed_text(), &value).is_ok()
        });
        if fits {
            Ok(())
        } else {
            Err(format!("has a signature by {key} that does not fit it"))
        }
    }

    fn signed_text(&self) -> Vec<u8> {
        let built = self.built.as_ref().map_or(String::new(), |built| {
            built.compute_digest(self.digest_kind())
        });
        format!("larder version\n{}\n{built}\n", self.compute_digest()).into_bytes()
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_the_published_test_vectors() {
        // RFC 8032, section 7.1, test 1.
        let secret =
            "ed25519-secret:9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let key: SecretKey = secret.parse().expect("a key");
        let public = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(key.public().to_string(), public);
        assert_eq!(public.parse(), Ok(key.public()));
        assert_eq!(key.to_text().trim(), secret);
        assert!(!format!("{key:?}").contains("9d61b19d"));
        for wrong in [
            "",
            "ed25519:00",
            secret,
            &public[8..],
            &public.to_uppercase(),
        ] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
        let error = "hunter2".parse::<SecretKey>().expect_err("no key");
        assert!(!error.contains("hunter2"));
    }
}
