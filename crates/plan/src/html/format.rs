//! Formatting of figures and names.

use std::fmt::{self, Display};

/// Text escaped for HTML.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => other.fmt(f)?,
            }
        }
        Ok(())
    }
}

/// Bytes in binary units.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Seconds in s, ms or µs, with three significant digits.
pub fn seconds(seconds: f64) -> String {
    // A sum of nothing is -0.0.
    let (value, unit) = match seconds + 0.0 {
        s if s >= 1.0 || s == 0.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A number with three significant digits.
fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A large count with three significant digits and a suffix.
pub fn count(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e12 => (v / 1e12, " T"),
        v if v >= 1e9 => (v / 1e9, " B"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e4 => (v / 1e3, " k"),
        v => return format!("{v:.0}"),
    };
    format!("{}{unit}", three_digits(value))
}

/// A count with a noun in singular or plural.
pub fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(81_390_000_000), "75.8 GiB");
        assert_eq!(bytes(150 << 30), "150 GiB");
        assert_eq!(seconds(0.4637), "464 ms");
        assert_eq!(seconds(4.191), "4.19 s");
        assert_eq!(seconds(0.000_002), "2.00 µs");
        assert_eq!(seconds(0.0), "0.00 s");
        assert_eq!(count(35_333.0), "35.3 k");
        assert_eq!(count(2_196_691_968.0), "2.20 B");
        assert_eq!(percent(0.471), "47.1 %");
    }

    #[test]
    fn escapes_markup() {
        assert_eq!(Escaped("<b a='\"&").to_string(), "&lt;b a=&#39;&quot;&amp;");
    }
}
