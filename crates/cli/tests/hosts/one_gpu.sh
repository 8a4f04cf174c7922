#!/usr/bin/env bash
# Starts the processes of a job on a machine with one GPU, as mpiexec would:
#
#   one_gpu.sh -prepend-rank -n COUNT COMMAND ...
#
# NCCL refuses two processes on one GPU unless each claims a host of its own.
set -uo pipefail
count=$3
shift 3
export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_CUMEM_ENABLE=0
processes=()
for ((rank = 0; rank < count; rank++)); do
    PMI_RANK=$rank PMI_SIZE=$count MPI_LOCALRANKID=$rank NCCL_HOSTID=host$rank "$@" \
        > >(sed -u "s/^/[$rank] /") 2> >(sed -u "s/^/[$rank] /" >&2) &
    processes+=($!)
done
trap 'kill "${processes[@]}" 2>/dev/null' INT TERM
code=0
for process in "${processes[@]}"; do wait "$process" || code=$?; done
exit "$code"
