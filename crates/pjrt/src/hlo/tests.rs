//! Handwritten modules, for cases that the samples of real compilers do not cover.

use prost::Message;

use super::proto::{
    Computation, FrontendAttributes, IotaReplicaGroupList, Literal, Module as ModuleProto, Payload,
    ReplicaGroup, Shape,
};
use super::*;

type InstructionProto = proto::Instruction;

const S32: i32 = 4;
const PRED: i32 = 1;
const F32: i32 = 11;

fn array(element_type: i32, dims: &[i64]) -> Shape {
    Shape { element_type, dimensions: dims.to_vec(), ..Default::default() }
}

fn tuple(members: &[Shape]) -> Shape {
    Shape { element_type: 13, tuple_shapes: members.to_vec(), ..Default::default() }
}

fn op(id: i64, opcode: &str, shape: Shape, operands: &[i64]) -> InstructionProto {
    InstructionProto {
        id,
        name: format!("{opcode}.{id}"),
        opcode: opcode.to_owned(),
        shape: Some(shape),
        operand_ids: operands.to_vec(),
        ..Default::default()
    }
}

fn calling(mut instruction: InstructionProto, called: &[i64]) -> InstructionProto {
    instruction.called_computation_ids = called.to_vec();
    instruction
}

fn constant(id: i64, value: i32) -> InstructionProto {
    let literal = Literal { shape: Some(array(S32, &[])), s32s: vec![value], ..Default::default() };
    InstructionProto { literal: Some(literal), ..op(id, "constant", array(S32, &[]), &[]) }
}

fn element(id: i64, of: i64, index: i64) -> InstructionProto {
    InstructionProto { tuple_index: index, ..op(id, "get-tuple-element", array(S32, &[]), &[of]) }
}

fn compare(id: i64, direction: &str, left: i64, right: i64) -> InstructionProto {
    InstructionProto {
        comparison_direction: direction.to_owned(),
        ..op(id, "compare", array(PRED, &[]), &[left, right])
    }
}

/// The last instruction is the root.
fn computation(id: i64, instructions: Vec<InstructionProto>) -> Computation {
    let root_id = instructions.last().map_or(0, |root| root.id);
    Computation { id, name: format!("computation.{id}"), instructions, root_id }
}

/// The last computation is the entry.
fn decode(computations: Vec<Computation>) -> Result<Module, HloError> {
    let entry_computation_id = computations.last().map_or(0, |entry| entry.id);
    decode_proto(ModuleProto { entry_computation_id, computations, ..Default::default() })
}

fn decode_proto(module: ModuleProto) -> Result<Module, HloError> {
    Module::decode("hlo", &module.encode_to_vec())
}

/// `for (i = start; i <direction> bound; i += step)`, with the bound carried in the state.
fn counted(start: i32, direction: &str, bound: i32, step: i32) -> Vec<Computation> {
    let state = tuple(&[array(S32, &[]), array(S32, &[])]);
    let adder = vec![
        op(1, "parameter", array(S32, &[]), &[]),
        constant(2, step),
        op(3, "add", array(S32, &[]), &[1, 2]),
    ];
    let body = vec![
        op(1, "parameter", state.clone(), &[]),
        element(2, 1, 0),
        element(3, 1, 1),
        calling(op(4, "fusion", array(S32, &[]), &[2]), &[10]),
        op(5, "tuple", state.clone(), &[4, 3]),
    ];
    let condition = vec![
        op(1, "parameter", state.clone(), &[]),
        element(2, 1, 0),
        element(3, 1, 1),
        compare(4, direction, 2, 3),
    ];
    let entry = vec![
        constant(1, start),
        op(2, "copy", array(S32, &[]), &[1]),
        constant(3, bound),
        op(4, "tuple", state.clone(), &[2, 3]),
        calling(op(5, "while", state, &[4]), &[11, 12]),
    ];
    vec![
        computation(10, adder),
        computation(11, body),
        computation(12, condition),
        computation(13, entry),
    ]
}

fn trips(computations: Vec<Computation>) -> Option<u64> {
    let module = decode(computations).unwrap();
    trip_count(&module, module.entry().root())
}

#[test]
fn counted_loops() {
    assert_eq!(trips(counted(0, "LT", 24, 1)), Some(24));
    assert_eq!(trips(counted(1, "LE", 24, 2)), Some(12));
    assert_eq!(trips(counted(23, "GE", 0, -1)), Some(24));
    assert_eq!(trips(counted(0, "NE", 24, 3)), Some(8));
    assert_eq!(trips(counted(9, "LT", 3, 1)), Some(0));
}

#[test]
fn infinite_loops_have_no_trip_count() {
    assert_eq!(trips(counted(0, "LT", 24, 0)), None);
    assert_eq!(trips(counted(0, "LT", 24, -1)), None);
    assert_eq!(trips(counted(0, "NE", 24, 5)), None);
    assert_eq!(trips(counted(0, "EQ", 24, 1)), None);
    // The counter would overflow before it reaches the bound.
    assert_eq!(trips(counted(0, "LT", i32::MAX, i32::MAX - 1)), None);
}

#[test]
fn data_dependent_loops_have_no_trip_count() {
    let mut computations = counted(0, "LT", 24, 1);
    computations[3].instructions[0].opcode = "parameter".to_owned();
    assert_eq!(trips(computations), None);
}

#[test]
fn cyclic_values_have_no_trip_count() {
    let mut computations = counted(0, "LT", 24, 1);
    computations[0].instructions[2].operand_ids = vec![3, 3];
    assert_eq!(trips(computations), None);
}

#[test]
fn trip_counts_without_backend_config() {
    let bytes = include_bytes!("../../tests/data/cpu.pb");
    let mut module = ModuleProto::decode(&bytes[..]).unwrap();
    for computation in &mut module.computations {
        for instruction in &mut computation.instructions {
            instruction.backend_config.clear();
            instruction.backend_config_payload = None;
        }
    }
    let module = decode_proto(module).unwrap();
    let loops = module.instructions().filter(|it| it.opcode == "while");
    let counts: Vec<_> = loops.map(|it| trip_count(&module, it)).collect();
    assert_eq!(counts, [Some(6), Some(6)]);
}

fn gather(id: i64, opcode: &str, shape: Shape) -> InstructionProto {
    let groups = IotaReplicaGroupList {
        num_replica_groups: 1,
        num_devices_per_group: 8,
        iota_reshape_dims: vec![8],
        iota_transpose_perm: vec![0],
    };
    InstructionProto { iota_collective_device_list: Some(groups), ..op(id, opcode, shape, &[1]) }
}

/// On TPUs with SparseCores an offloaded collective is a custom call in an asynchronous computation.
#[test]
fn offloaded_collectives_count() {
    let (shard, full) = (array(F32, &[4]), array(F32, &[32]));
    let offloaded =
        vec![op(1, "parameter", shard.clone(), &[]), gather(2, "all-gather", full.clone())];
    let called = vec![
        op(1, "parameter", shard.clone(), &[]),
        calling(op(3, "custom-call", full.clone(), &[1]), &[10]),
    ];
    let entry = vec![
        op(1, "parameter", shard, &[]),
        calling(op(4, "async-start", full.clone(), &[1]), &[11]),
        op(5, "async-update", full.clone(), &[4]),
        op(6, "async-done", full, &[5]),
    ];
    let computations =
        vec![computation(10, offloaded), computation(11, called), computation(0, entry)];
    let found = collectives(&decode(computations).unwrap());
    assert_eq!((found.len(), found[0].count, found[0].asynchronous), (1, 1, true));
    assert_eq!((found[0].bytes, found[0].runs), (Some(128), Some(1)));
}

#[test]
fn async_pairs_count_once() {
    let (shard, full) = (array(F32, &[4]), array(F32, &[32]));
    let both = tuple(&[shard.clone(), full.clone()]);
    let wrapped = vec![
        op(1, "parameter", full.clone(), &[]),
        InstructionProto {
            replica_groups: vec![ReplicaGroup { replica_ids: vec![0, 1] }; 4],
            ..op(2, "reduce-scatter", array(F32, &[16]), &[1])
        },
    ];
    let entry = vec![
        op(1, "parameter", shard, &[]),
        gather(2, "all-gather-start", both.clone()),
        op(3, "all-gather-done", full.clone(), &[2]),
        calling(op(4, "async-start", both.clone(), &[3]), &[10]),
        calling(op(5, "async-update", both, &[4]), &[10]),
        calling(op(6, "async-done", array(F32, &[16]), &[5]), &[10]),
    ];
    let module = decode(vec![computation(10, wrapped), computation(11, entry)]).unwrap();
    let row = |kind, group_size| CollectiveSummary {
        kind,
        asynchronous: true,
        computation: "computation.11".to_owned(),
        element: Some(ElementType::F32),
        count: 1,
        bytes: Some(128),
        group_size: Some(group_size),
        in_loop: false,
        runs: Some(1),
    };
    let expected = [row(CollectiveKind::AllGather, 8), row(CollectiveKind::ReduceScatter, 2)];
    assert_eq!(collectives(&module), expected);
    let text = module.to_string();
    assert!(text.contains("replica_groups=[1,8]<=[8]"), "{text}");
}

/// As libtpu writes a collective over two slices.
#[test]
fn transfers_between_slices_are_collectives() {
    let transfer = |id, opcode: &str, kind: &str, dims: &[i64]| InstructionProto {
        frontend_attributes: Some(FrontendAttributes {
            map: [
                ("_xla_megascale_transfer_type".to_owned(), kind.to_owned()),
                ("_xla_megascale_target".to_owned(), "{1:3,7}x{0:63}".to_owned()),
            ]
            .into(),
        }),
        ..op(id, opcode, tuple(&[array(F32, dims), array(S32, &[])]), &[])
    };
    let entry = vec![
        transfer(1, "send", "ALL_GATHER", &[8]),
        transfer(2, "recv", "ALL_GATHER", &[32]),
        transfer(3, "recv", "REDUCE_SCATTER", &[8]),
    ];
    let module = decode(vec![computation(1, entry)]).unwrap();
    let found: Vec<_> =
        module.instructions().filter_map(|instruction| collective(&module, instruction)).collect();
    let kinds: Vec<_> = found.iter().map(|it| (it.kind, it.bytes, it.asynchronous)).collect();
    let (gather, scatter) = (CollectiveKind::AllGather, CollectiveKind::ReduceScatter);
    assert_eq!(kinds, [(gather, Some(128), true), (scatter, Some(128), true)]);
    assert!(found.iter().all(|it| it.members == Members::OnePerSlice(Some(4))));
    assert!(collectives(&module).iter().all(|row| row.group_size == Some(4)));
}

#[test]
fn members_are_those_of_the_first_group() {
    let of = |instruction| {
        let module = decode(vec![computation(1, vec![instruction])]).unwrap();
        collective(&module, &module.entry().instructions()[0]).unwrap().members
    };
    let reduce = || op(1, "all-reduce", array(F32, &[2]), &[]);
    assert_eq!(of(reduce()), Members::All);
    let group = |ids: &[i64]| ReplicaGroup { replica_ids: ids.to_vec() };
    let listed =
        InstructionProto { replica_groups: vec![group(&[0, 4]), group(&[1, 5])], ..reduce() };
    assert_eq!(of(listed), Members::Group(vec![0, 4]));
    let strided = InstructionProto {
        iota_collective_device_list: Some(IotaReplicaGroupList {
            num_replica_groups: 2,
            num_devices_per_group: 4,
            iota_reshape_dims: vec![4, 2],
            iota_transpose_perm: vec![1, 0],
        }),
        ..reduce()
    };
    assert_eq!(of(strided), Members::Group(vec![0, 2, 4, 6]));
}

#[test]
fn custom_calls_between_processes_are_collectives() {
    let call = |id, name: &str, config: &str, dims: &[i64]| InstructionProto {
        custom_call_target: format!("fullshard.mpi_{name}"),
        backend_config: config.as_bytes().to_vec(),
        ..op(id, "custom-call", array(F32, dims), &[1])
    };
    let group = "{channel = 0 : i64, group = array<i64: 0, 2, 1, 3>, group_size = 2 : i64}";
    let pairs = "{channel = 1 : i64, devices = 2 : i64, pairs = array<i64: 0, 2, 2, 0>}";
    let entry = vec![
        op(1, "parameter", array(F32, &[8]), &[]),
        call(2, "all_gather", group, &[2, 8]),
        call(3, "reduce_scatter", group, &[4]),
        call(4, "permute", pairs, &[8]),
    ];
    let module = decode(vec![computation(1, entry)]).unwrap();
    let found: Vec<_> = module.instructions().filter_map(|it| collective(&module, it)).collect();
    let kinds: Vec<_> = found.iter().map(|it| (it.kind, it.bytes, it.asynchronous)).collect();
    use CollectiveKind::{AllGather, CollectivePermute, ReduceScatter};
    let expected = [(AllGather, 64), (ReduceScatter, 32), (CollectivePermute, 32)];
    assert_eq!(kinds, expected.map(|(kind, bytes)| (kind, Some(bytes), true)));
    let members: Vec<_> = found.into_iter().map(|it| it.members).collect();
    let group = || Members::OnePerProcess(vec![0, 2]);
    assert_eq!(members, [group(), group(), Members::Group(vec![2, 0])]);
    assert_eq!(collectives(&module)[0].group_size, Some(2));
}

#[test]
fn branch_counts_are_unknown() {
    let branch = |id| computation(id, vec![gather(1, "all-reduce", array(F32, &[2]))]);
    let entry = vec![calling(op(1, "conditional", array(F32, &[2]), &[]), &[1, 2])];
    let module = decode(vec![branch(1), branch(2), computation(3, entry)]).unwrap();
    let found = collectives(&module);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|it| it.runs.is_none() && !it.in_loop));
}

#[test]
fn shared_callees_do_not_explode() {
    let leaf = computation(0, vec![gather(1, "all-reduce", array(F32, &[2]))]);
    let twice = |id: i64| {
        let call = |at| calling(op(at, "call", array(F32, &[2]), &[]), &[id - 1]);
        computation(id, vec![call(1), call(2)])
    };
    let module = decode(std::iter::once(leaf).chain((1..200).map(twice)).collect()).unwrap();
    let found = collectives(&module);
    assert_eq!((found.len(), found[0].count, found[0].runs), (1, u64::MAX, Some(1)));
}

#[test]
fn chains_are_distinguished() {
    let piece = |id: i64, chain: &str| InstructionProto {
        frontend_attributes: Some(FrontendAttributes {
            map: [("chain_id".to_owned(), chain.to_owned())].into(),
        }),
        ..gather(id, "all-gather", array(F32, &[32]))
    };
    let entry = vec![piece(1, "0"), piece(2, "0"), piece(3, "1"), piece(4, "1")];
    let found = collectives(&decode(vec![computation(1, entry)]).unwrap());
    assert_eq!((found.len(), found[0].count, found[0].asynchronous), (1, 2, true));
}

#[test]
fn backend_configs_from_payload_table() {
    let instruction = |id, payload| InstructionProto {
        backend_config_payload: Some(payload),
        ..op(id, "iota", array(S32, &[2]), &[])
    };
    let config = br#"{"window_config":{"estimated_cycles":"77"}}"#.to_vec();
    let entry = |index| {
        vec![
            instruction(1, Payload { value: Some(config.clone()), id: None }),
            instruction(2, Payload { value: None, id: Some(index) }),
        ]
    };
    let module = |index| {
        decode_proto(ModuleProto {
            computations: vec![computation(0, entry(index))],
            payloads: vec![b"{}".to_vec(), config.clone()],
            ..Default::default()
        })
    };
    let good = module(1).unwrap();
    let cycles: Vec<_> = good.instructions().map(Instruction::estimated_cycles).collect();
    assert_eq!(cycles, [Some(77), Some(77)]);
    assert!(module(2).is_err() && module(-1).is_err());
}

#[test]
fn unknown_cycles_are_no_estimate() {
    let cycles = |cycles: &str| {
        let config = format!(r#"{{"window_config":{{"estimated_cycles":"{cycles}"}}}}"#);
        let payload = Payload { value: Some(config.into_bytes()), id: None };
        let instruction = InstructionProto {
            backend_config_payload: Some(payload),
            ..op(1, "iota", array(S32, &[2]), &[])
        };
        let module = decode(vec![computation(0, vec![instruction])]).unwrap();
        module.entry().instructions()[0].estimated_cycles()
    };
    assert_eq!(cycles("9223372036854775807"), None);
    assert_eq!(cycles("-1"), None);
    assert_eq!(cycles("215044"), Some(215_044));
}

fn reason(computations: Vec<Computation>) -> String {
    decode(computations).unwrap_err().to_string()
}

#[test]
fn errors_name_the_inconsistency() {
    let nothing = || op(1, "iota", array(S32, &[2]), &[]);
    let caller = computation(1, vec![calling(nothing(), &[9])]);
    let expected = "module ``, computation `computation.1`, instruction `iota.1`: \
                    it calls computation 9, which does not exist";
    assert!(reason(vec![caller]).ends_with(expected));
    let itself = computation(1, vec![calling(nothing(), &[1])]);
    assert!(reason(vec![itself]).contains("comes after"));
    let orphan = computation(1, vec![op(1, "copy", array(S32, &[2]), &[5])]);
    assert!(reason(vec![orphan]).contains("needs instruction 5"));
    let twins = computation(1, vec![nothing(), nothing()]);
    assert!(reason(vec![twins]).contains("two instructions have id 1"));
    let empty = computation(1, vec![]);
    assert!(reason(vec![empty]).contains("no root"));
    let negative = computation(1, vec![op(1, "iota", array(S32, &[-2]), &[])]);
    assert!(reason(vec![negative]).contains("extent -2"));
    let entry = decode_proto(ModuleProto { entry_computation_id: 4, ..Default::default() });
    assert!(entry.unwrap_err().to_string().contains("no entry computation 4"));
}

#[test]
fn rejects_deep_tuples() {
    let mut shape = array(S32, &[]);
    for _ in 0..150 {
        shape = tuple(&[shape]);
    }
    let deep = decode(vec![computation(1, vec![op(1, "iota", shape, &[])])]);
    assert!(matches!(deep, Err(HloError::Decode(_))));
}
