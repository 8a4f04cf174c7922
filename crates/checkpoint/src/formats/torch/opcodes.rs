//! The opcodes of pickles, of protocols 2 to 5.

use super::pickle::{PickleError, Result, Value};
use std::collections::HashMap;

/// Python's machine of a stack and a memo, without its effects.
#[derive(Default)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    /// The heights of the stack at open marks.
    marks: Vec<usize>,
    memo: HashMap<usize, Value<'a>>,
    containers: Vec<Vec<Value<'a>>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, ..Reader::default() }
    }

    pub(super) fn into_containers(self) -> Vec<Vec<Value<'a>>> {
        self.containers
    }

    /// Follows one opcode. Returns the root at the last one.
    pub(super) fn step(&mut self) -> Result<Option<Value<'a>>> {
        let at = self.at;
        let [opcode] = self.array()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            // The protocol and frames, which only speed up reading.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => self.stack.push(self.top()?),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' => self.push_int(4)?,
            b'K' => self.push_unsigned(1)?,
            b'M' => self.push_unsigned(2)?,
            0x8a => self.push_long(1)?,
            0x8b => self.push_long(4)?,
            b'G' => {
                let value = Value::Float(f64::from_be_bytes(self.array()?));
                self.stack.push(value);
            }
            0x8c => self.push_str(1)?,
            b'X' => self.push_str(4)?,
            0x8d => self.push_str(8)?,
            b'U' | b'C' => self.push_bytes(1)?,
            b'T' | b'B' => self.push_bytes(4)?,
            0x8e | 0x96 => self.push_bytes(8)?,
            b']' | 0x8f => self.push_container(Value::List, Vec::new()),
            b'}' => self.push_container(Value::Dict, Vec::new()),
            b')' => self.push_container(Value::Tuple, Vec::new()),
            b't' => self.collect(Value::Tuple)?,
            0x91 => self.collect(Value::List)?,
            0x85 => self.push_tuple(1)?,
            0x86 => self.push_tuple(2)?,
            0x87 => self.push_tuple(3)?,
            b'a' => self.extend(1)?,
            b's' => self.extend(2)?,
            b'e' | b'u' | 0x90 => {
                let values = self.pop_mark()?;
                self.extend_with(values, opcode == b'u')?;
            }
            b'c' => {
                let global = Value::Global { module: self.line()?, name: self.line()? };
                self.stack.push(global);
            }
            0x93 => self.stack_global()?,
            b'R' | 0x81 => self.call()?,
            // Keyword arguments change nothing about what is called.
            0x92 => {
                self.pop()?;
                self.call()?;
            }
            // State is set on the object below, which keeps its own values.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                self.push_container(Value::Persistent, vec![id]);
            }
            b'q' => self.put(1)?,
            b'r' => self.put(4)?,
            0x94 => {
                let key = self.memo.len();
                self.memo.insert(key, self.top()?);
            }
            b'h' => self.push_memo(1)?,
            b'j' => self.push_memo(4)?,
            opcode => return Err(PickleError::Opcode { opcode, at }),
        }
        Ok(None)
    }

    fn wrong(&self) -> PickleError {
        PickleError::Operand(self.at)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(PickleError::Truncated(self.bytes.len()))?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| self.wrong())
    }

    /// A little-endian unsigned integer of up to 8 bytes.
    fn unsigned(&mut self, width: usize) -> Result<usize> {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.take(width)?);
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| self.wrong())
    }

    /// The text up to the end of a line.
    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        let end = end.ok_or(PickleError::Truncated(self.bytes.len()))?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| self.wrong())
    }

    fn top(&self) -> Result<Value<'a>> {
        let fence = self.marks.last().copied().unwrap_or(0);
        self.stack.last().copied().filter(|_| self.stack.len() > fence).ok_or(self.wrong())
    }

    fn pop(&mut self) -> Result<Value<'a>> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Everything above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Value<'a>>> {
        let mark = self.marks.pop().ok_or(self.wrong())?;
        Ok(self.stack.split_off(mark))
    }

    fn push_unsigned(&mut self, width: usize) -> Result<()> {
        let value = self.unsigned(width)?;
        self.stack.push(Value::Int(value as i64));
        Ok(())
    }

    /// Pushes a little-endian signed integer.
    fn push_int(&mut self, width: usize) -> Result<()> {
        let taken = self.take(width)?;
        let negative = taken.last().is_some_and(|&byte| byte >= 0x80);
        let value = if width > 8 {
            Value::BigInt
        } else {
            let mut bytes = [if negative { 0xff } else { 0 }; 8];
            bytes[..width].copy_from_slice(taken);
            Value::Int(i64::from_le_bytes(bytes))
        };
        self.stack.push(value);
        Ok(())
    }

    fn push_long(&mut self, prefix: usize) -> Result<()> {
        let width = self.unsigned(prefix)?;
        self.push_int(width)
    }

    fn push_str(&mut self, prefix: usize) -> Result<()> {
        let length = self.unsigned(prefix)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| self.wrong())?;
        self.stack.push(Value::Str(text));
        Ok(())
    }

    fn push_bytes(&mut self, prefix: usize) -> Result<()> {
        let length = self.unsigned(prefix)?;
        let bytes = Value::Bytes(self.take(length)?);
        self.stack.push(bytes);
        Ok(())
    }

    fn push_container(&mut self, kind: fn(usize) -> Value<'a>, values: Vec<Value<'a>>) {
        self.stack.push(kind(self.containers.len()));
        self.containers.push(values);
    }

    fn push_tuple(&mut self, count: usize) -> Result<()> {
        let mut values = vec![Value::None; count];
        for value in values.iter_mut().rev() {
            *value = self.pop()?;
        }
        self.push_container(Value::Tuple, values);
        Ok(())
    }

    fn collect(&mut self, kind: fn(usize) -> Value<'a>) -> Result<()> {
        let values = self.pop_mark()?;
        self.push_container(kind, values);
        Ok(())
    }

    /// Adds the last value to a list, or the last two to a dict.
    fn extend(&mut self, count: usize) -> Result<()> {
        let last = self.pop()?;
        let values = if count == 2 { vec![self.pop()?, last] } else { vec![last] };
        self.extend_with(values, count == 2)
    }

    fn extend_with(&mut self, values: Vec<Value<'a>>, pairs: bool) -> Result<()> {
        let id = match self.top()? {
            Value::Dict(id) | Value::Object(id) if pairs && values.len().is_multiple_of(2) => id,
            Value::List(id) if !pairs => id,
            // What is appended to an unknown object is not needed.
            Value::Object(_) if !pairs => return Ok(()),
            _ => return Err(self.wrong()),
        };
        let container = self.containers.get_mut(id).ok_or(PickleError::Operand(self.at))?;
        container.extend(values);
        Ok(())
    }

    fn stack_global(&mut self) -> Result<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Value::Str(name), Value::Str(module)) = (name, module) else {
            return Err(self.wrong());
        };
        self.stack.push(Value::Global { module, name });
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        let args = self.pop()?;
        let callee = self.pop()?;
        self.push_container(Value::Object, vec![callee, args]);
        Ok(())
    }

    fn put(&mut self, width: usize) -> Result<()> {
        let key = self.unsigned(width)?;
        self.memo.insert(key, self.top()?);
        Ok(())
    }

    fn push_memo(&mut self, width: usize) -> Result<()> {
        let key = self.unsigned(width)?;
        let value = self.memo.get(&key).copied().ok_or(self.wrong())?;
        self.stack.push(value);
        Ok(())
    }
}
