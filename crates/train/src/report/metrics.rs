//! The results of a run, as files and as printed.

use super::values::{Number, Values};
use fullshard_checkpoint::{Error, Result, write_json};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::path::Path;

/// Writes `{split}_results.json` into a folder and adds the same values to its
/// `all_results.json`. The split is `train` or `eval`.
pub fn save_metrics(dir: impl AsRef<Path>, split: &str, values: &Values) -> Result<()> {
    let dir = dir.as_ref();
    let all_path = dir.join("all_results.json");
    let mut all = read_object(&all_path)?;
    for (name, &number) in values {
        let number = serde_json::to_value(number).unwrap_or(Value::Null);
        all.insert(name.clone(), number);
    }
    write_json(dir.join(format!("{split}_results.json")), values, 4)?;
    write_json(all_path, &all, 4)
}

/// The object in a file; empty if there is no file.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    };
    serde_json::from_slice(&text).map_err(|error| Error::Damaged {
        path: path.to_owned(),
        reason: format!("it is not a JSON object ({error})"),
    })
}

/// Values as Hugging Face prints them: sorted and aligned under a heading.
pub fn metrics_block(split: &str, values: &Values) -> String {
    let shown: Vec<(&str, String)> =
        values.iter().map(|(name, &number)| (name.as_str(), show(name, number))).collect();
    let name_width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let value_width = shown.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
    let mut block = format!("***** {split} metrics *****\n");
    for (name, value) in shown {
        let _ = writeln!(block, "  {name:name_width$} = {value:>value_width$}");
    }
    block
}

fn show(name: &str, number: Number) -> String {
    if name.contains("_mem_") {
        return format!("{}MB", shifted(number, 20));
    }
    if name.contains("_runtime") {
        return duration(number.as_f64());
    }
    if name == "total_flos" {
        return format!("{}GF", shifted(number, 30));
    }
    match number {
        Number::Count(count) => count.to_string(),
        Number::Measure(measure) => python_float(measure),
    }
}

/// A number in units of 2^`bits`. FLOP counts can exceed an `i64`.
fn shifted(number: Number, bits: u32) -> i128 {
    number.as_f64() as i128 >> bits
}

/// Hours, minutes, seconds and hundredths, with days before them as in Python's `timedelta`.
fn duration(seconds: f64) -> String {
    let whole = seconds.trunc() as i64;
    let hundredths = ((seconds - seconds.trunc()).abs() * 100.0) as i64;
    let (days, rest) = (whole.div_euclid(86_400), whole.rem_euclid(86_400));
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    let days = match days {
        0 => String::new(),
        1 | -1 => format!("{days} day, "),
        _ => format!("{days} days, "),
    };
    format!("{days}{hours}:{minutes:02}:{seconds:02}.{hundredths:02}")
}

/// A number rounded to four decimals and then as short as Python prints it.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let rounded: f64 = format!("{value:.4}").parse().unwrap_or(value);
    // Only numbers of 1e16 and more have an exponent, which Python gives a sign.
    format!("{rounded:?}").replace('e', "e+")
}
