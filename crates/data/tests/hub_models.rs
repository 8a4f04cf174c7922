//! Models of the hub, from a local server with the hub's API.
#![allow(clippy::unwrap_used)]

use fullshard_data::hub::{Hub, ModelFiles, Token};
use fullshard_testing::LocalHub;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NEWER: &str = "89abcdef0123456789abcdef0123456789abcdef";
const INDEX: &[u8] = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors"}}"#;
const FILES: &[(&str, &[u8])] = &[
    ("README.md", b"a text"),
    ("config.json", b"{\"model_type\": \"gpt2\"}"),
    ("generation_config.json", b"{}"),
    ("model-00001-of-00002.safetensors", &[1; 3000]),
    ("model-00002-of-00002.safetensors", &[2; 5000]),
    ("model.safetensors.index.json", INDEX),
    ("pytorch_model.bin", b"pickled"),
    ("special_tokens_map.json", b"{ }"),
    ("tokenizer.json", b"[]"),
    ("vocab.json", b"{  }"),
];

/// A cache, and the parts of a hub that uses it.
struct Cache(TempDir);

impl Cache {
    fn new() -> Cache {
        Cache(tempfile::tempdir().unwrap())
    }

    fn hub(&self, endpoint: &str) -> Hub {
        Hub::new(Some(self.0.path())).with_endpoint(endpoint)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join("models--org--tiny").join(path)
    }
}

fn serve() -> LocalHub {
    let server = LocalHub::start();
    server.model("org/tiny", "main", COMMIT, FILES);
    server
}

fn fetch_revision(hub: &Hub, revision: &str, files: ModelFiles) -> Result<PathBuf, String> {
    let fetched = hub.fetch_model("org/tiny", revision, files, &mut |_| {});
    fetched.map_err(|error| error.to_string())
}

fn fetch(hub: &Hub, files: ModelFiles) -> Result<PathBuf, String> {
    fetch_revision(hub, "main", files)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
}

#[test]
fn fetches_only_what_is_needed() {
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    let folder = fetch(&hub, ModelFiles::Config).unwrap();
    assert_eq!(folder, cache.path(&format!("snapshots/{COMMIT}")));
    assert_eq!(names(&folder), ["config.json"]);
    fetch(&hub, ModelFiles::ConfigAndTokenizer).unwrap();
    assert_eq!(names(&folder), ["config.json", "special_tokens_map.json", "tokenizer.json"]);
    fetch(&hub, ModelFiles::Weights).unwrap();
    for (file, content) in FILES {
        let is_needed = !["README.md", "pytorch_model.bin", "vocab.json"].contains(file);
        let found = fs::read(folder.join(file)).ok();
        assert_eq!(found.as_deref(), is_needed.then_some(*content), "{file}");
    }
}

#[test]
fn pickled_weights_are_fetched_without_others() {
    let (server, cache) = (LocalHub::start(), Cache::new());
    let index = br#"{"weight_map": {"a": "part.bin"}}"#;
    let files: &[(&str, &[u8])] =
        &[("pytorch_model.bin.index.json", index), ("part.bin", b"a"), ("other.bin", b"b")];
    server.model("org/tiny", "main", COMMIT, files);
    let folder = fetch(&cache.hub(server.address()), ModelFiles::Weights).unwrap();
    assert_eq!(names(&folder), ["part.bin", "pytorch_model.bin.index.json"]);
}

#[test]
fn progress_reaches_the_size_of_each_file() {
    let (server, cache) = (serve(), Cache::new());
    let mut seen: Vec<(String, u64, u64)> = Vec::new();
    let hub = cache.hub(server.address());
    hub.fetch_model("org/tiny", "main", ModelFiles::Weights, &mut |download| {
        seen.push((download.file.to_owned(), download.bytes, download.size));
    })
    .unwrap();
    for (file, size) in [("model-00001-of-00002.safetensors", 3000), ("generation_config.json", 2)]
    {
        assert!(seen.contains(&(file.to_owned(), size, size)), "{seen:?}");
    }
    assert!(seen.iter().all(|(_, bytes, size)| bytes <= size), "{seen:?}");
}

/// The layout of Python's huggingface_hub.
#[test]
fn cache_has_blobs_links_and_references() {
    let (server, cache) = (serve(), Cache::new());
    server.model("org/tiny", "refs/pr/1", NEWER, &[("config.json", FILES[1].1)]);
    let folder = fetch(&cache.hub(server.address()), ModelFiles::Config).unwrap();
    let link = fs::read_link(folder.join("config.json")).unwrap();
    assert!(link.starts_with("../../blobs"), "{link:?}");
    assert_eq!(fs::read_to_string(cache.path("refs/main")).unwrap(), COMMIT);

    // Another commit with the same content links to the same blob.
    let before = server.requests().len();
    let hub = cache.hub(server.address());
    let newer = fetch_revision(&hub, "refs/pr/1", ModelFiles::Config).unwrap();
    assert_eq!(fs::read_link(newer.join("config.json")).unwrap(), link);
    assert_eq!(fs::read(newer.join("config.json")).unwrap(), FILES[1].1);
    assert_eq!(fs::read_to_string(cache.path("refs/refs/pr/1")).unwrap(), NEWER);
    let ranges: Vec<_> = server.requests()[before..].iter().map(|r| r.range.clone()).collect();
    assert_eq!(ranges, [None, Some("bytes=0-0".to_owned())]);
}

#[test]
fn finds_what_python_cached() {
    let cache = Cache::new();
    let snapshot = cache.path(&format!("snapshots/{COMMIT}"));
    fs::create_dir_all(cache.path("blobs")).unwrap();
    fs::create_dir_all(cache.path("refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(cache.path("blobs/abc"), "{}").unwrap();
    fs::write(cache.path("refs/main"), COMMIT).unwrap();
    std::os::unix::fs::symlink("../../blobs/abc", snapshot.join("config.json")).unwrap();
    let hub = cache.hub("http://127.0.0.1:1").offline();
    for revision in ["main", COMMIT] {
        assert_eq!(fetch_revision(&hub, revision, ModelFiles::Config).unwrap(), snapshot);
    }
    assert_has(&fetch(&hub, ModelFiles::Weights).unwrap_err(), &["it has no weights"]);
    assert_has(&fetch_revision(&hub, "v2", ModelFiles::Config).unwrap_err(), &["`v2`"]);
}

#[test]
fn a_newer_commit_is_fetched_and_an_older_one_kept() {
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    fetch(&hub, ModelFiles::Config).unwrap();
    server.model("org/tiny", "main", NEWER, &[("config.json", b"newer")]);
    let folder = fetch(&hub, ModelFiles::Config).unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"newer");

    // A commit that is cached needs no request.
    let before = server.requests().len();
    let older = fetch_revision(&hub, COMMIT, ModelFiles::Config).unwrap();
    assert_eq!(fs::read(older.join("config.json")).unwrap(), FILES[1].1);
    assert_eq!(server.requests().len(), before);
}

#[test]
fn works_from_the_cache_once_the_server_is_gone() {
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    let folder = fetch(&hub, ModelFiles::Weights).unwrap();
    let address = server.address().to_owned();
    server.stop();
    assert_eq!(fetch(&hub, ModelFiles::Weights).unwrap(), folder);
    let error = fetch(&hub, ModelFiles::Config).unwrap_err();
    let at = folder.display().to_string();
    assert_has(&error, &["model org/tiny", "cannot be reached", &at, "it has no config.json"]);
    let error = fetch(&Cache::new().hub(&address), ModelFiles::Config).unwrap_err();
    assert_has(&error, &["has no revision `main` of it", "Check the name and the network"]);
    fs::remove_file(folder.join("model-00002-of-00002.safetensors")).unwrap();
    let error = fetch(&hub, ModelFiles::Weights).unwrap_err();
    assert_has(&error, &["it has no model-00002-of-00002.safetensors"]);
}

#[test]
fn offline_opens_no_connection() {
    let (server, cache) = (serve(), Cache::new());
    let offline = cache.hub(server.address()).offline();
    let error = fetch(&offline, ModelFiles::Config).unwrap_err();
    assert_has(&error, &["HF_HUB_OFFLINE", "org/tiny", &cache.0.path().display().to_string()]);
    assert_eq!(server.requests(), []);
    fetch(&cache.hub(server.address()), ModelFiles::Weights).unwrap();
    let before = server.requests().len();
    fetch(&offline, ModelFiles::Weights).unwrap();
    assert_eq!(server.requests().len(), before);
}

#[test]
fn token_is_only_in_the_header() {
    const SECRET: &str = "hf_secret";
    let (server, cache) = (serve(), Cache::new());
    server.require_token(SECRET);
    let error = fetch(&cache.hub(server.address()), ModelFiles::Config).unwrap_err();
    assert_has(&error, &["org/tiny", "private or gated", "HF_TOKEN or --token"]);

    let wrong = cache.hub(server.address()).with_token(Token::new("hf_other"));
    let error = fetch(&wrong, ModelFiles::Config).unwrap_err();
    assert_has(&error, &["the token gives no access"]);
    assert!(!error.contains("hf_other") && !format!("{wrong:?}").contains("hf_other"));

    let hub = cache.hub(server.address()).with_token(Token::new(format!(" {SECRET}\n")));
    let before = server.requests().len();
    fetch(&hub, ModelFiles::Weights).unwrap();
    for request in &server.requests()[before..] {
        assert_eq!(request.authorization.as_deref(), Some("Bearer hf_secret"), "{request:?}");
        let elsewhere = format!("{} {:?}", request.path, request.others);
        assert!(!elsewhere.contains(SECRET), "{elsewhere}");
    }
    assert_eq!(serde_json::to_string(&Token::new(SECRET)).unwrap(), "null");
}

#[test]
fn unknown_names_and_revisions_are_told_apart() {
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    let error = fetch_revision(&hub, "v9", ModelFiles::Config).unwrap_err();
    assert_has(&error, &["org/tiny has no revision `v9`", "--model_revision"]);
    for revision in ["main", "v9"] {
        let error = hub.fetch_model("org/none", revision, ModelFiles::Config, &mut |_| {});
        let error = error.unwrap_err().to_string();
        let page = format!("there is no {}/org/none", server.address());
        assert_has(&error, &[&page, "check the name", "a folder that exists"]);
    }
    for (name, revision) in [("../tiny", "main"), ("a/b/c", "main"), ("org/tiny", "../main")] {
        let before = server.requests().len();
        hub.fetch_model(name, revision, ModelFiles::Config, &mut |_| {}).unwrap_err();
        assert_eq!(server.requests().len(), before, "{name} {revision}");
    }
}

#[test]
fn missing_files_are_named() {
    let (server, cache) = (LocalHub::start(), Cache::new());
    server.model("org/tiny", "main", COMMIT, &[("README.md", b"a text")]);
    let hub = cache.hub(server.address());
    for (files, expected) in [
        (ModelFiles::Config, "it has no config.json"),
        (ModelFiles::Weights, "it has no weights, none of model.safetensors"),
        (ModelFiles::Tokenizer, "it has no tokenizer.json"),
    ] {
        assert_has(&fetch(&hub, files).unwrap_err(), &["model org/tiny", expected]);
    }
    let outside = br#"{"weight_map": {"a": "../../secret"}}"#;
    server.model("org/tiny", "main", NEWER, &[("model.safetensors.index.json", outside)]);
    assert_has(&fetch(&hub, ModelFiles::Weights).unwrap_err(), &["../../secret, which is not"]);
}

#[test]
fn a_download_that_breaks_off_is_completed_at_the_next_start() {
    const SHARD: &str = "model-00002-of-00002.safetensors";
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    server.break_off(SHARD, 2000);
    let error = fetch(&hub, ModelFiles::Weights).unwrap_err();
    assert_has(&error, &["org/tiny", SHARD, "start again, which continues it"]);
    let folder = cache.path(&format!("snapshots/{COMMIT}"));
    assert!(!folder.join(SHARD).exists());

    let before = server.requests().len();
    fetch(&hub, ModelFiles::Weights).unwrap();
    assert_eq!(fs::read(folder.join(SHARD)).unwrap(), [2; 5000]);
    let requests = &server.requests()[before..];
    let continued = requests.iter().filter(|r| r.range.as_deref() == Some("bytes=2000-")).count();
    assert!(continued > 0, "{requests:?}");
    assert!(requests.iter().all(|request| !request.path.contains("00001")), "{requests:?}");
}

/// What is left of a download may be longer than the file, or end at its end.
#[test]
fn a_part_that_cannot_be_continued_is_dropped() {
    const SHARD: &str = "model-00002-of-00002.safetensors";
    for excess in [0, 7] {
        let (server, cache) = (serve(), Cache::new());
        let hub = cache.hub(server.address());
        server.break_off(SHARD, 2000);
        fetch(&hub, ModelFiles::Weights).unwrap_err();
        let blobs = names(&cache.path("blobs"));
        let part = blobs.iter().find(|name| name.ends_with(".part")).unwrap();
        fs::write(cache.path("blobs").join(part), vec![9; 5000 + excess]).unwrap();
        let folder = fetch(&hub, ModelFiles::Weights).unwrap();
        assert_eq!(fs::read(folder.join(SHARD)).unwrap(), [2; 5000]);
    }
}

#[test]
fn a_download_by_another_process_is_reported() {
    const SHARD: &str = "model-00002-of-00002.safetensors";
    let (server, cache) = (serve(), Cache::new());
    let hub = cache.hub(server.address());
    server.break_off(SHARD, 2000);
    fetch(&hub, ModelFiles::Weights).unwrap_err();
    let part = names(&cache.path("blobs")).into_iter().find(|name| name.ends_with(".part"));
    let lock = cache.path("blobs").join(part.unwrap()).with_extension("lock");
    let held = fs::File::open(lock).unwrap();
    held.lock().unwrap();
    let error = fetch(&hub, ModelFiles::Weights).unwrap_err();
    assert_has(&error, &["another process is downloading", SHARD, "start again"]);
    held.unlock().unwrap();
    fetch(&hub, ModelFiles::Weights).unwrap();
}
