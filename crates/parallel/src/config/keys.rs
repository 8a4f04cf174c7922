//! A JSON object, read key by key. Each key that does something is remembered as it is read, so
//! that what is left over in the end can be refused with the list of those.

use super::error::FsdpConfigError;
use fullshard_models::nearest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What every key of a config may begin with.
const PREFIX: &str = "fsdp_";
/// The key of the settings.
const SETTINGS: &str = "xla_fsdp_settings";
/// What a switch may be.
pub(super) const SWITCH: &str = "true or false";

/// The keys of an object that are still to be read.
pub(super) struct Keys {
    left: BTreeMap<String, Entry>,
    known: Vec<&'static str>,
    /// Where these keys belong, for those who wrote one elsewhere.
    place: &'static str,
    /// What changes nothing, and why.
    pub ignored: Vec<String>,
}

/// A value and its key, as it was written.
struct Entry {
    written: String,
    value: Value,
}

type Result<T> = std::result::Result<T, FsdpConfigError>;

impl Keys {
    /// The keys of a whole config.
    pub fn of_config(value: Value) -> Result<Keys> {
        let Value::Object(object) = value else {
            return Err(FsdpConfigError::NotAnObject { found: shown(&value) });
        };
        let mut left = BTreeMap::new();
        for (written, value) in object {
            let key = written.strip_prefix(PREFIX).unwrap_or(&written).to_owned();
            if left.contains_key(&key) {
                return Err(FsdpConfigError::BothPrefixes { key });
            }
            left.insert(key, Entry { written, value });
        }
        Ok(Keys::new(left, "beside `xla_fsdp_settings`, not inside it"))
    }

    /// The keys of the settings inside a config, of which there may be none.
    pub fn of_settings(&mut self) -> Result<Keys> {
        let read = |value: &Value| value.as_object().cloned();
        let object = self.read(SETTINGS, "an object of settings", read)?;
        let entry = |(key, value): (String, Value)| {
            let written = format!("{SETTINGS}.{key}");
            (key, Entry { written, value })
        };
        let left = object.unwrap_or_else(Map::new).into_iter().map(entry).collect();
        Ok(Keys::new(left, "inside `xla_fsdp_settings`"))
    }

    fn new(mut left: BTreeMap<String, Entry>, place: &'static str) -> Keys {
        left.retain(|_, entry| !entry.value.is_null());
        Keys { left, known: Vec::new(), place, ignored: Vec::new() }
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
        let Some(Entry { written, value }) = self.left.remove(key) else { return Ok(None) };
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => {
                let found = shown(&value);
                Err(FsdpConfigError::BadValue { key: written, found, expected })
            }
        }
    }

    /// Reads a switch, if it is there.
    pub fn switch(&mut self, key: &'static str) -> Result<Option<bool>> {
        self.read(key, SWITCH, Value::as_bool)
    }

    /// Drops a key that says what is so anyway.
    pub fn drop_if(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        self.left.retain(|left, entry| left != key || entry.value != value);
    }

    /// Accepts a key that changes nothing, with a warning if it asks for something.
    pub fn accept(
        &mut self,
        key: &str,
        expected: &'static str,
        fits: fn(&Value) -> bool,
        reason: &str,
    ) -> Result<()> {
        let Some(entry) = self.left.get(key) else { return Ok(()) };
        let written = entry.written.clone();
        let asks = |value: &Value| fits(value).then_some(*value != Value::Bool(false));
        if self.take(key, expected, asks)? == Some(true) {
            self.ignored.push(format!("`{written}` changes nothing here: {reason}"));
        }
        Ok(())
    }

    /// Refuses a key that asks for what there is not. Asking not to have it is fine.
    pub fn refuse(&mut self, key: &str, reason: &'static str) -> Result<()> {
        match self.left.remove(key) {
            Some(Entry { written, value }) if value != Value::Bool(false) => {
                let found = shown(&value);
                Err(FsdpConfigError::Refused { key: written, found, reason })
            }
            _ => Ok(()),
        }
    }

    /// Refuses whatever was not read. `others` are the keys of the other object of the config.
    pub fn finish(&self, others: &Keys) -> Result<()> {
        let Some((key, entry)) = self.left.first_key_value() else { return Ok(()) };
        let hint = if others.known.contains(&key.as_str()) {
            format!("; it belongs {}", others.place)
        } else {
            let near = nearest(key, self.known.iter().copied());
            near.map(|near| format!(", perhaps `{near}` was meant")).unwrap_or_default()
        };
        let valid = self.known.clone();
        Err(FsdpConfigError::UnknownKey { key: entry.written.clone(), hint, valid })
    }
}

/// A switch that has two names, or the mistake that they differ.
pub(super) fn agreed(
    first: (&str, Option<bool>),
    second: (&str, Option<bool>),
) -> Result<Option<bool>> {
    match (first, second) {
        ((a, Some(x)), (b, Some(y))) if x != y => Err(FsdpConfigError::Contradiction {
            first: format!("`{a}: {x}`"),
            second: format!("`{b}: {y}`"),
            way_out: "they are one switch, leave one of them out",
        }),
        _ => Ok(first.1.or(second.1)),
    }
}

/// A number without a fraction, however it is written: `100000000` or `1e8`.
pub(super) fn whole(value: &Value) -> Option<usize> {
    /// Above this, floating-point numbers skip whole ones.
    const LARGEST: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let number = value.as_f64()?;
    let exact = number.fract() == 0.0 && (0.0..=LARGEST).contains(&number);
    exact.then_some(number as usize)
}

/// A value as JSON, cut short.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
