//! Hosts of a drill: namespaces of this machine, with a network and mounts of their own.

use crate::common::Folder;
use crate::launchers::script;
use crate::{by, process};
use rustix::process::Pid;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

/// The script that makes hosts, if it can be run here.
pub fn hosts_script() -> Option<String> {
    script("hosts.sh", &["ip", "unshare", "nsenter", "mount"])
}

/// A supervised job of two processes, each on a host of its own; further hosts are spares.
pub fn launch_on_hosts(
    folder: &Folder,
    count: &'static str,
    watched: &[&str],
    args: &[&'static str],
) -> Command {
    let hosts = ["host1", "host2", "host3"][..count.parse().unwrap()].join(",");
    let line = format!(
        "export UCX_TLS=tcp,self HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$HOSTS/ssh; \
         exec \"$0\" launch --mpiexec $MPIEXEC -n 2 --hosts {hosts} {} \"$@\"",
        watched.join(" ")
    );
    let script = hosts_script().unwrap();
    let mut command = by(script, &[count, "bash", "-c", &line], &process(folder, args));
    command.env("MPIEXEC", fullshard_testing::mpi().mpiexec);
    command
}

/// The namespaces that a process is in, as options of `nsenter`. They stay when it ends.
pub struct Host {
    namespaces: Vec<(&'static str, File)>,
}

impl Host {
    pub fn of(process: Pid) -> Host {
        let open = |name| File::open(format!("/proc/{process}/ns/{name}")).unwrap();
        let namespaces = [("net", "net"), ("mount", "mnt"), ("pid", "pid")];
        Host { namespaces: namespaces.map(|(option, name)| (option, open(name))).into() }
    }

    /// Runs a command line on the host.
    pub fn run(&self, line: &str) {
        let this = std::process::id();
        let mut command = Command::new("nsenter");
        command.args(
            self.namespaces
                .iter()
                .map(|(option, file)| format!("--{option}=/proc/{this}/fd/{}", file.as_raw_fd())),
        );
        let output = command.args(["bash", "-ec", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }

    /// Lets the host read a folder, and write nothing: its writes go to a disk without room.
    pub fn fill(&self, folder: &Path) {
        let (disk, folder) = (folder.with_extension("disk"), folder.display());
        let disk = disk.display();
        self.run(&format!(
            "mkdir -p {disk}; mount -t tmpfs -o size=64k,nr_inodes=16 tmpfs {disk}; cd {disk}; \
             mkdir upper work seen; \
             mount -t overlay -o lowerdir={folder},upperdir=upper,workdir=work overlay seen; \
             i=0; while touch $i 2>/dev/null; do i=$((i + 1)); done; \
             mount --bind seen {folder}"
        ));
    }

    /// Undoes that.
    pub fn free(&self, folder: &Path) {
        let (disk, folder) = (folder.with_extension("disk"), folder.display());
        self.run(&format!("umount -l {folder}; umount -l {0}/seen {0}", disk.display()));
    }
}
