#!/bin/bash
# Run a command in a clone of this checkout on a Debian machine where nothing is installed yet.
#
#   tests/fresh/fresh-debian.sh [--dir DIR] [--again] [--] [COMMAND...]      (default: make demo; as root)
#
# The "machine" is a debootstrap of the host's Debian release, entered as its own root (pivot_root: Apptainer refuses to work
# in a plain chroot) with process, mount, host name and IPC namespaces and a /dev of its own, in which /dev/fuse is 0600 as the
# kernel makes it. What lets a machine reach the outside comes from the host: name resolution, certificates, apt's mirror and
# proxies, pip's configuration and the directories that it names.
#
#   --dir DIR   where the machine's root lies (default: /var/tmp/fresh-debian); DIR/base is kept and copied for each new machine
#   --again     go on with the machine of the last call instead of making a new one; the clone is brought up to date
#   --suite S   the Debian release (default: the host's)
set -euo pipefail

dir=/var/tmp/fresh-debian again='' suite=''
while [ $# -gt 0 ]; do
    case $1 in
    --dir) dir=$2; shift 2 ;;
    --again) again=1; shift ;;
    --suite) suite=$2; shift 2 ;;
    --) shift; break ;;
    -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 64 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- make demo
[ "$(id -u)" = 0 ] || { echo "fresh-debian: run it as root" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "fresh-debian: needs debootstrap (apt-get install debootstrap)" >&2; exit 72; }

checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
suite=${suite:-$codename}
# shellcheck disable=SC2016  # $(REPO_URI) is apt's own format
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | awk -v r="$codename" '$2 == r { print $1; exit }')
[ -n "$mirror" ] || { echo "fresh-debian: apt names no mirror of $codename here" >&2; exit 72; }
base=$dir/base-$suite root=$dir/root

make_base() {
    [ ! -e "$base/.complete" ] || return 0
    compgen -G '/usr/share/keyrings/debian-archive-keyring.*' >/dev/null ||
        { echo "fresh-debian: needs Debian's keys (apt-get install debian-archive-keyring)" >&2; exit 72; }
    echo "fresh-debian: debootstrap of $suite into $base"
    rm -rf "$base"
    mkdir -p "$base"
    # What the README asks a newcomer to have: make and git. Certificates come with any machine that can clone by https.
    debootstrap --force-check-gpg --variant=minbase --include=make,git,ca-certificates "$suite" "$base" "$mirror" >"$dir/debootstrap.log" 2>&1 ||
        { tail -n 20 "$dir/debootstrap.log" >&2; exit 71; }
    rm -rf "$base"/var/lib/apt/lists/* "$base"/var/cache/apt/archives/*.deb  # a fresh machine has neither
    touch "$base/.complete"
}

# The host's ways to the outside. pip's files are copied; the directories that they or the environment name are bound later.
copy_from_host() {
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    echo fresh >"$root/etc/hostname"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    apt-config dump Acquire | grep -i proxy >"$root/etc/apt/apt.conf.d/90host-proxy" || rm -f "$root/etc/apt/apt.conf.d/90host-proxy"
    # A mirror of a rolling suite may be weeks behind, and its Release file past its date. The machine is for tests only.
    [ "$suite" != sid ] || echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/91rolling"
    [ ! -f /etc/pip.conf ] || cp -L /etc/pip.conf "$root/etc/pip.conf"
    local file
    for file in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
        [ ! -f "$file" ] || install -D -m 644 "$file" "$root/root/${file#"$HOME/"}"
    done
}

# A package index in a directory ("simple") refers to files beside it.
named_by_pip() {
    { cat "$root/etc/pip.conf" "$root/root/.config/pip/pip.conf" "$root/root/.pip/pip.conf" 2>/dev/null; env | grep '^PIP_'; } |
        grep -oE '(file://)?/[^ ,"'\'']+' | sed -e 's,^file://,,' -e 's,/simple/*$,,' | sort -u |
        while read -r path; do [ ! -d "$path" ] || echo "$path"; done || true
}

clone() {
    if [ -d "$root/root/toolkit/.git" ]; then
        git -C "$root/root/toolkit" fetch -q "$checkout" HEAD
        git -C "$root/root/toolkit" reset -q --hard FETCH_HEAD
    else
        git clone -q --no-hardlinks "$checkout" "$root/root/toolkit"
    fi
}

mkdir -p "$dir"
exec 9>"$dir/.lock"  # held until the command ends, as it is handed on
flock -n 9 || { echo "fresh-debian: another run uses $dir; choose another with --dir" >&2; exit 75; }
if [ -z "$again" ] || [ ! -d "$root" ]; then
    make_base
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$base" "$root"
    copy_from_host
fi
clone
echo "fresh-debian: $suite, commit $(git -C "$root/root/toolkit" rev-parse --short HEAD), running: $*"

# Everything below happens in the new machine's namespaces; all of it is gone when the command ends.
export FRESH_ROOT=$root
FRESH_BINDS=$(named_by_pip)
export FRESH_BINDS
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --mount --pid --uts --ipc --fork --kill-child --propagation private bash -euc '
    root=$FRESH_ROOT
    mount --bind "$root" "$root"
    hostname fresh
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    while read -r name major minor mode; do
        mknod "$root/dev/$name" c "$major" "$minor"
        chmod "$mode" "$root/dev/$name"
    done <<LIST
null 1 3 666
zero 1 5 666
full 1 7 666
random 1 8 666
urandom 1 9 666
tty 5 0 666
fuse 10 229 600
LIST
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for pair in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${pair%:*}" "$root/dev/${pair#*:}"; done
    for path in $FRESH_BINDS; do
        mkdir -p "$root$path"
        mount --rbind "$path" "$root$path"
    done
    mkdir -p "$root/.host"
    cd "$root"
    pivot_root . .host
    umount -l /.host
    rmdir /.host
    cd /root/toolkit
    keep=()
    while IFS= read -r pair; do keep+=("$pair"); done < <(env | grep -E "^(PIP_|CI=|TERM=|SSL_CERT_FILE=|[A-Za-z]+_(proxy|PROXY)=)")
    exec env -i HOME=/root USER=root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${keep[@]}" "$@"
' fresh "$@"
