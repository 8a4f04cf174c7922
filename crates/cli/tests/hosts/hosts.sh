#!/usr/bin/env bash
# Runs a command on the first of several hosts, which are namespaces of this machine:
#
#   hosts.sh COUNT COMMAND ...
#
# Each host has its own name (host1, host2, ...), address (10.9.8.1, ...), loopback and shared memory,
# and they are joined by a bridge; files and processes they share. In the command's environment $HOSTS is a folder
# with a program `ssh` that runs a command on a host: `$HOSTS/ssh host2 hostname`. Needs root.
# Everything ends with the command.
set -euo pipefail

if [[ -z ${HOSTS:-} ]]; then
    HOSTS=$(mktemp -d)
    export HOSTS
    unshare --mount --net --uts --pid --fork --kill-child --mount-proc "$0" "$@" &
    trap 'kill -KILL $! 2>/dev/null || true; rm -rf "$HOSTS"' EXIT
    trap 'exit 143' HUP INT TERM
    wait $!
    exit
fi

count=$1
shift
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
echo '127.0.0.1 localhost' >"$HOSTS/hosts"
for ((host = 1; host <= count; host++)); do echo "10.9.8.$host host$host"; done >>"$HOSTS/hosts"
mount --bind "$HOSTS/hosts" /etc/hosts
for ((host = 1; host <= count; host++)); do
    unshare --net --uts --ipc --mount \
        bash -c "mount -t tmpfs tmpfs /dev/shm && touch '$HOSTS/up$host' && exec sleep infinity" &
    pid=$!
    echo "$pid" >"$HOSTS/host$host"
    while [[ ! -e $HOSTS/up$host ]]; do sleep 0.01; done
    ip link add "port$host" type veth peer name eth0 netns "$pid"
    ip link set "port$host" master bridge up
    inside=(nsenter --target "$pid" --net --uts)
    "${inside[@]}" hostname "host$host"
    "${inside[@]}" ip link set lo up
    "${inside[@]}" ip link set eth0 up
    "${inside[@]}" ip address add "10.9.8.$host/24" dev eth0
done

cat >"$HOSTS/ssh" <<'TEXT'
#!/usr/bin/env bash
# ssh [OPTIONS] HOST COMMAND ...
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec nsenter --target "$(<"$HOSTS/$host")" --net --uts --ipc --mount --wdns="$PWD" bash -c "$*"
TEXT
chmod +x "$HOSTS/ssh"

"$HOSTS/ssh" host1 "${*@Q}"
