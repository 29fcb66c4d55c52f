//! Points on the earth, and the cells that a circle covers.
//!
//! A *cell number* interleaves the bits of longitude and latitude (a Morton code, as in geohashes), so the points in
//! one square of the map form one range. A few such ranges cover a circle. The distance of the points in them is then
//! computed exactly.

use super::Entry;
use super::codes::Others;
use crate::base::point::Point;
use crate::query::predicate::Circle;

#[derive(Debug, Default)]
pub(in crate::index) struct Points {
    points: Vec<(f64, f64)>,
    pub others: Others,
}

/// A longitude outside the map.
const MISSING: (f64, f64) = (1000.0, 0.0);
const OTHER: (f64, f64) = (2000.0, 0.0);

impl Points {
    pub fn grow(&mut self, rows: usize) {
        self.points.resize(rows.max(self.points.len()), MISSING);
    }

    #[inline]
    pub fn get(&self, row: u32) -> Option<Point> {
        let (longitude, latitude) = self.points[row as usize];
        (longitude < MISSING.0).then_some(Point {
            longitude,
            latitude,
        })
    }

    pub fn is_missing(&self, row: u32) -> bool {
        self.points[row as usize] == MISSING
    }

    pub fn set(&mut self, row: u32, entry: Entry<'_>) {
        if self.points[row as usize] == OTHER {
            self.others.remove(&row);
        }
        self.points[row as usize] = match entry {
            Entry::Point(point) => (point.longitude, point.latitude),
            Entry::Other(column) => {
                self.others.insert(row, column);
                OTHER
            }
            _ => MISSING,
        };
    }

    pub fn cell(&self, row: u32) -> u64 {
        let (longitude, latitude) = self.points[row as usize];
        cell(longitude, latitude)
    }

    pub fn heap_bytes(&self) -> usize {
        self.points.capacity() * size_of::<(f64, f64)>() + self.others.len() * 96
    }
}

fn cell(longitude: f64, latitude: f64) -> u64 {
    spread(column_of(longitude)) << 1 | spread(line_of(latitude))
}

/// Scales a longitude to 32 bits, saturating at the edges of the map.
fn column_of(longitude: f64) -> u32 {
    ((longitude + 180.0) / 360.0 * 4_294_967_296.0) as u32
}

fn line_of(latitude: f64) -> u32 {
    ((latitude + 90.0) / 180.0 * 4_294_967_296.0) as u32
}

/// Inserts a zero after each bit.
fn spread(value: u32) -> u64 {
    let mut word = u64::from(value);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        word = (word | word << shift) & mask;
    }
    word
}

/// A rectangle in 32-bit columns and lines, bounds inclusive.
#[derive(Debug, Clone, Copy)]
pub(in crate::index) struct CellRect {
    columns: (u32, u32),
    lines: (u32, u32),
}

/// Returns the bounding rectangle of a circle, or two rectangles if it crosses the date line.
pub(in crate::index) fn boxes(circle: &Circle) -> Vec<CellRect> {
    const EARTH_RADIUS_M: f64 = 6_372_797.560_856;
    // Rounding must not exclude points at the edge.
    const MARGIN: f64 = 1e-6;
    let angle = circle.radius_m / EARTH_RADIUS_M;
    let (longitude, latitude) = (circle.center.longitude, circle.center.latitude);
    let height = angle.to_degrees() + MARGIN;
    let (south, north) = (latitude - height, latitude + height);
    let lines = (line_of(south.max(-90.0)), line_of(north.min(90.0)));
    let of = |west: f64, east: f64| CellRect {
        columns: (column_of(west), column_of(east)),
        lines,
    };
    let sine = angle.sin() / latitude.to_radians().cos();
    if south <= -90.0 || north >= 90.0 || angle >= std::f64::consts::FRAC_PI_2 || sine >= 1.0 {
        return vec![of(-180.0, 180.0)];
    }
    let width = sine.asin().to_degrees() + MARGIN;
    let (west, east) = (longitude - width, longitude + width);
    match () {
        () if width >= 180.0 => vec![of(-180.0, 180.0)],
        () if west < -180.0 => vec![of(west + 360.0, 180.0), of(-180.0, east)],
        () if east > 180.0 => vec![of(west, 180.0), of(-180.0, east - 360.0)],
        // 180 degrees east and 180 degrees west are the same.
        () if west == -180.0 || east == 180.0 => vec![of(-180.0, 180.0)],
        () => vec![of(west, east)],
    }
}

/// Returns a few ranges of cell numbers, bounds inclusive and ascending, that cover the rectangle closely.
pub(in crate::index) fn ranges(of: CellRect) -> Vec<(u64, u64)> {
    const RANGES_MAX: usize = 24;
    // Squares of the map: the number of the first cell, and the number of remaining bits.
    let mut squares: Vec<(u64, u32)> = vec![(0, 32)];
    let mut inside: Vec<(u64, u32)> = Vec::new();
    while !squares.is_empty() && squares.len() + inside.len() < RANGES_MAX {
        let mut next = Vec::new();
        for (begin, bits) in squares {
            let bits = bits - 1;
            for quarter in 0..4_u64 {
                let begin = begin | quarter << (2 * bits);
                let (column, line) = (gather(begin >> 1), gather(begin));
                let side = ((1_u64 << bits) - 1) as u32;
                let (right, top) = (column | side, line | side);
                let is_out = right < of.columns.0
                    || column > of.columns.1
                    || top < of.lines.0
                    || line > of.lines.1;
                let is_in = column >= of.columns.0
                    && right <= of.columns.1
                    && line >= of.lines.0
                    && top <= of.lines.1;
                match (is_out, is_in || bits == 0) {
                    (true, _) => {}
                    (false, true) => inside.push((begin, bits)),
                    (false, false) => next.push((begin, bits)),
                }
            }
        }
        squares = next;
    }
    let all = inside.into_iter().chain(squares);
    let mut ranges: Vec<(u64, u64)> = all
        .map(|(begin, bits)| match 2 * bits {
            64 => (0, u64::MAX),
            bits => (begin, begin | ((1 << bits) - 1)),
        })
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = last.1.checked_add(1) == Some(next.0);
        if touches {
            last.1 = next.1;
        }
        touches
    });
    ranges
}

/// Extracts every second bit.
fn gather(word: u64) -> u32 {
    let mut word = word & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff_u64),
    ] {
        word = (word | word >> shift) & mask;
    }
    word as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn points_in_a_circle_are_in_its_ranges(
            center in (-180.0..=180.0, -85.0..=85.0), offset in (-1.0..1.0_f64, -1.0..1.0_f64), scale in 0_i32..9, radius_m in 0.0..1.0_f64, edge in 0..4,
        ) {
            let scale = 10_f64.powi(-scale);
            let center = match edge {
                0 => Point::new(180.0, center.1),
                1 => Point::new(-180.0, center.1),
                _ => Point::new(center.0, center.1),
            }.unwrap();
            let circle = Circle { center, radius: 0.0, unit: "m".to_string(), radius_m: radius_m * scale * 20_000_000.0 };
            let mut longitude = center.longitude + offset.0 * scale * 180.0;
            if longitude > 180.0 {
                longitude -= 360.0;
            }
            if longitude < -180.0 {
                longitude += 360.0;
            }
            let latitude = (center.latitude + offset.1 * scale * 90.0).clamp(-85.0, 85.0);
            let point = Point::new(longitude, latitude).unwrap();
            let cell = cell(point.longitude, point.latitude);
            prop_assert_eq!((gather(cell >> 1), gather(cell)), (column_of(point.longitude), line_of(point.latitude)));
            let boxes = boxes(&circle);
            let all: Vec<(u64, u64)> = boxes.iter().flat_map(|it| ranges(*it)).collect();
            prop_assert!(all.len() <= 200 && all.iter().all(|(begin, end)| begin <= end));
            if point.distance_m(center) <= circle.radius_m {
                prop_assert!(all.iter().any(|(begin, end)| (*begin..=*end).contains(&cell)));
            }
        }
    }
}
