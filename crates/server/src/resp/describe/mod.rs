//! Commands on the server, in the format of Redis: COMMAND, CONFIG, INFO, MODULE LIST, and LATENCY, SLOWLOG and MEMORY
//! DOCTOR (`latency`).

mod command;
mod config;
mod info;
mod latency;
mod modules;

use larder_protocol::resp::Encoder;

pub(super) use command::command;
pub(super) use config::config;
pub(super) use info::{REDIS_VERSION, info, info_while_loading};
pub(super) use latency::{latency, memory, slowlog};
pub(super) use modules::{modules, put_modules};

fn encode_pair(encoder: &mut Encoder<'_>, name: &str, value: &str) {
    encoder.text(name);
    encoder.text(value);
}
