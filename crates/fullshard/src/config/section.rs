//! Sections of a run config. Each field is declared once, with its key in files, flag, help and
//! default.

use super::value::Takes;

/// A flag that sets a field of a run config, or is a shorthand for some.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Its name, with underscores as in Hugging Face and without leading dashes.
    pub name: &'static str,
    /// Its aliases.
    pub aliases: &'static [&'static str],
    /// The placeholder of its value in help.
    pub value: &'static str,
    /// Its help text.
    pub help: String,
    /// Its section in help.
    pub heading: &'static str,
    /// Number of words it takes.
    pub takes: Takes,
    /// Its valid values, if it is a choice.
    pub choices: &'static [&'static str],
    /// Its default, as words.
    pub default: Option<Vec<String>>,
    /// Validates words as its value.
    pub check: fn(&[String]) -> Result<(), String>,
}

impl Flag {
    /// Whether a repeated flag adds to the ones before it, rather than replacing them.
    pub fn adds_up(&self) -> bool {
        ["client_option", "freeze", "xla_flag"].contains(&self.name)
    }
}

/// A section of a run config.
pub(super) trait Section {
    /// The flags that set its fields.
    fn flags() -> Vec<Flag>;

    /// The keys of its fields that no flag sets.
    fn keys_without_flags() -> Vec<&'static str>;

    /// Sets the field of a flag; `None` if the section has no such flag.
    fn set(&mut self, flag: &str, words: &[String]) -> Option<Result<(), String>>;

    /// Every flag with the words of its field.
    fn words(&self) -> Vec<(&'static str, Option<Vec<String>>)>;
}

/// Declares a section. A field reads
/// `/// Help.` `key: Type = default, "flag" | "alias", "VALUE";`, without a flag if it has none.
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

            fn keys_without_flags() -> Vec<&'static str> {
                let keys = [$((
                    stringify!($field),
                    [$($flag,)? ""].len() > 1,
                )),*];
                keys.iter().filter(|(_, has_flag)| !has_flag).map(|(key, _)| *key).collect()
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
