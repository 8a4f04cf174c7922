//! Inputs and outputs of programs: safetensors files, or synthetic inputs.

use fullshard::{Error, Result};
use fullshard_checkpoint::write_file;
use fullshard_pjrt::{Array, Client, DType, HostTensor, LoadedExecutable};
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

/// Reads the arguments from a file with tensors `arg0`, `arg1` and so on.
pub fn read_arguments(
    client: &Client,
    program: &LoadedExecutable,
    path: &Path,
) -> Result<Vec<Array>> {
    let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| Error::file(path, format!("not a safetensors file: {error}")))?;
    let count = program.signature().parameters.len();
    if let Some(extra) = file.names().iter().find(|name| !is_argument(name, count)) {
        let reason = format!(
            "it has a tensor `{extra}`, but the program takes {count} arguments, named arg0 and \
             so on"
        );
        return Err(Error::file(path, reason));
    }
    let read = |index: usize| {
        let name = format!("arg{index}");
        let view = file.tensor(&name).map_err(|_| {
            Error::file(
                path,
                format!("it has no `{name}`, but the program takes {count} arguments"),
            )
        })?;
        let expected = program.argument_type(index)?;
        let tensor = read_tensor(&view).map_err(|reason| Error::file(path, reason))?;
        if *tensor.ty() != expected.ty {
            let reason =
                format!("`{name}` is {} but the program takes {}", tensor.ty(), expected.ty);
            return Err(Error::file(path, reason));
        }
        Ok(Array::from_host(client, &tensor, expected.tiling, program.devices())?)
    };
    (0..count).map(read).collect()
}

fn is_argument(name: &str, count: usize) -> bool {
    let number = name.strip_prefix("arg").and_then(|digits| digits.parse::<usize>().ok());
    number.is_some_and(|number| number < count)
}

fn read_tensor(view: &TensorView<'_>) -> std::result::Result<HostTensor, String> {
    let dtype = FILE_DTYPES
        .iter()
        .find_map(|&(dtype, file)| (file == view.dtype()).then_some(dtype))
        .ok_or_else(|| format!("{:?} tensors cannot be read", view.dtype()))?;
    HostTensor::from_bytes(dtype, view.shape(), view.data().to_vec())
        .map_err(|error| error.to_string())
}

/// The dtypes that a file supports.
const FILE_DTYPES: &[(DType, Dtype)] = &[
    (DType::Bool, Dtype::BOOL),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::Bf16, Dtype::BF16),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::F8E4M3FN, Dtype::F8_E4M3),
    (DType::F8E8M0FNU, Dtype::F8_E8M0),
];

/// Synthetic arguments: values in [-1, 1) for floats, zeros for the rest, which may be indices or
/// steps.
pub fn make_arguments(client: &Client, program: &LoadedExecutable) -> Result<Vec<Array>> {
    let make = |index: usize| {
        let array = program.argument_type(index)?;
        let count: usize = program.signature().parameters[index].elements();
        let dtype = array.ty.dtype;
        let fill = |tile: &fullshard_pjrt::Tile| {
            Ok(synthetic(dtype, count, Numbers::new(index as u64, tile.index as u64)))
        };
        Array::fill(client, &array, program.devices(), fill)
    };
    (0..program.signature().parameters.len()).map(make).collect()
}

fn synthetic(dtype: DType, count: usize, numbers: Numbers) -> Vec<u8> {
    fn collect<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
        values.flatten().collect()
    }
    let numbers = numbers.take(count);
    match dtype {
        DType::F16 => collect(numbers.map(|x| f16::from_f32(x).to_le_bytes())),
        DType::Bf16 => collect(numbers.map(|x| bf16::from_f32(x).to_le_bytes())),
        DType::F32 => collect(numbers.map(f32::to_le_bytes)),
        DType::F64 => collect(numbers.map(|x| f64::from(x).to_le_bytes())),
        other => vec![0; count * other.size()],
    }
}

/// Pseudorandom numbers in [-1, 1): a hashed counter (the finalizer of splitmix64).
struct Numbers {
    state: u64,
}

impl Numbers {
    fn new(argument: u64, tile: u64) -> Numbers {
        Numbers { state: (argument << 32 | tile).wrapping_mul(0xD6E8_FEB8_6659_FD93) }
    }
}

impl Iterator for Numbers {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some((z >> 40) as f32 / (1 << 23) as f32 - 1.0)
    }
}

/// Writes results to a file as `out0`, `out1` and so on.
pub fn write_results(path: &Path, results: &[HostTensor]) -> Result<()> {
    let views = results.iter().enumerate().map(|(i, tensor)| {
        let dtype = FILE_DTYPES.iter().find(|(dtype, _)| *dtype == tensor.dtype());
        let (_, dtype) = dtype.ok_or_else(|| {
            Error::file(
                path,
                format!("result {i} is {}, which safetensors does not support", tensor.ty()),
            )
        })?;
        let view = TensorView::new(*dtype, tensor.dims().to_vec(), tensor.bytes())
            .map_err(|error| Error::file(path, error))?;
        Ok((format!("out{i}"), view))
    });
    let views: Vec<_> = views.collect::<Result<_>>()?;
    let bytes = safetensors::serialize(views, None).map_err(|error| Error::file(path, error))?;
    Ok(write_file(path, bytes)?)
}
