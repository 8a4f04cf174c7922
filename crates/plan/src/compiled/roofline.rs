//! How long an instruction takes on a GPU, of which the compiler says nothing.
//!
//! A kernel takes as long as its products or its traffic to memory, whichever is more, and the
//! time to begin and end. Neither peak is reached: what is, as a share, are the constants below.
//! They were read off an H200, and other GPUs are taken to reach the same shares of their peaks.
//!
//! Shares of the bandwidth are those of all kernels of a kind together in one profiled step
//! (GPT-2 2B, AdamW, batch 16). In a step of Llama 1B, which nothing was read off, element by
//! element work, sums and Triton kernels reached 0.75, 0.69 and 0.31 in place of 0.80, 0.64 and
//! 0.38, and products 0.70 of the peak.

use super::cost;
use fullshard_pjrt::hlo::{Computation, DotDims, ElementType, Instruction, Module, Shape};
use fullshard_step::Chip;

/// The share of the peak that products reach under load, where power limits the clock: all
/// products of JAX's fastest step of GPT-2 2B on an H200 together ran at 729 of 989 TFLOP/s.
const PRODUCTS: f64 = 0.737;

/// The share of the bandwidth that products reach which are too thin for the arithmetic to matter.
const THIN_PRODUCTS: f64 = 0.80;

/// The share of the bandwidth that element by element work reaches. A plain copy reaches 0.90.
const LOOPS: f64 = 0.80;

/// The share of the bandwidth that sums reach.
const REDUCTIONS: f64 = 0.64;

/// The share of the bandwidth that XLA's Triton kernels other than products reach: softmax and
/// norms, for which it chooses tiles without trying them.
const TRITON: f64 = 0.38;

/// The shares of the peak that cuDNN's attention reaches forwards and backwards, of the half of the
/// products that are not of the future: 9 and 33 ms in JAX's step of GPT-2 2B on an H200.
const ATTENTION: [f64; 2] = [0.42, 0.28];

/// Seconds for a kernel to begin and end, as the shortest of them take, in a CUDA graph.
const LAUNCH: f64 = 2e-6;

/// Seconds that one instruction takes.
pub(crate) fn seconds(module: &Module, instruction: &Instruction, chip: &Chip) -> f64 {
    if cost::is_free(instruction) {
        return 0.0;
    }
    if let Some(seconds) = attention(module, instruction, chip) {
        return LAUNCH + seconds;
    }
    let products = Products::of(module, instruction);
    let traffic = traffic(module, instruction) as f64;
    let moving = traffic / (chip.bandwidth * reached(instruction, products.is_some()));
    let computing = products.and_then(|products| products.seconds(chip)).unwrap_or(0.0);
    LAUNCH + moving.max(computing)
}

/// The bytes that a kernel reads and writes, without the room to work in of library calls.
pub(crate) fn traffic(module: &Module, instruction: &Instruction) -> u64 {
    match instruction.opcode.as_str() {
        "custom-call" => called_traffic(module, instruction),
        _ => cost::traffic(module, instruction),
    }
}

/// The operations of the matrix products of an instruction, if it has any.
pub(crate) fn operations(module: &Module, instruction: &Instruction) -> Option<f64> {
    Products::of(module, instruction).map(|products| products.operations)
}

/// The seconds of causal attention by cuDNN: two products forwards and five backwards.
fn attention(module: &Module, call: &Instruction, chip: &Chip) -> Option<f64> {
    let target = call.custom_call_target.as_deref()?;
    let backward = target.strip_prefix("__cudnn$fmha")?.ends_with("Backward");
    let mut operands = module.computation(call.computation)?.operands(call);
    let [batch, queries, heads, head] = operands.next()?.shape.as_array()?.dims[..] else {
        return None;
    };
    let [_, keys, ..] = operands.next()?.shape.as_array()?.dims[..] else { return None };
    let product = [batch, queries, heads, head, keys].map(|dim| dim as f64).iter().product::<f64>();
    let (products, share) = if backward { (5.0, ATTENTION[1]) } else { (2.0, ATTENTION[0]) };
    Some(products * product / (share * chip.bf16?))
}

/// The share of the bandwidth that an instruction reaches.
fn reached(instruction: &Instruction, products: bool) -> f64 {
    match instruction.fusion_kind.as_deref() {
        _ if products => THIN_PRODUCTS,
        Some("kCustom") if is_triton(instruction) => TRITON,
        Some("kInput") => REDUCTIONS,
        None if instruction.opcode.starts_with("reduce") => REDUCTIONS,
        _ => LOOPS,
    }
}

fn is_triton(fusion: &Instruction) -> bool {
    fusion.backend_config_str().is_some_and(|config| config.contains("\"__triton"))
}

/// The matrix products of an instruction.
struct Products {
    /// Multiplications and additions.
    operations: f64,
    /// What is multiplied.
    element: ElementType,
}

impl Products {
    /// Those of an instruction or in what it calls.
    fn of(module: &Module, instruction: &Instruction) -> Option<Products> {
        let computation = module.computation(instruction.computation)?;
        if let Some(dims) = &instruction.dot_dims {
            return Products::of_dims(computation, instruction, &instruction.shape, dims);
        }
        match instruction.opcode.as_str() {
            "custom-call" => {
                let dims = library_dims(instruction)?;
                // Beside the result there is room to work in.
                let result = instruction.shape.leaves().into_iter().next()?;
                Products::of_dims(computation, instruction, result, &dims)
            }
            "fusion" => {
                let fused = instruction.called.iter().filter_map(|&id| module.computation(id));
                let inner = fused.flat_map(Computation::instructions);
                let all = inner.filter_map(|inner| Products::of(module, inner));
                all.reduce(|sum, next| Products {
                    operations: sum.operations + next.operations,
                    ..sum
                })
            }
            _ => None,
        }
    }

    fn of_dims(
        computation: &Computation,
        product: &Instruction,
        result: &Shape,
        dims: &DotDims,
    ) -> Option<Products> {
        let left = computation.operands(product).next()?.shape.as_array()?;
        let summed =
            dims.lhs_contracting.iter().map(|&dim| left.dims.get(usize::try_from(dim).ok()?));
        let summed = summed.map(|dim| dim.map(|&dim| dim as f64)).product::<Option<f64>>()?;
        let operations = 2.0 * result.as_array()?.elements() as f64 * summed;
        Some(Products { operations, element: left.element })
    }

    fn seconds(&self, chip: &Chip) -> Option<f64> {
        let peak = match self.element.bits()? {
            8 => chip.fp8.or(chip.bf16)?,
            32 => chip.f32?,
            _ => chip.bf16?,
        };
        Some(self.operations / (PRODUCTS * peak))
    }
}

/// The dims of a product that cuBLAS computes.
fn library_dims(call: &Instruction) -> Option<DotDims> {
    let config = call.backend_config_json()?;
    let dims = config.get("gemm_backend_config")?.get("dot_dimension_numbers")?;
    let list = |name: &str| -> Vec<i64> {
        let list = dims.get(name).and_then(|list| list.as_array());
        let integer = |value: &serde_json::Value| value.as_str()?.parse().ok().or(value.as_i64());
        list.map_or_else(Vec::new, |list| list.iter().filter_map(integer).collect())
    };
    Some(DotDims {
        lhs_contracting: list("lhs_contracting_dimensions"),
        rhs_contracting: list("rhs_contracting_dimensions"),
        lhs_batch: list("lhs_batch_dimensions"),
        rhs_batch: list("rhs_batch_dimensions"),
    })
}

/// The bytes that a library call reads and writes, without its room to work in.
fn called_traffic(module: &Module, call: &Instruction) -> u64 {
    let computation = module.computation(call.computation);
    let operands = computation.into_iter().flat_map(|it| it.operands(call)).map(|it| &it.shape);
    let mut results = call.shape.leaves();
    // The last of several results is the room to work in.
    results.truncate(results.len().saturating_sub(1).max(1));
    operands.chain(results).map(cost::bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &[u8] = include_bytes!("../../tests/data/gpu_h200.pb");

    /// The seconds of the one instruction whose result has this shape, on a chip.
    fn seconds_of(shape: &str, chip: &str) -> f64 {
        let module = Module::decode("hlo_with_config", H200).unwrap();
        let chip = Chip::named(chip).unwrap();
        let made = module.entry().instructions().iter();
        let made = made.filter(|it| it.shape.to_string().starts_with(shape));
        made.map(|it| seconds(&module, it, chip)).sum()
    }

    fn assert_near(seconds: f64, measured: f64, tolerance: f64) {
        assert!((seconds / measured - 1.0).abs() < tolerance, "{seconds} against {measured}");
    }

    /// What `fullshard exec examples/programs/matmul.mlir` took on an H200: 1.537 to 1.559 ms.
    #[test]
    fn a_large_product_takes_what_was_measured() {
        assert_near(seconds_of("bf16[8192,8192]", "h200"), 1.552e-3, 0.05);
    }

    /// What products of this shape took in the attention of a profiled step: 86.9 µs, most of
    /// them for memory.
    #[test]
    fn a_thin_product_takes_what_was_measured() {
        let seconds = seconds_of("bf16[384,256,1024]", "h200");
        assert_near(seconds, 86.9e-6, 0.05);
        // The H100 computes as fast but its memory is slower.
        assert_near(seconds_of("bf16[384,256,1024]", "h100") / seconds, 4800.0 / 3350.0, 0.03);
        assert_near(seconds_of("bf16[8192,8192]", "h100"), 1.552e-3, 0.05);
    }

    #[test]
    fn the_rest_is_as_fast_as_memory() {
        let bytes = 3.0 * 4.0 * 16384.0 * 16384.0;
        // The same shape is that of two arguments, which take no time.
        assert_near(seconds_of("f32[16384,16384]", "h200"), bytes / (LOOPS * 4.8e12), 0.01);
        let bytes = 4.0 * 1024.0 * 16384.0;
        assert_near(seconds_of("f32[1024]", "h200") - LAUNCH, bytes / (REDUCTIONS * 4.8e12), 0.01);
    }

    #[test]
    fn the_dims_of_library_products_are_read_from_their_configuration() {
        let module = Module::decode("hlo_with_config", H200).unwrap();
        let mut call = module.entry().instructions()[0].clone();
        call.backend_config = (*br#"{"gemm_backend_config": {"dot_dimension_numbers":
            {"lhs_contracting_dimensions": ["2"], "lhs_batch_dimensions": ["0"]}}}"#)
            .into();
        let dims = library_dims(&call).unwrap();
        assert_eq!((dims.lhs_contracting, dims.lhs_batch), (vec![2], vec![0]));
        call.backend_config = (*b"{}").into();
        assert_eq!(library_dims(&call), None);
    }
}
