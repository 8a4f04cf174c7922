//! Sections of a run config, each field declared once: its key in files, its flag, its help and
//! its default.

use super::value::Takes;

/// A flag that sets a field of a run config, or is another way to say some.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Its name, with underscores as Hugging Face writes it and without dashes before it.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What stands for its value in help.
    pub value: &'static str,
    /// What it is for.
    pub help: String,
    /// The section of help it belongs to.
    pub heading: &'static str,
    /// How many words it takes.
    pub takes: Takes,
    /// What it can be, if there are only a few choices.
    pub choices: &'static [&'static str],
    /// What it is if it is left out, as words.
    pub default: Option<Vec<String>>,
    /// Whether some words can be its value.
    pub check: fn(&[String]) -> Result<(), String>,
}

/// A section of a run config.
pub(super) trait Section {
    /// The flags that set its fields.
    fn flags() -> Vec<Flag>;

    /// Sets the field of a flag; `None` if the section has no such flag.
    fn set(&mut self, flag: &str, words: &[String]) -> Option<Result<(), String>>;

    /// Every flag with the words that give its field again.
    fn words(&self) -> Vec<(&'static str, Option<Vec<String>>)>;
}

/// Declares a section. A field reads
/// `/// Help.` `key: Type = default, "flag" | "alias", "VALUE";`, without a flag if there is none.
macro_rules! section {
    (
        $(#[$section_doc:meta])*
        $section:ident, $heading:literal {
            $(
                $(#[doc = $help:literal])+
                $field:ident : $ty:ty = $default:expr
                $(, $flag:literal $(| $alias:literal)* , $value:literal)? ;
            )*
        }
    ) => {
        $(#[$section_doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $(
                $(#[doc = $help])+
                pub $field: $ty,
            )*
        }

        impl Default for $section {
            fn default() -> $section {
                $section { $($field: $default),* }
            }
        }

        impl $crate::config::section::Section for $section {
            fn flags() -> Vec<$crate::config::Flag> {
                #[allow(unused_imports)]
                use $crate::config::FlagValue;
                let default = $section::default();
                let mut flags: Vec<$crate::config::Flag> = Vec::new();
                $(
                    flags.extend($crate::config::section::flag!(
                        $ty, default.$field.words(), $heading, concat!($($help),+)
                        $(, $flag, [$($alias),*], $value)?
                    ));
                )*
                flags
            }

            fn set(&mut self, flag: &str, words: &[String]) -> Option<Result<(), String>> {
                use $crate::config::FlagValue;
                match flag {
                    $($(
                        $flag => Some(<$ty as FlagValue>::read(words).map(|value| self.$field = value)),
                    )?)*
                    _ => None,
                }
            }

            fn words(&self) -> Vec<(&'static str, Option<Vec<String>>)> {
                use $crate::config::FlagValue;
                vec![$($( ($flag, self.$field.words()), )?)*]
            }
        }
    };
}
pub(super) use section;

/// The flag of a field, if it has one.
macro_rules! flag {
    ($ty:ty, $default:expr, $heading:literal, $help:expr) => {
        None::<$crate::config::Flag>
    };
    ($ty:ty, $default:expr, $heading:literal, $help:expr, $flag:literal, $aliases:expr, $value:literal) => {
        Some($crate::config::Flag {
            name: $flag,
            aliases: &$aliases,
            value: $value,
            help: $help.trim().to_owned(),
            heading: $heading,
            takes: <$ty as FlagValue>::TAKES,
            choices: <$ty as FlagValue>::CHOICES,
            default: $default,
            check: |words| <$ty as FlagValue>::read(words).map(|_| ()),
        })
    };
}
pub(super) use flag;
