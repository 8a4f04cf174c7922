//! The search order, in child processes because it reads the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fullshard_pjrt::plugins::{Package, Platform};
use serde_json::json;

use crate::bench::{Bench, ROLE, answer};

/// A search for a plugin in a controlled environment.
fn search(bench: &Bench, kind: &str) -> Command {
    let mut command = bench.child("find");
    for kind in Platform::ALL {
        command.env_remove(fullshard_pjrt::plugins::variable(kind));
    }
    command.env("KIND", kind).env("PATH", "").env_remove("VIRTUAL_ENV");
    command
}

fn outcome(command: &mut Command) -> String {
    answer(&command.output().unwrap())
}

fn touch(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "library").unwrap();
    path
}

/// A virtual environment whose Python reports packages in `site`.
fn fake_environment(bench: &Bench) -> PathBuf {
    let environment = bench.root.join("venv");
    let site = bench.root.join("site");
    let body = format!("echo /nowhere; echo '{}'", site.display());
    bench.script(&environment.join("bin/python3"), &body);
    environment
}

/// A tiny installation of the pinned CPU plugin.
fn fake_installation(bench: &Bench) -> PathBuf {
    let package = Package::pinned(Platform::Cpu);
    let tree = bench.root.join("cache/plugins/cpu-0.0.1");
    let library = touch(tree.join(package.library));
    let manifest = json!({
        "kind": "cpu",
        "package": "xla-cpu-pjrt",
        "version": "0.0.1",
        "wheels": { package.plugin.file: package.plugin.sha256 },
        "library": package.library,
        "files": { package.library: "library".len() },
    });
    fs::write(tree.join("manifest.json"), manifest.to_string()).unwrap();
    library
}

#[test]
fn flag_then_environment_then_cache_then_python() {
    let bench = Bench::new();
    let environment = fake_environment(&bench);
    let flag = touch(bench.root.join("flag.so"));
    let variable = touch(bench.root.join("variable.so"));
    let cache = fake_installation(&bench);
    let python = touch(bench.root.join("site/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"));

    let mut command = search(&bench, "cpu");
    command
        .env("FLAG", &flag)
        .env("FULLSHARD_CPU_PLUGIN", &variable)
        .env("VIRTUAL_ENV", &environment);
    let found = |origin: &str, path: &Path| format!("{origin}: {}", path.display());
    assert_eq!(outcome(&mut command), found("the command line", &flag));
    command.env_remove("FLAG");
    assert_eq!(outcome(&mut command), found("FULLSHARD_CPU_PLUGIN", &variable));
    command.env("FULLSHARD_CPU_PLUGIN", "");
    assert_eq!(outcome(&mut command), found("the plugin cache", &cache));
    fs::write(cache, "broken in the cache").unwrap();
    assert_eq!(outcome(&mut command), found("the Python environment", &python));
    fs::remove_file(python).unwrap();
    assert_eq!(outcome(&mut command), "nothing");
}

#[test]
fn missing_named_file_is_an_error() {
    let bench = Bench::new();
    fake_installation(&bench);
    let expected =
        |origin| format!("error: the cpu plugin named by {origin} is not a file: /no/such.so");
    let mut command = search(&bench, "cpu");
    command.env("FLAG", "/no/such.so");
    assert_eq!(outcome(&mut command), expected("the command line"));
    let mut command = search(&bench, "cpu");
    command.env("FULLSHARD_CPU_PLUGIN", "/no/such.so");
    assert_eq!(outcome(&mut command), expected("FULLSHARD_CPU_PLUGIN"));
}

#[test]
fn falls_back_to_older_cuda_plugin_in_python() {
    let bench = Bench::new();
    let environment = fake_environment(&bench);
    let mut command = search(&bench, "gpu");
    command.env("VIRTUAL_ENV", environment);
    let found = |path: &Path| format!("the Python environment: {}", path.display());
    let older = touch(bench.root.join("site/jax_plugins/xla_cuda12/xla_cuda_plugin.so"));
    assert_eq!(outcome(&mut command), found(&older));
    let newer = touch(bench.root.join("site/jax_plugins/xla_cuda13/xla_cuda_plugin.so"));
    assert_eq!(outcome(&mut command), found(&newer));
}

#[test]
fn finds_packages_of_real_python() {
    let bench = Bench::new();
    let base = bench.root.join("user");
    let output = Command::new("python3")
        .args(["-m", "site", "--user-site"])
        .env("PYTHONUSERBASE", &base)
        .output();
    let site = match output {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        _ => {
            println!("skipped: no python3 with a user site here");
            return;
        }
    };
    let library = touch(Path::new(site.trim()).join("libtpu/libtpu.so"));
    let mut command = search(&bench, "tpu");
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("PYTHONUSERBASE", base);
    let found = outcome(&mut command);
    // A machine with a TPU has the real one, which comes first.
    assert!(
        found.ends_with(&library.display().to_string())
            || found.starts_with("the Python environment"),
        "{found}"
    );
}

#[test]
fn only_cpu_plugin_is_installed_automatically() {
    let bench = Bench::new();
    let message = |kind| outcome(search(&bench, kind).env(ROLE, "find or install"));
    for kind in ["cuda", "tpu"] {
        let expected = format!("fullshard plugins install {kind}");
        assert!(message(kind).contains(&expected), "{}", message(kind));
    }
    assert!(!bench.store().folder().exists(), "nothing should be attempted");
    let expected = "cannot install the cpu plugin: pip is needed to fetch it, \
                    and there is no python3 on the path";
    assert!(message("cpu").contains(expected), "{}", message("cpu"));
    assert_eq!(bench.listing(), [".lock"]);
}
