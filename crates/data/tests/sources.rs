//! Supported file contents, and the errors of malformed files.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GPT2, blocks, corpus, examples, file};
use fullshard_data::{Error, Grouping, Part, Source};
use std::path::Path;

fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<String>, Error> {
    let directory = tempfile::tempdir().unwrap();
    examples(&[file(directory.path(), name, content)], true)
}

fn error(name: &str, content: impl AsRef<[u8]>) -> String {
    read(name, content).unwrap_err().to_string()
}

#[test]
fn lines_end_as_in_python() {
    let text = "one\r\ntwo\rthree\x0cstill\x0bstill\u{2028}still\u{85}\n\n\r\n\rlast";
    let lines =
        ["one\n", "two\n", "three\x0cstill\x0bstill\u{2028}still\u{85}\n", "\n", "\n", "\n"];
    assert_eq!(read("a.txt", text).unwrap(), [lines.as_slice(), &["last"]].concat());
    let directory = tempfile::tempdir().unwrap();
    let bare = examples(&[file(directory.path(), "a.txt", text)], false).unwrap();
    assert_eq!(
        bare,
        lines.iter().map(|line| line.trim_end_matches('\n')).chain(["last"]).collect::<Vec<_>>()
    );
}

#[test]
fn crlf_across_buffers_is_one_line_end() {
    for length in (1 << 20) - 3..(1 << 20) + 3 {
        let text = "x".repeat(length) + "\r\nnext";
        assert_eq!(read("a.txt", text).unwrap(), ["x".repeat(length) + "\n", "next".into()]);
    }
}

#[test]
fn rejects_invalid_utf8_with_its_position() {
    let text = error("a.txt", b"fine\r\nalso fine\nb\xffd\n");
    assert!(text.contains("a.txt, line 3: the byte at offset 17 is not UTF-8"), "{text}");
    assert!(error("a.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n").contains("line 2"));
    let text = error("a.csv", b"text\na\nb\xff\n");
    assert!(text.contains("line 3 is not UTF-8"), "{text}");
}

#[test]
fn json_is_concatenated_objects_or_an_array() {
    for text in [
        "{\"text\":\"a\"}\n{\"n\":[1,{\"text\":2}],\"text\":\"b\"}",
        "{\n\"text\":\n\"a\"}\n\n\n{\"text\":\"b\"}\n",
        "[{\"text\":\"a\"},\n{\"text\":\"b\"}]\n",
        "\n [\"a\", \"b\"]",
        "\u{feff}{\"text\":\"a\"}{\"text\":\"b\"}",
    ] {
        assert_eq!(read("a.json", text).unwrap(), ["a", "b"], "{text}");
    }
}

#[test]
fn reads_column_text_or_the_first() {
    assert_eq!(read("a.json", r#"{"id": 1, "text": "a"}"#).unwrap(), ["a"]);
    assert_eq!(
        read("a.json", r#"{"body": "a", "id": 1} {"id": 2, "body": "b"}"#).unwrap(),
        ["a", "b"]
    );
    assert_eq!(read("a.csv", "id,text\n1,a\n").unwrap(), ["a"]);
    assert_eq!(read("a.csv", "body,id\na,1\n").unwrap(), ["a"]);
}

#[test]
fn reads_json_escapes_and_rejects_lone_surrogates() {
    assert_eq!(read("a.json", r#"{"text": "\ud83d\ude00\n\u00e9"}"#).unwrap(), ["😀\né"]);
    for lone in
        [r#"{"text": "a\ud800b"}"#, r#"{"text": "a\udc00b"}"#, r#"{"text": "\ud800\ud800"}"#]
    {
        let text = error("a.json", format!("{{\"text\": \"a\"}}\n{lone}\n"));
        assert!(text.contains("surrogate") && text.contains("line 2"), "{lone}: {text}");
    }
}

#[test]
fn rejects_rows_without_text() {
    for (row, problem) in [
        (r#"{"text": null}"#, "is null or missing"),
        (r#"{"id": 3}"#, "is null or missing"),
        (r#"{"text": 3}"#, "is not a string"),
        (r#"{"text": ["a", {"b": 1.5}]}"#, "is not a string"),
    ] {
        let text = error("a.json", format!("{{\"text\": \"a\"}}\n{row}\n"));
        assert!(text.contains(&format!("row 2: column `text` {problem}")), "{text}");
        let text = error("a.json", format!("[{{\"text\": \"a\"}}, {row}]"));
        assert!(text.contains(&format!("row 2: column `text` {problem}")), "{text}");
    }
}

#[test]
fn rejects_malformed_files() {
    for (name, content, expected) in [
        ("a.json", "{\"text\": \"a\"}\n{\"text\":", "line 2"),
        ("a.json", "[{\"text\": \"a\"}, 3]", "not JSON"),
        ("a.json", "[{\"text\": \"a\"}] more", "trailing characters"),
        ("a.csv", "id,text\n1,a\n2,b,c\n", "line 3 has 3 fields but the header has 2"),
        ("a.parquet", "not parquet at all", "Parquet"),
        ("a.parquet", "", "Parquet"),
    ] {
        let text = error(name, content);
        assert!(text.contains(name) && text.contains(expected), "{content}: {text}");
    }
}

#[test]
fn csv_is_read_as_by_pandas() {
    let text = "id,text\r\n1,\"a, \"\"q\"\"\nline\r\nx\"\r\n\r\n2,  b \n3\n4,a \"b\" c\n";
    assert_eq!(read("a.csv", text).unwrap(), ["a, \"q\"\nline\r\nx", "  b ", "", "a \"b\" c"]);
    assert_eq!(read("a.csv", "\u{feff}text\ra\rb\r").unwrap(), ["a", "b"]);
}

#[test]
fn empty_files_have_no_examples_and_no_blocks() {
    for name in ["a.txt", "a.jsonl", "a.csv"] {
        let directory = tempfile::tempdir().unwrap();
        let files = [file(directory.path(), name, "")];
        assert_eq!(examples(&files, true).unwrap(), Vec::<String>::new());
        let source = Source::open(&files, true).unwrap();
        let cache = directory.path().join("cache");
        let error = corpus(&source, Part::All, 8, Grouping::Packed, &cache).unwrap_err();
        assert!(matches!(error, Error::NoBlocks { tokens: 0, .. }), "{error}");
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 0, "files were left behind");
    }
}

#[test]
fn files_are_checked_when_opened() {
    let directory = tempfile::tempdir().unwrap();
    let text = file(directory.path(), "a.txt", "a\n");
    let open = |files: &[&Path]| {
        let files: Vec<_> = files.iter().map(|file| file.to_path_buf()).collect();
        Source::open(&files, true).unwrap_err().to_string()
    };
    let unknown = open(&[&file(directory.path(), "a.docx", "")]);
    assert!(unknown.contains(".txt, .json, .jsonl, .csv, .parquet"), "{unknown}");
    assert!(open(&[&text, &file(directory.path(), "a.csv", "")]).contains("different kinds"));
    assert!(open(&[&directory.path().join("none.txt")]).contains("none.txt"));
    assert!(open(&[]).contains("--train_file"));
    std::fs::create_dir(directory.path().join("d.txt")).unwrap();
    assert!(open(&[&directory.path().join("d.txt")]).contains("is a directory"));
}

#[test]
fn files_are_read_in_sequence() {
    let directory = tempfile::tempdir().unwrap();
    let files = [file(directory.path(), "a.txt", "a\nb"), file(directory.path(), "b.txt", "c\n")];
    assert_eq!(examples(&files, true).unwrap(), ["a\n", "b", "c\n"]);
    let files = [
        file(directory.path(), "a.csv", "id,text\n1,a\n"),
        file(directory.path(), "b.csv", "text,id\nb,2\n"),
    ];
    assert_eq!(examples(&files, true).unwrap(), ["a", "b"]);
    let other = file(directory.path(), "c.csv", "body\nc\n");
    let error = examples(&[files[0].clone(), other], true).unwrap_err().to_string();
    assert!(error.contains("c.csv") && error.contains("no column `text`"), "{error}");
}

#[test]
fn a_very_long_line_is_one_example() {
    let directory = tempfile::tempdir().unwrap();
    let sentence = "It's a line — 12 words long, with (some) punctuation and  double spaces. ";
    let repeats = (20 << 20) / sentence.len();
    let long = sentence.repeat(repeats);
    let files = [file(directory.path(), "a.txt", format!("first\n{long}\nlast\n"))];
    let source = Source::open(&files, true).unwrap();
    assert_eq!(source.count().unwrap(), 3);
    let packed = corpus(&source, Part::All, 1024, Grouping::Packed, directory.path()).unwrap();
    let tokens: Vec<i32> = blocks(&packed).into_iter().flatten().collect();
    // All sentences have the same tokens, except the first and the last.
    let period = GPT2.encode_batch(&[sentence.repeat(3), sentence.repeat(2)]).unwrap();
    let period = period[0].len() - period[1].len();
    let body = &tokens[40..tokens.len() - 40];
    assert!(body.iter().zip(&body[period..]).all(|(token, next)| token == next));
    let text = GPT2.decode(&tokens.iter().map(|&token| token as u32).collect::<Vec<_>>()).unwrap();
    assert!(text == format!("first\n{long}\nlast\n"));
}
