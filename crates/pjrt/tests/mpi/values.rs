//! Roles that compare what collectives compute with the same computed here.

use crate::process::{Process, call, coded, from_f64, over, reduction, vector};
use fullshard_pjrt::{
    CompileOptions, DType, HostTensor, MPI_ALL_GATHER, MPI_ALL_REDUCE, MPI_ALL_TO_ALL,
    MPI_REDUCE_SCATTER, PROCESS_INDEX,
};

/// Every collective of `f32` vectors over all processes, in one program, several times.
pub fn collectives() {
    let me = Process::start(1);
    let (n, rank, all) = (me.size, me.rank, me.all());
    me.prepare(6, &all, 1);
    let elements = 6 * n;
    let (small, whole) = (vector(DType::F32, elements / n), vector(DType::F32, elements));
    let large = vector(DType::F32, elements * n);
    let mut results: Vec<(String, String)> = (0..3)
        .map(|number| {
            let attributes = reduction(number, number, &all);
            (call(MPI_ALL_REDUCE, &attributes, "%x", &whole, &whole), whole.clone())
        })
        .collect();
    results.push((call(MPI_ALL_GATHER, &over(3, &all), "%x", &whole, &large), large));
    results.push((call(MPI_REDUCE_SCATTER, &over(4, &all), "%x", &whole, &small), small));
    results.push((call(MPI_ALL_TO_ALL, &over(5, &all), "%x", &whole, &whole), whole.clone()));
    results.push((call(PROCESS_INDEX, "", "", "", "tensor<i32>"), "tensor<i32>".into()));
    let program = me.compile(&whole, &results);

    for round in 0..5 {
        let of = |rank: usize| -> Vec<f32> {
            (0..elements).map(|i| (1000 * (rank + 1) + 10 * i + round) as f32).collect()
        };
        let every: Vec<Vec<f32>> = (0..n).map(of).collect();
        let fold = |f: fn(f32, f32) -> f32| -> Vec<f32> {
            (0..elements).map(|i| every.iter().map(|x| x[i]).reduce(f).unwrap()).collect()
        };
        let (sum, block) = (fold(|a, b| a + b), elements / n);
        let mine = rank * block..(rank + 1) * block;
        let expected = [
            sum.clone(),
            fold(f32::max),
            fold(f32::min),
            every.concat(),
            sum[mine.clone()].to_vec(),
            every.iter().flat_map(|x| x[mine.clone()].to_vec()).collect(),
        ];
        let x = HostTensor::from_values(&[elements], &every[rank]).unwrap();
        let found = me.run(&program, &x);
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(found[i].values::<f32>().unwrap(), *expected, "result {i}");
        }
        assert_eq!(found[6].values::<i32>().unwrap(), [rank as i32]);
    }
    me.finish();
}

/// Reductions and moves of every dtype.
pub fn dtypes() {
    let me = Process::start(1);
    let (n, all) = (me.size, me.all());
    me.prepare(5, &all, 1);
    let numbers = [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
    ];
    let elements = 4 * n;
    for dtype in numbers {
        let (whole, small) = (vector(dtype, elements), vector(dtype, 4));
        let large = vector(dtype, elements * n);
        let mut results: Vec<_> = (0..3)
            .map(|number| {
                let attributes = reduction(number, number, &all);
                (call(MPI_ALL_REDUCE, &attributes, "%x", &whole, &whole), whole.clone())
            })
            .collect();
        results.push((call(MPI_REDUCE_SCATTER, &over(3, &all), "%x", &whole, &small), small));
        results.push((call(MPI_ALL_GATHER, &over(4, &all), "%x", &whole, &large), large));
        let program = me.compile(&whole, &results);
        let found = me.run(&program, &coded(dtype, me.rank, elements));
        let every: Vec<Vec<f64>> =
            (0..n).map(|rank| coded(dtype, rank, elements).to_f64().unwrap()).collect();
        let fold = |f: fn(f64, f64) -> f64| -> Vec<f64> {
            (0..elements).map(|i| every.iter().map(|x| x[i]).reduce(f).unwrap()).collect()
        };
        let sum = fold(|a, b| a + b);
        assert_eq!(found[0], from_f64(dtype, &sum), "{}", dtype.name());
        assert_eq!(found[1], from_f64(dtype, &fold(f64::max)), "{}", dtype.name());
        assert_eq!(found[2], from_f64(dtype, &fold(f64::min)), "{}", dtype.name());
        assert_eq!(found[3], from_f64(dtype, &sum[4 * me.rank..4 * me.rank + 4]));
        assert_eq!(found[4], from_f64(dtype, &every.concat()));
    }
    bools(&me);
    rounding(&me);
    nans(&me);
    me.finish();
}

fn bools(me: &Process) {
    let (n, all, ty) = (me.size, me.all(), vector(DType::Bool, 3));
    let results: Vec<_> = (0..3)
        .map(|number| {
            let attributes = reduction(number, number, &all);
            (call(MPI_ALL_REDUCE, &attributes, "%x", &ty, &ty), ty.clone())
        })
        .collect();
    let program = me.compile(&ty, &results);
    // All, one process, none.
    let x = HostTensor::from_bools(&[3], &[true, me.rank == n - 1, false]).unwrap();
    let found = me.run(&program, &x);
    assert_eq!(found[0].bools().unwrap(), [true, true, false]);
    assert_eq!(found[1].bools().unwrap(), [true, true, false]);
    assert_eq!(found[2].bools().unwrap(), [true, false, false]);
}

/// 16-bit sums are rounded once: 256 and small parts that bf16 would drop one by one.
fn rounding(me: &Process) {
    let (n, ty) = (me.size, vector(DType::Bf16, 1));
    let attributes = reduction(0, 0, &me.all());
    let program =
        me.compile(&ty, &[(call(MPI_ALL_REDUCE, &attributes, "%x", &ty, &ty), ty.clone())]);
    let part = if me.rank == 0 { 256.0 } else { 0.75 };
    let found = me.run(&program, &from_f64(DType::Bf16, &[part]));
    // Half of the next step of bf16 at 256 is 1: the parts of two processes make 1.5.
    let exact = 256.0 + 0.75 * (n - 1) as f64;
    assert_eq!(found[0], from_f64(DType::Bf16, &[exact]));
    assert!(n < 3 || found[0].to_f64().unwrap()[0] == 258.0);
}

/// A NaN of any process is the maximum and the minimum on all of them.
fn nans(me: &Process) {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let (n, ty) = (me.size, vector(dtype, 2 * me.size));
        let result = |number| {
            let attributes = reduction(number, number, &me.all());
            (call(MPI_ALL_REDUCE, &attributes, "%x", &ty, &ty), ty.clone())
        };
        let program = me.compile(&ty, &[result(1), result(2)]);
        // Every process has one, and the second half is of numbers.
        let value = |i: usize| if i == me.rank { f64::NAN } else { (i + me.rank) as f64 };
        let values: Vec<f64> = (0..2 * n).map(value).collect();
        let found = me.run(&program, &from_f64(dtype, &values));
        for (result, added) in found.iter().zip([n - 1, 0]) {
            let found = result.to_f64().unwrap();
            assert!(found[..n].iter().all(|x| x.is_nan()), "{found:?}");
            let expected: Vec<f64> = (n..2 * n).map(|i| (i + added) as f64).collect();
            assert_eq!(found[n..], expected);
        }
    }
}

/// Groups of two among four processes, in both orders, and groups of one.
pub fn groups() {
    let me = Process::start(1);
    let lists = [
        vec![vec![0, 2], vec![1, 3]],
        vec![vec![2, 0], vec![3, 1]],
        vec![vec![0], vec![1], vec![2], vec![3]],
    ];
    let of = |groups: &[Vec<usize>]| {
        groups.iter().find(|group| group.contains(&me.rank)).unwrap().clone()
    };
    for groups in lists {
        me.prepare(2, &groups, 1);
        let size = groups[0].len();
        let (small, large) = (vector(DType::F32, 2), vector(DType::F32, 2 * size));
        let program = me.compile(
            &small,
            &[
                (call(MPI_ALL_GATHER, &over(0, &groups), "%x", &small, &large), large),
                (
                    call(MPI_ALL_REDUCE, &reduction(0, 1, &groups), "%x", &small, &small),
                    small.clone(),
                ),
            ],
        );
        let value = |rank: usize| [rank as f32, 10.0 + rank as f32];
        let found = me.run(&program, &HostTensor::from_values(&[2], &value(me.rank)).unwrap());
        let group = of(&groups);
        let gathered: Vec<f32> = group.iter().flat_map(|&rank| value(rank)).collect();
        assert_eq!(found[0].values::<f32>().unwrap(), gathered);
        let sum = [0, 1].map(|i| group.iter().map(|&rank| value(rank)[i]).sum::<f32>());
        assert_eq!(found[1].values::<f32>().unwrap(), sum);
    }
    me.finish();
}

/// More elements than a 32-bit count has, made and read on the device.
pub fn large() {
    let me = Process::start(1);
    me.prepare(1, &me.all(), 1);
    let elements = (1_usize << 31) + 8;
    let ty = vector(DType::U8, elements);
    let max = call(MPI_ALL_REDUCE, &reduction(1, 0, &me.all()), "%a", &ty, &ty);
    let text = format!(
        "module @m {{\n  func.func public @main(%x: tensor<ui8>) -> tensor<4xui8> {{
    %a = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<ui8>) -> {ty}
    %b = {max}
    %y = stablehlo.slice %b [{}:{elements}] : ({ty}) -> tensor<4xui8>
    return %y : tensor<4xui8>\n  }}\n}}",
        elements - 4
    );
    let program = me.client.compile(&text, &CompileOptions::new(1)).unwrap();
    let x = HostTensor::from_values(&[], &[me.rank as u8 + 7]).unwrap();
    assert_eq!(me.run(&program, &x)[0].values::<u8>().unwrap(), [me.size as u8 + 6; 4]);
    me.finish();
}
