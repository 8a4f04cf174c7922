//! The type that a step computes in: asked for by flags, stated in a config, and said to people.

use super::{StepFlags, contradiction};
use crate::error::Result;
use clap::ValueEnum;
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfigError, Settings};
use fullshard_step::StepSpec;

/// A type to compute in, as people name it.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum DTypeArg {
    Float32,
    Bfloat16,
    Float16,
}

impl StepFlags {
    /// Settles the type to compute in, and whether products are in 8 bits.
    pub(super) fn choose_dtype(&self, settings: &mut Settings) -> Result<()> {
        let asked = self.asked_dtype()?;
        if !self.fp8 {
            let Some((asked, flag)) = asked else { return Ok(()) };
            check_dtype(asked, &flag, settings.stated_compute_dtype)?;
            settings.compute_dtype = asked.dtype();
            return Ok(());
        }
        let stated = settings.stated_compute_dtype;
        let stated = stated.map(|stated| (stated, in_config(stated)));
        for (dtype, said) in
            asked.map(|(asked, flag)| (asked.dtype(), flag)).into_iter().chain(stated)
        {
            if !matches!(dtype, DType::Bf16 | DType::F8E4M3FN) {
                let way_out = "what is not in 8 bits is in bfloat16: leave one of them out";
                let second = "`--fp8`".into();
                return Err(FsdpConfigError::Contradiction { first: said, second, way_out }.into());
            }
        }
        settings.compute_dtype = DType::Bf16;
        settings.fp8 = true;
        Ok(())
    }

    /// The type asked for by flag, and the flag.
    fn asked_dtype(&self) -> Result<Option<(DTypeArg, String)>> {
        match (self.dtype, self.bf16) {
            (Some(dtype), true) if dtype != DTypeArg::Bfloat16 => {
                let first = format!("`--dtype {}`", dtype.name());
                Err(contradiction(first, "`--bf16`".into()))
            }
            (_, true) => Ok(Some((DTypeArg::Bfloat16, "`--bf16`".into()))),
            (dtype, false) => Ok(dtype.map(|dtype| (dtype, format!("`--dtype {}`", dtype.name())))),
        }
    }
}

/// Refuses a type that is not the one the FSDP config states.
fn check_dtype(asked: DTypeArg, flag: &str, stated: Option<DType>) -> Result<()> {
    match stated {
        Some(stated) if stated != asked.dtype() => {
            Err(contradiction(flag.to_owned(), in_config(stated)))
        }
        _ => Ok(()),
    }
}

fn in_config(stated: DType) -> String {
    format!("`compute_dtype: {}` of the FSDP config", dtype_name(stated))
}

impl DTypeArg {
    fn dtype(self) -> DType {
        match self {
            DTypeArg::Float32 => DType::F32,
            DTypeArg::Bfloat16 => DType::Bf16,
            DTypeArg::Float16 => DType::F16,
        }
    }

    fn of(dtype: DType) -> Option<DTypeArg> {
        DTypeArg::value_variants().iter().copied().find(|known| known.dtype() == dtype)
    }

    fn name(self) -> &'static str {
        match self {
            DTypeArg::Float32 => "float32",
            DTypeArg::Bfloat16 => "bfloat16",
            DTypeArg::Float16 => "float16",
        }
    }
}

/// The type a step computes in, and how much of it in 8 bits.
pub fn compute_name(spec: &StepSpec) -> String {
    let compute = dtype_name(spec.placement.wire.compute);
    match spec.eight_bit_products() {
        Some(products) => format!(
            "{compute}, {} of layers in {},",
            crate::format::count(products.eight_bit, "product"),
            dtype_name(DType::F8E4M3FN)
        ),
        None => compute.to_owned(),
    }
}

/// The name that people give a type to compute in.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F8E4M3FN => "float8_e4m3fn",
        _ => DTypeArg::of(dtype).map_or(dtype.name(), DTypeArg::name),
    }
}
