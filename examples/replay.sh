#!/usr/bin/env bash
# Half a day of synthetic jobs on 32 GPUs, replayed under three policies and compared. Nothing trains.
# Everything is written to replay/.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-replay}
rm -rf "$out"
mkdir -p "$out"

# What `pliant demo` sets: the command may not be on the path of the shell.
[ -z "${PLIANT_PYTHON:-}" ] || pliant() { "$PLIANT_PYTHON" -m pliant "$@"; }
# Bold on a terminal alone.
bold='' plain=''
[ ! -t 2 ] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain" >&2; }
do_() { say "$ $*"; "$@"; }

do_ pliant trace synth poisson --jobs 400 --rate 30 --classes S=0.7,M=0.3 --seed 1 -o "$out/trace.jsonl"
do_ pliant replay "$out/trace.jsonl" --cluster examples/gpus.json --policy fifo,las,shadow-price \
  -o "$out/events"
do_ pliant report "$out/events" --baseline fifo
say "trace: $out/trace.jsonl   events: $out/events"
