#!/bin/bash
# The first process of a local cluster: cluster-init.sh DIRECTORY NAME USER AS_USER ACCOUNTING LIGHT SHARED...
#   DIRECTORY   of the cluster, with the files that `toolkit cluster up` wrote
#   USER        who runs the daemons and the jobs
#   AS_USER     1: we are root of a user namespace only, and the daemons shall have no privileges
#   ACCOUNTING  1: MariaDB and slurmdbd run too
#   LIGHT       1: the nodes share these namespaces, but for their host names
#   SHARED      directories below /tmp or /dev/shm that stay the same on all nodes
# It starts everything, takes in orphans, and switches nodes by the lines that arrive in run/control: an ordinary
# user's nsenter(1) has no privileges in here. All processes of the cluster die with it.
set -euo pipefail
directory=$1 name=$2 user=$3 as_user=$4 accounting=$5 light=$6
shared=("${@:7}")
package=$(dirname "$0")
log=$directory/log run=$directory/run

plain=(env)
[ "$as_user" = 0 ] || plain+=(setpriv --ambient-caps=-all --inh-caps=-all)

# Programs in the background of a script ignore INT and QUIT, and so would the jobs that they start: so each of them
# takes the signals back.

# Run a daemon; what it prints before its log is open goes to NAME.out. No cluster comes up without it.
daemon() {
    {
        trap - INT QUIT
        "${plain[@]}" "${@:2}" >"$log/$1.out" 2>&1 || :
        echo "$1 ended" >&2
        kill -USR1 1
    } &
}

# Write "ADDRESS NAME" of each node.
nodes() { tail -n +3 "$directory/etc/hosts"; }

address_of() { awk -v name="$1" '$2 == name { print $1 }' "$directory/etc/hosts"; }

link_of() {
    local address
    address=$(address_of "$1")
    echo "ve${address##*.}"
}

network() {
    hostname login
    for file in hosts nsswitch.conf; do
        [ ! -e "/etc/$file" ] || mount --bind "$directory/etc/$file" "/etc/$file"
    done
    if [ "$as_user" = 1 ]; then # sshd gives terminals to the group tty, if there is one; this user cannot
        grep -v ^tty: /etc/group >"$directory/etc/group"
        mount --bind "$directory/etc/group" /etc/group
    fi
    # For programs that call Slurm with an empty environment; all others have SLURM_CONF.
    [ ! -d /etc/slurm ] || mount --bind "$directory/etc" /etc/slurm
    ip link set lo up
    if [ "$light" = 1 ]; then # one interface with all addresses
        ip link add eth0 type bridge
        {
            echo "address add $(address_of login)/16 dev eth0"
            nodes | awk '{ print "address add " $1 "/32 dev eth0" }'
        } | ip -batch -
        ip link set eth0 up
    else # the switch into which the nodes' cables are plugged
        ip link add br0 type bridge
        ip addr add "$(address_of login)/24" dev br0
        ip link set br0 up
    fi
}

munge() {
    # In a user namespace / has no known owner, which munged refuses without --force.
    "${plain[@]}" munged --force --key-file="$directory/munge/key" --seed-file="$directory/munge/seed" \
        --pid-file="$directory/munge/pid" --socket="$run/munge.socket" --log-file="$log/munged.log"
}

# MariaDB: no network, no password, no files of the host but an empty folder; the kernel identifies the user who
# connects to the socket. All is in a directory of the owner's only, even if the one above is not.
database() {
    local data=$directory/db socket=$directory/db/mysql.sock client
    mkdir -m 700 "$data" "$data/files"
    "${plain[@]}" mariadb-install-db --no-defaults --user="$user" --datadir="$data/data" \
        --auth-root-authentication-method=socket --auth-root-socket-user="$user" --skip-test-db >/dev/null
    touch "$log/mariadb.log"
    daemon mariadb mariadbd --no-defaults --user="$user" --datadir="$data/data" --socket="$socket" \
        --pid-file="$run/mysql.pid" --skip-networking --secure-file-priv="$data/files" --local-infile=OFF \
        --skip-symbolic-links --innodb-buffer-pool-size=64M --log-error="$log/mariadb.log"
    client=(mariadb --no-defaults --socket="$socket" --user="$user" --execute)
    await "${client[@]}" 'select 1'
    "${plain[@]}" "${client[@]}" 'create database slurm_acct_db'
    # slurmdbd has no option for the socket; its client library reads this variable.
    daemon slurmdbd env MYSQL_UNIX_PORT="$socket" slurmdbd -D
    await sacctmgr --immediate --quiet add cluster "$name"
}

# Repeat a command until it succeeds.
await() {
    for _ in {1..300}; do
        ! timeout 15 "${plain[@]}" "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    echo "no answer to: $*" >&2
    return 1
}

# Switch a node on, with its network cable plugged in.
start() {
    if [ "$light" = 1 ]; then
        {
            trap - INT QUIT
            # shellcheck disable=SC2016  # the inner bash expands
            exec unshare --uts bash -c 'hostname "$1"; exec "${@:2}"' - "$1" \
                "${plain[@]}" slurmd -D -N "$1" -f "$directory/etc/slurm.conf" >"$log/slurmd.$1.out" 2>&1
        } &
        return
    fi
    local box link
    link=$(link_of "$1")
    unshare --uts --mount --ipc --net --pid --fork --kill-child bash "$package/node-init.sh" "$directory" "$1" \
        "$(address_of "$1")" "$as_user" ${shared[@]+"${shared[@]}"} >"$log/init.$1.log" 2>&1 &
    box=$!
    while [ "$(readlink "/proc/$box/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.005; done
    ip link delete "$link" 2>/dev/null || : # of the node before it was killed
    ip link add "$link" type veth peer name eth0 netns "$box"
    ip link set "$link" master br0 up
}

step() { echo "$1" >"$run/step"; }

boot() {
    step network
    network
    step munge
    munge
    if [ "$accounting" = 1 ]; then
        step database
        database
    fi
    step controller
    daemon slurmctld slurmctld -D
    step nodes
    while read -r _ node; do start "$node"; done < <(nodes)
    step started
}

# Handlers that do nothing: daemons and jobs would inherit an ignored signal.
trap : INT HUP TERM
trap 'exit 1' USR1
mount -t proc proc /proc
{
    trap '[ $? = 0 ] || kill -USR1 1' EXIT
    trap - INT QUIT
    boot
} &
# `up` writes a line at the end. If it dies before, the line is empty, and the cluster ends.
read -r line || :
[ "$line" = keep ] || exit 1
trap : USR1
exec <>"$run/control"
while read -r verb node; do
    (
        case $verb in
            start) start "$node" ;;
            cut) ip link set "$(link_of "$node")" down ;;
            join) ip link set "$(link_of "$node")" up ;;
        esac
    ) &
    wait $! || echo "$verb $node failed" >&2
done
