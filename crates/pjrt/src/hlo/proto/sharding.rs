//! The messages of shardings and replica groups.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct OpSharding {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(int64, repeated, tag = "3")]
    pub tile_assignment_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    pub tile_assignment_devices: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    pub tuple_shardings: Vec<OpSharding>,
    #[prost(bool, tag = "6")]
    pub replicate_on_last_tile_dim: bool,
    #[prost(int32, repeated, tag = "8")]
    pub last_tile_dims: Vec<i32>,
    #[prost(int64, repeated, tag = "9")]
    pub iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "10")]
    pub iota_transpose_perm: Vec<i32>,
    #[prost(message, optional, tag = "14")]
    pub named_sharding: Option<NamedSharding>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedSharding {
    #[prost(message, optional, tag = "2")]
    pub mesh: Option<Mesh>,
    #[prost(message, repeated, tag = "3")]
    pub dim_shardings: Vec<DimSharding>,
    #[prost(message, repeated, tag = "5")]
    pub unreduced_axes: Vec<AxisRef>,
    #[prost(message, repeated, tag = "7")]
    pub manual_axes: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DimSharding {
    #[prost(message, repeated, tag = "1")]
    pub axes: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Mesh {
    #[prost(message, repeated, tag = "1")]
    pub axes: Vec<MeshAxis>,
    #[prost(int64, repeated, tag = "2")]
    pub device_ids: Vec<i64>,
    #[prost(message, optional, tag = "3")]
    pub iota_transform: Option<IotaTransform>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct MeshAxis {
    #[prost(int64, tag = "2")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct IotaTransform {
    #[prost(int64, repeated, tag = "1")]
    pub reshape_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub transpose_perm: Vec<i64>,
}

/// A mesh axis, or the sub-axis with `sub_axis.pre_size` to its left.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct AxisRef {
    #[prost(int64, tag = "1")]
    pub mesh_axis_index: i64,
    #[prost(message, optional, tag = "2")]
    pub sub_axis: Option<SubAxis>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SubAxis {
    #[prost(int64, tag = "1")]
    pub pre_size: i64,
    #[prost(int64, tag = "2")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReplicaGroup {
    #[prost(int64, repeated, tag = "1")]
    pub replica_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CollectiveDeviceList {
    #[prost(message, repeated, tag = "1")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(message, optional, tag = "2")]
    pub iota_replica_group_list: Option<IotaReplicaGroupList>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IotaReplicaGroupList {
    #[prost(int64, tag = "1")]
    pub num_replica_groups: i64,
    #[prost(int64, tag = "2")]
    pub num_devices_per_group: i64,
    #[prost(int64, repeated, tag = "3")]
    pub iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    pub iota_transpose_perm: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MeshAxesReplicaGroupList {
    #[prost(message, optional, tag = "1")]
    pub mesh: Option<Mesh>,
    #[prost(message, repeated, tag = "2")]
    pub axes: Vec<AxisRef>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SourceTarget {
    #[prost(int64, tag = "1")]
    pub source: i64,
    #[prost(int64, tag = "2")]
    pub target: i64,
}
