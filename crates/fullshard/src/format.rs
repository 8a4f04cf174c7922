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

/// A duration in its two largest units: `2 h 05 min`.
pub fn duration(value: f64) -> String {
    // Rounded to the smaller unit first, so that no minute has 60 seconds.
    let units = |smaller: f64, each: u64| {
        let rounded = (value / smaller).round() as u64;
        (rounded / each, rounded % each)
    };
    match (units(1.0, 60), units(60.0, 60), units(3600.0, 24)) {
        _ if value < 60.0 => seconds(value),
        ((minutes, seconds), ..) if minutes < 60 => format!("{minutes} min {seconds:02} s"),
        (_, (hours, minutes), _) if hours < 48 => format!("{hours} h {minutes:02} min"),
        (.., (days, hours)) => format!("{days} d {hours:02} h"),
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

    #[test]
    fn durations_have_two_units() {
        for (value, text) in [
            (12.3, "12.30 s"),
            (60.0, "1 min 00 s"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h 00 min"),
            (7500.0, "2 h 05 min"),
            (260_000.0, "3 d 00 h"),
        ] {
            assert_eq!(duration(value), text);
        }
    }
}
