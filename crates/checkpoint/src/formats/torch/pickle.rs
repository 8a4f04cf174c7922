//! Pickles as data: values are built, nothing is imported and nothing is called.
//!
//! Written by hand because the crates that read torch's files bring a framework with them. A call
//! (`REDUCE`, `NEWOBJ`, `BUILD`) becomes a [`Value::Object`] that names what Python would call;
//! what it means is up to the reader of the values. Containers live in one list and refer to each
//! other by index, so that a deeply nested or cyclic pickle costs neither stack nor copies, and the
//! number of opcodes bounds the memory.

use super::opcodes::Reader;

/// Opcodes of the largest pickle: tens of thousands of tensors, some 100 MB of values at worst.
const MAX_OPCODES: usize = 1 << 21;

/// Why a pickle cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PickleError {
    #[error("its pickle ends at byte {0}, inside a value")]
    Truncated(usize),
    #[error("its pickle has the unsupported opcode {opcode:#04x} at byte {at}")]
    Opcode { opcode: u8, at: usize },
    #[error("its pickle has a wrong operand at byte {0}")]
    Operand(usize),
    #[error("its pickle has more than {MAX_OPCODES} opcodes")]
    TooLong,
}

pub(super) type Result<T> = std::result::Result<T, PickleError>;

/// A value in a pickle. Containers are indices into [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits.
    BigInt,
    Float(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    Tuple(usize),
    /// A list or a set.
    List(usize),
    /// Keys and values, alternating.
    Dict(usize),
    /// Something imported: a class, a function or an object of a module.
    Global {
        module: &'a str,
        name: &'a str,
    },
    /// What a call would return: the callee, its arguments, then keys and values set on it.
    Object(usize),
    /// A reference to something outside of the pickle, by its id.
    Persistent(usize),
}

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    pub(crate) root: Value<'a>,
    containers: Vec<Vec<Value<'a>>>,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle of protocol 2 to 5.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>> {
        let mut reader = Reader::new(bytes);
        for _ in 0..MAX_OPCODES {
            if let Some(root) = reader.step()? {
                return Ok(Pickle { root, containers: reader.into_containers() });
            }
        }
        Err(PickleError::TooLong)
    }

    fn container(&self, id: usize) -> &[Value<'a>] {
        self.containers.get(id).map_or(&[], Vec::as_slice)
    }

    /// The values of a tuple or list.
    pub(crate) fn sequence(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::Tuple(id) | Value::List(id) => Some(self.container(id)),
            _ => None,
        }
    }

    /// The keys and values of a dict or an `OrderedDict`.
    pub(crate) fn entries(
        &self,
        value: Value<'a>,
    ) -> Option<impl DoubleEndedIterator<Item = (Value<'a>, Value<'a>)> + '_> {
        let entries = match value {
            Value::Dict(id) => self.container(id),
            Value::Object(id) => match self.container(id) {
                [Value::Global { module: "collections", name: "OrderedDict" }, _, rest @ ..] => {
                    rest
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(entries.chunks_exact(2).map(|pair| (pair[0], pair[1])))
    }

    /// The last value under a key of a dict, as Python keeps it.
    pub(crate) fn get(&self, dict: Value<'a>, key: &str) -> Option<Value<'a>> {
        self.entries(dict)?
            .rev()
            .find(|(found, _)| *found == Value::Str(key))
            .map(|(_, value)| value)
    }

    /// The module and name of what a call would call, and its arguments.
    pub(crate) fn call(&self, value: Value<'a>) -> Option<(&'a str, &'a str, &[Value<'a>])> {
        let Value::Object(id) = value else { return None };
        match self.container(id) {
            &[Value::Global { module, name }, args, ..] => {
                Some((module, name, self.sequence(args)?))
            }
            _ => None,
        }
    }

    /// The id of a persistent reference, if it is a tuple.
    pub(crate) fn persistent(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        let Value::Persistent(id) = value else { return None };
        self.sequence(*self.container(id).first()?)
    }

    /// What a value is, for a message.
    pub(crate) fn describe(&self, value: Value<'a>) -> String {
        let plain = match value {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::BigInt => "an integer",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::Bytes(_) => "bytes",
            Value::Tuple(_) => "a tuple",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dict",
            Value::Persistent(_) => "a storage",
            Value::Global { module, name } => return format!("`{module}.{name}`"),
            Value::Object(id) => {
                return match self.container(id).first() {
                    Some(Value::Global { module, name }) => format!("a call of `{module}.{name}`"),
                    _ => "a call".to_owned(),
                };
            }
        };
        plain.to_owned()
    }
}
