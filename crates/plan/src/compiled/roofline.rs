//! How long an instruction takes on a GPU, of which the compiler says nothing.
//!
//! A kernel takes as long as its products or its traffic to memory, whichever is more, and the
//! time to begin and end. Neither peak is reached: what is, as a share, are the constants below.
//! They were read off an H200, and other GPUs are taken to reach the same shares of their peaks.
//!
//! Shares of the bandwidth are those of all kernels of a kind together in one profiled step
//! (GPT-2 2B, AdamW, batch 16). Held against Llama 1B, which nothing was read off, the same kinds
//! reached 0.75, 0.69 and 0.31.

use super::cost;
use fullshard_pjrt::hlo::{Computation, DotDims, ElementType, Instruction, Module, Shape};
use fullshard_train::Chip;

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

/// Seconds for a kernel to begin and end, as the shortest of them take, in a CUDA graph.
const LAUNCH: f64 = 2e-6;

/// Seconds that one instruction takes.
pub(crate) fn seconds(module: &Module, instruction: &Instruction, chip: &Chip) -> f64 {
    if cost::is_free(instruction) {
        return 0.0;
    }
    let products = Products::of(module, instruction);
    let traffic = match &products {
        Some(_) if instruction.opcode == "custom-call" => called_traffic(module, instruction),
        _ => cost::traffic(module, instruction) as f64,
    };
    let moving = traffic / (chip.bandwidth * reached(instruction, products.is_some()));
    let computing = products.and_then(|products| products.seconds(chip)).unwrap_or(0.0);
    LAUNCH + moving.max(computing)
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
            // Twice as many of half the width.
            8 => 2.0 * chip.bf16?,
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
fn called_traffic(module: &Module, call: &Instruction) -> f64 {
    let computation = module.computation(call.computation);
    let operands = computation.into_iter().flat_map(|it| it.operands(call)).map(|it| &it.shape);
    let result = call.shape.leaves().into_iter().take(1);
    operands.chain(result).map(cost::bytes).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn dump() {
        let path = std::env::var("HLO_PB").unwrap();
        let module = Module::decode("hlo_with_config", &std::fs::read(&path).unwrap()).unwrap();
        let chip = Chip::named("h200").unwrap();
        let mut sums = std::collections::BTreeMap::<String, (u64, f64)>::new();
        fn walk(
            m: &Module,
            c: &Computation,
            times: f64,
            chip: &Chip,
            sums: &mut std::collections::BTreeMap<String, (u64, f64)>,
        ) {
            for i in c.instructions() {
                if cost::is_free(i) || i.opcode.ends_with("-done") {
                    continue;
                }
                if i.opcode == "while" {
                    let trips = fullshard_pjrt::hlo::trip_count(m, i).unwrap_or(1) as f64;
                    for &q in &i.called {
                        walk(m, m.computation(q).unwrap(), times * trips, chip, sums);
                    }
                    continue;
                }
                let s = seconds(m, i, chip) * times;
                let kind = if Products::of(m, i).is_some() {
                    "product".into()
                } else if is_triton(i) {
                    "triton".into()
                } else {
                    i.fusion_kind.clone().unwrap_or(i.opcode.clone())
                };
                let e = sums.entry(kind).or_default();
                e.0 += times as u64;
                e.1 += s;
            }
        }
        walk(&module, module.entry(), 1.0, chip, &mut sums);
        for (k, (n, s)) in &sums {
            println!("ROW {k} {n} {:.2} ms", s * 1e3);
        }
        println!("ROW total {:.2} ms", sums.values().map(|v| v.1).sum::<f64>() * 1e3);
    }
}
