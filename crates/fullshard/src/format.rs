//! Formatting of numbers for output.

/// Bytes with a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration in µs, ms or s.
pub fn seconds(value: f64) -> String {
    // A sum of nothing is -0.0.
    match value + 0.0 {
        v if v < 1e-3 => format!("{:.1} µs", v * 1e6),
        v if v < 1.0 => format!("{:.2} ms", v * 1e3),
        v => format!("{v:.2} s"),
    }
}

/// A FLOP/s rate.
pub fn flops_rate(value: f64) -> String {
    match value {
        v if v >= 1e12 => format!("{:.1} TFLOP/s", v / 1e12),
        v => format!("{:.2} GFLOP/s", v / 1e9),
    }
}

/// "1 device", "2 devices".
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// An integer with thousands separators.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups = groups.map(|group| group.iter().map(|&digit| char::from(digit)).collect());
    groups.collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_has_no_sign() {
        assert_eq!(seconds(-0.0), "0.0 µs");
        assert_eq!(seconds(0.0025), "2.50 ms");
    }
}
