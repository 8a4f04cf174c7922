#!/usr/bin/env bash
# Runs a command in a Slurm of its own, on the first of several hosts (hosts.sh):
#
#   slurm.sh COUNT COMMAND ...
#
# Every host is a node with four processors, whatever this machine has. Needs root, and the
# programs munged, slurmctld and slurmd (Debian: slurm-wlm). All of them end with the command.
set -euo pipefail

if [[ -z ${HOSTS:-} ]]; then
    exec "$(dirname "$0")/hosts.sh" "$1" "$0" "$@"
fi

count=$1
shift
folder=$HOSTS/slurm
mkdir "$folder"
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<TEXT
ClusterName=test
SlurmctldHost=host1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=pmi2
NodeName=host[1-$count] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TEXT
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"

# The folders of the daemons are temporary, which munged does not trust without --force.
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed"
slurmctld
for ((host = 1; host <= count; host++)); do
    "$HOSTS/ssh" "host$host" "SLURM_CONF=$SLURM_CONF slurmd"
done
for ((tries = 0; tries < 100; tries++)); do
    idle=$(sinfo --noheader --states=idle --format=%D 2>/dev/null || true)
    [[ $idle == "$count" ]] && break
    sleep 0.1
done
if [[ $idle != "$count" ]]; then
    echo 'slurm.sh: the nodes do not come up' >&2
    tail -n 20 "$folder"/*.log >&2
    exit 1
fi
"$@"
