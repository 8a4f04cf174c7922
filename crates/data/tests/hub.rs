//! Datasets of the hub, from a local server with the hub's API.
#![allow(clippy::unwrap_used)]

use fullshard_data::hub::{Hub, Split};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

/// Serves the files of one dataset, by revision and path, and returns its address.
fn serve(files: &[(&str, &str, &str)]) -> String {
    let mut pages = HashMap::new();
    for revision in ["main", "refs%2Fconvert%2Fparquet"] {
        let listed: Vec<String> = files
            .iter()
            .filter(|(of, ..)| *of == revision)
            .map(|(_, path, _)| format!("{{\"rfilename\": \"{path}\"}}"))
            .collect();
        let listing = format!("{{\"sha\": \"c0ffee\", \"siblings\": [{}]}}", listed.join(","));
        pages.insert(format!("/api/datasets/some/text/revision/{revision}"), listing);
    }
    for (revision, path, content) in files {
        pages.insert(format!("/datasets/some/text/resolve/{revision}/{path}"), content.to_string());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &pages);
        }
    });
    address
}

fn answer(mut stream: TcpStream, pages: &HashMap<String, String>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let page = request.split(' ').nth(1).and_then(|path| pages.get(path));
    let first_byte = headers.iter().any(|header| header.ends_with("bytes=0-0"));
    let response = match page {
        None => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
        Some(page) => {
            let body = if first_byte { &page[..1] } else { page };
            let (last, length, hash) = (body.len() - 1, page.len(), page.len());
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nEtag: \"{hash}\"\r\n\
                 Content-Range: bytes 0-{last}/{length}\r\nX-Repo-Commit: c0ffee\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            )
        }
    };
    let _ = stream.write_all(response.as_bytes());
}

fn fetch(
    files: &[(&str, &str, &str)],
    config: Option<&str>,
    split: Split,
) -> Result<Vec<String>, String> {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(Some(cache.path())).with_endpoint(&serve(files));
    let fetched = hub.fetch("some/text", config, split).map_err(|error| error.to_string())?;
    Ok(read(&fetched.unwrap_or_default()))
}

fn read(files: &[PathBuf]) -> Vec<String> {
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn fetches_a_split_of_a_config() {
    let files = [
        ("main", "README.md", "not text"),
        ("main", "one/test-0.txt", "test"),
        ("main", "one/train-00000-of-00002.txt", "first"),
        ("main", "one/train-00001-of-00002.txt", "the second"),
        ("main", "one/validation.txt", "checked"),
        ("main", "two/train.txt", "of the other"),
    ];
    assert_eq!(fetch(&files, Some("one"), Split::Train).unwrap(), ["first", "the second"]);
    assert_eq!(fetch(&files, Some("one"), Split::Validation).unwrap(), ["checked"]);
    assert_eq!(fetch(&files, Some("two"), Split::Validation).unwrap(), [""; 0]);
    let several = fetch(&files, None, Split::Train).unwrap_err();
    assert!(several.contains("--dataset_config_name: one, two"), "{several}");
    let unknown = fetch(&files, Some("three"), Split::Train).unwrap_err();
    assert!(unknown.contains("no config `three`; it has: one, two"), "{unknown}");
}

#[test]
fn plain_repositories_need_no_config() {
    let files = [("main", "train.jsonl", "a row"), ("main", "dev.jsonl", "another row")];
    assert_eq!(fetch(&files, None, Split::Train).unwrap(), ["a row"]);
    assert_eq!(fetch(&files, None, Split::Validation).unwrap(), ["another row"]);
    let files = [("main", "data/train-0.parquet", "rows"), ("main", "extra/train.txt", "more")];
    assert_eq!(fetch(&files, None, Split::Train).unwrap(), ["rows"]);
}

#[test]
fn falls_back_to_converted_parquet() {
    let files = [
        ("main", "archive.zip", "zip"),
        ("refs%2Fconvert%2Fparquet", "default/train/0000.parquet", "rows"),
    ];
    assert_eq!(fetch(&files, None, Split::Train).unwrap(), ["rows"]);
    let nothing = fetch(&files[..1], None, Split::Train).unwrap_err();
    assert!(nothing.contains("no text files") && nothing.contains("--train_file"), "{nothing}");
}

/// Others may own the cache: what is downloaded can be used.
#[test]
fn unwritable_manifest_is_not_fatal() {
    let cache = tempfile::tempdir().unwrap();
    let manifest = cache.path().join("datasets--some--text/fullshard.default.Train.json");
    std::fs::create_dir_all(manifest.join("blocked")).unwrap();
    let hub = Hub::new(Some(cache.path())).with_endpoint(&serve(&[("main", "train.txt", "text")]));
    let fetched = hub.fetch("some/text", None, Split::Train).unwrap();
    assert_eq!(read(&fetched.unwrap()), ["text"]);
}

#[test]
fn only_cached_files_are_found_offline() {
    let cache = tempfile::tempdir().unwrap();
    let online = serve(&[("main", "train.txt", "a text")]);
    let offline = "http://127.0.0.1:1";
    let at = |endpoint: &str| Hub::new(Some(cache.path())).with_endpoint(endpoint);
    let error = at(offline).fetch("some/text", None, Split::Train).unwrap_err().to_string();
    assert!(error.contains("some/text") && error.contains("--train_file"), "{error}");
    let fetched = at(&online).fetch("some/text", None, Split::Train).unwrap();
    assert_eq!(at(offline).fetch("some/text", None, Split::Train).unwrap(), fetched);
    assert!(at(offline).fetch("some/text", Some("other"), Split::Train).is_err());
    assert!(fetched.unwrap().iter().all(|file: &PathBuf| file.starts_with(cache.path() as &Path)));
    let unknown = at(&online).fetch("no/such", None, Split::Train).unwrap_err().to_string();
    assert!(unknown.contains("no/such"), "{unknown}");
}
