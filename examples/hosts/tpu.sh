#!/usr/bin/env bash
# Starts a command on all hosts of a Cloud TPU slice:
#   ./tpu.sh NAME ZONE train run.toml --output_dir /mnt/runs/1
# Hosts need fullshard on their path, and a firewall that lets them reach one another.
set -euo pipefail
name=$1 zone=$2
shift 2

describe() { gcloud compute tpus tpu-vm describe "$name" --zone "$zone" --format "$1"; }
hosts=$(describe 'value[delimiter="\n"](networkEndpoints[].ipAddress)' | wc -l)
first=$(describe 'value(networkEndpoints[0].ipAddress)')

# The secret goes in a file, so that no list of processes shows it.
secret=$(mktemp)
trap 'rm -f "$secret"' EXIT
openssl rand -hex 32 >"$secret"
gcloud compute tpus tpu-vm scp "$secret" "$name:.fullshard-secret" --zone "$zone" --worker=all

# A host's own number is known to its metadata server only.
worker='http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number'
gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --command "
    export FULLSHARD_SECRET=\$(cat ~/.fullshard-secret)
    export FULLSHARD_COORDINATOR=$first:61440
    export FULLSHARD_NUM_PROCESSES=$hosts
    export FULLSHARD_PROCESS_ID=\$(curl -sf -H Metadata-Flavor:Google '$worker')
    exec fullshard $(printf '%q ' "$@")"
