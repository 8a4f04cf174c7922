//! The lines of a kernel while it is traced.

use super::Shared;
use super::value::{Type, Value};
use crate::text::number;
use fullshard_core::DType;
use std::cell::{Cell, RefCell};

/// Lines, and the first error.
#[derive(Debug, Default)]
pub(super) struct Body {
    lines: RefCell<String>,
    depth: Cell<usize>,
    values: Cell<usize>,
    error: RefCell<Option<String>>,
}

impl Body {
    pub fn line(&self, text: &str) {
        let indent = "  ".repeat(self.depth.get() + 2);
        *self.lines.borrow_mut() += &format!("{indent}{text}\n");
    }

    pub fn name(&self) -> String {
        let number = self.values.get();
        self.values.set(number + 1);
        format!("%v{number}")
    }

    /// Notes what is wrong; tracing goes on, and the kernel is rejected at its end.
    pub fn fail(&self, reason: String) {
        self.error.borrow_mut().get_or_insert(reason);
    }
}

/// What a kernel is traced with.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    pub(super) body: Shared,
}

impl Builder {
    pub(super) fn finish(self) -> Result<String, String> {
        match self.body.error.take() {
            Some(reason) => Err(reason),
            None => Ok(self.body.lines.take()),
        }
    }

    /// The number of the program in its grid.
    pub fn program(&self) -> Value {
        self.value("tt.get_program_id x : i32", Type::scalar(DType::I32))
    }

    /// The numbers from 0, of which there are a power of two.
    pub fn range(&self, length: usize) -> Value {
        let ty = Type::block(DType::I32, &[length]);
        if !length.is_power_of_two() {
            self.body.fail(format!("a block of {length} is no power of two"));
        }
        let op = format!("tt.make_range {{start = 0 : i32, end = {length} : i32}} : {}", ty.text());
        self.value(&op, ty)
    }

    /// An integer.
    pub fn int(&self, value: i64) -> Value {
        self.value(&format!("arith.constant {value} : i32"), Type::scalar(DType::I32))
    }

    /// A float in `f32`.
    pub fn float(&self, value: f64) -> Value {
        let op = format!("arith.constant {} : f32", number(DType::F32, value));
        self.value(&op, Type::scalar(DType::F32))
    }

    /// A block of zeros in `f32`.
    pub fn zeros(&self, dims: &[usize]) -> Value {
        self.float(0.0).expanded(dims)
    }

    /// Runs `step` for each number from `first` to `end`, exclusively, with values that it carries
    /// from one to the next. Gives those of the last.
    pub fn for_each(
        &self,
        first: &Value,
        end: &Value,
        carried: &[Value],
        step: impl FnOnce(&Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let one = self.int(1);
        let index = self.named(Type::scalar(DType::I32));
        let inside: Vec<Value> = carried.iter().map(|it| self.named(it.ty.clone())).collect();
        let results = self.body.name();
        let types: Vec<String> = carried.iter().map(|it| it.ty.text()).collect();
        let types = types.join(", ");
        let starts =
            inside.iter().zip(carried).map(|(inside, start)| format!("{inside} = {start}"));
        let starts = starts.collect::<Vec<_>>().join(", ");
        let (result, arguments) = match carried.len() {
            0 => (String::new(), String::new()),
            count => {
                (format!("{results}:{count} = "), format!(" iter_args({starts}) -> ({types})"))
            }
        };
        let bounds = format!("{index} = {first} to {end} step {one}");
        self.body.line(&format!("{result}scf.for {bounds}{arguments} : i32 {{"));
        self.body.depth.set(self.body.depth.get() + 1);
        let next = step(&index, &inside);
        if next.iter().map(|it| &it.ty).ne(carried.iter().map(|it| &it.ty)) {
            self.body.fail("a loop does not carry what it starts with".into());
        }
        if !carried.is_empty() {
            let names: Vec<String> = next.iter().map(ToString::to_string).collect();
            self.body.line(&format!("scf.yield {} : {types}", names.join(", ")));
        }
        self.body.depth.set(self.body.depth.get() - 1);
        self.body.line("}");
        let result = |(i, it): (usize, &Value)| Value {
            body: self.body.clone(),
            name: format!("{results}#{i}"),
            ty: it.ty.clone(),
        };
        carried.iter().enumerate().map(result).collect()
    }

    fn named(&self, ty: Type) -> Value {
        Value { body: self.body.clone(), name: self.body.name(), ty }
    }

    pub(super) fn value(&self, op: &str, ty: Type) -> Value {
        let value = self.named(ty);
        self.body.line(&format!("{value} = {op}"));
        value
    }
}
