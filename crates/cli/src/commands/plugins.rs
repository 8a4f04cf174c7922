//! `fullshard plugins`: list, install and remove.

use crate::output::print_json;
use clap::{Args, Subcommand};
use fullshard::Result;
use fullshard::format;
use fullshard_core::Platform;
use fullshard_pjrt::plugins::{Package, Store, find};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Args)]
pub struct PluginsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON for machines.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Show which plugins there are and where they come from (the default).
    List,
    /// Fetch a plugin with pip, verify it and put it into the cache.
    Install {
        /// cpu, cuda or tpu.
        kind: Platform,
        /// Take the wheels from this folder instead of fetching them.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Only what compiling ahead of time needs, which no device has to be there for.
        #[arg(long)]
        compiler: bool,
    },
    /// Remove a plugin from the cache.
    Remove {
        /// cpu, cuda or tpu.
        kind: Platform,
    },
}

#[derive(Serialize)]
struct Row {
    kind: Platform,
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
            say(args.json, *kind, "installed", &installed.path.display().to_string())
        }
        Some(Action::Remove { kind }) => {
            let word = if store.remove(*kind)? { "removed" } else { "not installed" };
            say(args.json, *kind, word, &store.folder().display().to_string())
        }
    }
}

fn say(json: bool, kind: Platform, word: &str, place: &str) -> Result<()> {
    if json {
        return print_json(&serde_json::json!({
            "kind": kind, "outcome": word, "path": place,
        }));
    }
    println!("{kind}: {word} ({place})");
    Ok(())
}

fn list(store: &Store, json: bool) -> Result<()> {
    let rows: Vec<Row> = Platform::ALL.into_iter().map(|kind| row(kind, store)).collect();
    if json {
        return print_json(&rows);
    }
    for row in rows {
        let Row { kind, package, version, .. } = row;
        match (row.path, row.origin, row.problem) {
            (Some(path), Some(origin), _) => println!("{kind:<5} {} ({origin})", path.display()),
            (_, _, Some(problem)) => println!("{kind:<5} {problem}"),
            _ => println!(
                "{kind:<5} not here; `fullshard plugins install {kind}` fetches {package} \
                 {version} ({})",
                format::bytes(row.download_bytes)
            ),
        }
    }
    println!("\nThe plugin cache is {}", store.folder().display());
    Ok(())
}

fn row(kind: Platform, store: &Store) -> Row {
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
