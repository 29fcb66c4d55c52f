//! Third-party decoders panic on some damaged files. This module converts such a panic to a rejection of the file,
//! without printing a stack trace.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::error::{Fault, decode_fault};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `decode` and converts a panic to a fault. The data that `decode` was processing must not be used afterwards.
pub(crate) fn guarded<T>(decode: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    install_hook();
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    QUIET.set(before);
    result.unwrap_or_else(|panic| Err(decode_fault(&message(panic.as_ref()))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "its decoder gave up".to_owned())
}

/// Installs a panic hook. The process's own hook still receives every panic outside of `guarded`.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let outer = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                outer(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let result = guarded::<()>(|| panic!("index out of bounds"));
        let text = result.unwrap_err().into_error("f.parquet").to_string();
        assert!(
            text.contains("f.parquet") && text.contains("out of bounds"),
            "{text}"
        );
    }
}
