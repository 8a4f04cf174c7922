//! `fullshard plugins`: lists, installs and removes plugins, and the MPI library.

use crate::output::{print_json, show};
use clap::{Args, Subcommand};
use fullshard::Result;
use fullshard::format;
use fullshard_pjrt::plugins::{Kind, Package, Store, find};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Args)]
pub struct PluginsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// List plugins and their origin (default).
    List,
    /// Download a plugin or the MPI library with pip, verify it and add it to the cache.
    Install {
        /// Platform: cpu, cuda or tpu; or mpi, for CPU runs of several processes.
        kind: Kind,
        /// Use the wheels of this folder instead of downloading them.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Install only what ahead-of-time compilation needs, which requires no device.
        #[arg(long)]
        compiler: bool,
    },
    /// Remove a plugin or the MPI library from the cache.
    Remove {
        /// Platform: cpu, cuda or tpu; or mpi, for CPU runs of several processes.
        kind: Kind,
    },
}

#[derive(Serialize)]
struct Row {
    kind: Kind,
    package: &'static str,
    version: &'static str,
    download_bytes: u64,
    path: Option<PathBuf>,
    origin: Option<String>,
    problem: Option<String>,
}

pub fn run(args: &PluginsArgs) -> Result<()> {
    let store = Store::default_location()?;
    match &args.action {
        None | Some(Action::List) => list(&store, args.json),
        Some(Action::Install { kind, from, compiler }) => {
            let installed = match from {
                _ if *compiler => store.install_compiler(*kind, from.as_deref())?,
                Some(folder) => store.install_from(*kind, folder)?,
                None => store.install(*kind)?,
            };
            report(args.json, *kind, "installed", &installed.path.display().to_string())
        }
        Some(Action::Remove { kind }) => {
            let outcome = if store.remove(*kind)? { "removed" } else { "not installed" };
            report(args.json, *kind, outcome, &store.folder().display().to_string())
        }
    }
}

fn report(json: bool, kind: Kind, outcome: &str, path: &str) -> Result<()> {
    if json {
        return print_json(&serde_json::json!({
            "kind": kind, "outcome": outcome, "path": path,
        }));
    }
    show!("{kind}: {outcome} ({path})");
    Ok(())
}

fn list(store: &Store, json: bool) -> Result<()> {
    let rows: Vec<Row> = Kind::ALL.into_iter().map(|kind| row(kind, store)).collect();
    if json {
        return print_json(&rows);
    }
    for row in rows {
        let Row { kind, package, version, .. } = row;
        match (row.path, row.origin, row.problem) {
            (Some(path), Some(origin), _) => show!("{kind:<5} {} ({origin})", path.display()),
            (_, _, Some(problem)) => show!("{kind:<5} {problem}"),
            _ => show!(
                "{kind:<5} not installed; `fullshard plugins install {kind}` downloads {package} \
                 {version} ({})",
                format::bytes(row.download_bytes)
            ),
        }
    }
    show!("\nplugin cache: {}", store.folder().display());
    Ok(())
}

fn row(kind: Kind, store: &Store) -> Row {
    let package = Package::pinned(kind);
    let (located, problem) = match find(kind, None, store) {
        Ok(located) => (located, None),
        Err(error) => (None, Some(error.to_string())),
    };
    Row {
        kind,
        package: package.plugin.name,
        version: package.plugin.version,
        download_bytes: package.download_bytes(),
        origin: located.as_ref().map(|located| located.origin.to_string()),
        path: located.map(|located| located.path),
        problem,
    }
}
