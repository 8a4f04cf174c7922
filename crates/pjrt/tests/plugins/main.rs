//! Tests of the plugin module: when an installation fails, nothing partial is left
//! behind and the next attempt succeeds.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bench;
mod child;
mod concurrency;
mod search;
mod verify;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use bench::{Bench, LIBRARY, noise};
use fullshard_pjrt::plugins::{InstallError, Kind, Package, Platform, Store, Wheel};

#[test]
fn installs_lists_and_removes() {
    let bench = Bench::new();
    let package = bench.package();
    assert_eq!(bench.store().installed_package(&package), None);
    assert!(!bench.store().remove(Platform::Cpu).unwrap());

    let installed = bench.install(&package).unwrap();
    assert_eq!(installed.version, "1.0");
    assert_eq!(installed.path, bench.store().folder().join("cpu-1.0").join(LIBRARY));
    assert_eq!(installed.bytes, 100_000 + 92);
    assert_eq!(fs::read(&installed.path).unwrap(), noise(100_000));
    let mode = fs::metadata(&installed.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o100, 0o100, "executables must stay executable");
    assert!(!installed.path.with_file_name("__init__.py").exists());
    assert_eq!(bench.listing(), [".lock", "cpu-1.0"]);
    assert_eq!(bench.store().installed_package(&package), Some(installed.clone()));

    assert!(bench.store().remove(Platform::Cpu).unwrap());
    assert_eq!(bench.listing(), [".lock"]);
    assert!(!bench.store().remove(Platform::Cpu).unwrap());
}

#[test]
fn unpacks_companions_next_to_the_library() {
    let bench = Bench::new();
    let plugin = bench.package();
    fs::rename(bench.wheel(), bench.wheels().join("first")).unwrap();
    bench.put_wheel(&[("nvidia/lib/libcompanion.so", b"companion")]);
    let companion = "companion-2.0-py3-none-manylinux_2_27_x86_64.whl";
    let companions = vec![Wheel {
        name: "companion",
        version: "2.0",
        file: companion,
        ..bench.package().plugin
    }];
    fs::rename(bench.wheel(), bench.wheels().join(companion)).unwrap();
    fs::rename(bench.wheels().join("first"), bench.wheel()).unwrap();
    let package = Package { companions: companions.leak(), ..plugin };

    let installed = bench.install(&package).unwrap();
    let beside = installed.path.parent().unwrap().join("../nvidia/lib/libcompanion.so");
    assert_eq!(fs::read(&beside).unwrap(), b"companion");

    fs::remove_file(beside).unwrap();
    assert_eq!(bench.store().installed_package(&package), None);
    fs::remove_file(bench.wheels().join(companion)).unwrap();
    let error = bench.install(&package).unwrap_err();
    assert!(error.to_string().contains(companion), "{error}");
}

#[test]
fn rejects_truncated_wheel() {
    let bench = Bench::new();
    let package = bench.package();
    let full = fs::read(bench.wheel()).unwrap();
    fs::write(bench.wheel(), &full[..full.len() / 2]).unwrap();
    let cause = bench.failure(bench.install(&package));
    assert!(matches!(cause, InstallError::DamagedWheel { .. }), "{cause:?}");

    fs::write(bench.wheel(), full).unwrap();
    bench.install(&package).unwrap();
}

#[test]
fn rejects_modified_wheel() {
    let bench = Bench::new();
    let package = bench.package();
    let full = fs::read(bench.wheel()).unwrap();
    let mut modified = full.clone();
    modified[full.len() / 2] ^= 1;
    fs::write(bench.wheel(), modified).unwrap();
    let cause = bench.failure(bench.install(&package));
    assert!(
        matches!(&cause, InstallError::Checksum { expected, found, .. }
            if *expected == package.plugin.sha256 && found.len() == 64 && found != expected),
        "{cause:?}"
    );

    fs::write(bench.wheel(), full).unwrap();
    bench.install(&package).unwrap();
}

#[test]
fn rejects_wheel_that_does_not_unpack() {
    let bench = Bench::new();
    let mut content = fs::read(bench.wheel()).unwrap();
    content[5_000] ^= 1;
    fs::write(bench.wheel(), content).unwrap();
    let cause = bench.failure(bench.install(&bench.package()));
    assert!(matches!(cause, InstallError::DamagedWheel { .. }), "{cause:?}");

    fs::write(bench.wheel(), "not an archive").unwrap();
    let cause = bench.failure(bench.install(&bench.package()));
    assert!(matches!(cause, InstallError::DamagedWheel { .. }), "{cause:?}");
}

#[test]
fn rejects_wheel_with_path_traversal() {
    let bench = Bench::new();
    bench.put_wheel(&[(LIBRARY, b"library"), ("../../../evil", b"evil")]);
    let cause = bench.failure(bench.install(&bench.package()));
    assert!(cause.to_string().contains("../../../evil"), "{cause}");
    assert!(!bench.root.join("cache/evil").exists());
    assert!(!bench.root.join("evil").exists());
}

#[test]
fn rejects_wheel_without_library() {
    let bench = Bench::new();
    bench.put_wheel(&[("tiny/other.so", b"library")]);
    let cause = bench.failure(bench.install(&bench.package()));
    assert!(cause.to_string().contains(LIBRARY), "{cause}");
}

#[test]
fn missing_wheel_is_an_error() {
    let bench = Bench::new();
    let package = bench.package();
    fs::remove_file(bench.wheel()).unwrap();
    let cause = bench.failure(bench.install(&package));
    assert!(matches!(cause, InstallError::MissingWheel { .. }), "{cause:?}");
}

#[test]
fn missing_python_or_pip_is_reported() {
    let bench = Bench::new();
    let package = bench.package();
    let cause = bench.failure(bench.install_with_pip(&package));
    assert!(matches!(cause, InstallError::NoPip(_)), "{cause:?}");

    bench.fake_python("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let cause = bench.failure(bench.install_with_pip(&package));
    assert!(matches!(cause, InstallError::NoPip(_)), "{cause:?}");
}

#[test]
fn shows_output_of_failed_pip() {
    let bench = Bench::new();
    bench.fake_python(
        "echo partial > \"$dest/part\"; echo 'ERROR: the network is unreachable' >&2; exit 1",
    );
    let cause = bench.failure(bench.install_with_pip(&bench.package()));
    assert!(
        matches!(&cause, InstallError::PipFailed { package, output, .. }
            if package == "tiny-plugin==1.0" && output.contains("the network is unreachable")),
        "{cause:?}"
    );
}

#[test]
fn truncated_download_is_rejected_then_retried() {
    let bench = Bench::new();
    let package = bench.package();
    bench.fake_python(&format!("head -c 1000 \"$wheels/{0}\" > \"$dest/{0}\"", bench::WHEEL));
    let cause = bench.failure(bench.install_with_pip(&package));
    assert!(matches!(cause, InstallError::DamagedWheel { .. }), "{cause:?}");

    bench.fake_python("cp \"$wheels\"/*.whl \"$dest\"");
    bench.install_with_pip(&package).unwrap();
    assert_eq!(bench.listing(), [".lock", "cpu-1.0"]);
}

#[test]
fn rejects_wrong_download() {
    let bench = Bench::new();
    bench.fake_python("echo other > \"$dest/other-1.0-py3-none-any.whl\"");
    let cause = bench.failure(bench.install_with_pip(&bench.package()));
    assert!(matches!(cause, InstallError::MissingWheel { .. }), "{cause:?}");
}

#[test]
fn broken_installation_is_replaced() {
    let bench = Bench::new();
    let package = bench.package();
    let installed = bench.install(&package).unwrap();
    let tree = bench.store().folder().join("cpu-1.0");
    let breakages: [&dyn Fn(); 4] = [
        &|| fs::write(&installed.path, "short").unwrap(),
        &|| fs::remove_file(&installed.path).unwrap(),
        &|| fs::write(tree.join("manifest.json"), "{").unwrap(),
        &|| fs::remove_file(tree.join("manifest.json")).unwrap(),
    ];
    for damage in breakages {
        damage();
        assert_eq!(bench.store().installed_package(&package), None);
        assert_eq!(bench.install(&package).unwrap(), installed);
        assert_eq!(bench.listing(), [".lock", "cpu-1.0"]);
    }
}

#[test]
fn full_disk_leaves_nothing() {
    let bench = Bench::new();
    let package = bench.package();
    let Some(_disk) = SmallDisk::mount(bench.root.join("cache")) else {
        println!("skipped: mounting a small file system is not permitted here");
        return;
    };
    let filler = bench.root.join("cache/filler");
    fs::write(&filler, noise(200_000)).unwrap();

    bench.fake_python("cp \"$wheels\"/*.whl \"$dest\"");
    for result in [bench.install(&package), bench.install_with_pip(&package)] {
        let cause = bench.failure(result);
        assert!(
            matches!(&cause, InstallError::File(error)
            if error.source.kind() == io::ErrorKind::StorageFull),
            "{cause:?}"
        );
        assert!(cause.to_string().contains("The disk is full"), "{cause}");
    }

    fs::remove_file(filler).unwrap();
    bench.install(&package).unwrap();
}

/// A file system of 256 KiB, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
            .arg(&at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn unwritable_cache_error_names_the_path() {
    let bench = Bench::new();
    let file = bench.root.join("file");
    fs::write(&file, "not a folder").unwrap();
    let error = Store::at(&file).quiet().install_from(Platform::Cpu, &bench.wheels()).unwrap_err();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn pins_are_complete() {
    for kind in Kind::ALL {
        let package = Package::pinned(kind);
        assert_eq!(package.kind, kind);
        for wheel in package.wheels() {
            let stem = format!("{}-{}-", wheel.name.replace('-', "_"), wheel.version);
            assert!(wheel.file.starts_with(&stem), "{}", wheel.file);
            assert!(wheel.file.ends_with("_x86_64.whl"), "{}", wheel.file);
            assert_eq!(wheel.sha256.len(), 64, "{}", wheel.name);
            assert!(wheel.bytes > 1_000_000, "{}", wheel.name);
        }
    }
}

#[test]
fn pip_arguments_match_wheel_tags() {
    let arguments = |kind| Package::pinned(kind).plugin.pip_arguments("DIR").join(" ");
    assert_eq!(
        arguments(Platform::Cpu),
        "-m pip download --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 \
         --python-version 3.11 --implementation py --abi none -d DIR xla-cpu-pjrt==0.0.1"
    );
    assert_eq!(
        arguments(Platform::Tpu),
        "-m pip download --no-deps --only-binary=:all: --platform manylinux_2_31_x86_64 \
         --python-version 3.11 --implementation cp --abi cp311 -d DIR libtpu==0.0.51"
    );
}

/// The compile-only package is a subset of the full one, and is installed separately.
#[test]
fn cuda_compiler_is_a_small_subset() {
    let (full, compiler) = (Package::pinned(Platform::Cuda), Package::compiler(Platform::Cuda));
    assert_eq!(compiler.library, full.library);
    assert!(compiler.wheels().all(|wheel| full.wheels().any(|other| other == wheel)));
    assert!(8 * compiler.download_bytes() < full.download_bytes());

    let bench = Bench::new();
    let full = bench.package();
    let compiler = Package { suffix: "-compiler", ..full };
    let installed = bench.install(&compiler).unwrap();
    assert_eq!(bench.store().installed_package(&full), None);
    assert_eq!(bench.store().installed_package(&compiler), Some(installed));
    assert!(bench.store().remove(Platform::Cpu).unwrap());
    assert_eq!(bench.listing(), [".lock"]);
}
