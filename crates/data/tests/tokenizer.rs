//! Tokenizers: opened, saved and reopened.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GPT2, file};
use fullshard_data::Tokenizer;
use proptest::prelude::*;
use std::sync::LazyLock;

#[test]
fn gpt2_is_built_in() {
    assert_eq!(GPT2.vocabulary(), 50257);
    assert_eq!(GPT2.max_length(), Some(1024));
    assert_eq!(GPT2.token("<|endoftext|>"), Some(50256));
    assert_eq!(Tokenizer::open("gpt2").unwrap().vocabulary(), 50257);
}

#[test]
fn saved_tokenizers_can_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    GPT2.save(directory.path()).unwrap();
    let mut names: Vec<_> =
        directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "merges.txt",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json"
        ]
    );
    let texts = ["It's 3 <|endoftext|>\n", "  ünï 😀"];
    for path in [directory.path().to_owned(), directory.path().join("tokenizer.json")] {
        let opened = Tokenizer::open(path.to_str().unwrap()).unwrap();
        assert_eq!(opened.max_length(), Some(1024));
        assert_eq!(opened.encode_batch(&texts).unwrap(), GPT2.encode_batch(&texts).unwrap());
    }
}

#[test]
fn unlimited_lengths_are_none() {
    let directory = tempfile::tempdir().unwrap();
    GPT2.save(directory.path()).unwrap();
    let limit = |config: &str| {
        file(directory.path(), "tokenizer_config.json", config);
        Tokenizer::open(directory.path().to_str().unwrap()).unwrap().max_length()
    };
    assert_eq!(limit(r#"{"model_max_length": 1000000000000000019884624838656}"#), None);
    assert_eq!(limit(r#"{"model_max_length": 2048}"#), Some(2048));
    assert_eq!(limit("{}"), None);
}

#[test]
fn errors_name_the_tokenizer() {
    let directory = tempfile::tempdir().unwrap();
    let error = |name: &str| Tokenizer::open(name).err().unwrap().to_string();
    assert!(error("bert-base").contains("no tokenizer `bert-base`: pass `gpt2`"));
    assert!(error(directory.path().to_str().unwrap()).contains("tokenizer.json"));
    let bad = file(directory.path(), "bad.json", "{\"model\": 3}");
    assert!(error(bad.to_str().unwrap()).contains("not a tokenizer.json"));
}

/// The same tokenizer without the fast path.
static REFERENCE: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    GPT2.save(directory.path()).unwrap();
    tokenizers::Tokenizer::from_file(directory.path().join("tokenizer.json")).unwrap()
});

const WORD: &str = r"[ \n\t]{0,3}(\PC{1,4}|[a-z]{1,9}|[0-9]{1,4}|'s|[.,!]{1,3}|<\|endoftext\|>)";

#[test]
fn fast_path_supports_every_character() {
    let characters: Vec<char> =
        (0..0x32400).chain(0xe0000..0xe0200).filter_map(char::from_u32).collect();
    for characters in characters.chunks(512) {
        let text: String =
            characters.iter().map(|c| format!("a{c}1{c} {c}{c}  {c}\n{c}'{c}")).collect();
        let expected = REFERENCE.encode_fast(text.as_str(), true).unwrap();
        assert_eq!(GPT2.encode_batch(&[&text]).unwrap()[0], expected.get_ids(), "{characters:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 50, ..Default::default() })]
    /// Long texts are tokenized in pieces, which must not change the tokens.
    #[test]
    fn pieces_do_not_change_tokens(words in prop::collection::vec(WORD, 6000..8000)) {
        let text = words.concat();
        prop_assert!(text.len() > 2 << 14);
        let expected = REFERENCE.encode_fast(text.as_str(), true).unwrap();
        prop_assert_eq!(&GPT2.encode_batch(&[&text]).unwrap()[0], expected.get_ids());
    }
}
