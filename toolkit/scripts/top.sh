# shellcheck shell=bash
# Runs in bash on each node of a job, for `toolkit top`: what the job's processes use, a line each, fields separated by tabs.
# The clock ticks that they have used are read twice, a second apart.
all() {
    local file
    grep -lzx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ 2>/dev/null | while read -r file; do
        grep -qzx "SLURM_STEP_ID=$SLURM_STEP_ID" "$file" 2>/dev/null || basename "${file%/environ}"
    done
}
ticks() {
    local part
    read -r -a part < <(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) && echo "$((part[11] + part[12]))"
}
numbers() {
    tr '\0\n\036' '\n  ' <"/proc/$1/environ" 2>/dev/null |
        grep -E '^(RANK|HOROVOD_RANK|OMPI_COMM_WORLD_RANK|PMIX_RANK|SLURM_PROCID)=' | tr '\n' ' '
}

host=${SLURMD_NODENAME:-$HOSTNAME}
second=$(getconf CLK_TCK)
declare -A before
while read -r pid; do before[$pid]=$(ticks "$pid"); done < <(all)
sleep 1
for pid in "${!before[@]}"; do
    after=$(ticks "$pid")
    if [[ -z $after || -z ${before[$pid]} ]]; then continue; fi # it has ended meanwhile
    memory=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null)
    printf 'process\t%s\t%s\t%s\t%s\t%s\t%s\n' "$host" "$pid" "$(((after - before[$pid]) * 100 / second))" "${memory:-0}" \
        "$(numbers "$pid")" "$(tr '\0\n\t\036' '    ' <"/proc/$pid/cmdline" 2>/dev/null)"
done
if command -v nvidia-smi >/dev/null; then
    form=("--format=csv,noheader,nounits")
    nvidia-smi --query-compute-apps=pid,used_memory "${form[@]}" 2>/dev/null | while IFS=', ' read -r pid used; do
        printf 'memory\t%s\t%s\t%s\n' "$host" "$pid" "$used"
    done
    nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total "${form[@]}" 2>/dev/null |
        while IFS=', ' read -r number busy used total; do
            printf 'gpu\t%s\t%s\t%s\t%s\t%s\n' "$host" "$number" "$busy" "$used" "$total"
        done
fi
exit 0
