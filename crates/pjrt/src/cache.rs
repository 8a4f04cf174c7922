//! The persistent compilation cache: compiled programs on disk.
//!
//! An entry's name is a hash of everything that determines the compiled program. An entry that
//! cannot be read, for whatever reason, is a miss: the program is recompiled and the entry
//! rewritten.

use crate::client::Client;
use crate::compile::CompileOptions;
use crate::error::{Error, Result};
use crate::loaded::LoadedExecutable;
use crate::plugin::Plugin;
use fullshard_core::cache::temporary_file;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

/// A folder of compiled programs.
#[derive(Debug, Clone)]
pub struct CompileCache {
    dir: PathBuf,
    /// Warns once: a run has dozens of programs.
    warned: Arc<Once>,
}

/// The outcome of a cache lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheOutcome {
    /// It was loaded from the cache.
    Hit,
    /// It was compiled and stored.
    Miss,
    /// It was compiled, but could not be stored.
    Unstored,
}

impl CompileCache {
    /// The cache in a folder, which is created on first write.
    pub fn at(dir: impl Into<PathBuf>) -> CompileCache {
        CompileCache { dir: dir.into(), warned: Arc::new(Once::new()) }
    }

    /// Loads the program from the cache, or compiles and stores it.
    pub fn compile(
        &self,
        client: &Client,
        text: &str,
        options: &CompileOptions,
    ) -> Result<(LoadedExecutable, CacheOutcome)> {
        let (loaded, serialized, outcome) = self.look_up(client, text, options)?;
        if let Err(error) = serialized {
            self.warn(&error);
        }
        Ok((loaded, outcome))
    }

    /// Does the same, and returns the serialized program too: one process of a job compiles, sends
    /// it to the others, and these load it with [`Client::load`]; on CPU all need the same
    /// instruction sets. An error if it cannot be serialized.
    pub fn compile_to_share(
        &self,
        client: &Client,
        text: &str,
        options: &CompileOptions,
    ) -> Result<(LoadedExecutable, Vec<u8>, CacheOutcome)> {
        let (loaded, serialized, outcome) = self.look_up(client, text, options)?;
        Ok((loaded, serialized?, outcome))
    }

    /// Loads the program with a [`Client::compile_key`]; none if it is not in the cache.
    pub fn load(&self, client: &Client, key: &str) -> Option<LoadedExecutable> {
        load(client, &self.entry(key)).map(|(loaded, _)| loaded)
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.exec"))
    }

    fn look_up(
        &self,
        client: &Client,
        text: &str,
        options: &CompileOptions,
    ) -> Result<(LoadedExecutable, Result<Vec<u8>>, CacheOutcome)> {
        let options = client.complete_options(options)?;
        let path = self.entry(&client.compile_key(text, &options)?);
        if let Some((loaded, entry)) = load(client, &path) {
            tracing::info!(program = loaded.name(), path = %path.display(), "compile cache hit");
            return Ok((loaded, Ok(entry), CacheOutcome::Hit));
        }
        let loaded = client.compile(text, &options)?;
        tracing::info!(program = loaded.name(), path = %path.display(), "compile cache miss");
        let serialized = loaded.executable().serialize();
        let stored = serialized.as_ref().ok().map(|bytes| self.store(&path, bytes));
        let outcome = match stored {
            Some(Ok(())) => CacheOutcome::Miss,
            Some(Err(error)) => {
                self.warn(&error);
                CacheOutcome::Unstored
            }
            None => CacheOutcome::Unstored,
        };
        Ok((loaded, serialized, outcome))
    }

    fn warn(&self, error: &Error) {
        self.warned.call_once(|| {
            tracing::warn!(
                "compiled programs are not cached: {error}. FULLSHARD_CACHE names another folder"
            );
        });
    }

    fn store(&self, path: &Path, sealed: &[u8]) -> Result<()> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut file = temporary_file(&self.dir).map_err(io)?;
        file.write_all(sealed).map_err(io)?;
        file.persist(path).map_err(|error| io(error.error))?;
        Ok(())
    }
}

/// Loads an entry; none if it does not exist or is corrupt.
fn load(client: &Client, path: &Path) -> Option<(LoadedExecutable, Vec<u8>)> {
    let entry = fs::read(path).ok()?;
    let loaded = client.load(&entry).inspect_err(|error| {
        tracing::warn!(path = %path.display(), %error, "replacing a compile cache entry");
    });
    Some((loaded.ok()?, entry))
}

impl Client {
    /// A hash of everything that determines the compiled program. In a job it is the same on all
    /// processes with the same devices, and another than with a different number of processes or
    /// devices.
    pub fn compile_key(&self, text: &str, options: &CompileOptions) -> Result<String> {
        let options = self.complete_options(options)?;
        let mut place = format!("{}\n{}", self.platform_name(), self.platform_version());
        for device in self.global_devices() {
            let _ = write!(place, "\n{}", device.kind);
        }
        if !self.process().is_alone() {
            let _ = write!(place, "\n{} processes", self.process().count);
        }
        if self.platform_name() == "cpu" {
            place += &processor();
        }
        compile_key(self.plugin(), text, &options, &place)
    }
}

/// A hash of everything that determines how a plugin compiles a program for `place`: local devices
/// or an ahead-of-time target.
pub fn compile_key(
    plugin: &Plugin,
    text: &str,
    options: &CompileOptions,
    place: &str,
) -> Result<String> {
    let (major, minor) = plugin.api_version();
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(text.as_bytes());
    part(&options.encode());
    part(&plugin_fingerprint(plugin.path())?);
    part(format!("{major}.{minor}").as_bytes());
    part(place.as_bytes());
    for variable in ["XLA_FLAGS", "LIBTPU_INIT_ARGS"] {
        part(std::env::var_os(variable).unwrap_or_default().as_encoded_bytes());
    }
    let digest = hash.finalize();
    Ok(digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// A fingerprint of a plugin build: its length and a sample of its pages. Two builds of the same
/// length differ in far more than one page in a few hundred, and hashing all of a library of
/// hundreds of megabytes would take longer than many compiles.
fn plugin_fingerprint(path: &Path) -> Result<Vec<u8>> {
    const SAMPLES: u64 = 256;
    const PAGE: usize = 4096;
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut fingerprint = length.to_le_bytes().to_vec();
    let mut page = [0; PAGE];
    for sample in 0..SAMPLES {
        let read = file.read_at(&mut page, length / SAMPLES * sample).map_err(io)?;
        fingerprint.extend_from_slice(&page[..read]);
    }
    Ok(fingerprint)
}

/// What compiled CPU programs depend on: the processor's instruction sets and number of cores.
fn processor() -> String {
    const KEYS: [&str; 5] = ["model name", "flags", "Features", "CPU implementer", "CPU part"];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |start: &&str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
    let lines: Vec<&str> = KEYS.iter().map(line).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let threads = std::env::var("PJRT_NPROC").unwrap_or_default();
    format!("{}\n{cores} {threads}", lines.join("\n"))
}
