//! A process of a job: programs with collectives, and what the other processes compute.

use crate::common::cpu;
use fullshard_pjrt::mpi::{MpiCall, World};
use fullshard_pjrt::{Client, CompileOptions, DType, HostTensor, LoadedExecutable};

pub struct Process {
    pub world: &'static World,
    pub client: Client,
    pub rank: usize,
    pub size: usize,
}

/// Attributes of a call over groups of processes.
pub fn over(channel: i64, groups: &[Vec<usize>]) -> String {
    let all: Vec<String> = groups.iter().flatten().map(ToString::to_string).collect();
    let size = groups[0].len();
    format!(
        "channel = {channel} : i64, group = array<i64: {}>, group_size = {size} : i64",
        all.join(", ")
    )
}

/// Attributes of an all-reduce: 0 is a sum, 1 the maximum, 2 the minimum.
pub fn reduction(number: i64, channel: i64, groups: &[Vec<usize>]) -> String {
    format!("{}, reduction = {number} : i64", over(channel, groups))
}

/// A custom call, as text.
pub fn call(target: &str, attributes: &str, operand: &str, from: &str, to: &str) -> String {
    format!(
        "stablehlo.custom_call @{target}({operand}) {{api_version = 4 : i32, \
         backend_config = {{{attributes}}}}} : ({from}) -> {to}"
    )
}

/// The type of a vector.
pub fn vector(dtype: DType, elements: usize) -> String {
    format!("tensor<{elements}x{}>", dtype.mlir_name())
}

/// Numbers that differ between processes, small enough for every type.
pub fn coded(dtype: DType, rank: usize, elements: usize) -> HostTensor {
    let values = (0..elements).map(|i| (3 * rank + i) as f64 % 16.0);
    from_f64(dtype, &values.collect::<Vec<_>>())
}

/// A vector of a type, with values that it represents.
pub fn from_f64(dtype: DType, values: &[f64]) -> HostTensor {
    let dims = &[values.len()];
    macro_rules! cast {
        ($ty:ty) => {
            HostTensor::from_values(dims, &values.iter().map(|&x| x as $ty).collect::<Vec<$ty>>())
        };
    }
    let tensor = match dtype {
        DType::I8 => cast!(i8),
        DType::I16 => cast!(i16),
        DType::I32 => cast!(i32),
        DType::I64 => cast!(i64),
        DType::U8 => cast!(u8),
        DType::U16 => cast!(u16),
        DType::U32 => cast!(u32),
        DType::U64 => cast!(u64),
        DType::F32 => cast!(f32),
        DType::F64 => cast!(f64),
        DType::F16 => HostTensor::from_values(
            dims,
            &values.iter().map(|&x| half::f16::from_f64(x)).collect::<Vec<_>>(),
        ),
        DType::Bf16 => HostTensor::from_values(
            dims,
            &values.iter().map(|&x| half::bf16::from_f64(x)).collect::<Vec<_>>(),
        ),
        _ => panic!("no test for {}", dtype.name()),
    };
    tensor.unwrap()
}

impl Process {
    /// Starts MPI and a client with `devices` devices.
    pub fn start(devices: usize) -> Process {
        let count = std::env::var(crate::COUNT).unwrap().parse().unwrap();
        let world = World::start(count).unwrap_or_else(|error| panic!("{error}"));
        Process { world, client: cpu(devices), rank: world.rank(), size: world.size() }
    }

    /// The group of all processes.
    pub fn all(&self) -> Vec<Vec<usize>> {
        vec![(0..self.size).collect()]
    }

    /// Makes the communicators of channels over the same groups.
    pub fn prepare(&self, channels: i64, groups: &[Vec<usize>], devices: usize) {
        let call = |channel| MpiCall { channel, groups: groups.to_vec() };
        let calls: Vec<MpiCall> = (0..channels).map(call).collect();
        self.world.collectives().prepare(&calls, devices).unwrap();
    }

    /// Compiles a program of one argument: each result is an expression of `%x`.
    pub fn compile(&self, from: &str, results: &[(String, String)]) -> LoadedExecutable {
        let lines: String = results
            .iter()
            .enumerate()
            .map(|(i, (expression, _))| format!("    %r{i} = {expression}\n"))
            .collect();
        let names: Vec<String> = (0..results.len()).map(|i| format!("%r{i}")).collect();
        let types: Vec<&str> = results.iter().map(|(_, ty)| ty.as_str()).collect();
        let (names, types) = (names.join(", "), types.join(", "));
        let text = format!(
            "module @m {{\n  func.func public @main(%x: {from}) -> ({types}) {{\n{lines}    \
             return {names} : {types}\n  }}\n}}"
        );
        let compiled = self.client.compile(&text, &CompileOptions::new(1));
        compiled.unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Runs a program on device 0.
    pub fn run(&self, program: &LoadedExecutable, x: &HostTensor) -> Vec<HostTensor> {
        self.try_run(program, x).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_run(
        &self,
        program: &LoadedExecutable,
        x: &HostTensor,
    ) -> Result<Vec<HostTensor>, fullshard_pjrt::Error> {
        let x = self.client.upload(x, 0)?;
        program.execute(&[[&x]])?[0].iter().map(|result| result.to_host()).collect()
    }

    /// Ends MPI, after all assertions.
    pub fn finish(self) {
        self.world.finish().unwrap();
        println!("process {} is right", self.rank);
    }
}
