#!/bin/bash
# All commands of a participant of a rehearsal, in the home: join, and run each exercise.
# Each leaves its JSON, its messages and, if it failed, the JSON of explain. A line of `times` has a
# name, its exit code and its end.
#   participant.sh SOURCE PYTHON EXERCISE...
cd || exit
source=$1 python=$2
shift 2

attempt() {
    name=$1 code=0
    "$python" -m toolkit "${@:2}" >"$HOME/$name.json" 2>"$HOME/$name.messages" || code=$?
    echo "$name $code $(date +%s.%N)" >>"$HOME/times"
    return "$code"
}

attempt join workshop join "$source" mine --json --share-results || exit 0
cd mine || exit
for exercise; do
    attempt "$exercise" run --json "$exercise" && continue
    "$python" -m toolkit explain --json >"$HOME/$exercise.explain" 2>/dev/null
done
