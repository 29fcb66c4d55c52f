//! Points on the earth: longitude and latitude in degrees, as in GEOADD.

use super::number::Number;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub longitude: f64,
    pub latitude: f64,
}

/// The latitude limit of Web Mercator.
pub const LATITUDE_MAX: f64 = 85.051_128_78;

/// The radius of the sphere for distances; the same as in Redis.
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;

impl Point {
    /// Returns `None` for coordinates out of bounds.
    pub fn new(longitude: f64, latitude: f64) -> Option<Point> {
        let is_valid = (-180.0..=180.0).contains(&longitude) && latitude.abs() <= LATITUDE_MAX;
        is_valid.then_some(Point {
            longitude,
            latitude,
        })
    }

    /// Parses `lon,lat` or `lon lat`.
    pub fn parse(text: &[u8]) -> Option<Point> {
        let at = text.iter().position(|&b| b == b',' || b == b' ')?;
        let longitude = Number::parse(text[..at].trim_ascii())?;
        let latitude = Number::parse(text[at + 1..].trim_ascii())?;
        Point::new(longitude.as_f64(), latitude.as_f64())
    }

    /// Returns the great-circle distance in metres (haversine formula).
    pub fn distance_m(self, other: Point) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let u = ((b - a) / 2.0).sin();
        let v = ((other.longitude - self.longitude).to_radians() / 2.0).sin();
        let chord = (u * u + a.cos() * b.cos() * v * v).clamp(0.0, 1.0);
        2.0 * EARTH_RADIUS_M * chord.sqrt().asin()
    }
}

/// Returns a unit of distance in metres: m, km, ft or mi, in any case.
pub fn unit_m(name: &[u8]) -> Option<f64> {
    let units = [
        (&b"m"[..], 1.0),
        (b"km", 1000.0),
        (b"ft", 0.3048),
        (b"mi", 1609.34),
    ];
    let unit = units
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(name))?;
    Some(unit.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_parsed_and_distances_agree_with_geodist() {
        let palermo = Point::parse(b"13.361389,38.115556").unwrap();
        let catania = Point::parse(b"15.087269 37.502669").unwrap();
        assert!((palermo.distance_m(catania) - 166_274.15).abs() < 0.5);
        assert_eq!(palermo.distance_m(palermo), 0.0);
        for text in ["", "1", "1;2", "181,0", "0,86", "x,y", "nan,0", "1,2,3"] {
            assert_eq!(Point::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!((unit_m(b"KM"), unit_m(b"yd")), (Some(1000.0), None));
    }
}
