//! A JSON object, read key by key. Each supported key is recorded as it is read, so that the
//! remaining ones are rejected with the list of valid keys.

use super::error::FsdpConfigError;
use fullshard_models::nearest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The optional prefix of every key of a config.
const PREFIX: &str = "fsdp_";
/// The key of the settings.
const SETTINGS: &str = "xla_fsdp_settings";
/// The values of a boolean.
pub(super) const BOOL: &str = "true or false";

/// The keys of an object that are still to be read.
pub(super) struct Keys {
    remaining: BTreeMap<String, Entry>,
    known: Vec<&'static str>,
    /// Where these keys belong, for the hint when one is found elsewhere.
    place: &'static str,
    /// Keys without effect, and why.
    pub ignored: Vec<String>,
}

/// A value and its key, as it was written.
struct Entry {
    written: String,
    value: Value,
}

type Result<T> = std::result::Result<T, FsdpConfigError>;

impl Keys {
    /// The top-level keys of a config.
    pub fn of_config(value: Value) -> Result<Keys> {
        let Value::Object(object) = value else {
            return Err(FsdpConfigError::NotAnObject { found: shown(&value) });
        };
        let mut remaining = BTreeMap::new();
        for (written, value) in object {
            let key = written.strip_prefix(PREFIX).unwrap_or(&written).to_owned();
            if remaining.contains_key(&key) {
                return Err(FsdpConfigError::BothPrefixes { key });
            }
            remaining.insert(key, Entry { written, value });
        }
        Ok(Keys::new(remaining, "beside `xla_fsdp_settings`, not inside it"))
    }

    /// The keys of the settings inside a config, if there are any.
    pub fn of_settings(&mut self) -> Result<Keys> {
        let read = |value: &Value| value.as_object().cloned();
        let object = self.read(SETTINGS, "an object of settings", read)?;
        let entry = |(key, value): (String, Value)| {
            let written = format!("{SETTINGS}.{key}");
            (key, Entry { written, value })
        };
        let remaining = object.unwrap_or_else(Map::new).into_iter().map(entry).collect();
        Ok(Keys::new(remaining, "inside `xla_fsdp_settings`"))
    }

    fn new(mut remaining: BTreeMap<String, Entry>, place: &'static str) -> Keys {
        remaining.retain(|_, entry| !entry.value.is_null());
        Keys { remaining, known: Vec::new(), place, ignored: Vec::new() }
    }

    /// Reads a key, if it is there.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.known.push(key);
        self.take(key, expected, read)
    }

    fn take<T>(
        &mut self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(Entry { written, value }) = self.remaining.remove(key) else { return Ok(None) };
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => {
                let found = shown(&value);
                Err(FsdpConfigError::BadValue { key: written, found, expected })
            }
        }
    }

    /// Reads a boolean, if it is there.
    pub fn read_bool(&mut self, key: &'static str) -> Result<Option<bool>> {
        self.read(key, BOOL, Value::as_bool)
    }

    /// Drops a key whose value is the only one supported.
    pub fn drop_if(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        self.remaining.retain(|name, entry| name != key || entry.value != value);
    }

    /// Accepts a key that has no effect, with a warning if it requests something.
    pub fn accept(
        &mut self,
        key: &str,
        expected: &'static str,
        valid: fn(&Value) -> bool,
        reason: &str,
    ) -> Result<()> {
        let Some(entry) = self.remaining.get(key) else { return Ok(()) };
        let written = entry.written.clone();
        let requests = |value: &Value| valid(value).then_some(*value != Value::Bool(false));
        if self.take(key, expected, requests)? == Some(true) {
            self.ignored.push(format!("`{written}` has no effect here: {reason}"));
        }
        Ok(())
    }

    /// Rejects a key that requests an unsupported feature. Disabling it is fine.
    pub fn reject(&mut self, key: &str, reason: &'static str) -> Result<()> {
        match self.remaining.remove(key) {
            Some(Entry { written, value }) if value != Value::Bool(false) => {
                let found = shown(&value);
                Err(FsdpConfigError::Unsupported { key: written, found, reason })
            }
            _ => Ok(()),
        }
    }

    /// Rejects the keys that were not read. `others` are those of the config's other object.
    pub fn finish(&self, others: &Keys) -> Result<()> {
        let Some((key, entry)) = self.remaining.first_key_value() else { return Ok(()) };
        let hint = if others.known.contains(&key.as_str()) {
            format!("; it belongs {}", others.place)
        } else {
            let near = nearest(key, self.known.iter().copied());
            near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
        };
        let valid = self.known.clone();
        Err(FsdpConfigError::UnknownKey { key: entry.written.clone(), hint, valid })
    }
}

/// A boolean that has two names; it is an error if they differ.
pub(super) fn agreed(
    first: (&str, Option<bool>),
    second: (&str, Option<bool>),
) -> Result<Option<bool>> {
    match (first, second) {
        ((a, Some(x)), (b, Some(y))) if x != y => Err(FsdpConfigError::Contradiction {
            first: format!("`{a}: {x}`"),
            second: format!("`{b}: {y}`"),
            fix: "they are the same option, leave one of them out",
        }),
        _ => Ok(first.1.or(second.1)),
    }
}

/// An integer, written as `100000000` or `1e8`.
pub(super) fn integer(value: &Value) -> Option<usize> {
    /// Above this, `f64` does not have every integer.
    const LARGEST: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let number = value.as_f64()?;
    let exact = number.fract() == 0.0 && (0.0..=LARGEST).contains(&number);
    exact.then_some(number as usize)
}

/// A value as JSON, truncated.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
