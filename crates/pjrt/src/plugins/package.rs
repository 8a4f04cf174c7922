//! The pinned packages: the wheels of each plugin, by exact version and checksum,
//! and the pip arguments that download exactly those files.

use super::{Kind, Platform};

/// A pinned wheel of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The distribution name, as passed to pip.
    pub name: &'static str,
    /// The exact version.
    pub version: &'static str,
    /// The wheel's file name, whose tags determine the pip arguments.
    pub file: &'static str,
    /// The SHA-256 of the wheel, in lowercase hexadecimal.
    pub sha256: &'static str,
    /// The size of the wheel in bytes.
    pub bytes: u64,
}

/// The wheels of one library. All are unpacked into one tree with their relative
/// paths, so that the library finds its companions.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// What it provides.
    pub kind: Kind,
    /// A suffix of its cache folder, where a kind has several packages.
    pub suffix: &'static str,
    /// The wheel that holds the plugin library.
    pub plugin: Wheel,
    /// Wheels with the libraries that the plugin loads at run time.
    pub companions: &'static [Wheel],
    /// The plugin library, relative to the tree.
    pub library: &'static str,
    /// Suffixes of paths that are not needed at run time and not unpacked.
    pub exclude: &'static [&'static str],
}

impl Wheel {
    /// The Python arguments that download exactly this wheel into `folder`, with
    /// any version of Python.
    pub fn pip_arguments(&self, folder: &str) -> Vec<String> {
        let mut tags = self.file.trim_end_matches(".whl").rsplit('-');
        let platforms = tags.next().unwrap_or_default();
        let abi = tags.next().unwrap_or_default();
        let python = tags.next().unwrap_or_default();
        let (implementation, version) = match python.strip_prefix("cp3") {
            Some(minor) => ("cp", format!("3.{minor}")),
            None => ("py", "3.11".to_owned()),
        };

        let mut arguments: Vec<String> =
            ["-m", "pip", "download", "--no-deps"].map(str::to_owned).into();
        arguments.push("--only-binary=:all:".to_owned());
        for platform in platforms.split('.') {
            arguments.extend(["--platform".to_owned(), platform.to_owned()]);
        }
        arguments.extend(["--python-version".to_owned(), version]);
        arguments.extend(["--implementation", implementation, "--abi", abi].map(str::to_owned));
        arguments.extend(["-d".to_owned(), folder.to_owned(), self.requirement()]);
        arguments
    }

    /// The wheel as pip names it: `name==version`.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }
}

impl Package {
    /// The pinned package of a kind.
    pub fn pinned(kind: impl Into<Kind>) -> &'static Package {
        match kind.into() {
            Kind::Plugin(Platform::Cpu) => &CPU,
            Kind::Plugin(Platform::Cuda) => &CUDA,
            Kind::Plugin(Platform::Tpu) => &TPU,
            Kind::Mpi => &MPI,
        }
    }

    /// The package that compiles for a kind of device without one: for CUDA a tenth of the full
    /// package, since a compiler needs none of the runtime libraries.
    pub fn compiler(kind: impl Into<Kind>) -> &'static Package {
        match kind.into() {
            Kind::Plugin(Platform::Cuda) => &CUDA_COMPILER,
            kind => Package::pinned(kind),
        }
    }

    /// All wheels, the one with the plugin library first.
    pub fn wheels(&self) -> impl Iterator<Item = &Wheel> {
        std::iter::once(&self.plugin).chain(self.companions)
    }

    /// The size of all wheels together, in bytes.
    pub fn download_bytes(&self) -> u64 {
        self.wheels().map(|wheel| wheel.bytes).sum()
    }

    /// Whether a file of the wheels is not unpacked.
    pub(super) fn excludes(&self, path: &str) -> bool {
        self.exclude.iter().any(|suffix| path.ends_with(suffix))
    }

    /// The name of the folder that holds this package in the cache.
    pub(super) fn folder_name(&self) -> String {
        format!("{}{}-{}", self.kind, self.suffix, self.plugin.version)
    }

    /// Shell commands that download and unpack the package manually.
    pub fn manual_commands(&self) -> String {
        let folder = format!("fullshard-{}", self.kind);
        let mut lines: Vec<String> = self
            .wheels()
            .map(|wheel| format!("  python3 {}", wheel.pip_arguments(&folder).join(" ")))
            .collect();
        lines.push(format!("  unzip -o '{folder}/*.whl' -d {folder}"));
        lines.push(format!(
            "  export {}=\"$PWD/{folder}/{}\"",
            super::variable(self.kind),
            self.library
        ));
        lines.join("\n")
    }
}

static CPU: Package = Package {
    kind: Kind::Plugin(Platform::Cpu),
    suffix: "",
    plugin: Wheel {
        name: "xla-cpu-pjrt",
        version: "0.0.1",
        file: "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
        bytes: 63_461_052,
    },
    companions: &[],
    library: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
    exclude: &[".py", ".h"],
};

const CUDA_FULL: Package = Package {
    kind: Kind::Plugin(Platform::Cuda),
    suffix: "",
    plugin: Wheel {
        name: "jax-cuda13-pjrt",
        version: "0.12.0.1",
        file: "jax_cuda13_pjrt-0.12.0.1-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
        bytes: 134_922_808,
    },
    companions: &NVIDIA,
    library: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    exclude: &[".py", ".md", ".h", ".hpp", ".cuh", ".inl", ".a"],
};

static CUDA: Package = CUDA_FULL;

/// The plugin with `ptxas` and libdevice.
static CUDA_COMPILER: Package =
    Package { suffix: "-compiler", companions: &[NVCC, NVVM], ..CUDA_FULL };

static TPU: Package = Package {
    kind: Kind::Plugin(Platform::Tpu),
    suffix: "",
    plugin: Wheel {
        name: "libtpu",
        version: "0.0.51",
        file: "libtpu-0.0.51-cp311-cp311-manylinux_2_31_x86_64.whl",
        sha256: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
        bytes: 204_805_508,
    },
    companions: &[],
    library: "libtpu/libtpu.so",
    exclude: &[".py", "/sdk.so", "THIRD_PARTY_NOTICES.txt"],
};

/// MPICH: the library of the standard ABI and `mpiexec` with its proxy, without what builds
/// programs.
static MPI: Package = Package {
    kind: Kind::Mpi,
    suffix: "",
    plugin: Wheel {
        name: "mpich",
        version: "5.0.2",
        file: "mpich-5.0.2-py3-none-manylinux_2_28_x86_64.whl",
        sha256: "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
        bytes: 13_282_595,
    },
    companions: &[],
    library: "mpich-5.0.2.data/data/lib/libmpi_abi.so.1",
    exclude: &[
        ".h",
        "/libmpi.so",
        "/libmpi.so.12",
        "/libmpi_abi.so",
        "/mpic++",
        "/mpic++_abi",
        "/mpicc",
        "/mpicc_abi",
        "/mpichversion",
        "/mpicxx",
        "/mpicxx_abi",
        "/mpiexec.gforker",
        "/mpiexec.hydra",
        "/mpirun",
        "/mpivars",
    ],
};

/// `ptxas`, the assembler.
const NVCC: Wheel = Wheel {
    name: "nvidia-cuda-nvcc",
    version: "13.4.92",
    file: "nvidia_cuda_nvcc-13.4.92-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "a1f3bfb27299e060b444d5df1f4bcd762501326cf0fd3141ed61756816ab9a0e",
    bytes: 47_672_022,
};

/// libdevice, the library of device functions.
const NVVM: Wheel = Wheel {
    name: "nvidia-nvvm",
    version: "13.4.92",
    file: "nvidia_nvvm-13.4.92-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
    sha256: "e4c81cb321dd9743bcf871c5e7e8fecd7f05dea607944426e102bdda8d49e137",
    bytes: 72_604_627,
};

/// NVIDIA's run-time libraries and `ptxas`, as resolved for the CUDA plugin. The
/// header-only wheels of that resolution (`nvidia-cuda-cccl`, `nvidia-cuda-crt`)
/// are left out: nothing reads headers at run time.
static NVIDIA: [Wheel; 13] = [
    Wheel {
        name: "nvidia-cublas",
        version: "13.8.2.12",
        file: "nvidia_cublas-13.8.2.12-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "21721774d8e7044debec3034ecc1a8cd22e173eb6dae5d7f5f8a014852382894",
        bytes: 439_349_182,
    },
    Wheel {
        name: "nvidia-cuda-cupti",
        version: "13.4.92",
        file: "nvidia_cuda_cupti-13.4.92-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "037b561575e6983bc4fe1caae644d7a296a8367f451bf6c2a3194f4d0765431c",
        bytes: 13_058_283,
    },
    NVCC,
    Wheel {
        name: "nvidia-cuda-runtime",
        version: "13.4.92",
        file: "nvidia_cuda_runtime-13.4.92-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "9641f797da20ce1dd8e779b6e96d08cf9ba564cec8e8225458811ee26423f3a5",
        bytes: 2_494_438,
    },
    Wheel {
        name: "nvidia-cudnn-cu13",
        version: "9.27.0.42",
        file: "nvidia_cudnn_cu13-9.27.0.42-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "9677e76f21862eb5da7ee5ed69d544738b2d8b5c3ce7e5ec125c5592e6cdbdc8",
        bytes: 536_771_498,
    },
    Wheel {
        name: "nvidia-cufft",
        version: "12.4.0.43",
        file: "nvidia_cufft-12.4.0.43-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "0e8385013596b112d29c9ce8c63dc575b308d77636c7169104e18714f03961a8",
        bytes: 161_750_089,
    },
    Wheel {
        name: "nvidia-cusolver",
        version: "12.3.5.3",
        file: "nvidia_cusolver-12.3.5.3-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "01f13254cfe9f99cf8d141fa4d00fbe55b235fd1509854017d766fd84442f46a",
        bytes: 246_439_201,
    },
    Wheel {
        name: "nvidia-cusparse",
        version: "12.8.6.72",
        file: "nvidia_cusparse-12.8.6.72-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "a739f6ff51ea2a8a2990b267b9b4d3063a5d94890efb8ccf393bfcab9dd487aa",
        bytes: 170_468_146,
    },
    Wheel {
        name: "nvidia-nccl-cu13",
        version: "2.32.3",
        file: "nvidia_nccl_cu13-2.32.3-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
        bytes: 305_100_071,
    },
    Wheel {
        name: "nvidia-nvjitlink",
        version: "13.5.37",
        file: "nvidia_nvjitlink-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb",
        bytes: 46_642_491,
    },
    Wheel {
        name: "nvidia-cuda-nvrtc",
        version: "13.4.92",
        file: "nvidia_cuda_nvrtc-13.4.92-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "5ce8c97b00b232c4f50c8c4b5a3b68cafee08bdb82ea86f2052ff01d03194f4a",
        bytes: 53_301_733,
    },
    Wheel {
        name: "nvidia-nvshmem-cu13",
        version: "3.8.0",
        file: "nvidia_nvshmem_cu13-3.8.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "81a4d1f666543e6d34df6d2ff940c7da1435e34e186aab6f3c2b48861b64ef38",
        bytes: 182_092_449,
    },
    NVVM,
];
