//! Reads and writes values of a run config as the words after a flag.

use fullshard_data::hub::Token;
use serde::de::{Deserialize, Deserializer, Visitor};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// Number of words a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// One.
    One,
    /// `true` or `false`; no word means `true`.
    Switch,
    /// One or more, and the flag may be repeated.
    Many,
}

/// A value of a flag.
pub trait FlagValue: Sized {
    /// Number of words it takes.
    const TAKES: Takes = Takes::One;

    /// Its valid values, if it is a choice.
    const CHOICES: &'static [&'static str] = &[];

    /// Parses the words after the flag; the error states why they are invalid.
    fn read(words: &[String]) -> Result<Self, String>;

    /// The words of this value; `None` if it is the value without the flag.
    fn words(&self) -> Option<Vec<String>>;
}

/// The last word: the last of repeated flags counts.
fn last(words: &[String]) -> Result<&str, String> {
    words.last().map(String::as_str).ok_or_else(|| "a value is missing".to_owned())
}

impl FlagValue for bool {
    const TAKES: Takes = Takes::Switch;

    fn read(words: &[String]) -> Result<bool, String> {
        let Ok(word) = last(words) else { return Ok(true) };
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "t" | "y" | "1" => Ok(true),
            "false" | "no" | "f" | "n" | "0" => Ok(false),
            _ => Err("it must be true or false".to_owned()),
        }
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.to_string()])
    }
}

/// A count of at least 1.
impl FlagValue for usize {
    fn read(words: &[String]) -> Result<usize, String> {
        let count = last(words)?.parse().ok().filter(|&count| count > 0);
        count.ok_or_else(|| "it must be an integer of at least 1".to_owned())
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.to_string()])
    }
}

/// Parses one word with [`FromStr`].
pub(super) fn parsed<T: FromStr<Err: Display>>(words: &[String]) -> Result<T, String> {
    last(words)?.parse().map_err(|error: T::Err| error.to_string())
}

/// Implements [`FlagValue`] for types of one word.
macro_rules! one_word {
    ($($ty:ty),*) => {$(
        impl FlagValue for $ty {
            fn read(words: &[String]) -> Result<$ty, String> {
                parsed(words)
            }

            fn words(&self) -> Option<Vec<String>> {
                Some(vec![self.to_string()])
            }
        }
    )*};
}
one_word!(u8, u64, i64, f32, String);

impl FlagValue for f64 {
    fn read(words: &[String]) -> Result<f64, String> {
        parsed(words)
    }

    fn words(&self) -> Option<Vec<String>> {
        let is_small = *self != 0.0 && self.abs() < 1e-4;
        Some(vec![if is_small { format!("{self:e}") } else { self.to_string() }])
    }
}

impl FlagValue for PathBuf {
    fn read(words: &[String]) -> Result<PathBuf, String> {
        Ok(PathBuf::from(last(words)?))
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.display().to_string()])
    }
}

/// Without words, so that no command line shows it.
impl FlagValue for Token {
    fn read(words: &[String]) -> Result<Token, String> {
        String::read(words).map(Token::new)
    }

    fn words(&self) -> Option<Vec<String>> {
        None
    }
}

impl<T: FlagValue> FlagValue for Option<T> {
    const TAKES: Takes = T::TAKES;
    const CHOICES: &'static [&'static str] = T::CHOICES;

    fn read(words: &[String]) -> Result<Option<T>, String> {
        T::read(words).map(Some)
    }

    fn words(&self) -> Option<Vec<String>> {
        self.as_ref().and_then(T::words)
    }
}

impl<T: FlagValue> FlagValue for Vec<T> {
    const TAKES: Takes = Takes::Many;

    fn read(words: &[String]) -> Result<Vec<T>, String> {
        words.iter().map(|word| T::read(std::slice::from_ref(word))).collect()
    }

    fn words(&self) -> Option<Vec<String>> {
        let words: Vec<String> = self.iter().filter_map(T::words).flatten().collect();
        (!words.is_empty()).then_some(words)
    }
}

/// A word of a file. Booleans are words too: some choices are between `true`, `false` and others.
pub(super) struct Word(pub String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        deserializer.deserialize_any(Words)
    }
}

/// Visits strings and booleans.
struct Words;

impl Visitor<'_> for Words {
    type Value = Word;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a word")
    }

    fn visit_str<E>(self, word: &str) -> Result<Word, E> {
        Ok(Word(word.to_owned()))
    }

    fn visit_bool<E>(self, on: bool) -> Result<Word, E> {
        Ok(Word(on.to_string()))
    }
}

/// An enum whose variants have a name in flags and files.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),*
        }

        impl $name {
            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<$name, String> {
                match word {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("it must be one of {}", [$($word),*].join(", "))),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let $crate::config::value::Word(word) = serde::Deserialize::deserialize(deserializer)?;
                let unknown = |_| serde::de::Error::unknown_variant(&word, &[$($word),*]);
                word.parse().map_err(unknown)
            }
        }

        impl $crate::config::FlagValue for $name {
            const CHOICES: &'static [&'static str] = &[$($word),*];

            fn read(words: &[String]) -> Result<$name, String> {
                $crate::config::value::parsed(words)
            }

            fn words(&self) -> Option<Vec<String>> {
                Some(vec![self.name().to_owned()])
            }
        }
    };
}
pub(super) use choices;
