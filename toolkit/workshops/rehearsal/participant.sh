#!/bin/bash
# All commands of a participant of a rehearsal, in the home: join, and run each exercise.
# Each leaves its JSON, its messages and, if it failed, the JSON of explain. A line of `times` has a
# name, its exit code, begin and end.
#   participant.sh LIMIT SOURCE PYTHON EXERCISE...
cd || exit
limit=$1 source=$2 python=$3
shift 3

attempt() {
    name=$1 began=$(date +%s.%N) code=0
    timeout --foreground --signal KILL "$limit" "$python" -m toolkit "${@:2}" \
        >"$HOME/$name.json" 2>"$HOME/$name.messages" || code=$?
    echo "$name $code $began $(date +%s.%N)" >>"$HOME/times"
    return "$code"
}

attempt join workshop join "$source" mine --json --share-results || exit 0
cd mine || exit
for exercise; do
    attempt "$exercise" run --json "$exercise" && continue
    "$python" -m toolkit explain --json >"$HOME/$exercise.explain" 2>/dev/null
    if ((code == 124 || code == 137)); then # others wait for the nodes of its job
        "$python" -m toolkit cancel "$exercise-0001" >/dev/null 2>&1
    fi
done
