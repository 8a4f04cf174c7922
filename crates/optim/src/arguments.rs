//! The arguments of optimizers: `key=value,key=value`, and range checks.

use crate::error::Error;

/// Arguments of the form `key=value,key=value`.
#[derive(Debug, Clone)]
pub struct Arguments<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Arguments<'a> {
    /// Parses the arguments of an optimizer; unknown ones are an error.
    pub fn parse(
        optimizer: &'static str,
        text: &'a str,
        known: &'static [&'static str],
    ) -> Result<Arguments<'a>, Error> {
        let pairs = text.split(',').map(str::trim).filter(|argument| !argument.is_empty());
        let pairs = pairs.map(|argument| {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| bad(argument, "of the form key=value"))?;
            let (key, value) = (key.trim(), value.trim());
            if known.contains(&key) {
                return Ok((key, value));
            }
            Err(Error::UnknownArgument { optimizer, key: key.to_owned(), known })
        });
        Ok(Arguments(pairs.collect::<Result<_, Error>>()?))
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// A number, if set.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let parse =
            |value: &str| value.parse().map_err(|_| bad(&format!("{key}={value}"), "a number"));
        self.get(key).map(parse).transpose()
    }

    /// A boolean, if set.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let parse = |value: &str| match value.to_lowercase().as_str() {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" => Ok(false),
            _ => Err(bad(&format!("{key}={value}"), "true or false")),
        };
        self.get(key).map(parse).transpose()
    }
}

fn bad(argument: &str, expected: &'static str) -> Error {
    Error::BadArgument { argument: argument.to_owned(), expected }
}

/// Checks that a value is at least 0 and below 1.
pub(crate) fn fraction(option: &'static str, value: f64) -> Result<(), Error> {
    require(option, value, |value| (0.0..1.0).contains(&value), "at least 0 and below 1")
}

/// Checks that a value is at least 0.
pub(crate) fn at_least_zero(option: &'static str, value: f64) -> Result<(), Error> {
    require(option, value, |value| value >= 0.0, "at least 0")
}

/// Checks a number with a predicate.
pub(crate) fn require(
    option: &'static str,
    value: f64,
    holds: impl Fn(f64) -> bool,
    expected: &'static str,
) -> Result<(), Error> {
    if value.is_finite() && holds(value) {
        return Ok(());
    }
    Err(Error::OutOfRange { option, value, expected })
}
