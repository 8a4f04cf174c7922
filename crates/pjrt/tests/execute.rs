//! Execution: results on every device, donation, and errors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ACCUMULATE, DOUBLE, cpu, on_each_device, one_device, upload, values};
use fullshard_core::Mesh;
use fullshard_pjrt::{
    Array, ArrayType, CompileOptions, DType, Error, Flag, HostTensor, TensorType, Tiling, Value,
};
use std::sync::Arc;

#[test]
fn a_program_runs() {
    let client = one_device();
    let double = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    assert_eq!(double.name(), "double");
    assert_eq!(double.signature().parameters, [TensorType::new(DType::F32, &[4])]);
    let x = upload(&client, &[4], &[1.0, 2.0, 3.0, 4.0], 0);
    for _ in 0..3 {
        let results = double.execute(&[[&x]]).unwrap();
        assert_eq!(values(&results[0][0]), [2.0, 4.0, 6.0, 8.0]);
    }
}

/// Each device returns its index in two results. If the devices shared output slots, all would read
/// as that of the last device.
#[test]
fn each_device_has_its_own_results() {
    let devices = 8;
    let client = cpu(devices);
    let text = format!(
        r#"
module @who attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={devices}]>
  func.func public @main(%a: tensor<{devices}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}})
      -> (tensor<{devices}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}},
          tensor<{devices}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) {{
    %two = stablehlo.constant dense<2.0> : tensor<{devices}xf32>
    %b = stablehlo.add %a, %a : tensor<{devices}xf32>
    %c = stablehlo.power %a, %two : tensor<{devices}xf32>
    return %b, %c : tensor<{devices}xf32>, tensor<{devices}xf32>
  }}
}}"#
    );
    let who = client.compile(&text, &CompileOptions::new(devices)).unwrap();
    let inputs: Vec<_> = (0..devices).map(|d| upload(&client, &[1], &[d as f32], d)).collect();
    let lists: Vec<_> = inputs.iter().map(|input| [input]).collect();
    let results = who.execute(&lists).unwrap();
    for (d, result) in results.iter().enumerate() {
        assert_eq!((result[0].device(), result[1].device()), (d, d));
        assert_eq!(values(&result[0]), [2.0 * d as f32]);
        assert_eq!(values(&result[1]), [(d * d) as f32]);
    }
}

#[test]
fn runs_on_a_subset_of_devices_in_any_order() {
    let client = cpu(4);
    let body = "%i = stablehlo.partition_id : tensor<ui32>
      %f = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>
      %y = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<1x4xf32>";
    let options = CompileOptions::new(2).device_ids(vec![3, 1]);
    let program = client.compile(&on_each_device(2, 1, body, 1), &options).unwrap();
    assert_eq!(program.devices(), [3, 1]);
    let inputs = [3, 1].map(|device| upload(&client, &[1, 4], &[0.0; 4], device));
    let results = program.execute(&[[&inputs[0]], [&inputs[1]]]).unwrap();
    assert_eq!(values(&results[0][0])[0], 0.0);
    assert_eq!(values(&results[1][0])[0], 1.0);
    assert_eq!(results[0][0].device(), 3);
}

#[test]
fn donated_arguments_are_reused_then_rejected() {
    let client = one_device();
    let accumulate = client.compile(ACCUMULATE, &CompileOptions::new(1)).unwrap();
    assert_eq!(accumulate.signature().donated, [0]);
    assert_eq!(accumulate.executable().memory().unwrap().aliased, 16);
    let x = upload(&client, &[4], &[1.0; 4], 0);
    let mut sum = upload(&client, &[4], &[0.0; 4], 0);
    for _ in 0..5 {
        let mut results = accumulate.execute(&[[&sum, &x]]).unwrap();
        let next = results[0].remove(0);
        assert!(sum.is_donated() && !x.is_donated());
        for error in [
            accumulate.execute(&[[&sum, &x]]).unwrap_err(),
            sum.to_host().unwrap_err(),
            sum.copy_to(0).unwrap_err(),
            sum.ready_event().err().unwrap(),
        ] {
            assert!(matches!(error, Error::Donated { .. }), "{error}");
        }
        sum = next;
    }
    assert_eq!(values(&sum), [5.0; 4]);
    let error = accumulate.execute(&[[&x, &x]]).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::DonatedTwice { argument: 0, also: 1, .. }), "{error}");
    assert!(!x.is_donated(), "a rejected launch donates nothing");
    let results = accumulate.execute_keeping(&[[&x, &x]], &[0]).unwrap();
    assert_eq!(values(&results[0][0]), [2.0; 4], "valid if it is not donated");
    assert!(matches!(
        accumulate.execute_keeping(&[[&sum, &x]], &[2]),
        Err(Error::NoSuchArgument { argument: 2, count: 2, .. })
    ));
    let results = accumulate.execute_keeping(&[[&sum, &x]], &[0]).unwrap();
    assert_eq!(values(&results[0][0]), [6.0; 4]);
    assert_eq!(values(&sum), [5.0; 4], "not donated although the program would");
}

#[test]
fn errors_name_wrong_arguments() {
    let client = cpu(2);
    let double = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[4], &[0.0; 4], 0);
    let check = |arguments: &[Vec<&fullshard_pjrt::Buffer>], expected: &str| {
        let error = double.execute(arguments).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check(&[], "`double` runs on 1 devices but got arguments for 0");
    check(&[vec![]], "`double` takes 1 arguments but got 0 (device 0)");
    check(&[vec![&x, &x]], "`double` takes 1 arguments but got 2 (device 0)");
    let short = upload(&client, &[3], &[0.0; 3], 0);
    check(&[vec![&short]], "`double` takes f32[4] as argument 0 but got f32[3] (device 0)");
    // The same number of bytes, which the plugin would accept.
    let ints = client.upload(&HostTensor::from_values(&[4], &[1_i32; 4]).unwrap(), 0).unwrap();
    check(&[vec![&ints]], "`double` takes f32[4] as argument 0 but got s32[4] (device 0)");
    let square = upload(&client, &[2, 2], &[0.0; 4], 0);
    check(&[vec![&square]], "`double` takes f32[4] as argument 0 but got f32[2,2] (device 0)");
    let elsewhere = upload(&client, &[4], &[0.0; 4], 1);
    check(
        &[vec![&elsewhere]],
        "argument 0 of `double` is on device 1 but the program reads it on device 0",
    );
    let other = cpu(1);
    let foreign = upload(&other, &[4], &[0.0; 4], 0);
    check(&[vec![&foreign]], "argument 0 of `double` belongs to another client");
    assert_eq!(values(&double.execute(&[[&x]]).unwrap()[0][0]), [0.0; 4]);
}

#[test]
fn rejects_bad_programs_and_options() {
    let client = cpu(2);
    let compile = |text: &str, options: CompileOptions| {
        client.compile(text, &options).map(|_| ()).unwrap_err().to_string()
    };
    for garbage in ["", "not mlir", "module { func.func @main( }", "\0\u{1}\u{2}", "module {}"] {
        let error = compile(garbage, CompileOptions::new(1));
        assert!(!error.is_empty(), "{garbage}");
    }
    let no_main = "module { func.func @other() -> tensor<f32> {
      %0 = stablehlo.constant dense<0.0> : tensor<f32> return %0 : tensor<f32> } }";
    assert!(compile(no_main, CompileOptions::new(1)).contains("main"));
    assert!(compile(DOUBLE, CompileOptions::new(3)).contains("for 3 devices but there are 2"));
    assert!(compile(DOUBLE, CompileOptions::new(0)).contains("at least one device"));
    let options = CompileOptions::new(1).device_ids(vec![9]);
    assert!(compile(DOUBLE, options).contains("no device with id 9"));
    let options = CompileOptions::new(2).device_ids(vec![1, 1]);
    assert!(compile(DOUBLE, options).contains("id 1 is given twice"));
    let dynamic = "module @dynamic { func.func public @main(%x: tensor<4xf32>, %n: tensor<i32>)
        -> tensor<?xf32, #stablehlo.bounds<4>> {
      %0 = stablehlo.set_dimension_size %x, %n, dim = 0
        : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
      return %0 : tensor<?xf32, #stablehlo.bounds<4>> } }";
    assert!(compile(dynamic, CompileOptions::new(1)).contains("result 0 of `dynamic`"));
    let options = CompileOptions::new(1).flag("xla_no_such_flag", Flag::Bool(true));
    assert!(compile(DOUBLE, options).contains("xla_no_such_flag"));
    assert!(CompileOptions::new(1).flag_text("nonsense").is_err());
    client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
}

#[test]
fn flags_are_per_program() {
    let client = cpu(1);
    let options = CompileOptions::new(1)
        .flag_text("xla_cpu_enable_fast_math=true")
        .unwrap()
        .flag_text("--xla_cpu_prefer_vector_width=128")
        .unwrap();
    client.compile(DOUBLE, &options).unwrap();
    let wrong = options.flag_text("xla_cpu_prefer_vector_width=wide").unwrap();
    let error = client.compile(DOUBLE, &wrong).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("xla_cpu_prefer_vector_width"), "{error}");
    client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
}

#[test]
fn client_has_requested_devices() {
    let client = cpu(3);
    assert_eq!((client.platform_name(), client.devices().len()), ("cpu", 3));
    for (i, device) in client.devices().iter().enumerate() {
        assert_eq!((device.description().id, device.local_id()), (i as i32, i as i32));
        assert_eq!(device.description().kind, "cpu");
        assert_eq!(device.description().coordinates(), None);
        // The CPU plugin does not report it.
        assert!(device.memory_stats().unwrap_err().code().is_some());
    }
}

#[test]
fn out_of_memory_is_an_error() {
    let client = cpu(1);
    // Four tebibytes of results.
    let text = "module @huge { func.func public @main() -> tensor<1099511627776xf32> {
      %0 = stablehlo.iota dim = 0 : tensor<1099511627776xf32>
      return %0 : tensor<1099511627776xf32> } }";
    let huge = client.compile(text, &CompileOptions::new(1)).unwrap();
    let none: [&[&fullshard_pjrt::Buffer]; 1] = [&[]];
    let error = huge.execute(&none).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("needs 4398046511104 bytes"), "{error}");
    let double = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[4], &[1.0; 4], 0);
    assert_eq!(values(&double.execute(&[[&x]]).unwrap()[0][0]), [2.0; 4]);
}

#[test]
fn executes_on_arrays() {
    let client = cpu(4);
    let body = "%y = stablehlo.add %x, %x : tensor<1x4xf32>";
    let program = client.compile(&on_each_device(4, 1, body, 1), &CompileOptions::new(4)).unwrap();
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    let tiled = |rows: &[&str]| Tiling::over_mesh(&mesh.sharding(&[rows, &[]]).unwrap());
    let tiling = Arc::new(tiled(&["x", "y"]));
    assert_eq!(program.signature().parameter_tilings, [Some((*tiling).clone())]);
    assert_eq!(program.signature().result_tilings, [Some((*tiling).clone())]);
    let tensor = HostTensor::from_values(&[4, 4], &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    let tensor = tensor.unwrap();
    let array = Array::from_host(&client, &tensor, tiling.clone(), program.devices()).unwrap();
    let doubled = program.execute_arrays(&[&array]).unwrap();
    let expected: Vec<f32> = (0..16).map(|i| 2.0 * i as f32).collect();
    assert_eq!(doubled[0].to_host().unwrap().values::<f32>().unwrap(), expected);
    assert!(program.execute_arrays(&[]).is_err());
    // The right tiles on the wrong devices.
    let right = ArrayType { ty: tensor.ty().clone(), tiling };
    let shards = [1, 0, 3, 2].map(|d| array.shards()[d].copy_to(d).unwrap());
    let wrong = ArrayType { tiling: Arc::new(tiled(&["y", "x"])), ..right };
    let array = Array::from_shards(&wrong, shards.into()).unwrap();
    let error = program.execute_arrays(&[&array]).unwrap_err().to_string();
    assert!(error.contains("takes f32[4,4] tiled"), "{error}");
}

#[test]
fn another_dimension_order_is_rejected() {
    let client = one_device();
    let identity = |layout: &str| {
        format!(
            r#"module @same {{ func.func public @main(%x: tensor<2x3xf32> {{mhlo.layout_mode = "{layout}"}})
              -> (tensor<2x3xf32> {{mhlo.layout_mode = "{{0,1}}"}}) {{
            return %x : tensor<2x3xf32> }} }}"#
        )
    };
    let transposing = client.compile(&identity("default"), &CompileOptions::new(1)).unwrap();
    let transposed = client.compile(&identity("{0,1}"), &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0);
    let y = transposing.execute(&[[&x]]).unwrap().remove(0).remove(0);
    assert_eq!(values(&y), values(&x));
    for (program, buffer) in [(&transposing, &y), (&transposed, &x)] {
        let error = program.execute(&[[buffer]]).unwrap_err();
        assert!(matches!(error, Error::ArgumentLayout { .. }), "{error}");
    }
    assert_eq!(values(&transposed.execute(&[[&y]]).unwrap()[0][0]), values(&x));
}

#[test]
fn a_program_outlives_its_client() {
    let client = one_device();
    let double = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[4], &[1.0; 4], 0);
    drop(client);
    let results = double.execute(&[[&x]]).unwrap();
    drop(x);
    drop(double);
    assert_eq!(values(&results[0][0]), [2.0; 4]);
}

#[test]
fn stored_programs_are_verified() {
    let client = one_device();
    let double = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    let mut bytes = double.executable().serialize().unwrap();
    let loaded = client.load(&bytes).unwrap();
    assert_eq!(loaded.signature(), double.signature());
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(client.load(&bytes), Err(Error::DamagedProgram)));
}

#[test]
fn executables_say_what_they_cost() {
    let client = one_device();
    let text =
        "module @matmul { func.func public @main(%a: tensor<64x32xf32>, %b: tensor<32x16xf32>)
        -> tensor<64x16xf32> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      return %0 : tensor<64x16xf32> } }";
    let matmul = client.compile(text, &CompileOptions::new(1)).unwrap();
    let memory = matmul.executable().memory().unwrap();
    assert_eq!((memory.arguments, memory.outputs), ((64 * 32 + 32 * 16) * 4, 64 * 16 * 4));
    let cost = matmul.executable().cost_analysis().unwrap();
    let flops = cost.iter().find(|(name, _)| name == "flops").map(|(_, value)| value.clone());
    assert_eq!(flops, Some(Value::Float(2.0 * 64.0 * 32.0 * 16.0)));
}
