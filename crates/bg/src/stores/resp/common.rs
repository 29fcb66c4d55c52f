//! The common parts of the stores that use the Redis protocol.

use std::rc::Rc;

use super::{Pool, Receiver, Server, Token, command};
use crate::model::population::Population;
use crate::stores::Options;
use crate::stores::contract::Failure;
use crate::stores::settings::Settings;

/// The number of request bytes that a load has in flight.
pub const LOAD_BYTES: usize = 256 << 10;

/// Parses the options of a server. The default address is `usual`.
///
/// # Errors
///
/// The address is invalid, or there is a setting other than `password`.
pub fn server(name: &str, usual: &str, options: &Options) -> Result<Server, String> {
    let mut settings = Settings::new(options);
    let password = settings.text("password").map(str::to_owned);
    settings.finish(name)?;
    let address = options.address.as_deref().unwrap_or(usual);
    let port = address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(_))) {
        return Err(format!("--at {address:?}: must be host:port"));
    }
    Ok(Server {
        address: address.to_owned(),
        password,
    })
}

/// Accepts any reply that is not an error.
pub struct AnyReply;

impl Receiver for AnyReply {
    fn take(&mut self, _: Token<'_>) {}
}

/// Receives a value or nil.
#[derive(Default)]
struct ValueReply(Option<Vec<u8>>);

impl Receiver for ValueReply {
    fn take(&mut self, token: Token<'_>) {
        if let Token::Bulk(value) = token {
            self.0 = Some(value.to_vec());
        }
    }
}

/// Reads a note by its key.
pub async fn read_note(server: &Server, key: String) -> Result<Option<String>, Failure> {
    let pool = Pool::connect(Rc::new(server.clone()), 1).await?;
    let call = pool.call(1, ValueReply::default(), |out| {
        command(out, &[&"GET", &key])
    });
    let value = call.await?.0;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

/// Writes a note by `how`, which is SET or SETNX.
pub async fn write_note(
    server: &Server,
    how: &str,
    key: String,
    text: &str,
) -> Result<(), Failure> {
    let pool = Pool::connect(Rc::new(server.clone()), 1).await?;
    let call = pool.call(1, AnyReply, |out| command(out, &[&how, &key, &text]));
    call.await.map(|AnyReply| ())
}

/// Splits a value into the profile and, if the population has images, the image.
pub fn split_value<'v>(population: &Population, value: &'v [u8]) -> (&'v [u8], Option<&'v [u8]>) {
    if population.image_size.is_none() {
        return (value, None);
    }
    let (profile, image) = value.split_at(value.len().min(population.profile_size()));
    (profile, Some(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let at = |address: &str| Options {
            address: Some(address.to_owned()),
            ..Options::default()
        };
        for good in ["127.0.0.1:7379", "example.org:1", "[::1]:6379"] {
            let server = server("larder", "127.0.0.1:7379", &at(good));
            assert_eq!(server.expect("an address").address, good);
        }
        for bad in ["", "localhost", "7379", "host:99999", "http://host"] {
            let refused = server("larder", "127.0.0.1:7379", &at(bad)).expect_err("no address");
            assert!(refused.contains("must be host:port"), "{refused}");
        }
    }
}
