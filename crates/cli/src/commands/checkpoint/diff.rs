//! `fullshard checkpoint diff`.

use super::byte_bar;
use crate::output::{print_json, show};
use fullshard::Result;
use fullshard::format;
use fullshard_checkpoint::{Comparison, Opened, TensorDifference, bytes_to_compare, compare};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// The most names of a list that are printed; JSON has all.
const SHOWN: usize = 10;

#[derive(Serialize)]
struct Report<'a> {
    a: &'a Path,
    b: &'a Path,
    same: bool,
    tolerance: Option<f64>,
    largest_absolute: Option<&'a TensorDifference>,
    largest_relative: Option<&'a TensorDifference>,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

pub fn run(a: &Path, b: &Path, tolerance: Option<f64>, json: bool) -> Result<ExitCode> {
    let (first, second) = (Opened::open(a)?, Opened::open(b)?);
    let bytes = bytes_to_compare(&first, &second);
    let bar = byte_bar("comparing", b, bytes);
    let found = compare(&first, &second, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let comparison = &found?;
    let same = comparison.is_same(tolerance);
    let largest_absolute = comparison.largest_absolute();
    let largest_relative = comparison.largest_relative();
    let report = Report { a, b, same, tolerance, largest_absolute, largest_relative, comparison };
    match json {
        true => print_json(&report)?,
        false => print(&report),
    }
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report<'_>) {
    let (a, b, found) = (report.a.display(), report.b.display(), report.comparison);
    print_names(&format!("only in {a}"), found.only_in_a.iter().cloned());
    print_names(&format!("only in {b}"), found.only_in_b.iter().cloned());
    for (what, list) in [("other dims", &found.other_dims), ("other dtypes", &found.other_dtypes)] {
        let text = |value: &serde_json::Value| value.to_string().replace('"', "");
        let lines = list.iter().map(|it| format!("{}: {}, {}", it.name, text(&it.a), text(&it.b)));
        print_names(what, lines);
    }
    let progress = found.progress.iter();
    print_names("progress", progress.map(|it| format!("{}: {}, {}", it.name, it.a, it.b)));
    show!(
        "{} compared, {} equal bit by bit",
        format::count(found.compared, "tensor"),
        found.bit_equal
    );
    if let Some(tensor) = report.largest_absolute {
        show!("largest absolute difference {:.3e} in {}", tensor.max_absolute, tensor.name);
    }
    if let Some(tensor) = report.largest_relative {
        show!("largest relative difference {:.3e} in {}", tensor.max_relative, tensor.name);
    }
    match (report.same, report.tolerance) {
        (true, None) => show!("the same"),
        (true, Some(tolerance)) => show!("the same within {tolerance}"),
        (false, _) => show!("different"),
    }
}

/// Prints a list under its title, if it is not empty.
fn print_names(title: &str, names: impl ExactSizeIterator<Item = String>) {
    let count = names.len();
    if count == 0 {
        return;
    }
    show!("{title}: {count}");
    names.take(SHOWN).for_each(|name| show!("  {name}"));
    if count > SHOWN {
        show!("  and {} more", count - SHOWN);
    }
}
