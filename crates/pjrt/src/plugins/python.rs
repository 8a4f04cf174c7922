//! The active Python environment: interpreter, package folders and pip. Nothing
//! heavy is imported, and pip uses the user's configuration.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::{FileError, InstallError, Wheel};

const PRINT_SITE_FOLDERS: &str = "\
import site, sysconfig
folders = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]
folders += getattr(site, 'getsitepackages', list)()
if site.ENABLE_USER_SITE: folders.append(site.getusersitepackages())
print('\\n'.join(folders))";

/// Number of pip's last lines to show.
const LINES_SHOWN: usize = 8;

/// The interpreter a user would get: that of the virtual environment this binary is installed in,
/// else the active one's, else the one on the path.
pub(super) fn active() -> Option<PathBuf> {
    let roots = own_environment().into_iter().chain(env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    let mut pythons = roots.map(|root| root.join("bin/python3"));
    let in_environment = pythons.find(|python| python.is_file());
    in_environment.or_else(|| on_path("python3")).or_else(|| on_path("python"))
}

/// The virtual environment that this binary was installed into by pip.
fn own_environment() -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    let root = binary.parent()?.parent()?;
    root.join("pyvenv.cfg").is_file().then(|| root.to_owned())
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// The site-packages folders of this interpreter; none if it does not report them.
pub(super) fn site_folders(python: &Path) -> Vec<PathBuf> {
    let output = command(python).args(["-c", PRINT_SITE_FOLDERS]).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
        }
        _ => Vec::new(),
    }
}

/// Downloads a wheel into `folder`, which pip also uses for temporary files.
pub(super) fn pip_download(
    python: &Path,
    wheel: &Wheel,
    folder: &Path,
) -> Result<(), InstallError> {
    let output = command(python)
        .args(wheel.pip_arguments(&folder.to_string_lossy()))
        .args(["--disable-pip-version-check", "--no-input"])
        .args(["--progress-bar", "off"])
        .env("TMPDIR", folder)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(pip_failure(python, wheel, folder, &output)),
        Err(error) => Err(no_python(python, &error)),
    }
}

fn command(python: &Path) -> Command {
    let mut command = Command::new(python);
    // Otherwise a stray `pip` or `site.py` in the working directory would run.
    command.env("PYTHONSAFEPATH", "1").current_dir("/").stdin(Stdio::null());
    command
}

fn no_python(python: &Path, error: &io::Error) -> InstallError {
    InstallError::NoPip(format!("{} cannot be run ({error})", python.display()))
}

fn pip_failure(python: &Path, wheel: &Wheel, folder: &Path, output: &Output) -> InstallError {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("No module named pip") {
        return InstallError::NoPip(format!("{} has none", python.display()));
    }
    if stderr.contains("No space left on device") {
        return InstallError::File(FileError {
            path: folder.to_owned(),
            source: io::ErrorKind::StorageFull.into(),
        });
    }
    let printed = format!("{}{stderr}", String::from_utf8_lossy(&output.stdout));
    let is_retry = |line: &str| line.starts_with("WARNING: Retrying");
    let last_retry = printed.lines().rfind(|line| is_retry(line));
    let lines = printed.lines().filter(|line| !is_retry(line));
    let lines: Vec<&str> = last_retry.into_iter().chain(lines).collect();
    let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
    InstallError::PipFailed {
        package: wheel.requirement(),
        status: output.status,
        output: shown.join("\n"),
    }
}
