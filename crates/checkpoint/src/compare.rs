//! How two checkpoints or models differ: in tensors, values and, of two checkpoints, progress.

use crate::error::Result;
use crate::format::SavedTensor;
use crate::import::{bare_name, is_buffer};
use crate::opened::Opened;
use half::{bf16, f16};
use safetensors::Dtype;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Elements that are compared at once.
const CHUNK: usize = 1 << 20;

/// How two checkpoints or models differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Tensors that only the first has.
    pub only_in_a: Vec<String>,
    /// Tensors that only the second has.
    pub only_in_b: Vec<String>,
    /// Tensors with other dimensions. Their values are not compared.
    pub other_dims: Vec<OtherType>,
    /// Tensors with another dtype. Their values are compared.
    pub other_dtypes: Vec<OtherType>,
    /// The number of tensors whose values were compared.
    pub compared: usize,
    /// The number of those that are equal bit by bit.
    pub bit_equal: usize,
    /// The tensors with other values, and by how much.
    pub different: Vec<TensorDifference>,
    /// What differs in the progress of two checkpoints.
    pub progress: Vec<ProgressDifference>,
}

/// A tensor whose dimensions or dtype differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherType {
    /// Its name.
    pub name: String,
    /// Its dimensions or dtype in the first.
    pub a: Value,
    /// Those in the second.
    pub b: Value,
}

/// A tensor whose values differ. Differences to NaN are infinite.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Its name.
    pub name: String,
    /// The largest absolute difference of two elements.
    pub max_absolute: f64,
    /// The largest difference of two elements, relative to the larger one.
    pub max_relative: f64,
}

/// A part of the progress that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgressDifference {
    /// Its name.
    pub name: String,
    /// In the first.
    pub a: Value,
    /// In the second.
    pub b: Value,
}

impl Comparison {
    /// Whether nothing differs. With a tolerance, values may differ by that much, and dtypes.
    pub fn is_same(&self, tolerance: Option<f64>) -> bool {
        let missing = self.only_in_a.len() + self.only_in_b.len() + self.other_dims.len();
        if missing + self.progress.len() > 0 {
            return false;
        }
        match tolerance {
            None => self.bit_equal == self.compared && self.other_dtypes.is_empty(),
            Some(limit) => self.different.iter().all(|tensor| tensor.max_absolute <= limit),
        }
    }

    /// The tensor with the largest absolute difference.
    pub fn largest_absolute(&self) -> Option<&TensorDifference> {
        self.different.iter().max_by(|a, b| a.max_absolute.total_cmp(&b.max_absolute))
    }

    /// The tensor with the largest relative difference.
    pub fn largest_relative(&self) -> Option<&TensorDifference> {
        self.different.iter().max_by(|a, b| a.max_relative.total_cmp(&b.max_relative))
    }
}

/// Compares two checkpoints or models. The optimizer's state and the progress are compared if both
/// are checkpoints. `progress` is called with the bytes read of the first since the last call.
pub fn compare(a: &Opened, b: &Opened, progress: &mut dyn FnMut(u64)) -> Result<Comparison> {
    let with_optimizer = are_checkpoints(a, b);
    let (in_a, in_b) = (tensors(a, with_optimizer), tensors(b, with_optimizer));
    let mut found = Comparison { progress: progress_differences(a, b), ..Comparison::default() };
    let only = in_b.iter().filter(|(key, _)| !in_a.contains_key(*key));
    found.only_in_b = only.map(|(_, (name, _))| name.clone()).collect();
    for (key, (name, tensor)) in &in_a {
        let Some((other_name, other)) = in_b.get(key) else {
            found.only_in_a.push(name.clone());
            continue;
        };
        let differs = |a, b| OtherType { name: name.clone(), a, b };
        if tensor.dims != other.dims {
            found.other_dims.push(differs(json!(tensor.dims), json!(other.dims)));
            continue;
        }
        if tensor.dtype != other.dtype {
            let dtypes = [tensor.dtype, other.dtype].map(|dtype| json!(dtype.to_string()));
            let [a, b] = dtypes;
            found.other_dtypes.push(differs(a, b));
        }
        found.compared += 1;
        match compare_values((a, name, tensor), (b, other_name, other), progress)? {
            None => found.bit_equal += usize::from(tensor.dtype == other.dtype),
            Some((max_absolute, max_relative)) => {
                let name = name.clone();
                found.different.push(TensorDifference { name, max_absolute, max_relative });
            }
        }
    }
    Ok(found)
}

/// The bytes that [`compare`] reads of the first at most.
pub fn bytes_to_compare(a: &Opened, b: &Opened) -> u64 {
    tensors(a, are_checkpoints(a, b)).values().map(|(_, tensor)| tensor.bytes()).sum()
}

fn are_checkpoints(a: &Opened, b: &Opened) -> bool {
    a.checkpoint().is_some() && b.checkpoint().is_some()
}

/// The tensors to compare, with their saved names, by the names that all formats have in common.
fn tensors(opened: &Opened, optimizer: bool) -> BTreeMap<String, (String, SavedTensor)> {
    let all = match optimizer {
        true => opened.tensors(),
        false => opened.format().tensors().clone(),
    };
    let all = all.into_iter().filter(|(name, _)| !is_buffer(name));
    all.map(|(name, tensor)| (bare_name(&name).to_owned(), (name, tensor))).collect()
}

/// The largest absolute and relative differences of a tensor; `None` if all bits are equal, or all
/// values if dtypes differ.
fn compare_values(
    (a, name_a, type_a): (&Opened, &str, &SavedTensor),
    (b, name_b, type_b): (&Opened, &str, &SavedTensor),
    progress: &mut dyn FnMut(u64),
) -> Result<Option<(f64, f64)>> {
    let elements = type_a.elements();
    let mut largest: Option<(f64, f64)> = None;
    for start in (0..elements).step_by(CHUNK) {
        let range = start..(start + CHUNK).min(elements);
        let mut bytes_a = vec![0; range.len() * type_a.dtype.bitsize() / 8];
        let mut bytes_b = vec![0; range.len() * type_b.dtype.bitsize() / 8];
        a.read(name_a, range.clone(), &mut bytes_a)?;
        b.read(name_b, range, &mut bytes_b)?;
        progress(bytes_a.len() as u64);
        if type_a.dtype == type_b.dtype && bytes_a == bytes_b {
            continue;
        }
        let values = (as_f64(type_a.dtype, &bytes_a), as_f64(type_b.dtype, &bytes_b));
        let found = match values {
            (Some(a), Some(b)) => largest_difference(&a, &b),
            _ => (f64::INFINITY, f64::INFINITY),
        };
        if type_a.dtype == type_b.dtype || found != (0.0, 0.0) {
            let (absolute, relative) = largest.unwrap_or_default();
            largest = Some((absolute.max(found.0), relative.max(found.1)));
        }
    }
    Ok(largest)
}

fn largest_difference(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut largest = (0.0_f64, 0.0_f64);
    for (&a, &b) in a.iter().zip(b) {
        if a == b || a.is_nan() && b.is_nan() {
            continue;
        }
        let absolute = (a - b).abs();
        let relative = absolute / a.abs().max(b.abs());
        let known = |value: f64| if value.is_nan() { f64::INFINITY } else { value };
        largest = (largest.0.max(known(absolute)), largest.1.max(known(relative)));
    }
    largest
}

/// Numbers of a dtype; `None` if they have another meaning.
fn as_f64(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    fn read<T: bytemuck::Pod>(bytes: &[u8], convert: impl Fn(T) -> f64) -> Option<Vec<f64>> {
        let numbers = bytes.chunks_exact(size_of::<T>());
        Some(numbers.map(|number| convert(bytemuck::pod_read_unaligned(number))).collect())
    }
    match dtype {
        Dtype::F64 => read(bytes, |number: f64| number),
        Dtype::F32 => read(bytes, |number: f32| number.into()),
        Dtype::F16 => read(bytes, |number: f16| number.to_f64()),
        Dtype::BF16 => read(bytes, |number: bf16| number.to_f64()),
        Dtype::I64 => read(bytes, |number: i64| number as f64),
        Dtype::I32 => read(bytes, |number: i32| number.into()),
        Dtype::I16 => read(bytes, |number: i16| number.into()),
        Dtype::I8 => read(bytes, |number: i8| number.into()),
        Dtype::U8 | Dtype::BOOL => read(bytes, |number: u8| number.into()),
        _ => None,
    }
}

/// What differs in the progress of two checkpoints, but for the names of their runs.
fn progress_differences(a: &Opened, b: &Opened) -> Vec<ProgressDifference> {
    let (Some(a), Some(b)) = (a.checkpoint(), b.checkpoint()) else { return Vec::new() };
    let [a, b] = [a.manifest(), b.manifest()].map(|manifest| {
        let mut fields = BTreeMap::from([("optimizer".to_owned(), json!(manifest.optimizer))]);
        flatten("", json!(manifest.progress), &mut fields);
        fields.remove("run");
        fields
    });
    let differing = a.into_iter().filter_map(|(name, a)| {
        let b = b.get(&name).cloned().unwrap_or_default();
        (a != b).then_some(ProgressDifference { name, a, b })
    });
    differing.collect()
}

/// The fields of nested objects, with dots in their names.
fn flatten(prefix: &str, value: Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, into);
            }
        }
        value => {
            into.insert(prefix.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_absolute_and_relative_and_infinite_to_nan() {
        assert_eq!(largest_difference(&[1.0, 4.0], &[2.0, 4.0]), (1.0, 0.5));
        assert_eq!(largest_difference(&[0.0, f64::NAN], &[-0.0, f64::NAN]), (0.0, 0.0));
        assert_eq!(largest_difference(&[f64::NAN], &[1.0]), (f64::INFINITY, f64::INFINITY));
        assert_eq!(largest_difference(&[f64::INFINITY], &[1.0]).0, f64::INFINITY);
    }
}
