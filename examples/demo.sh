#!/usr/bin/env bash
# The main job, start to end, on real training: profile → schedule → run → report, then the same jobs
# replayed with the measured profile, simulated beside measured. Everything is written to demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-demo}
rm -rf "$out"
mkdir -p "$out"

# What `pliant demo` sets: the command may not be on the path of the shell.
[ -z "${PLIANT_PYTHON:-}" ] || pliant() { "$PLIANT_PYTHON" -m pliant "$@"; }
# Bold on a terminal alone.
bold='' plain=''
[ ! -t 2 ] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain" >&2; }
do_() { say "$ $*"; "$@"; }

jobs=(examples/jobs.jsonl --cluster examples/cluster.json)

do_ pliant profile "${jobs[@]}" --iterations 5 --warmup 1 --patience 0 -o "$out/profile.parquet"
do_ pliant schedule "${jobs[@]}" --profile "$out/profile.parquet" --policy ares --explain -o "$out/schedule.json"
# Events also go to stdout where that is no terminal; here the state directory keeps them.
do_ pliant run "$out/schedule.json" --state "$out/state" --until-done > "$out/events.jsonl"
do_ pliant report "$out/state/events.jsonl" --jobs --figures "$out/figures"

costs=(--start-cost "$out/state/events.jsonl" --rescale-cost "$out/state/events.jsonl")
do_ pliant replay "${jobs[@]}" --profile "$out/profile.parquet" --policy ares "${costs[@]}" -o "$out/replay.parquet"
do_ pliant report "$out/state/events.jsonl" --simulated "$out/replay.parquet"

# At least one job was resized and one preempted while running, and every job finished: checked, not hoped for.
do_ pliant report "$out/state/events.jsonl" --format json --expect examples/demo-expected.json -o "$out/metrics.json"
say "figures: $out/figures   metrics: $out/metrics.json   state: $out/state"
