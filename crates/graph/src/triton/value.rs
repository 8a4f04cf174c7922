//! Values of kernels: numbers, blocks of them, and where they are in memory.

use super::body::Builder;
use super::{ALIGNMENT, Shared};
use fullshard_core::DType;
use std::fmt;

/// A scalar or a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Type {
    pub element: DType,
    pub dims: Vec<usize>,
}

impl Type {
    pub fn scalar(element: DType) -> Type {
        Type { element, dims: Vec::new() }
    }

    pub fn block(element: DType, dims: &[usize]) -> Type {
        Type { element, dims: dims.to_vec() }
    }

    pub fn text(&self) -> String {
        shaped(&self.dims, self.element.mlir_name())
    }

    fn pointers(&self) -> String {
        shaped(&self.dims, &pointer(self.element))
    }
}

fn shaped(dims: &[usize], element: &str) -> String {
    let dims: String = dims.iter().map(|dim| format!("{dim}x")).collect();
    if dims.is_empty() { element.to_owned() } else { format!("tensor<{dims}{element}>") }
}

fn pointer(element: DType) -> String {
    format!("!tt.ptr<{}>", element.mlir_name())
}

/// A number, or a block of numbers. Operators work element by element, and repeat scalars and
/// dims of 1.
#[derive(Debug, Clone)]
pub struct Value {
    pub(super) body: Shared,
    pub(super) name: String,
    pub(super) ty: Type,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Value {
    pub(super) fn builder(&self) -> Builder {
        Builder { body: self.body.clone() }
    }

    pub(super) fn emit(&self, op: &str, ty: Type) -> Value {
        self.builder().value(op, ty)
    }

    pub(super) fn is_float(&self) -> bool {
        self.ty.element.is_float()
    }

    /// In another type; integers become `f32` only.
    pub fn convert(&self, element: DType) -> Value {
        let from = self.ty.element;
        if from == element {
            return self.clone();
        }
        let ty = Type { element, ..self.ty.clone() };
        let op = match (from.is_float(), from.size(), element.size()) {
            (false, ..) => "arith.sitofp",
            (true, _, 1) | (true, 1, _) => "tt.fp_to_fp",
            (true, from, to) if from < to => "arith.extf",
            _ => "arith.truncf",
        };
        // Rounds to nearest, ties to even, as conversions between longer floats do.
        let rounding =
            if op == "tt.fp_to_fp" && element.size() == 1 { ", rounding = rtne" } else { "" };
        self.emit(
            &format!("{op} {self}{rounding} : {} {} {}", self.ty.text(), arrow(op), ty.text()),
            ty,
        )
    }

    /// In `f32`.
    pub fn float(&self) -> Value {
        self.convert(DType::F32)
    }

    /// Rounded to another type and back.
    pub fn rounded(&self, element: DType) -> Value {
        self.convert(element).convert(self.ty.element)
    }

    /// Repeated along all dims of a block.
    pub fn expanded(&self, dims: &[usize]) -> Value {
        if self.ty.dims == dims {
            return self.clone();
        }
        let ty = Type::block(self.ty.element, dims);
        let op = if self.ty.dims.is_empty() { "tt.splat" } else { "tt.broadcast" };
        self.emit(&format!("{op} {self} : {} -> {}", self.ty.text(), ty.text()), ty)
    }

    /// With a dim of 1 more.
    pub fn with_dim(&self, dim: usize) -> Value {
        let mut dims = self.ty.dims.clone();
        dims.insert(dim.min(dims.len()), 1);
        let ty = Type::block(self.ty.element, &dims);
        let op = format!("tt.expand_dims {self} {{axis = {dim} : i32}}");
        self.emit(&format!("{op} : {} -> {}", self.ty.text(), ty.text()), ty)
    }

    /// A matrix with rows as columns.
    pub fn transposed(&self) -> Value {
        let dims: Vec<usize> = self.ty.dims.iter().rev().copied().collect();
        let ty = Type::block(self.ty.element, &dims);
        let op = format!("tt.trans {self} {{order = array<i32: 1, 0>}}");
        self.emit(&format!("{op} : {} -> {}", self.ty.text(), ty.text()), ty)
    }

    /// The sum along a dim.
    pub fn sum(&self, dim: usize) -> Value {
        let mut dims = self.ty.dims.clone();
        if dim < dims.len() {
            dims.remove(dim);
        } else {
            self.body.fail(format!("{} has no dim {dim}", self.ty.text()));
        }
        let element = self.ty.element.mlir_name();
        let names = [(); 3].map(|()| self.body.name());
        let [left, right, result] = &names;
        let body = format!(
            "({{ ^bb0({left}: {element}, {right}: {element}): {result} = arith.addf {left}, {right} : \
             {element} tt.reduce.return {result} : {element} }})"
        );
        let ty = Type::block(self.ty.element, &dims);
        self.emit(
            &format!(
                "\"tt.reduce\"({self}) <{{axis = {dim} : i32}}> {body} : ({}) -> {}",
                self.ty.text(),
                ty.text()
            ),
            ty,
        )
    }
}

fn arrow(op: &str) -> &'static str {
    if op == "tt.fp_to_fp" { "->" } else { "to" }
}

/// An operand or a result in memory.
#[derive(Debug, Clone)]
pub struct Pointer {
    body: Shared,
    name: String,
    element: DType,
}

impl Pointer {
    pub(super) fn parameter(builder: &Builder, index: usize, element: DType) -> Pointer {
        Pointer { body: builder.body.clone(), name: format!("%p{index}"), element }
    }

    pub(super) fn declaration(&self) -> String {
        format!("{}: {} {{tt.divisibility = {ALIGNMENT} : i32}}", self.name, pointer(self.element))
    }

    /// The element at a position, or a block of them, in row-major order.
    pub fn at(&self, positions: &Value) -> Address {
        let ty = Type { element: self.element, ..positions.ty.clone() };
        let builder = Builder { body: self.body.clone() };
        let base = match ty.dims.is_empty() {
            true => self.name.clone(),
            false => {
                let op = format!(
                    "tt.splat {} : {} -> {}",
                    self.name,
                    pointer(self.element),
                    ty.pointers()
                );
                builder.value(&op, ty.clone()).name
            }
        };
        let op =
            format!("tt.addptr {base}, {positions} : {}, {}", ty.pointers(), positions.ty.text());
        Address { value: builder.value(&op, ty), mask: None }
    }
}

/// Where a value is in memory.
#[derive(Debug, Clone)]
pub struct Address {
    /// The name of the pointers, with the type of what they point to.
    value: Value,
    mask: Option<Value>,
}

impl Address {
    /// Only where a condition holds; elsewhere zeros are loaded and nothing is stored.
    pub fn only_if(mut self, mask: Option<&Value>) -> Address {
        self.mask = mask.map(|mask| mask.expanded(&self.value.ty.dims));
        self
    }

    /// What is there.
    pub fn load(&self) -> Value {
        let ty = &self.value.ty;
        let other = self.mask.as_ref().map(|mask| {
            let zero = self.value.builder().float(0.0).convert(ty.element).expanded(&ty.dims);
            format!(", {mask}, {zero}")
        });
        let op = format!("tt.load {}{} : {}", self.value, other.unwrap_or_default(), ty.pointers());
        self.value.emit(&op, ty.clone())
    }

    /// Writes a value, rounded to the type of what is there.
    pub fn store(&self, value: &Value) {
        let ty = &self.value.ty;
        let value = value.convert(ty.element).expanded(&ty.dims);
        let mask = self.mask.as_ref().map(|mask| format!(", {mask}")).unwrap_or_default();
        let op = format!("tt.store {}, {value}{mask} : {}", self.value, ty.pointers());
        self.value.body.line(&op);
    }
}
