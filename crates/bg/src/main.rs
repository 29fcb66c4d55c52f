//! The command line of bg.

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_bg::ui::command::main()
}
