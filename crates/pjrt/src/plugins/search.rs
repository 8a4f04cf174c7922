//! The plugin search order: command line, environment variable, our cache, the
//! active Python environment.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{Kind, Package, Platform, PluginError, Store, python};

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Named on the command line.
    Flag,
    /// Named by this environment variable.
    Environment(&'static str),
    /// Installed in our cache.
    Cache,
    /// Installed in the active Python environment.
    Python,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Flag => "the command line",
            Origin::Environment(variable) => variable,
            Origin::Cache => "the plugin cache",
            Origin::Python => "the Python environment",
        })
    }
}

/// A library that is ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// What it is.
    pub kind: Kind,
    /// The shared library.
    pub path: PathBuf,
    /// Where it was found.
    pub origin: Origin,
}

/// Searches for a library without downloading anything.
///
/// A file named by `flag` or by the kind's environment variable must exist: a
/// wrong name is an error, the search does not continue.
pub fn find(
    kind: impl Into<Kind>,
    flag: Option<&Path>,
    store: &Store,
) -> Result<Option<Located>, PluginError> {
    let kind = kind.into();
    if let Some(path) = flag {
        return named(kind, path.to_owned(), Origin::Flag).map(Some);
    }
    let variable = super::variable(kind);
    if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()) {
        return named(kind, path.into(), Origin::Environment(variable)).map(Some);
    }
    let located = |path, origin| Located { kind, path, origin };
    if let Some(installed) = store.installed(kind) {
        return Ok(Some(located(installed.path, Origin::Cache)));
    }
    Ok(in_python(kind, store).map(|path| located(path, Origin::Python)))
}

/// Searches for a plugin, and downloads the CPU plugin if there is none. The
/// others are large and need hardware, so they are only installed on request.
pub fn find_or_install(
    kind: Platform,
    flag: Option<&Path>,
    store: &Store,
) -> Result<Located, PluginError> {
    if let Some(located) = find(kind, flag, store)? {
        return Ok(located);
    }
    if kind != Platform::Cpu {
        return Err(PluginError::NotFound { kind });
    }
    let installed = store.install(kind)?;
    Ok(Located { kind: kind.into(), path: installed.path, origin: Origin::Cache })
}

/// Searches for a plugin to compile with: a full plugin, else an installed compile-only one.
pub fn find_compiler(
    kind: Platform,
    flag: Option<&Path>,
    store: &Store,
) -> Result<Located, PluginError> {
    if let Some(located) = find(kind, flag, store)? {
        return Ok(located);
    }
    let installed = store.installed_package(Package::compiler(kind));
    let installed = installed.ok_or(PluginError::NoCompiler { kind })?;
    Ok(Located { kind: kind.into(), path: installed.path, origin: Origin::Cache })
}

fn named(kind: Kind, path: PathBuf, origin: Origin) -> Result<Located, PluginError> {
    if path.is_file() {
        Ok(Located { kind, path, origin })
    } else {
        Err(PluginError::NoSuchFile { kind, path, origin })
    }
}

fn in_python(kind: Kind, store: &Store) -> Option<PathBuf> {
    let Kind::Plugin(kind) = kind else { return None };
    let folders = python::site_folders(&store.python()?);
    libraries(kind)
        .iter()
        .flat_map(|library| folders.iter().map(move |folder| folder.join(library)))
        .find(|path| path.is_file())
}

/// Candidate paths of a plugin library in site-packages, best first.
fn libraries(kind: Platform) -> Vec<&'static str> {
    let mut libraries = vec![Package::pinned(kind).library];
    if kind == Platform::Cuda {
        libraries.push("jax_plugins/xla_cuda12/xla_cuda_plugin.so");
    }
    libraries
}
