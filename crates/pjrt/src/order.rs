//! The order of collectives in serialized CPU programs.
//!
//! All devices must run their collectives in the same order. A compiled CPU program is a sequence
//! of thunks, some of which contain sequences, such as a loop its body. XLA orders the collectives
//! by a resource that all of them use. A loaded program has one resource per sequence instead, so
//! that a loop with collectives is no longer ordered relative to the collectives around it.
//!
//! We put a fence before and after each such thunk: an all-reduce over one device, which copies a
//! byte onto itself. It uses the resource of the outer sequence, and the byte is one that the inner
//! sequence writes, which orders it relative to both. The order becomes that of the compiled
//! program, no stricter.

use prost::Message;

/// Restores the order of collectives in a serialized CPU program. None if its form is unknown.
pub(crate) fn restore(serialized: &[u8]) -> Option<Vec<u8>> {
    let mut program: Program = decode(serialized)?;
    let mut executable: Executable = decode(program.executable.as_deref()?)?;
    executable.sequence.as_mut()?.add_fences()?;
    program.executable = Some(executable.encode_to_vec());
    Some(program.encode_to_vec())
}

/// Decodes a message. None if it has fields that encoding it again would lose.
fn decode<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    M::decode(bytes).ok().filter(|message| message.encode_to_vec() == bytes)
}

impl Sequence {
    /// Adds fences here and in inner sequences. Returns a slice per collective that it writes.
    fn add_fences(&mut self) -> Option<Vec<Slice>> {
        let mut thunks = Vec::new();
        let mut ordered = Vec::new();
        let mut written = Vec::new();
        for bytes in std::mem::take(&mut self.thunks) {
            let view = Thunk::decode(bytes.as_slice()).ok()?;
            if let Some(collective) = view.collective {
                ordered.push(thunks.len() as i64);
                thunks.push(bytes);
                written.push(collective.written()?);
                continue;
            }
            let (bytes, inner) = add_inner_fences(bytes)?;
            let Some(&slice) = inner.first() else {
                thunks.push(bytes);
                continue;
            };
            let fence = Thunk::fence(slice).encode_to_vec();
            ordered.extend([thunks.len() as i64, thunks.len() as i64 + 2]);
            thunks.extend([fence.clone(), bytes, fence]);
            written.extend(inner);
        }
        self.thunks = thunks;
        self.set_ordered(ordered)?;
        Some(written)
    }

    /// Lists the thunks that use the resource. None if the sequence has another resource.
    fn set_ordered(&mut self, thunks: Vec<i64>) -> Option<()> {
        match self.resources.as_mut_slice() {
            [] if thunks.is_empty() => Some(()),
            [users] if users.resource == Some(COMMUNICATOR) => {
                users.thunks = thunks;
                Some(())
            }
            _ => None,
        }
    }
}

/// Adds fences to the sequences inside a thunk.
fn add_inner_fences(bytes: Vec<u8>) -> Option<(Vec<u8>, Vec<Slice>)> {
    let has_sequences = Thunk::decode(bytes.as_slice()).ok()?.sequences().next().is_some();
    if !has_sequences {
        return Some((bytes, Vec::new()));
    }
    let mut thunk: Thunk = decode(&bytes)?;
    let written: Option<Vec<_>> = thunk.sequences().map(Sequence::add_fences).collect();
    Some((thunk.encode_to_vec(), written?.concat()))
}

impl Thunk {
    /// The sequences inside it.
    fn sequences(&mut self) -> impl Iterator<Item = &mut Sequence> {
        let called = self.call.iter_mut().flat_map(|call| &mut call.sequence);
        let branches = self.conditional.iter_mut().flat_map(|branches| &mut branches.sequences);
        let looped = self
            .repeat
            .iter_mut()
            .flat_map(|repeat| repeat.condition.iter_mut().chain(&mut repeat.body));
        called.chain(branches).chain(looped)
    }

    /// An all-reduce over one device of the first byte of a slice onto itself.
    fn fence(slice: Slice) -> Thunk {
        let byte = ShapedSlice {
            shape: Some(Shape { element_type: U8 }),
            slice: Some(Slice { size: 1, element_type: U8, ..slice }),
        };
        Thunk {
            kind: "collective".to_owned(),
            collective: Some(Collective {
                buffers: Some(Buffers { sources: vec![byte], destinations: vec![byte] }),
                resources: Some(Resources {
                    communicator: Some(OptionalResource {
                        value: Some(COMMUNICATOR),
                        contains_value: true,
                    }),
                }),
                all_reduce: Some(AllReduce { reduction: "sum".to_owned(), single_replica: true }),
            }),
            ..Thunk::default()
        }
    }
}

impl Collective {
    /// A slice that it writes. None if there is none, so that no fence can use it.
    fn written(&self) -> Option<Slice> {
        let destinations = &self.buffers.as_ref()?.destinations;
        destinations.iter().find_map(|shaped| shaped.slice.filter(|slice| slice.size > 0))
    }
}

// XLA's messages of `executable.proto` and `thunk.proto`. Of thunks and collectives only what we
// read and write, of all others every field, as bytes where we only copy it.

/// The communicator of collectives, the only resource in our programs.
const COMMUNICATOR: Resource = Resource { kind: 2 };

/// The element type of bytes.
const U8: i32 = 6;

#[derive(Clone, PartialEq, Message)]
struct Program {
    #[prost(bytes = "vec", optional, tag = "1")]
    executable: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    compile_options: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    client_name: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Executable {
    #[prost(bytes = "vec", optional, tag = "1")]
    module: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    buffer_assignment: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    entry_function_name: Option<Vec<u8>>,
    #[prost(int32, tag = "5")]
    object_files_kind: i32,
    #[prost(message, optional, tag = "6")]
    sequence: Option<Sequence>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    symbols: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    object_files: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "9")]
    target_machine_options: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "10")]
    data_layout: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Sequence {
    #[prost(bytes = "vec", repeated, tag = "1")]
    thunks: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<ResourceUsers>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceUsers {
    #[prost(int64, repeated, tag = "1")]
    thunks: Vec<i64>,
    #[prost(message, optional, tag = "2")]
    resource: Option<Resource>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Resource {
    #[prost(int32, tag = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Thunk {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    info: Option<Vec<u8>>,
    #[prost(message, optional, tag = "3")]
    call: Option<Call>,
    #[prost(message, optional, tag = "4")]
    conditional: Option<Conditional>,
    #[prost(message, optional, tag = "10")]
    repeat: Option<While>,
    #[prost(message, optional, tag = "18")]
    collective: Option<Collective>,
}

#[derive(Clone, PartialEq, Message)]
struct Call {
    #[prost(message, optional, tag = "1")]
    sequence: Option<Sequence>,
}

#[derive(Clone, PartialEq, Message)]
struct Conditional {
    #[prost(message, repeated, tag = "1")]
    sequences: Vec<Sequence>,
    #[prost(bytes = "vec", optional, tag = "2")]
    index: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct While {
    #[prost(message, optional, tag = "1")]
    condition: Option<Sequence>,
    #[prost(message, optional, tag = "2")]
    body: Option<Sequence>,
    #[prost(bytes = "vec", optional, tag = "3")]
    trip_count: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    predicate: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Collective {
    #[prost(message, optional, tag = "2")]
    buffers: Option<Buffers>,
    #[prost(message, optional, tag = "3")]
    resources: Option<Resources>,
    #[prost(message, optional, tag = "5")]
    all_reduce: Option<AllReduce>,
}

#[derive(Clone, PartialEq, Message)]
struct Buffers {
    #[prost(message, repeated, tag = "1")]
    sources: Vec<ShapedSlice>,
    #[prost(message, repeated, tag = "2")]
    destinations: Vec<ShapedSlice>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ShapedSlice {
    #[prost(message, optional, tag = "1")]
    shape: Option<Shape>,
    #[prost(message, optional, tag = "2")]
    slice: Option<Slice>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Shape {
    #[prost(int32, tag = "2")]
    element_type: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Slice {
    #[prost(int64, tag = "1")]
    offset: i64,
    #[prost(int64, tag = "2")]
    size: i64,
    #[prost(int64, tag = "3")]
    allocation: i64,
    #[prost(int32, tag = "4")]
    element_type: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Resources {
    #[prost(message, optional, tag = "1")]
    communicator: Option<OptionalResource>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct OptionalResource {
    #[prost(message, optional, tag = "1")]
    value: Option<Resource>,
    #[prost(bool, tag = "2")]
    contains_value: bool,
}

#[derive(Clone, PartialEq, Message)]
struct AllReduce {
    #[prost(string, tag = "1")]
    reduction: String,
    #[prost(bool, tag = "2")]
    single_replica: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Slice = Slice { offset: 64, size: 32, allocation: 5, element_type: 11 };

    fn all_reduce() -> Vec<u8> {
        let shaped = ShapedSlice { shape: None, slice: Some(SLICE) };
        let buffers = Buffers { sources: vec![shaped], destinations: vec![shaped] };
        let collective = Collective { buffers: Some(buffers), ..Collective::default() };
        Thunk { collective: Some(collective), ..Thunk::default() }.encode_to_vec()
    }

    fn sequence(thunks: Vec<Vec<u8>>, ordered: Vec<i64>) -> Sequence {
        let users = ResourceUsers { thunks: ordered, resource: Some(COMMUNICATOR) };
        Sequence { thunks, resources: vec![users] }
    }

    fn program(sequence: Sequence) -> Vec<u8> {
        let executable = Executable { sequence: Some(sequence), ..Executable::default() };
        let executable = Some(executable.encode_to_vec());
        Program { executable, ..Program::default() }.encode_to_vec()
    }

    #[test]
    fn fences_a_loop_with_collectives() {
        let body = Some(sequence(vec![all_reduce()], vec![0]));
        let repeat = Some(While { body, ..While::default() });
        let repeat = Thunk { repeat, ..Thunk::default() }.encode_to_vec();
        let fence = Thunk::fence(SLICE).encode_to_vec();
        let before = sequence(vec![all_reduce(), repeat.clone(), all_reduce()], vec![0, 1, 2]);
        let fenced = vec![all_reduce(), fence.clone(), repeat, fence, all_reduce()];
        let after = sequence(fenced, vec![0, 1, 3, 4]);
        assert_eq!(restore(&program(before)), Some(program(after)));
    }

    #[test]
    fn leaves_one_sequence_unchanged() {
        let program = program(sequence(vec![all_reduce(), all_reduce()], vec![0, 1]));
        assert_eq!(restore(&program), Some(program));
    }

    #[test]
    fn rejects_unknown_forms() {
        let known = program(sequence(vec![all_reduce()], vec![0]));
        let field_of_another_version = [known.as_slice(), &[0x7a, 0]].concat();
        let mut two_resources = sequence(vec![all_reduce()], vec![0]);
        two_resources.resources.extend(two_resources.resources.clone());
        for unknown in [field_of_another_version, program(two_resources), b"no program".to_vec()] {
            assert_eq!(restore(&unknown), None);
        }
    }
}
