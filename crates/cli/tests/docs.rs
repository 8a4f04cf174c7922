//! The commands of README and docs work as written.
//!
//! Every block marked `console` runs, block after block, in a folder with the repository's examples
//! and some text. A word after `console` names what a block needs: `compilers` runs in the long
//! tier, `network` has its flags checked, `demo` and `build` run by other tests and by `./release`.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use std::path::Path;
use std::process::Command;

/// A block of commands, with what it needs.
struct Block {
    needs: Option<String>,
    commands: Vec<String>,
}

/// The `console` blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```console") else { continue };
        let needs = Some(info.trim().to_owned()).filter(|needs| !needs.is_empty());
        let mut commands: Vec<String> = Vec::new();
        let mut continues = false;
        for line in lines.by_ref().take_while(|line| *line != "```") {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push(command.to_owned()),
                None if continues => commands.last_mut().unwrap().push_str(&format!("\n{line}")),
                None => continue,
            }
            continues = line.ends_with('\\');
        }
        assert!(!commands.is_empty(), "a console block of {page} has no command");
        blocks.push(Block { needs, commands });
    }
    blocks
}

/// A folder in which the commands of a page run.
fn folder() -> Folder {
    let folder = Folder::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::os::unix::fs::symlink(examples.canonicalize().unwrap(), folder.path("examples")).unwrap();
    folder
}

/// Runs a line of the shell, with our binary first on the path.
fn run(folder: &Folder, line: &str, own_cache: bool) {
    let binary = Path::new(env!("CARGO_BIN_EXE_fullshard"));
    let mut command = Command::new("bash");
    command.args(["-c", &format!("set -euo pipefail; {line}")]).current_dir(folder.path(""));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", binary.parent().unwrap().display()));
    for (name, value) in folder.command(&[]).get_envs() {
        match value {
            Some(value) if own_cache => command.env(name, value),
            Some(_) => &mut command,
            None => command.env_remove(name),
        };
    }
    command.env("FULLSHARD_MPI_LIBRARY", fullshard_testing::mpi().library);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}\n{}", text(&output.stderr));
}

/// Runs the commands of a page that need nothing, and checks the flags of those that do.
fn check(page: &str) {
    let folder = folder();
    for block in blocks(page) {
        for line in &block.commands {
            match block.needs.as_deref() {
                None => run(&folder, line, true),
                Some("network") => {
                    let flags = line.strip_prefix("fullshard run_clm").unwrap();
                    run(&folder, &format!("fullshard config{flags}"), true);
                }
                Some("compilers" | "demo" | "build") => {}
                Some(other) => panic!("{page}: `{other}` is nothing that a block can need"),
            }
        }
    }
}

/// A test for each page.
macro_rules! pages {
    ($($name:ident: $page:literal;)*) => {
        $(#[test]
        fn $name() {
            check($page);
        })*
    };
}

pages! {
    readme: "README.md";
    training: "docs/training.md";
    fine_tuning: "docs/fine-tuning.md";
    checkpoints: "docs/checkpoints.md";
    parallelism: "docs/parallelism.md";
    hosts: "docs/hosts.md";
    goodput: "docs/goodput.md";
    availability: "docs/availability.md";
    plan: "docs/plan.md";
    simulate: "docs/simulate.md";
    fp8: "docs/fp8.md";
    plugins: "docs/plugins.md";
    install: "docs/install.md";
}

/// What the compilers of TPUs and GPUs are needed for.
#[test]
#[ignore = "long: compiles for TPUs"]
fn long_compilers() {
    let folder = folder();
    for line in blocks("docs/plan.md").iter().flat_map(|block| match block.needs.as_deref() {
        Some("compilers") => block.commands.as_slice(),
        _ => &[],
    }) {
        run(&folder, line, false);
    }
}

/// No page is left out of the tests, and pages refer to files that exist.
#[test]
fn every_page_is_tested_and_its_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = include_str!("docs.rs");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    let more = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned);
    for page in docs.filter(|page| page.ends_with(".md")).chain(more) {
        let has_commands =
            blocks(&page).iter().any(|block| block.needs.as_deref() != Some("build"));
        assert!(!has_commands || own.contains(&format!("\"{page}\"")), "{page} is not tested");
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_file = !link.is_empty() && !link.contains("://");
            let target = root.join(&page).parent().unwrap().join(link);
            assert!(!is_file || target.exists(), "{page} refers to {link}, which is not there");
        }
    }
}
