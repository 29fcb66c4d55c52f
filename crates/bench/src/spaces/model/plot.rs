//! Plots measured against predicted values, as a self-contained SVG.

use std::fmt::Write as _;

const SIZE: f64 = 620.0;
const EDGE: f64 = 60.0;
const COLOURS: [&str; 4] = ["#2563b0", "#c2570c", "#7a3fb0", "#18794e"];

pub struct Series {
    pub name: String,
    /// Measured, predicted.
    pub points: Vec<(f64, f64)>,
}

/// Both axes are logarithmic. The line shows equality, and the dashed lines a difference of a tenth.
pub fn plot(title: &str, unit: &str, series: &[Series]) -> String {
    let all = || {
        series
            .iter()
            .flat_map(|it| &it.points)
            .flat_map(|it| [it.0, it.1])
    };
    let (least, most) = all().fold((f64::INFINITY, 0.0f64), |(least, most), it| {
        (least.min(it), most.max(it))
    });
    let (low, high) = ((least * 0.9).ln(), (most * 1.1).ln());
    let across = |value: f64| EDGE + (value.ln() - low) / (high - low) * (SIZE - 2.0 * EDGE);
    let up = |value: f64| SIZE - across(value);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIZE} {SIZE}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#444\">\n\
         <rect width=\"{SIZE}\" height=\"{SIZE}\" fill=\"#fff\"/>\n<text x=\"{EDGE}\" y=\"24\" font-size=\"15\">{title}</text>\n"
    );
    for (factor, dash) in [(1.0, ""), (1.1, "4 4"), (1.0 / 1.1, "4 4")] {
        let from = low.exp() * f64::max(1.0, 1.0 / factor);
        let to = high.exp() / f64::max(1.0, factor);
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#aaa\" stroke-dasharray=\"{dash}\"/>",
            across(from),
            up(from * factor),
            across(to),
            up(to * factor),
        );
    }
    let marks = (0..7).flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10f64.powi(power)));
    for mark in marks.filter(|it| (low..high).contains(&it.ln())) {
        let _ = writeln!(
            out,
            "<text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{mark}</text><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{mark}</text>",
            across(mark),
            SIZE - EDGE + 18.0,
            EDGE - 6.0,
            up(mark) + 4.0,
        );
    }
    for (number, one) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        for &(measured, predicted) in &one.points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\" fill-opacity=\"0.6\"/>",
                across(measured),
                up(predicted)
            );
        }
        let at = 50.0 + 18.0 * number as f64;
        let _ = writeln!(
            out,
            "<circle cx=\"{EDGE}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{at}\">{}</text>",
            at - 4.0,
            EDGE + 10.0,
            one.name
        );
    }
    let middle = SIZE / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">measured, {unit}</text>\n\
         <text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">predicted, {unit}</text>\n</svg>",
        SIZE - 14.0,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_lie_on_the_diagonal() {
        let series = Series {
            name: "searches".to_owned(),
            points: vec![(10.0, 10.0), (200.0, 200.0)],
        };
        let svg = plot("x", "us", &[series]);
        let dot = svg
            .lines()
            .find(|it| it.contains("r=\"3\""))
            .expect("a dot");
        let number = |name: &str| -> f64 {
            let from = dot.find(name).expect("it is there") + name.len() + 2;
            dot[from..]
                .split('"')
                .next()
                .and_then(|it| it.parse().ok())
                .expect("a number")
        };
        assert!((number("cx") + number("cy") - SIZE).abs() < 0.2, "{dot}");
    }
}
