// One FSDP layer on four devices: all-gather the weights, multiply, and reduce-scatter the
// gradient to the weight shards.
//   fullshard exec examples/programs/fsdp_layer.mlir
//   fullshard compile examples/programs/fsdp_layer.mlir --topology v4-8
module @fsdp_layer attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=4]>
  func.func public @main(
      %batch: tensor<32x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
      %weights: tensor<256x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>})
      -> (tensor<32x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>},
          tensor<256x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}) {
    %results:2 = sdy.manual_computation(%batch, %weights)
        in_shardings=[<@mesh, [{"fsdp"}, {}]>, <@mesh, [{"fsdp"}, {}]>]
        out_shardings=[<@mesh, [{"fsdp"}, {}]>, <@mesh, [{"fsdp"}, {}]>]
        manual_axes={"fsdp"} (%x: tensor<8x256xf32>, %shard: tensor<64x256xf32>) {
      %w = "stablehlo.all_gather"(%shard) <{all_gather_dim = 0 : i64,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}>
        : (tensor<64x256xf32>) -> tensor<256x256xf32>
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x256xf32>, tensor<256x256xf32>) -> tensor<8x256xf32>
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
        : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<256x256xf32>
      %gradient = "stablehlo.reduce_scatter"(%g) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
          scatter_dimension = 0 : i64, use_global_device_ids}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) : (tensor<256x256xf32>) -> tensor<64x256xf32>
      sdy.return %y, %gradient : tensor<8x256xf32>, tensor<64x256xf32>
    } : (tensor<32x256xf32>, tensor<256x256xf32>) -> (tensor<32x256xf32>, tensor<256x256xf32>)
    return %results#0, %results#1 : tensor<32x256xf32>, tensor<256x256xf32>
  }
}
