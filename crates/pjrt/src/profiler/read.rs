//! Reading an XSpace: the kernels that each GPU ran, by start time.
//!
//! Messages are written by hand against XLA's `xplane.proto`, with only the fields we need; all
//! others are skipped while decoding. Strings are stored once in tables of the plane, which events
//! refer to by id.

use crate::error::{Error, Result};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;

/// The trace of one GPU.
#[derive(Debug, Clone, Default)]
pub struct DeviceProfile {
    /// Its name in the profile, such as `/device:GPU:0`.
    pub name: String,
    /// Its kernels, by start time.
    pub kernels: Vec<Kernel>,
}

/// One kernel, or a memory copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The name of the kernel.
    pub name: Arc<str>,
    /// The compiled program that launched it. Transfers from and to the host have none.
    pub module: Option<Arc<str>>,
    /// The instruction that launched it, or the command buffer that it is part of.
    pub op: Option<Arc<str>>,
    /// Start time in picoseconds.
    pub start: u64,
    /// Duration in picoseconds.
    pub duration: u64,
}

impl Kernel {
    /// End time in picoseconds.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

/// The name prefix of GPU planes.
const GPU: &str = "/device:GPU:";

/// Reads the trace of every GPU in a profile.
pub fn read_profile(xspace: &[u8]) -> Result<Vec<DeviceProfile>> {
    let space = Space::decode(xspace).map_err(|source| Error::Profile { source })?;
    let gpus = space.planes.into_iter().filter(|plane| plane.name.starts_with(GPU));
    Ok(gpus.map(DeviceProfile::of).collect())
}

impl DeviceProfile {
    fn of(plane: Plane) -> DeviceProfile {
        let Plane { name, lines, events, stats } = plane;
        let strings = Strings::new(&events, &stats);
        let first = lines.iter().map(|line| line.timestamp_ns).min().unwrap_or(0);
        let mut kernels = Vec::new();
        for line in &lines {
            let begin = line.timestamp_ns.abs_diff(first).saturating_mul(1000);
            kernels.extend(line.events.iter().map(|event| strings.kernel(begin, event)));
        }
        kernels.sort_by_key(|kernel| kernel.start);
        DeviceProfile { name, kernels }
    }
}

/// The string tables of a plane.
struct Strings {
    events: HashMap<i64, Arc<str>>,
    stats: HashMap<i64, Arc<str>>,
}

impl Strings {
    fn new(events: &HashMap<i64, Named>, stats: &HashMap<i64, Named>) -> Strings {
        let shared = |table: &HashMap<i64, Named>| {
            table.iter().map(|(&id, named)| (id, named.name.as_str().into())).collect()
        };
        Strings { events: shared(events), stats: shared(stats) }
    }

    fn kernel(&self, begin: u64, event: &Event) -> Kernel {
        let name = self.events.get(&event.metadata_id);
        Kernel {
            name: name.cloned().unwrap_or_else(|| "?".into()),
            module: self.text(event, "hlo_module"),
            op: self.text(event, "hlo_op"),
            start: begin.saturating_add_signed(event.offset_ps),
            duration: u64::try_from(event.duration_ps).unwrap_or(0),
        }
    }

    /// The stat of an event by name.
    fn text(&self, event: &Event, name: &str) -> Option<Arc<str>> {
        let matches =
            |stat: &&Stat| self.stats.get(&stat.metadata_id).is_some_and(|it| **it == *name);
        let stat = event.stats.iter().find(matches)?;
        match (&stat.text, stat.reference) {
            (Some(text), _) => Some(text.as_str().into()),
            (None, Some(id)) => self.stats.get(&id.cast_signed()).cloned(),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Space {
    #[prost(message, repeated, tag = "1")]
    planes: Vec<Plane>,
}

#[derive(Clone, PartialEq, Message)]
struct Plane {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
    #[prost(map = "int64, message", tag = "4")]
    events: HashMap<i64, Named>,
    #[prost(map = "int64, message", tag = "5")]
    stats: HashMap<i64, Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(int64, tag = "3")]
    timestamp_ns: i64,
    #[prost(message, repeated, tag = "4")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int64, tag = "1")]
    metadata_id: i64,
    #[prost(int64, tag = "2")]
    offset_ps: i64,
    #[prost(int64, tag = "3")]
    duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    stats: Vec<Stat>,
}

#[derive(Clone, PartialEq, Message)]
struct Stat {
    #[prost(int64, tag = "1")]
    metadata_id: i64,
    #[prost(string, optional, tag = "5")]
    text: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    reference: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: i64, name: &str) -> (i64, Named) {
        (id, Named { name: name.into() })
    }

    fn stat(metadata_id: i64, text: Option<&str>, reference: Option<u64>) -> Stat {
        Stat { metadata_id, text: text.map(str::to_owned), reference }
    }

    #[test]
    fn kernels_of_all_streams_are_sorted() {
        let kernel = Event {
            metadata_id: 1,
            offset_ps: 7,
            duration_ps: 20,
            stats: vec![stat(1, None, Some(3)), stat(2, Some("fusion.1"), None)],
        };
        let copy = Event { metadata_id: 2, offset_ps: 5, duration_ps: 1, stats: Vec::new() };
        let gpu = Plane {
            name: "/device:GPU:0".into(),
            lines: vec![
                Line { timestamp_ns: 101, events: vec![kernel] },
                Line { timestamp_ns: 100, events: vec![copy] },
            ],
            events: [named(1, "fusion_1"), named(2, "MemcpyH2D")].into(),
            stats: [named(1, "hlo_module"), named(2, "hlo_op"), named(3, "step")].into(),
        };
        let host = Plane { name: "/host:CPU".into(), ..gpu.clone() };
        let read = read_profile(&Space { planes: vec![host, gpu] }.encode_to_vec()).unwrap();
        assert_eq!(read.len(), 1);
        let [copy, kernel] = &read[0].kernels[..] else { panic!("{read:?}") };
        assert_eq!((&*copy.name, copy.start, copy.end(), &copy.module), ("MemcpyH2D", 5, 6, &None));
        assert_eq!((&*kernel.name, kernel.start, kernel.duration), ("fusion_1", 1007, 20));
        assert_eq!(kernel.module.as_deref(), Some("step"));
        assert_eq!(kernel.op.as_deref(), Some("fusion.1"));
    }

    #[test]
    fn rejects_invalid_profiles() {
        let error = read_profile(b"not a profile").unwrap_err().to_string();
        assert!(error.contains("the profile cannot be read"), "{error}");
        assert!(read_profile(b"").unwrap().is_empty());
    }
}
