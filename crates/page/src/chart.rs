//! Charts as inline SVG: points, lines and bars over two axes.
//!
//! Colors are classes that the page's style defines for light and dark; the pointer shows a point's description.

use std::fmt::Write as _;

use crate::figures::escape;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Starts at zero.
    Linear,
    Log,
    /// Logarithmic, with marks at powers of two.
    Doubling,
}

#[derive(Clone, Debug)]
pub struct Axis {
    pub title: String,
    pub scale: Scale,
    /// Formats the label of a mark.
    pub label: fn(f64) -> String,
}

#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// A class of the page's style.
    pub class: &'static str,
    pub style: MarkStyle,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MarkStyle {
    Line,
    Dots,
    Crosses,
    Rings,
}

#[derive(Clone, Debug)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// The description of the point; empty for none.
    pub description: String,
}

/// Plots points and lines. Points that a scale cannot show (zero on a logarithmic one) are omitted.
pub fn plot(x: &Axis, y: &Axis, series: &[Series]) -> String {
    let shown = |point: &&Point| x.can_show(point.x) && y.can_show(point.y);
    let all = || {
        series
            .iter()
            .flat_map(|one| one.points.iter())
            .filter(shown)
    };
    if all().next().is_none() {
        return "<p class=none>Nothing to show.</p>".to_owned();
    }
    let across = Span::new(x, all().map(|point| point.x), LEFT, WIDTH - RIGHT);
    let up = Span::new(y, all().map(|point| point.y), HEIGHT - BOTTOM, TOP);
    let mut out = frame(x, y, &across, &up);
    for one in series {
        let points: Vec<&Point> = one.points.iter().filter(shown).collect();
        if one.style == MarkStyle::Line {
            let path: Vec<String> = points
                .iter()
                .map(|point| format!("{:.1},{:.1}", across.at(point.x), up.at(point.y)))
                .collect();
            let _ = write!(
                out,
                "<polyline class=\"line {}\" points=\"{}\"/>",
                one.class,
                path.join(" ")
            );
        }
        for point in points {
            mark(
                &mut out,
                one,
                across.at(point.x),
                up.at(point.y),
                &point.description,
            );
        }
    }
    out + "</svg>" + &legend(series)
}

fn mark(out: &mut String, series: &Series, x: f64, y: f64, description: &str) {
    let class = series.class;
    if description.is_empty() && series.style == MarkStyle::Line {
        return;
    }
    let shape = match series.style {
        MarkStyle::Line => format!("<circle class=\"small {class}\" cx={x:.1} cy={y:.1} r=2.5>"),
        MarkStyle::Dots => format!("<circle class=\"dot {class}\" cx={x:.1} cy={y:.1} r=4.5>"),
        MarkStyle::Rings => format!("<circle class=\"ring {class}\" cx={x:.1} cy={y:.1} r=10>"),
        MarkStyle::Crosses => format!(
            "<path class=\"cross {class}\" d=\"M{:.1} {:.1}l9 9m0 -9l-9 9\">",
            x - 4.5,
            y - 4.5
        ),
    };
    let end = if series.style == MarkStyle::Crosses {
        "path"
    } else {
        "circle"
    };
    let _ = write!(out, "{shape}<title>{}</title></{end}>", escape(description));
}

/// Plots bars side by side, each with its name below it.
pub fn bars(title: &str, y: &Axis, bars: &[(String, f64)], class: &str) -> String {
    let (x, across, up) = bar_axes(title, y, bars);
    let mut out = frame(&x, y, &across, &up);
    let width = across.at(1.0) - across.at(0.0);
    for (index, (name, value)) in bars.iter().enumerate() {
        let (left, top) = (across.at(index as f64), up.at(*value));
        let _ = write!(
            out,
            "<rect class=\"bar {class}\" x={:.1} y={top:.1} width={:.1} height={:.1}><title>{}: {}</title></rect>\
             <text class=tick x={:.1} y={:.1} text-anchor=middle>{}</text>",
            left + width * 0.1,
            width * 0.8,
            HEIGHT - BOTTOM - top,
            escape(name),
            (y.label)(*value),
            left + width / 2.0,
            HEIGHT - BOTTOM + 16.0,
            escape(name),
        );
    }
    out + "</svg>"
}

/// A share, and the earlier share for comparison if there is one.
#[derive(Clone, Debug)]
pub struct Pair {
    pub name: String,
    pub before: Option<f64>,
    pub now: f64,
}

/// Plots bars in pairs, the earlier one on the left, each pair with the start of its name below it.
pub fn pairs(title: &str, pairs: &[Pair]) -> String {
    let y = Axis {
        title: title.to_owned(),
        scale: Scale::Linear,
        label: crate::figures::number,
    };
    let all: Vec<(String, f64)> = (pairs.iter())
        .map(|pair| (String::new(), pair.now.max(pair.before.unwrap_or(0.0))))
        .collect();
    let (x, across, up) = bar_axes("", &y, &all);
    let mut out = frame(&x, &y, &across, &up);
    let width = across.at(1.0) - across.at(0.0);
    // As many letters as fit.
    let letters = ((width / 7.0) as usize).max(1);
    for (index, pair) in pairs.iter().enumerate() {
        let left = across.at(index as f64);
        let halves = [(pair.before, "b", "before"), (Some(pair.now), "a", "now")];
        let thick = match pair.before {
            Some(_) => 0.4,
            None => 0.8,
        };
        let shown = halves
            .into_iter()
            .filter_map(|(value, class, when)| Some((value?, class, when)));
        for (place, (value, class, when)) in shown.enumerate() {
            let top = up.at(value);
            let _ = write!(
                out,
                "<rect class=\"bar {class}\" x={:.1} y={top:.1} width={:.1} height={:.1}><title>{}, {when}: {}</title></rect>",
                left + width * (0.1 + thick * place as f64),
                width * thick,
                HEIGHT - BOTTOM - top,
                escape(&pair.name),
                (y.label)(value),
            );
        }
        let front: String = if pair.name.chars().count() > letters {
            pair.name.chars().take(letters - 1).chain(['…']).collect()
        } else {
            pair.name.clone()
        };
        let _ = write!(
            out,
            "<text class=tick x={:.1} y={:.1} text-anchor=middle>{}<title>{}</title></text>",
            left + width / 2.0,
            HEIGHT - BOTTOM + 16.0,
            escape(&front),
            escape(&pair.name),
        );
    }
    let is_compared = pairs.iter().any(|pair| pair.before.is_some());
    let legend = if is_compared {
        "<p class=legend><span class=\"key b\">■</span> before &ensp; <span class=\"key a\">■</span> now</p>"
    } else {
        ""
    };
    out + "</svg>" + legend
}

/// Returns the axes of bars.
fn bar_axes(title: &str, y: &Axis, bars: &[(String, f64)]) -> (Axis, Span, Span) {
    let x = Axis {
        title: title.to_owned(),
        scale: Scale::Linear,
        label: |_| String::new(),
    };
    let across = Span {
        scale: Scale::Linear,
        low: 0.0,
        high: bars.len() as f64,
        start: LEFT,
        end: WIDTH - RIGHT,
        marks: Vec::new(),
    };
    let values = bars.iter().map(|(_, value)| *value);
    let up = Span::new(y, values, HEIGHT - BOTTOM, TOP);
    (x, across, up)
}

fn frame(x: &Axis, y: &Axis, across: &Span, up: &Span) -> String {
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>");
    for value in &up.marks {
        let at = up.at(*value);
        let _ = write!(
            out,
            "<line class=grid x1={LEFT} x2={:.1} y1={at:.1} y2={at:.1} />\
             <text class=tick x={:.1} y={:.1} text-anchor=end>{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            (y.label)(*value)
        );
    }
    let bottom = HEIGHT - BOTTOM;
    for value in &across.marks {
        let at = across.at(*value);
        let _ = write!(
            out,
            "<line class=grid x1={at:.1} x2={at:.1} y1={TOP} y2={bottom:.1} />\
             <text class=tick x={at:.1} y={:.1} text-anchor=middle>{}</text>",
            bottom + 16.0,
            (x.label)(*value)
        );
    }
    let _ = write!(
        out,
        "<line class=axis x1={LEFT} x2={:.1} y1={bottom:.1} y2={bottom:.1} />\
         <text class=title x={:.1} y={:.1} text-anchor=middle>{}</text>\
         <text class=title x=14 y={:.1} text-anchor=middle transform=\"rotate(-90 14 {:.1})\">{}</text>",
        WIDTH - RIGHT,
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escape(&x.title),
        (TOP + bottom) / 2.0,
        (TOP + bottom) / 2.0,
        escape(&y.title),
    );
    out
}

fn legend(series: &[Series]) -> String {
    let named: Vec<String> = series
        .iter()
        .filter(|one| !one.name.is_empty() && !one.points.is_empty())
        .map(|one| {
            let sign = match one.style {
                MarkStyle::Line => "━━",
                MarkStyle::Dots => "●",
                MarkStyle::Crosses => "✕",
                MarkStyle::Rings => "◯",
            };
            format!(
                "<span class=\"key {}\">{sign}</span> {}",
                one.class,
                escape(&one.name)
            )
        })
        .collect();
    format!("<p class=legend>{}</p>", named.join(" &ensp; "))
}

impl Axis {
    fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }
}

/// The mapping of an axis's values to the page.
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    marks: Vec<f64>,
}

impl Span {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Span {
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), value| {
            (value.min(least), value.max(most))
        });
        let marks = match axis.scale {
            Scale::Linear => linear_marks(most),
            Scale::Log => log_marks(least, most),
            Scale::Doubling => doubling_marks(least, most),
        };
        let (first, last) = (marks[0], marks[marks.len() - 1]);
        Span {
            scale: axis.scale,
            low: first.min(least),
            high: last.max(most),
            start,
            end,
            marks,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let place = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log | Scale::Doubling => value.ln(),
        };
        let (low, high) = (place(self.low), place(self.high));
        let share = if high > low {
            (place(value) - low) / (high - low)
        } else {
            0.5
        };
        self.start + share * (self.end - self.start)
    }
}

/// Returns marks from zero to at least `most`, with a step of one, two or five times a power of ten.
fn linear_marks(most: f64) -> Vec<f64> {
    if most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= rough * 0.999)
        .expect("ten times the power is more");
    let count = (most / step - 1e-9).ceil() as u32;
    (0..=count).map(|index| f64::from(index) * step).collect()
}

/// Returns one, two and five times the powers of ten around the values, or only the powers if there are many.
fn log_marks(least: f64, most: f64) -> Vec<f64> {
    let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let powers = || (first..=last).map(|power| 10f64.powi(power));
    if last - first > 3 {
        return powers().collect();
    }
    let all: Vec<f64> = powers()
        .flat_map(|power| [power, 2.0 * power, 5.0 * power])
        .collect();
    // At most one mark beyond the values on either side.
    let start = all.iter().rposition(|mark| *mark <= least).unwrap_or(0);
    let end = all.iter().position(|mark| *mark >= most);
    all[start..=end.unwrap_or(all.len() - 1)].to_vec()
}

fn doubling_marks(least: f64, most: f64) -> Vec<f64> {
    let (first, last) = (least.log2().floor() as i32, most.log2().ceil() as i32);
    let every = ((last - first) / 10 + 1) as usize;
    (first..=last)
        .step_by(every)
        .map(|power| 2f64.powi(power))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_show_the_earlier_value_if_there_is_one() {
        let pair = |name: &str, before, now| Pair {
            name: name.to_owned(),
            before,
            now,
        };
        let alone = pairs("percent", &[pair("a<b", None, 40.0), pair("c", None, 60.0)]);
        assert_eq!(alone.matches("<rect").count(), 2);
        assert!(alone.contains("a&lt;b") && !alone.contains("before"));
        let both = pairs(
            "percent",
            &std::array::from_fn::<_, 20, _>(|_| pair("a rather long name", Some(10.0), 40.0)),
        );
        assert_eq!(both.matches("<rect").count(), 40);
        assert!(both.contains("a rather long name, before: 10") && both.contains('…'));
        assert!(pairs("percent", &[]).starts_with("<svg"));
    }

    #[test]
    fn marks_span_the_values() {
        assert_eq!(linear_marks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear_marks(101.0), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(log_marks(3.0, 40.0), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log_marks(7.0, 7.0), [5.0, 10.0]);
        assert_eq!(log_marks(1.0, 90_000.0).len(), 6);
        assert_eq!(doubling_marks(1.0, 9.0), [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(doubling_marks(1.0, 1.0), [1.0]);
        assert!(doubling_marks(1.0, 1e6).len() <= 11);
    }
}
