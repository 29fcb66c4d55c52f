//! The server's log, on standard error.

use std::io::{self, IsTerminal, Write};

use larder_protocol::config::{LogFormat, ServerConfig};
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::output::without_controls;

/// Starts the log.
///
/// # Errors
/// `log.level` is invalid, or the log was started before.
pub fn start(config: &ServerConfig) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.log.level).map_err(|error| {
        Failure::usage(format!(
            "log.level is {:?}: {error}; write error, warn, info, debug or trace",
            config.log.level
        ))
    })?;
    let has_colors = std::env::var_os("NO_COLOR").is_none() && io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    let started = match config.log.format {
        LogFormat::Json => log.with_writer(io::stderr).json().try_init(),
        LogFormat::Text => log
            .with_ansi(has_colors)
            .with_writer(move || Lines { has_colors })
            .try_init(),
    };
    started.map_err(|error| Failure::new(format!("cannot start the log: {error}")))
}

/// Writes each event as one line. Control characters are escaped, so that no input can forge a line or control the
/// terminal.
struct Lines {
    /// True if the formatter emits colors. Then ESC is kept, because the formatter itself escapes it in values.
    has_colors: bool,
}

impl Write for Lines {
    /// Writes one event: the formatter passes an event, with its line feed, in one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let kept = if self.has_colors { "\t\x1b" } else { "\t" };
        io::stderr().write_all((without_controls(line, kept) + "\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
