//! Typed access to the fields of a `config.json`.

use crate::config::ConfigError;
use crate::layers::{Activation, activation};
use serde_json::{Map, Value};

/// The largest size: dimensions are `i32`.
const MAX_SIZE: u64 = i32::MAX as u64;

/// More layers than any model has, and few enough for a module tree.
const MAX_LAYERS: u64 = 100_000;

/// The most elements that one kind of weight can have in all layers. A model has fewer than 32
/// kinds, so it has fewer than 2^53 elements, which both 64-bit integers and `f64` can count.
const MAX_ELEMENTS: f64 = (1_u64 << 48) as f64;

/// The fields of a config or of an object in it. Unknown fields are ignored, as in Hugging Face.
/// Sizes are at least one and bounded.
#[derive(Debug)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of an object.
    pub fn new(object: &'a Map<String, Value>) -> Fields<'a> {
        Fields { object, path: String::new() }
    }

    /// The first of some names that is set and not null, with its value.
    fn find<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &'a Value)> {
        let found = |&name: &&'n str| self.object.get(name).map(|value| (name, value));
        names.iter().filter_map(found).find(|(_, value)| !value.is_null())
    }

    /// The error for a field with an invalid value.
    pub fn invalid(&self, name: &str, value: impl ToString, expected: &str) -> ConfigError {
        let field = format!("{}{name}", self.path);
        ConfigError::Field { field, value: value.to_string(), expected: expected.to_owned() }
    }

    fn read<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.invalid(name, value, expected))
    }

    /// A size, under the first of its names that is set.
    pub fn optional_size(&self, names: &[&str]) -> Result<Option<usize>, ConfigError> {
        self.integer(names, MAX_SIZE)
    }

    /// A size, or its default.
    pub fn size(&self, names: &[&str], default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_size(names)?.unwrap_or(default))
    }

    /// A number of layers, or its default.
    pub fn layers(&self, names: &[&str], default: usize) -> Result<usize, ConfigError> {
        Ok(self.integer(names, MAX_LAYERS)?.unwrap_or(default))
    }

    fn integer(&self, names: &[&str], max: u64) -> Result<Option<usize>, ConfigError> {
        let number = |value: &Value| value.as_u64().filter(|number| (1..=max).contains(number));
        let found = self.read(names, &format!("an integer from 1 to {max}"), number)?;
        Ok(found.map(|number| number as usize))
    }

    /// A token id, if set. Null means none, and so does a negative number, which transformers warns
    /// about as invalid.
    pub fn token(&self, name: &str, vocabulary: usize) -> Result<Option<usize>, ConfigError> {
        let last = vocabulary - 1;
        let token = |value: &Value| match value.as_i64()? {
            ..0 => Some(None),
            token => usize::try_from(token).ok().filter(|&token| token <= last).map(Some),
        };
        let expected = format!("null or a token of the vocabulary, from 0 to {last}");
        Ok(self.read(&[name], &expected, token)?.flatten())
    }

    /// Checks the number of elements of a kind of weight, the product of some sizes. If it is too
    /// large, the error names the largest size.
    pub fn check_elements(&self, sizes: &[(&str, usize)]) -> Result<(), ConfigError> {
        let elements: f64 = sizes.iter().map(|&(_, size)| size as f64).product();
        match sizes.iter().max_by_key(|&&(_, size)| size) {
            Some((name, size)) if elements > MAX_ELEMENTS => {
                let names: Vec<_> = sizes.iter().map(|(name, _)| format!("`{name}`")).collect();
                let product = names.join(" times ");
                let expected = format!("smaller: {product} is {elements:.1e}, above 2^48");
                Err(self.invalid(name, size, &expected))
            }
            _ => Ok(()),
        }
    }

    /// A number that satisfies a predicate, if set.
    pub fn optional_number(
        &self,
        name: &str,
        expected: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ConfigError> {
        self.read(&[name], expected, |value| value.as_f64().filter(|&number| holds(number)))
    }

    /// A number above zero.
    pub fn positive(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let found = self.optional_number(name, "a number above 0", |number| number > 0.0)?;
        Ok(found.unwrap_or(default))
    }

    /// A standard deviation.
    pub fn std(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let found = self.optional_number(name, "a number of at least 0", |number| number >= 0.0)?;
        Ok(found.unwrap_or(default))
    }

    /// A dropout probability.
    pub fn dropout(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let expected = "a number from 0 to below 1";
        let found = self.optional_number(name, expected, |number| (0.0..1.0).contains(&number))?;
        Ok(found.unwrap_or(default))
    }

    /// A boolean.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.read(&[name], "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// One of some choices, under the first of the names that is set.
    pub fn choice<T: Copy>(
        &self,
        names: &[&str],
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let known: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.read(names, &format!("one of {}", known.join(", ")), |value| {
            choices.iter().find(|(name, _)| value == name).map(|(_, choice)| *choice)
        })
    }

    /// An activation function by its name.
    pub fn activation(&self, name: &str, default: Activation) -> Result<Activation, ConfigError> {
        let choices: Vec<_> = activation::ALL.iter().map(|known| (known.name, *known)).collect();
        Ok(self.choice(&[name], &choices)?.unwrap_or(default))
    }

    /// The fields of a nested object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let found = self.read(&[name], "an object", Value::as_object)?;
        Ok(found.map(|object| Fields { object, path: format!("{}{name}.", self.path) }))
    }

    /// A required number above zero.
    pub fn required(&self, name: &str) -> Result<f64, ConfigError> {
        let expected = "a number above 0";
        let found = self.optional_number(name, expected, |number| number > 0.0)?;
        let field = format!("{}{name}", self.path);
        found.ok_or_else(|| ConfigError::Missing { field, expected: expected.to_owned() })
    }
}
