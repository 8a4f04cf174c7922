//! Keys and counters: published test vectors, and different numbers for different keys.

use super::common::{compile, run};
use super::results;
use fullshard_graph::{
    Argument, DType, Key, Program, TensorType, constant, full, iota, scan, threefry, zeros,
};
use fullshard_pjrt::HostTensor;

#[test]
fn published_test_vectors() {
    let (zeros, ones) = ([0, 0], [!0, !0]);
    let (key, counter) = ([0x1319_8A2E, 0x0370_7344], [0x243F_6A88, 0x85A3_08D3]);
    let vectors: [(usize, [[u32; 2]; 3]); 6] = [
        (20, [zeros, zeros, [0x6B20_0159, 0x99BA_4EFE]]),
        (20, [ones, ones, [0x1CB9_96FC, 0xBB00_2BE7]]),
        (20, [key, counter, [0xC492_3A9C, 0x483D_F7A0]]),
        (13, [zeros, zeros, [0x9D1C_5EC6, 0x8BD5_0731]]),
        (13, [ones, ones, [0xFD36_D048, 0x2D17_272C]]),
        (13, [key, counter, [0xBA3E_4725, 0xF27D_669E]]),
    ];
    let words = Argument::new(TensorType::new(DType::U32, &[1]));
    for (rounds, [key, counter, expected]) in vectors {
        // Arguments, so that the compiler does not fold constants.
        let program = Program::trace("vector", &vec![words.clone(); 4], |words| {
            let [a, b, c, d] = words.as_slice() else { unreachable!() };
            Ok(threefry(rounds, [a, b], [c, d])?.into())
        });
        let inputs = [key[0], key[1], counter[0], counter[1]];
        let inputs = inputs.map(|word| HostTensor::from_values(&[1], &[word]).unwrap());
        let found = run(&program.unwrap(), &inputs);
        let found = [0, 1].map(|i| found[i].values::<u32>().unwrap()[0]);
        assert_eq!(found, expected, "{rounds} rounds");
    }
}

#[test]
fn equal_keys_repeat_and_different_keys_differ() {
    let found = results(|| {
        let key = Key::constant(1)?;
        let step = |step: i32| constant(&[], &[step]);
        let long = |step: i64| constant(&[], &[step]);
        let keys = [
            key.named("a")?,
            key.named("a")?,
            key.named("b")?,
            key.named("")?,
            Key::constant(2)?.named("a")?,
            Key::constant(1 << 32)?.named("a")?,
            key.clone(),
            key.fold(&step(0)?)?,
            key.fold(&step(1)?)?,
            key.fold(&step(-1)?)?,
            key.fold(&long(1 << 32)?)?,
            key.named("a")?.fold(&step(1)?)?,
            key.fold(&step(1)?)?.named("a")?,
        ];
        keys.iter().map(|key| key.draw(&[64]).bits()).collect()
    });
    let found: Vec<Vec<u32>> = found.iter().map(|bits| bits.values().unwrap()).collect();
    assert_eq!(found[0], found[1]);
    for (i, a) in found.iter().enumerate().skip(1) {
        for b in &found[i + 1..] {
            let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert_eq!(same, 0);
        }
    }
}

#[test]
fn seed_is_an_argument_or_a_constant() {
    let seed = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("seed", &[seed], |seed| {
        Ok(vec![Key::new(&seed[0])?.named("x")?.draw(&[16]).bits()?])
    });
    let program = program.unwrap();
    let expected =
        results(|| Ok(vec![Key::constant((5 << 32) | 6)?.named("x")?.draw(&[16]).bits()?]));
    let with = |seed: [u32; 2]| run(&program, &[HostTensor::from_values(&[2], &seed).unwrap()]);
    assert_eq!(with([5, 6]), expected);
    assert_ne!(with([6, 5]), expected);
}

#[test]
fn name_is_an_argument_or_a_constant() {
    let hash = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("name", &[hash], |hash| {
        Ok(vec![Key::constant(5)?.named_by(&hash[0])?.draw(&[16]).bits()?])
    });
    let program = program.unwrap();
    let with = |name| run(&program, &[HostTensor::from_values(&[2], &Key::hash(name)).unwrap()]);
    for name in ["x", "h.*.attn.weight"] {
        let expected = results(|| Ok(vec![Key::constant(5)?.named(name)?.draw(&[16]).bits()?]));
        assert_eq!(with(name), expected, "{name}");
    }
}

#[test]
fn scanned_layer_has_the_numbers_of_its_index() {
    let found = results(|| {
        let key = Key::constant(3)?;
        let start = full(DType::F32, &[], 0.0)?;
        let scanned = scan(&[&start], &[&iota(DType::I32, &[3], 0)?]).run(|carries, slices| {
            let noise = key.fold(&slices[0])?.draw(&[8]).normal(DType::F32)?;
            Ok((carries, vec![noise]))
        })?;
        let separate = key.fold(&constant(&[], &[2_i32])?)?.draw(&[8]).normal(DType::F32)?;
        Ok(vec![scanned.stacked[0].narrow(0, 2, 3)?.reshape(&[8])?, separate])
    });
    assert_eq!(found[0], found[1]);
}

#[test]
fn more_elements_than_one_word_counts() {
    let program = Program::trace("many", &[], |_| {
        let bits = Key::constant(0)?.draw(&[4, 1 << 30, 4]).bits()?;
        let words = [constant(&[], &[2_u32])?, (iota(DType::U32, &[8], 0)? + 20.0)?];
        let zero = zeros(DType::U32, &[])?;
        let [expected, _] = threefry(13, [&zero, &zero], [&words[0], &words[1]])?;
        Ok(vec![bits.slice(&[2, 5, 0], &[3, 7, 4])?.reshape(&[8])?, expected])
    });
    let program = program.unwrap();
    // The compiler computes only the slice, or this would take 64 GiB.
    assert!(compile(&program).executable().memory().unwrap().total() < 1 << 20);
    let found = run(&program, &[]);
    assert_eq!(found[0], found[1]);
}
