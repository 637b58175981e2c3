//! Sizes and durations as people write them.
//!
//! A number without a unit is refused, and so is `GB`, which may mean 10^9 or 2^30 bytes and would
//! give some people volumes of the wrong size. What is printed can be given back as input.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// For serde: a value that is written as its text and read from it.
macro_rules! as_text {
    ($($value:ty),*) => {$(
        impl TryFrom<String> for $value {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$value> for String {
            fn from(value: $value) -> String {
                value.to_string()
            }
        }
    )*};
}
pub(crate) use as_text;

as_text!(Interval, Size, TimeSpan);

const SIZE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A number of bytes, written like `10GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Size(pub(crate) u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let bad = |why: &str| format!("{text:?} {why}; write a size like 10GiB or 512MiB");
        let unit_bytes = match SIZE_UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, bytes)) => *bytes,
            None if unit.is_empty() => return Err(bad("has no unit")),
            None if matches!(
                unit,
                "KB" | "kB" | "MB" | "GB" | "TB" | "K" | "M" | "G" | "T"
            ) =>
            {
                return Err(bad("has an ambiguous unit"));
            }
            None => return Err(bad("has an unknown unit")),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| bad("is not a size"))?;
        let mut bytes = whole
            .checked_mul(unit_bytes)
            .ok_or_else(|| bad("is too large"))?;
        if number.contains('.') {
            bytes = bytes
                .checked_add(
                    fraction_bytes(fraction, unit_bytes)
                        .ok_or_else(|| bad("is not a whole number of bytes"))?,
                )
                .ok_or_else(|| bad("is too large"))?;
        }
        Ok(Size(bytes))
    }
}

/// The bytes of `0.fraction` units, if that is a whole number.
fn fraction_bytes(fraction: &str, unit_bytes: u64) -> Option<u64> {
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let product = u128::from(fraction.parse::<u64>().ok()?).checked_mul(unit_bytes.into())?;
    if !product.is_multiple_of(scale) {
        return None;
    }
    u64::try_from(product / scale).ok()
}

impl fmt::Display for Size {
    /// The largest unit that gives a whole number, so that the text reads back exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = SIZE_UNITS
            .iter()
            .find(|(_, bytes)| self.0.is_multiple_of(*bytes));
        match exact {
            Some((unit, bytes)) if self.0 > 0 => write!(f, "{}{unit}", self.0 / bytes),
            _ => write!(f, "{}B", self.0),
        }
    }
}

/// About how many bytes, for people: `129 MiB`, `1.3 GiB`. What is to be read back is a [`Size`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApproximateSize(pub(crate) u64);

impl fmt::Display for ApproximateSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = SIZE_UNITS.iter().find(|(_, bytes)| self.0 >= *bytes);
        let (unit, bytes) = fits.copied().unwrap_or(("B", 1));
        let tenths = (u128::from(self.0) * 10 + u128::from(bytes) / 2) / u128::from(bytes);
        match bytes > 1 && tenths < 100 {
            true => write!(f, "{}.{} {unit}", tenths / 10, tenths % 10),
            false => write!(f, "{} {unit}", (tenths + 5) / 10),
        }
    }
}

/// A duration, written like `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct TimeSpan(pub(crate) Duration);

impl std::str::FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let bad = || format!("{text:?} is not a time; write one like 30s, 500ms, 5m or 1h");
        let number: u64 = number.parse().map_err(|_| bad())?;
        let millis = match unit {
            "ms" => Some(number),
            "s" => number.checked_mul(1000),
            "m" | "min" => number.checked_mul(60 * 1000),
            "h" => number.checked_mul(60 * 60 * 1000),
            _ => None,
        };
        millis
            .map(|millis| TimeSpan(Duration::from_millis(millis)))
            .ok_or_else(bad)
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1000) {
            write!(f, "{}s", millis / 1000)
        } else {
            write!(f, "{millis}ms")
        }
    }
}

/// How often something is done, written like `1h`, or `off`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Interval(pub(crate) Option<Duration>);

impl Interval {
    /// In nanoseconds, as the engine has it; zero: off.
    pub(crate) fn ns(self) -> u64 {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.map_or(0, ns)
    }
}

impl std::str::FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Interval(None));
        }
        match text.parse::<TimeSpan>() {
            Ok(TimeSpan(interval)) if !interval.is_zero() => Ok(Interval(Some(interval))),
            _ => Err(format!(
                "{text:?} is neither off nor a time; write one like 1h"
            )),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(interval) => TimeSpan(interval).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_or_off() {
        assert_eq!("off".parse(), Ok(Interval(None)));
        let hour = Interval(Some(Duration::from_secs(3600)));
        assert_eq!("1h".parse(), Ok(hour));
        assert_eq!(hour.to_string().parse(), Ok(hour));
        for text in ["0s", "on", "", "1"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_people_have_two_or_three_digits_and_a_unit() {
        let said = |bytes| ApproximateSize(bytes).to_string();
        assert_eq!(said(0), "0 B");
        assert_eq!(said(1023), "1023 B");
        assert_eq!(said(1024), "1.0 KiB");
        assert_eq!(said(135_042_589), "129 MiB");
        assert_eq!(said((1 << 30) + (300 << 20)), "1.3 GiB");
        assert_eq!(said(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn sizes_are_read_in_binary_units() {
        for (text, bytes) in [
            ("10GiB", 10 << 30),
            ("512 MiB", 512 << 20),
            ("1.5TiB", 3 << 39),
            ("4096B", 4096),
            ("0.5KiB", 512),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_clear_unit_is_refused_with_an_example() {
        let long = format!("1.{}GiB", "1".repeat(60));
        for text in [
            "10",
            "10GB",
            "10G",
            "GiB",
            "",
            "-1GiB",
            "1e3GiB",
            "1.3B",
            "1..5GiB",
            "99999999TiB",
            &long,
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("10GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn a_printed_size_reads_back_exactly() {
        for bytes in [0, 1, 512, 4096, 10 << 30, (10 << 30) + 512, u64::MAX] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn times_need_a_unit_too() {
        assert_eq!("30s".parse(), Ok(TimeSpan(Duration::from_secs(30))));
        for text in ["5m", "5min"] {
            assert_eq!(text.parse(), Ok(TimeSpan(Duration::from_secs(300))));
        }
        assert_eq!("250ms".parse::<TimeSpan>().unwrap().to_string(), "250ms");
        for text in [
            "30",
            "",
            "s",
            "-1s",
            "1d",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }
}
