use super::*;

fn check(text: &str, expected: &str) {
    let names = |name: &str| match name {
        "price" => Cell::text("12.5"),
        "stars" => Cell::int(4),
        "name" => Cell::text("Grand Hotel"),
        "at" => Cell::int(1_709_213_401), // 2024-02-29T13:30:01Z, a Thursday
        "$.tags[0]" => Cell::text("pool"),
        _ => Cell::Null,
    };
    let result = Expression::parse(text).and_then(|expression| expression.evaluate(&names));
    let shown = match result {
        Ok(cell) => String::from_utf8(cell.print()).unwrap(),
        Err(refusal) => format!("! {refusal}"),
    };
    assert_eq!(shown, expected, "{text}");
}

#[test]
fn operators_bind_as_in_arithmetic() {
    check("1 + 2 * 3", "7");
    check("(1 + 2) * 3 - -1", "10");
    check("2 ^ 3 ^ 2", "512");
    check("7 / 2 + 7 % 4", "6.5");
    check("1 < 2 && 2 < 1 || 3 == 3", "1");
    check("!(@stars >= 4)", "0");
    check("@price * 2", "25");
    check("1 / 0", "inf");
    check("0 / 0", "nan");
    check("'10' > 9", "1");
    check("@name == 'Grand Hotel'", "1");
    check("@$.tags[0] == \"pool\"", "1");
    check("9007199254740993 + 0", "9007199254740993");
}

#[test]
fn null_propagates_and_no_comparison_with_null_holds() {
    for null in [
        "@nothing + 1",
        "2 * -@nothing",
        "upper(@nothing)",
        "sqrt(@nothing)",
        "format('%s', @nothing)",
        "year(@nothing)",
    ] {
        let value = Expression::parse(null).unwrap();
        assert_eq!(
            value.evaluate(&|_: &str| Cell::Null),
            Ok(Cell::Null),
            "{null}"
        );
    }
    for (text, expected) in [
        ("@nothing > 3", "0"),
        ("@nothing < 3", "0"),
        ("@nothing == @nothing", "0"),
        ("@nothing != 3", "1"),
        ("!(@nothing > 3)", "1"),
        ("@nothing || 1", "1"),
        ("case(@nothing, 1, 2)", "2"),
        // A number and a text that does not represent a number are not comparable.
        ("'abc' > 3", "0"),
        ("'abc' < 3", "0"),
        ("'abc' == 3", "0"),
        ("'abc' != 3", "1"),
        ("'abc' < 'abd'", "1"),
    ] {
        check(text, expected);
    }
    // A filter on an absent field does not hold, so the space does not cover the object.
    let absent = Expression::parse("@nothing != 3").unwrap();
    assert!(!absent.holds(&|_: &str| Cell::Null));
}

#[test]
fn functions_compute() {
    check("sqrt(13)", "3.60555127546");
    check("floor(2.7) + ceil(2.1) + abs(-3)", "8");
    check("log2(8) + log(exp(1))", "4");
    check("log(-1)", "nan");
    check("upper(@name)", "GRAND HOTEL");
    check("substr(@name, 6, 5)", "Hotel");
    check("substr(@name, -5, -1)", "Hote");
    check("format('%s: %s%%', @name, @stars)", "Grand Hotel: 4%");
    check("split(' a, b ,,c')", "a b c");
    check("split('a|b-c', '|-', '')", "a b c");
    check(
        "startswith(@name, 'Gra') + contains('ababa', 'aba') + contains('ab', '')",
        "5",
    );
    check("strlen(to_str(12.5)) + to_number('1e2')", "104");
    check("exists(@nothing)", "0");
    check("case(exists(@nothing), @nothing, 'none')", "none");
    check("exists(@nothing) && @nothing > 3", "0");
    check(
        "geodistance('13.361389,38.115556', '15.087269 37.502669')",
        "166274.26",
    );
    check(
        "geodistance(13.361389, 38.115556, 15.087269, 37.502669)",
        "166274.26",
    );
}

#[test]
fn dates_are_split_into_parts() {
    check("timefmt(@at)", "2024-02-29T13:30:01Z");
    check(
        "timefmt(@at, '%a %d %b %y, %I %p, day %j')",
        "Thu 29 Feb 24, 01 PM, day 060",
    );
    check(
        "parsetime('29 Feb 2024 01:30:01 pm', '%d %b %Y %I:%M:%S %p')",
        "1709213401",
    );
    check("parsetime('2024-02-30', '%F')", "");
    check("@at - minute(@at)", "1");
    check("@at - hour(@at)", "1801");
    check("day(@at) - month(@at)", &(28 * 86_400).to_string());
    check(
        "year(@at) + monthofyear(@at) + dayofmonth(@at)",
        &(2024 + 1 + 29).to_string(),
    );
    check("dayofweek(@at) * 1000 + dayofyear(@at)", "4059");
}

#[test]
fn errors_explain_invalid_computations() {
    check(
        "@name + 1",
        "! Could not convert value to a number: \"Grand Hotel\"; test the value with exists, or convert it with to_number",
    );
    check(
        "1 +",
        "! Syntax error at offset 3 near \"\": a value is missing at the end (column 4)",
    );
    check(
        "1 2",
        "! Syntax error at offset 2 near \"2\": an operator or the end is expected here (column 3)",
    );
    check(
        "(1",
        "! Syntax error at offset 2 near \"\": a closing ) is expected here (column 3)",
    );
    check(
        "'abc",
        "! Syntax error at offset 0 near \"'abc\": the quote that opens here is not closed (column 1)",
    );
    check(
        "1e5x",
        "! Syntax error at offset 0 near \"1e5x\": this is not a number (column 1)",
    );
    check(
        "substr('a')",
        "! Function `substr` takes 3 arguments, here are 1 (column 1)",
    );
    check(
        "format('%d', 1)",
        "! format: Unknown format specifier: write %s for a value and %% for a percent sign",
    );
    check(
        "timefmt(0, '%q')",
        "! timefmt: %q is not a conversion of a date: write, for example, %Y-%m-%d %H:%M:%S",
    );
    assert!(
        Expression::parse("nosuch(1)")
            .unwrap_err()
            .message
            .starts_with("Unknown function name 'nosuch'")
    );
    assert!(
        Expression::parse(&"(".repeat(100_000))
            .unwrap_err()
            .message
            .contains("at most")
    );
    assert!(
        Expression::parse(&"(".repeat(60_000))
            .unwrap_err()
            .message
            .contains("128 deep")
    );
    assert!(
        Expression::parse(&"-".repeat(60_000))
            .unwrap_err()
            .message
            .contains("128 deep")
    );
    assert!(
        Expression::parse(&"1^".repeat(30_000))
            .unwrap_err()
            .message
            .contains("128 deep")
    );
    assert!(
        Expression::parse(&"1+".repeat(30_000))
            .unwrap_err()
            .message
            .contains("in a row")
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_rejected(text in r#"[-+*/%^()@ab1.,'"<=!&|\\ ]{0,40}"#) {
        if let Ok(expression) = Expression::parse(&text) {
            let _ = expression.evaluate(&|_: &str| Cell::int(1));
        }
    }
}
