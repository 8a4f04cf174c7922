//! Buffers: round trips of every element type, asynchronous transfers, and copies between devices.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, one_device, upload, values};
use fullshard_core::Mesh;
use fullshard_pjrt::{
    AlignedBytes, Array, ArrayType, Client, CompileOptions, DType, Error, HostTensor, Place,
    TensorType, Tiling,
};
use std::sync::Arc;
use std::sync::mpsc;

#[test]
fn every_element_type_round_trips() {
    let client = one_device();
    for &dtype in DType::ALL {
        let dims = [3, 5];
        let count = 15 * dtype.size();
        // Any bytes are valid, except that booleans are 0 or 1.
        let bytes: Vec<u8> =
            (0..count).map(|i| if dtype == DType::Bool { i % 2 } else { i * 7 } as u8).collect();
        let tensor = HostTensor::from_bytes(dtype, &dims, bytes).unwrap();
        let buffer = client.upload(&tensor, 0).unwrap();
        assert_eq!(buffer.ty(), &TensorType::new(dtype, &dims));
        assert_eq!(buffer.to_host().unwrap(), tensor, "{dtype}");
    }
}

#[test]
fn scalars_and_empty_tensors_round_trip() {
    let client = one_device();
    for dims in [vec![], vec![0], vec![2, 0, 3]] {
        let count = dims.iter().product();
        let tensor = HostTensor::from_values(&dims, &vec![1.5_f32; count]).unwrap();
        assert_eq!(client.upload(&tensor, 0).unwrap().to_host().unwrap(), tensor);
    }
}

#[test]
fn concurrent_transfers_signal_completion() {
    let client = cpu(2);
    let (done, finished) = mpsc::channel();
    let buffers: Vec<_> = (0..32)
        .map(|i| {
            let tensor = HostTensor::from_values(&[1 << 16], &vec![i as f32; 1 << 16]).unwrap();
            let buffer = client.upload_async(tensor, i % 2).unwrap();
            let done = done.clone();
            let event = buffer.ready_event().unwrap();
            event.on_ready(move |result| done.send(result.is_ok()).unwrap()).unwrap();
            buffer
        })
        .collect();
    drop(done);
    let downloads: Vec<_> = buffers.iter().map(|buffer| buffer.download().unwrap()).collect();
    for (i, download) in downloads.into_iter().enumerate() {
        let tensor = download.wait().unwrap();
        assert!(tensor.values::<f32>().unwrap().iter().all(|&value| value == i as f32));
    }
    let results: Vec<bool> = finished.iter().collect();
    assert_eq!(results, vec![true; 32]);
}

#[test]
fn a_download_that_nobody_waits_for_is_harmless() {
    let client = one_device();
    let buffer = upload(&client, &[1 << 20], &vec![1.0; 1 << 20], 0);
    for _ in 0..10 {
        drop(buffer.download().unwrap());
    }
    drop(client);
    assert_eq!(values(&buffer)[0], 1.0);
}

#[test]
fn a_panic_in_a_callback_is_caught() {
    let client = one_device();
    let buffer = upload(&client, &[1], &[1.0], 0);
    let event = buffer.ready_event().unwrap();
    event.on_ready(|_| panic!("expected in this test")).unwrap();
    event.wait().unwrap();
    assert_eq!(values(&buffer), [1.0]);
}

#[test]
fn copies_between_devices_and_memory_kinds() {
    let client = cpu(2);
    let source = upload(&client, &[3], &[1.0, 2.0, 3.0], 0);
    let copy = source.copy_to(1).unwrap();
    assert_eq!((copy.device(), values(&copy)), (1, vec![1.0, 2.0, 3.0]));

    let kinds: Vec<_> = client.device(0).unwrap().memory_kinds().map(str::to_owned).collect();
    assert!(kinds.contains(&"pinned_host".to_owned()), "{kinds:?}");
    let tensor = HostTensor::from_values(&[1], &[4.0_f32]).unwrap();
    for kind in &kinds {
        let place = Place { device: 1, memory: Some(kind) };
        assert_eq!(values(&client.upload(&tensor, place).unwrap()), [4.0]);
    }
    let place = Place { device: 1, memory: Some("unknown") };
    let error = client.upload(&tensor, place).unwrap_err();
    assert!(matches!(&error, Error::NoSuchMemory { known, .. } if *known == kinds), "{error}");
}

#[test]
fn rejects_wrong_sizes_and_devices() {
    let client = cpu(2);
    let error = HostTensor::from_values(&[3], &[1.0_f32, 2.0]).unwrap_err();
    assert_eq!(error.to_string(), "host data for f32[3] must be 12 bytes but is 8");
    let tensor = HostTensor::from_values(&[1], &[1.0_f32]).unwrap();
    let error = client.upload(&tensor, 2).unwrap_err();
    assert_eq!(error.to_string(), "there is no device 2: this client has 2 (0 to 1)");
    assert!(tensor.values::<i32>().is_err());
}

#[test]
fn results_with_another_layout_are_row_major() {
    let client = one_device();
    let text = r#"
module @transposed {
  func.func public @main(%x: tensor<2x3xf32>)
      -> (tensor<3x2xf32> {mhlo.layout_mode = "{0,1}"}) {
    %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %y : tensor<3x2xf32>
  }
}"#;
    let program = client.compile(text, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0);
    let results = program.execute(&[[&x]]).unwrap();
    assert_eq!(values(&results[0][0]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

fn counting(client: &Client, mesh: &Mesh, dim_axes: &[&[&str]], dims: &[usize]) -> Array {
    let devices: Vec<usize> = (0..mesh.devices()).collect();
    let tensor = counting_tensor(dims);
    Array::from_host(client, &tensor, tiling(mesh, dim_axes), &devices).unwrap()
}

fn tiling(mesh: &Mesh, dim_axes: &[&[&str]]) -> Arc<Tiling> {
    Arc::new(Tiling::over_mesh(&mesh.sharding(dim_axes).unwrap()))
}

fn counting_tensor(dims: &[usize]) -> HostTensor {
    let count: usize = dims.iter().product();
    HostTensor::from_values(dims, &(0..count as i32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn shards_follow_the_tiling() {
    let client = cpu(8);
    let mesh = Mesh::new(&[("x", 2), ("y", 2), ("z", 2)]).unwrap();
    let dims = [4, 6, 2];
    for dim_axes in [
        [&[][..], &[], &[]],
        [&["x"], &[], &[]],
        [&[], &[], &["y"]],
        [&["x", "y"], &[], &[]],
        [&["y"], &[], &["x"]],
        [&["z"], &[], &["x"]],
    ] {
        let array = counting(&client, &mesh, &dim_axes, &dims);
        assert_eq!(array.to_host().unwrap(), counting_tensor(&dims), "{dim_axes:?}");
    }
    let array = counting(&client, &mesh, &[&["z"], &[], &["x"]], &dims);
    let shard = array.shards()[5].to_host().unwrap();
    assert_eq!(shard.dims(), [2, 6, 1]);
    // Device 5 is (1, 0, 1): the second half of dim 0 and of dim 2.
    let expected: Vec<i32> = (12..24).map(|pair| pair * 2 + 1).collect();
    assert_eq!(shard.values::<i32>().unwrap(), expected);
}

#[test]
fn arrays_are_filled_one_tile_at_a_time() {
    let client = cpu(4);
    let ty = TensorType::new(DType::U8, &[4, 1 << 20]);
    let tiling = tiling(&Mesh::new(&[("x", 2), ("y", 2)]).unwrap(), &[&["x"], &[]]);
    let mut filled = Vec::new();
    let array = Array::fill(&client, &ArrayType { ty, tiling }, &[0, 1, 2, 3], |tile| {
        filled.push(tile.ranges[0].clone());
        Ok::<_, fullshard_pjrt::Error>(vec![tile.index as u8; 2 << 20])
    })
    .unwrap();
    assert_eq!(filled, [0..2, 2..4], "each tile once, though two devices hold it");
    let firsts: Vec<u8> =
        array.shards().iter().map(|shard| shard.to_host().unwrap().bytes()[0]).collect();
    assert_eq!(firsts, [0, 0, 1, 1]);
}

/// Bytes that are given to a device hold the values, on every device that shares a tile, and can be
/// donated.
#[test]
fn arrays_own_the_bytes_that_they_are_filled_with() {
    let client = cpu(4);
    let ty = TensorType::new(DType::F32, &[4, 1 << 10]);
    let tiling = tiling(&Mesh::new(&[("x", 2), ("y", 2)]).unwrap(), &[&["x"], &[]]);
    let mut filled = 0;
    let array = ArrayType { ty, tiling };
    let array = Array::fill_owned(&client, &array, &[0, 1, 2, 3], |tile, bytes| {
        assert!(bytes.iter().all(|&byte| byte == 0) && bytes.as_ptr().align_offset(64) == 0);
        filled += 1;
        bytes.fill(1 + tile.index as u8);
        Ok::<_, fullshard_pjrt::Error>(())
    });
    let array = array.unwrap();
    assert_eq!(filled, 2);
    let firsts: Vec<u8> =
        array.shards().iter().map(|shard| shard.to_host().unwrap().bytes()[0]).collect();
    assert_eq!(firsts, [1, 1, 2, 2]);
    let short = client.upload_owned(array.ty(), AlignedBytes::zeroed(4), 0).unwrap_err();
    assert!(short.to_string().contains("bytes"), "{short}");
}

#[test]
fn arrays_reject_mismatched_tilings() {
    let client = cpu(2);
    let ty = TensorType::new(DType::F32, &[3]);
    let tiling = tiling(&Mesh::new(&[("x", 2)]).unwrap(), &[&["x"]]);
    let array = ArrayType { ty, tiling };
    let fill = |_: &_| Ok::<_, fullshard_pjrt::Error>(vec![0; 4]);
    let error = Array::fill(&client, &array, &[0, 1], fill).unwrap_err().to_string();
    assert!(error.contains("does not divide into 2 parts"), "{error}");
    let error = Array::fill(&client, &array, &[0], fill).unwrap_err().to_string();
    assert!(error.contains("over 2 devices does not match 1"), "{error}");
}
