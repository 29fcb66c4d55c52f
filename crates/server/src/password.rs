//! The server's password, used by both protocols.

use axum::http::{HeaderMap, header};
use base64::prelude::{BASE64_STANDARD, Engine};

use crate::error::Error;

/// The configured password; empty if none is required.
#[derive(Clone, Copy)]
pub struct Password<'a>(pub &'a str);

impl Password<'_> {
    /// Returns whether clients need no password.
    pub fn is_none(self) -> bool {
        self.0.is_empty()
    }

    /// Compares in constant time, so that the time does not reveal how much of a password was right.
    pub fn matches(self, given: &[u8]) -> bool {
        let expected = self.0.as_bytes();
        let differences = expected
            .iter()
            .zip(given)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0 && expected.len() == given.len()
    }

    /// Checks the `Authorization` header of an HTTP request: `Basic`, whose user is ignored, or `Bearer`.
    ///
    /// # Errors
    /// [`Error::NoPassword`] if there is none, [`Error::WrongPassword`] if it differs.
    pub fn check(self, headers: &HeaderMap) -> Result<(), Error> {
        if self.is_none() {
            return Ok(());
        }
        let given = headers
            .get(header::AUTHORIZATION)
            .ok_or(Error::NoPassword)?;
        let given = given.as_bytes();
        let space = given.iter().position(|byte| *byte == b' ');
        let (scheme, rest) = given.split_at(space.unwrap_or(given.len()));
        let rest = rest.trim_ascii();
        let right = if scheme.eq_ignore_ascii_case(b"bearer") {
            self.matches(rest)
        } else if scheme.eq_ignore_ascii_case(b"basic") {
            let text = BASE64_STANDARD.decode(rest).ok();
            let colon = |text: &Vec<u8>| text.iter().position(|byte| *byte == b':');
            text.is_some_and(|text| colon(&text).is_some_and(|at| self.matches(&text[at + 1..])))
        } else {
            return Err(Error::NoPassword);
        };
        if right {
            Ok(())
        } else {
            Err(Error::WrongPassword)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_scheme_gives_the_password_and_nothing_else_does() {
        let judge = |authorization: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = authorization {
                headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            }
            Password("pass:word")
                .check(&headers)
                .map_err(|error| error.code().name())
        };
        let basic = |text: &str| format!("Basic {}", BASE64_STANDARD.encode(text));
        assert_eq!(judge(Some("Bearer pass:word")), Ok(()));
        assert_eq!(judge(Some("bearer  pass:word")), Ok(()));
        assert_eq!(judge(Some(&basic("anyone:pass:word"))), Ok(()));
        assert_eq!(judge(Some(&basic(":pass:word"))), Ok(()));
        assert_eq!(basic(":pass:word"), "Basic OnBhc3M6d29yZA==");
        assert_eq!(judge(None), Err("NOAUTH"));
        assert_eq!(judge(Some("pass:word")), Err("NOAUTH"));
        assert_eq!(judge(Some("Digest pass:word")), Err("NOAUTH"));
        for wrong in [
            "Bearer",
            "Bearer pass:wor",
            "Bearer pass:word1",
            "Basic pass:word",
            // Invalid base64: padding of another length, surplus bits, bytes after the end.
            "Basic OnBhc3M6d29yZA",
            "Basic OnBhc3M6d29yZA=",
            "Basic OnBhc3M6d29yZB==",
            "Basic OnBhc3M6d29yZA==OnBhc3M6d29yZA==",
        ] {
            assert_eq!(judge(Some(wrong)), Err("WRONGPASS"), "{wrong}");
        }
        assert_eq!(judge(Some(&basic("pass:word"))), Err("WRONGPASS"));
        assert_eq!(judge(Some(&basic("nocolon"))), Err("WRONGPASS"));
        assert!(Password("").check(&HeaderMap::new()).is_ok());
    }
}
