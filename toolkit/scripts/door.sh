# shellcheck shell=bash
# Runs in bash on a node of a job, as a step of it: an sshd for the one ssh that has this step's input and output. Nothing listens.
# Arguments: where sessions are, "image" or "host"; then the server that is forwarded, if there is one: a port of the node, or the path of a socket.
here=${BASH_SOURCE[0]%/*} node=${SLURMD_NODENAME:-$HOSTNAME}
# With exit code 0, since srun reports any other on the user's terminal.
refuse() {
    echo "toolkit: $1" >&2
    exit 0
}
# Of what listens (state 0A) on the port, at the loopback address or at all: the users.
users() {
    awk -v port="$(printf %04X "$1")" '
        { split($2, at, ":") }
        $4 == "0A" && at[2] == port && at[1] ~ /^0*(0100007F|01000000|FFFF00000100007F)?$/ { print $8 }
    ' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u
}
# Only servers of this user are forwarded: another one could have taken the port, or the path, before.
is_own() {
    if [[ $1 == /* ]]; then [[ -S $1 && -O $1 ]]; else [[ $(users "$1") == "$EUID" ]]; fi
}
case ${2-} in
"") ;;
/*)
    [[ -S $2 ]] || refuse "there is no socket $2 on $node"
    is_own "$2" || refuse "$2 on $node belongs to another user"
    ;;
*)
    [[ -n $(users "$2") ]] || refuse "nothing listens on port $2 of $node"
    is_own "$2" || refuse "port $2 of $node belongs to another user"
    ;;
esac
# Sessions have all CPUs of the job on the node, and not the one that Slurm binds a step of one task to; cgroups keep them within the job's.
taskset --pid --cpu-list 0-9999 $$ >/dev/null 2>&1
sshd=$(PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin type -P sshd)
none="$node has no sshd: ask the administrator for openssh-server there, or on a machine of your own: toolkit setup"
if [[ -x $sshd ]]; then
    [[ $EUID != 0 ]] || mkdir -p /run/sshd # without which sshd does not start as root
    # The command is for the user's own shell, which may be any. It takes the environment of this process, which sshd leaves out.
    start=("$sshd" -i -f "$here/sshd_config" -h "$here/host" -o "ForceCommand=bash '${here//\'/\'\\\'\'}/enter' $$ $1")
    # At level 1, a bash that sshd starts reads .bashrc, which may print or be slow. OpenSSH 7.4 cannot say it.
    "${start[@]}" -o SetEnv=SHLVL=2 -t 2>/dev/null && start+=(-o SetEnv=SHLVL=2)
else
    [[ $1 == image ]] || refuse "$none"
    # That of the image (its feature ssh). In the image, a session on "the node itself" is one in the image.
    # shellcheck disable=SC2016
    printf -v inside 'sshd=$(PATH=$PATH:/usr/sbin type -P sshd) || { echo %q >&2; exit; }; "$sshd" -i -f %q -h %q -o %q"$$ host"; exit' \
        "toolkit: $none; or an image with the feature ssh" "$here/sshd_config" "$here/host" "ForceCommand=bash $(printf %q "$here/enter") "
    start=(env SSH_ORIGINAL_COMMAND="$inside" bash "$here/enter" $$ image)
fi
if [[ -n ${2-} ]]; then
    "${start[@]}" <&0 &
    # Once the server has ended, anybody can take its port, or its path in a directory that is not this user's.
    while kill -0 $! 2>/dev/null && is_own "$2"; do sleep 0.5; done
    kill $! 2>/dev/null
else
    "${start[@]}"
fi
exit 0 # sshd ends with 255 when its client leaves
