//! TPU generations, and slices by name: `v4-8`, `v5p-128`, a topology such as `v4:2x2x1`, or
//! several equal slices, `2xv4-128`.

use super::{Chip, UnknownAccelerator};

/// A TPU generation: how its chips form slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TpuGeneration {
    /// The usual name, such as `v5p`.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Dimensions of its torus.
    pub torus_rank: usize,
    /// The side of a full pod, for those whose links wrap around only at that length.
    pub pod_side: Option<usize>,
    /// Cores per chip: what the number in `v4-8` counts.
    pub cores_per_chip: usize,
    /// Whether both cores of a chip are one device.
    pub megacore: bool,
    /// The maximum number of chips of a slice.
    pub max_chips: usize,
    /// The maximum number of chips of a slice on one host. The hosts of larger ones have four each.
    pub max_host_chips: usize,
}

/// Chips per host of a slice with several hosts.
const CHIPS_PER_HOST: usize = 4;

/// A generation with a 2D torus, in square pods.
const fn flat(name: &'static str, pod_side: usize, cores_per_chip: usize) -> TpuGeneration {
    TpuGeneration {
        name,
        aliases: &[],
        torus_rank: 2,
        pod_side: Some(pod_side),
        cores_per_chip,
        megacore: false,
        max_chips: pod_side * pod_side,
        max_host_chips: CHIPS_PER_HOST,
    }
}

/// A generation with a 3D torus, made of cubes of 64 chips.
const fn cubic(name: &'static str, megacore: bool, max_chips: usize) -> TpuGeneration {
    TpuGeneration {
        name,
        aliases: &[],
        torus_rank: 3,
        pod_side: None,
        cores_per_chip: 2,
        megacore,
        max_chips,
        max_host_chips: CHIPS_PER_HOST,
    }
}

#[allow(missing_docs)]
impl TpuGeneration {
    pub const V2: TpuGeneration = flat("v2", 16, 2);
    pub const V3: TpuGeneration = flat("v3", 32, 2);
    pub const V4: TpuGeneration = cubic("v4", true, 4096);
    pub const V5E: TpuGeneration =
        TpuGeneration { aliases: &["v5litepod"], max_host_chips: 8, ..flat("v5e", 16, 1) };
    pub const V5P: TpuGeneration = TpuGeneration { aliases: &["v5"], ..cubic("v5p", true, 8960) };
    pub const V6E: TpuGeneration = TpuGeneration { max_host_chips: 8, ..flat("v6e", 16, 1) };
    pub const V7X: TpuGeneration =
        TpuGeneration { aliases: &["v7x"], ..cubic("tpu7x", false, 9216) };
}

impl TpuGeneration {
    /// All generations.
    pub const ALL: &[TpuGeneration] = &[
        TpuGeneration::V2,
        TpuGeneration::V3,
        TpuGeneration::V4,
        TpuGeneration::V5E,
        TpuGeneration::V5P,
        TpuGeneration::V6E,
        TpuGeneration::V7X,
    ];

    fn parse(name: &str) -> Option<&'static TpuGeneration> {
        let mut all = TpuGeneration::ALL.iter();
        all.find(|generation| generation.name == name || generation.aliases.contains(&name))
    }

    /// The figures of one of its devices, if they are known.
    pub fn chip(&self) -> Option<&'static Chip> {
        Chip::named(self.name)
    }

    /// The number of devices per chip that a program sees: one, or its cores where they are
    /// separate.
    pub fn devices_per_chip(&self) -> usize {
        if self.megacore { 1 } else { self.cores_per_chip }
    }
}

/// A slice of a TPU pod, which is a grid of chips, or several equal ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpuSlice {
    generation: &'static TpuGeneration,
    dims: Vec<usize>,
    slices: usize,
}

impl TpuSlice {
    /// The maximum number of slices. The largest published run, of MaxText, had 199.
    pub const MAX_SLICES: usize = 256;

    /// Reads an accelerator name (`v4-8`) or a topology (`v4:2x2x1`), after a count and an `x` if
    /// there are several (`2xv4-8`).
    pub fn parse(text: &str) -> Result<TpuSlice, UnknownAccelerator> {
        let unknown = |hint: String| UnknownAccelerator { name: text.to_owned(), hint };
        let (count, name) = match text.split_once(['x', 'X']) {
            Some((count, name)) if !count.contains(|c: char| !c.is_ascii_digit()) => (count, name),
            _ => ("1", text),
        };
        let max = Self::MAX_SLICES;
        let slices = count.parse().ok().filter(|count| (1..=max).contains(count));
        let slices = slices
            .ok_or_else(|| unknown(format!("from 1 to {max} slices are written as 2xv4-128")))?;
        let one = TpuSlice::parse_one(name)
            .map_err(|error| UnknownAccelerator { name: text.to_owned(), ..error })?;
        Ok(TpuSlice { slices, ..one })
    }

    fn parse_one(text: &str) -> Result<TpuSlice, UnknownAccelerator> {
        let lower = text.to_ascii_lowercase();
        let unknown = |hint: String| UnknownAccelerator { name: text.to_owned(), hint };
        let generation = |name: &str| {
            TpuGeneration::parse(name).ok_or_else(|| {
                let known: Vec<_> = TpuGeneration::ALL.iter().map(|known| known.name).collect();
                unknown(format!("the generations are {}", known.join(", ")))
            })
        };
        if let Some((name, dims)) = lower.split_once(':') {
            let generation = generation(name)?;
            let dims = parse_dims(dims, generation.torus_rank).ok_or_else(|| {
                let example = example_dims(generation.torus_rank);
                unknown(format!("a topology is written {}:{example}", generation.name))
            })?;
            return TpuSlice::checked(generation, dims, text);
        }
        if let Some((name, count)) = lower.rsplit_once('-') {
            let generation = generation(name)?;
            let dims = count.parse().ok().and_then(|count| dims_for(generation, count));
            let dims = dims.ok_or_else(|| unknown(size_hint(generation)))?;
            return TpuSlice::checked(generation, dims, text);
        }
        Err(unknown("write a slice as v4-8, or a topology as v4:2x2x1".into()))
    }

    fn checked(
        generation: &'static TpuGeneration,
        dims: Vec<usize>,
        text: &str,
    ) -> Result<TpuSlice, UnknownAccelerator> {
        let slice = TpuSlice { generation, dims, slices: 1 };
        let max = generation.max_chips;
        if slice.chips() > max {
            let hint = format!("a {} pod has at most {max} chips", generation.name);
            return Err(UnknownAccelerator { name: text.to_owned(), hint });
        }
        Ok(slice)
    }

    /// The generation of its chips.
    pub fn generation(&self) -> &'static TpuGeneration {
        self.generation
    }

    /// The number of slices.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// The chips along each dimension of the torus of one slice.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of chips of all slices.
    pub fn chips(&self) -> usize {
        self.dims.iter().fold(self.slices, |chips, &dim| chips.saturating_mul(dim))
    }

    /// The number of devices that a program sees: chips, or cores where they are separate.
    pub fn devices(&self) -> usize {
        self.chips() * self.generation.devices_per_chip()
    }

    /// The number of devices of one slice.
    pub fn devices_per_slice(&self) -> usize {
        self.devices() / self.slices
    }

    /// The number of hosts of all slices.
    pub fn hosts(&self) -> usize {
        let chips = self.chips() / self.slices;
        let one = chips <= self.generation.max_host_chips;
        self.slices * if one { 1 } else { chips.div_ceil(CHIPS_PER_HOST) }
    }

    /// Which dimensions have links that wrap around.
    pub fn wrap(&self) -> [bool; 3] {
        let wraps = |dim: usize| match self.generation.pod_side {
            Some(side) => dim == side,
            None => self.dims.iter().all(|&dim| dim % 4 == 0),
        };
        std::array::from_fn(|i| self.dims.get(i).is_some_and(|&dim| wraps(dim)))
    }

    /// The topology of one slice, as libtpu writes it: `v4:2x2x1`.
    pub fn topology_name(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        format!("{}:{}", self.generation.name, dims.join("x"))
    }

    /// The grid of chips of one host.
    pub fn chips_per_host(&self) -> [usize; 3] {
        let side = |i: usize| self.dims.get(i).copied().unwrap_or(1).min(2);
        [side(0), side(1), 1]
    }
}

impl std::fmt::Display for TpuSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counted = self.chips() / self.slices * self.generation.cores_per_chip;
        if self.slices > 1 {
            write!(f, "{}x", self.slices)?;
        }
        write!(f, "{}-{counted}", self.generation.name)
    }
}

fn parse_dims(text: &str, rank: usize) -> Option<Vec<usize>> {
    let dims: Vec<usize> = text.split('x').map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    (dims.len() == rank && dims.iter().all(|&dim| dim > 0)).then_some(dims)
}

fn example_dims(rank: usize) -> &'static str {
    if rank == 3 { "2x2x1" } else { "4x4" }
}

/// The grid of a slice of a given size: as even as possible.
fn dims_for(generation: &'static TpuGeneration, count: usize) -> Option<Vec<usize>> {
    let chips = count / generation.cores_per_chip;
    if !count.is_multiple_of(generation.cores_per_chip)
        || !chips.is_power_of_two()
        || (chips < 4 && (generation.torus_rank == 3 || chips == 2))
    {
        return None;
    }
    if generation.torus_rank == 3 && chips == 4 {
        return Some(vec![2, 2, 1]);
    }
    let doublings = chips.trailing_zeros() as usize;
    let dims = (0..generation.torus_rank).map(|i| {
        let share = (doublings + i) / generation.torus_rank;
        1 << share
    });
    Some(dims.collect())
}

fn size_hint(generation: &TpuGeneration) -> String {
    let smallest = 4 * generation.cores_per_chip;
    let example = example_dims(generation.torus_rank);
    let name = generation.name;
    format!(
        "slice sizes are powers of two from {name}-{smallest} to {name}-{}; for another shape \
         write the topology, such as {name}:{example}",
        (generation.max_chips + 1).next_power_of_two() / 2 * generation.cores_per_chip
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_the_topologies_of_cloud_tpu() {
        for (name, topology, devices, wrap) in [
            ("v2-8", "v2:2x2", 8, [false; 3]),
            ("v3-8", "v3:2x2", 8, [false; 3]),
            ("v3-32", "v3:4x4", 32, [false; 3]),
            ("v3-1024", "v3:16x32", 1024, [false, true, false]),
            ("v3-2048", "v3:32x32", 2048, [true, true, false]),
            ("v4-8", "v4:2x2x1", 4, [false; 3]),
            ("v4-16", "v4:2x2x2", 8, [false; 3]),
            ("v4-32", "v4:2x2x4", 16, [false; 3]),
            ("v4-64", "v4:2x4x4", 32, [false; 3]),
            ("v4-128", "v4:4x4x4", 64, [true; 3]),
            ("v4-512", "v4:4x8x8", 256, [true; 3]),
            ("v4-4096", "v4:8x16x16", 2048, [true; 3]),
            ("v5e-1", "v5e:1x1", 1, [false; 3]),
            ("v5e-256", "v5e:16x16", 256, [true, true, false]),
            ("v5litepod-128", "v5e:8x16", 128, [false, true, false]),
            ("v5p-128", "v5p:4x4x4", 64, [true; 3]),
            ("v6e-16", "v6e:4x4", 16, [false; 3]),
            ("v5p:4x4x12", "v5p:4x4x12", 192, [true; 3]),
        ] {
            let slice = TpuSlice::parse(name).unwrap();
            assert_eq!(slice.topology_name(), topology, "{name}");
            assert_eq!(slice.devices(), devices, "{name}");
            assert_eq!(slice.wrap(), wrap, "{name}");
        }
    }

    #[test]
    fn slices_display_as_their_names() {
        for name in ["v3-2048", "v4-8", "v5e-256", "v5p-128", "v6e-16", "32xv5e-256"] {
            assert_eq!(TpuSlice::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(TpuSlice::parse("1xv4-8").unwrap(), TpuSlice::parse("v4-8").unwrap());
    }

    #[test]
    fn several_slices_are_counted_together() {
        let slices = TpuSlice::parse("2Xv4:4x4x4").unwrap();
        assert_eq!((slices.slices(), slices.chips(), slices.devices()), (2, 128, 128));
        assert_eq!((slices.devices_per_slice(), slices.dims()), (64, &[4, 4, 4][..]));
        assert_eq!(slices.topology_name(), "v4:4x4x4");
        // Each slice may be as large as a pod.
        assert_eq!(TpuSlice::parse("32xv5e-256").unwrap().devices(), 8192);
    }

    #[test]
    fn hosts_have_four_chips_or_a_small_slice() {
        for (name, hosts) in [
            ("v3-8", 1),
            ("v3-32", 4),
            ("v4-8", 1),
            ("v4-16", 2),
            ("v4-512", 64),
            ("v5p-128", 16),
            ("v5e-1", 1),
            ("v5e-8", 1),
            ("v5e-16", 4),
            ("v6e-8", 1),
            ("v6e-256", 64),
            ("2xv4-128", 32),
            ("3xv5e-8", 3),
        ] {
            assert_eq!(TpuSlice::parse(name).unwrap().hosts(), hosts, "{name}");
        }
    }

    #[test]
    fn rejects_unknown_slices_with_a_hint() {
        for (name, hint) in [
            ("v9-8", "v2, v3, v4"),
            ("v4-7", "from v4-8 to v4-8192"),
            ("v4-12", "v4:2x2x1"),
            ("v4-2", "from v4-8"),
            ("v4:2x2", "v4:2x2x1"),
            ("v4:2x0x2", "v4:2x2x1"),
            ("v5e-512", "at most 256 chips"),
            ("h100", "v4-8"),
            ("", "v4-8"),
            ("0xv4-8", "2xv4-128"),
            ("257xv4-8", "from 1 to 256 slices"),
            ("xv4-8", "2xv4-128"),
            ("2xv4-7", "from v4-8"),
        ] {
            let error = TpuSlice::parse(name).unwrap_err().to_string();
            assert!(error.contains(hint), "{name}: {error}");
        }
    }
}
