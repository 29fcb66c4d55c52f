//! Parsing rules that all options and arguments share.

use clap::{Arg, Command};

/// Accepts negative numbers as values of all options and arguments. `--skip-lines -1` is then reported as an invalid
/// value instead of an unknown option, and a key may be `-5`.
pub fn with_negative_numbers(command: Command) -> Command {
    let allow = |argument: Arg| {
        if argument.get_action().takes_values() {
            argument.allow_negative_numbers(true)
        } else {
            argument
        }
    };
    command
        .mut_args(allow)
        .mut_subcommands(with_negative_numbers)
}

/// Parses a count or a limit, for clap.
pub fn parse_count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok();
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            if size_of::<T>() < size_of::<u64>() {
                format!("write a whole number from 0 to {}", u32::MAX)
            } else {
                "write a whole number of 0 or more".to_owned()
            }
        })
}

/// Parses a percentage with an optional `%`, for clap.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("write a share from 0% to 100%, such as 20%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_with_or_without_a_percent_sign() {
        assert_eq!(parse_percent("20%"), Ok(20.0));
        assert_eq!(parse_percent("0.5"), Ok(0.5));
        for bad in ["", "%", "120%", "-1", "a fifth"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn whole_numbers_have_neither_sign_nor_fraction() {
        assert_eq!(parse_count::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_count::<u32>("7"), Ok(7));
        assert_eq!(parse_count::<usize>("0"), Ok(0));
        for bad in ["-1", "1.5", "", "one", "18446744073709551616"] {
            let error = parse_count::<u64>(bad).unwrap_err();
            assert_eq!(error, "write a whole number of 0 or more");
        }
        assert!(
            parse_count::<u32>("4294967296")
                .unwrap_err()
                .contains("to 4294967295")
        );
    }
}
