//! Datasets of the hub, from a local server with the hub's API.
#![allow(clippy::unwrap_used)]

use fullshard_data::hub::{Hub, Split};
use fullshard_testing::LocalHub;
use std::path::{Path, PathBuf};

const MAIN: &str = "c0ffee";
const CONVERTED: &str = "decade";

/// A server with a dataset: its files, and those converted to Parquet.
fn serve(main: &[(&str, &str)], converted: &[(&str, &str)]) -> LocalHub {
    let hub = LocalHub::start();
    let revisions = [("main", MAIN, main), ("refs/convert/parquet", CONVERTED, converted)];
    for (revision, commit, files) in revisions {
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_bytes())).collect();
        hub.dataset("some/text", revision, commit, &files);
    }
    hub
}

fn fetch_at(hub: &Hub, config: Option<&str>, split: Split) -> Result<Vec<PathBuf>, String> {
    let fetched = hub.fetch_dataset("some/text", config, split, &mut |_| {});
    Ok(fetched.map_err(|error| error.to_string())?.unwrap_or_default())
}

fn fetch(server: &LocalHub, config: Option<&str>, split: Split) -> Result<Vec<String>, String> {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(Some(cache.path())).with_endpoint(server.address());
    Ok(read(&fetch_at(&hub, config, split)?))
}

fn read(files: &[PathBuf]) -> Vec<String> {
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn fetches_a_split_of_a_config() {
    let files = [
        ("README.md", "not text"),
        ("one/test-0.txt", "test"),
        ("one/train-00000-of-00002.txt", "first"),
        ("one/train-00001-of-00002.txt", "the second"),
        ("one/validation.txt", "checked"),
        ("two/train.txt", "of the other"),
    ];
    let server = serve(&files, &[]);
    assert_eq!(fetch(&server, Some("one"), Split::Train).unwrap(), ["first", "the second"]);
    assert_eq!(fetch(&server, Some("one"), Split::Validation).unwrap(), ["checked"]);
    assert_eq!(fetch(&server, Some("two"), Split::Validation).unwrap(), [""; 0]);
    let several = fetch(&server, None, Split::Train).unwrap_err();
    assert!(several.contains("--dataset_config_name: one, two"), "{several}");
    let unknown = fetch(&server, Some("three"), Split::Train).unwrap_err();
    assert!(unknown.contains("no config `three`; it has: one, two"), "{unknown}");
}

#[test]
fn plain_repositories_need_no_config() {
    let server = serve(&[("train.jsonl", "a row"), ("dev.jsonl", "another row")], &[]);
    assert_eq!(fetch(&server, None, Split::Train).unwrap(), ["a row"]);
    assert_eq!(fetch(&server, None, Split::Validation).unwrap(), ["another row"]);
    let server = serve(&[("data/train-0.parquet", "rows"), ("extra/train.txt", "more")], &[]);
    assert_eq!(fetch(&server, None, Split::Train).unwrap(), ["rows"]);
}

#[test]
fn falls_back_to_converted_parquet() {
    let main = [("archive.zip", "zip")];
    let server = serve(&main, &[("default/train/0000.parquet", "rows")]);
    assert_eq!(fetch(&server, None, Split::Train).unwrap(), ["rows"]);
    let nothing = fetch(&serve(&main, &[]), None, Split::Train).unwrap_err();
    assert!(nothing.contains("no text files") && nothing.contains("--train_file"), "{nothing}");
}

/// Others may own the cache: what is downloaded can be used.
#[test]
fn unwritable_manifest_is_not_fatal() {
    let cache = tempfile::tempdir().unwrap();
    let manifest = cache.path().join("datasets--some--text/fullshard.default.Train.json");
    std::fs::create_dir_all(manifest.join("blocked")).unwrap();
    let server = serve(&[("train.txt", "text")], &[]);
    let hub = Hub::new(Some(cache.path())).with_endpoint(server.address());
    assert_eq!(read(&fetch_at(&hub, None, Split::Train).unwrap()), ["text"]);
}

#[test]
fn only_cached_files_are_found_offline() {
    let cache = tempfile::tempdir().unwrap();
    let online = serve(&[("train.txt", "a text")], &[]);
    let at = |endpoint: &str| Hub::new(Some(cache.path())).with_endpoint(endpoint);
    let (reached, unreachable) = (at(online.address()), at("http://127.0.0.1:1"));
    for hub in [&unreachable, &unreachable.clone().offline()] {
        let error = fetch_at(hub, None, Split::Train).unwrap_err();
        assert!(error.contains("some/text") && error.contains("--train_file"), "{error}");
    }
    let fetched = fetch_at(&reached, None, Split::Train).unwrap();
    assert_eq!(fetch_at(&unreachable, None, Split::Train).unwrap(), fetched);
    assert_eq!(fetch_at(&unreachable.clone().offline(), None, Split::Train).unwrap(), fetched);
    assert!(fetch_at(&unreachable, Some("other"), Split::Train).is_err());
    assert!(fetched.iter().all(|file: &PathBuf| file.starts_with(cache.path() as &Path)));
    let unknown = reached.fetch_dataset("no/such", None, Split::Train, &mut |_| {}).unwrap_err();
    assert!(unknown.to_string().contains("no/such"), "{unknown}");
}

#[test]
fn a_newer_commit_is_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve(&[("train.txt", "old")], &[]);
    let hub = Hub::new(Some(cache.path())).with_endpoint(server.address());
    assert_eq!(read(&fetch_at(&hub, None, Split::Train).unwrap()), ["old"]);
    server.dataset("some/text", "main", "beef", &[("train.txt", b"newer")]);
    assert_eq!(read(&fetch_at(&hub, None, Split::Train).unwrap()), ["newer"]);
}
