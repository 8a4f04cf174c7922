//! Which files of a dataset belong to which config and split, by their names.

use super::Split;
use crate::Kind;
use std::path::Path;

/// The files of a config: those in the directory of its name. Without a name, those of the only
/// directory, or else those at the root or in `data`.
pub(super) fn of_config(files: &[String], config: Option<&str>) -> Option<Vec<String>> {
    let config = match config {
        Some(config) => config.to_owned(),
        None => {
            let known = configs(files);
            let usual = |name: &&String| matches!(name.as_str(), "" | "data" | "default");
            if known.len() == 1 { known.first() } else { known.iter().find(usual) }?.clone()
        }
    };
    let chosen: Vec<String> =
        readable(files).filter(|file| directory(file) == config).cloned().collect();
    (!chosen.is_empty()).then_some(chosen)
}

/// The directories that have files of a split; "" is the root.
pub(super) fn configs(files: &[String]) -> Vec<String> {
    let of_splits = readable(files)
        .filter(|file| belongs(file, Split::Train) || belongs(file, Split::Validation));
    let mut names: Vec<String> = of_splits.map(|file| directory(file).to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// The files of a split, all of one kind.
pub(super) fn of_split(files: &[String], split: Split) -> Vec<String> {
    let kind = |file: &str| Kind::of(Path::new(file)).ok();
    let of_split: Vec<&String> = files.iter().filter(|file| belongs(file, split)).collect();
    let first = of_split.first().and_then(|file| kind(file));
    of_split.into_iter().filter(|file| kind(file) == first).cloned().collect()
}

fn readable(files: &[String]) -> impl Iterator<Item = &String> {
    files.iter().filter(|file| Kind::of(Path::new(file)).is_ok())
}

fn directory(file: &str) -> &str {
    file.split_once('/').map_or("", |(directory, _)| directory)
}

/// Whether the path of a file contains the split's name as a word.
fn belongs(file: &str, split: Split) -> bool {
    let names: &[&str] = match split {
        Split::Train => &["train", "training"],
        Split::Validation => &["validation", "valid", "val", "dev"],
    };
    file.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|word| names.contains(&word))
}
