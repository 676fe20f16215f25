#!/usr/bin/env bash
# Finds where else in a video a person is seen.
#
#   pip install -e '.[video]'
#   bash examples/real_clip.sh VIDEO WORKDIR [FLAG...]
#
# WORKDIR receives a folder of the name of the video: persons as images, their
# vectors, and the page search.html, which shows the person and the other places.
# Flags are those of `fedreid search`, such as --k=20.
#
#   QUERY=IMAGE    the person, an image file; by default the one of the best score
#   EVERY=3        one of so many frames is searched
#   DETECT=hog     OpenCV's detector, or the file of another one (docs/search.md)
#   APART=5        seconds between two images of the page
#   WEIGHTS=NAME   weights of the package (fedreid list weights)
#   RUN=DIR        the model of a run of your own in place of WEIGHTS
#
# The same command with another QUERY searches again, without a search for
# persons. Give another WORKDIR for another model, detector or number of frames.
# If a step fails, the script ends with its error.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  echo 'usage: real_clip.sh VIDEO WORKDIR [FLAG...]' >&2
  exit 2
fi
video=$1 work=$2
shift 2
if [[ ! -f $video ]]; then
  echo "error[3]: no file VIDEO='$video'" >&2
  exit 3
fi
model=(--weights="${WEIGHTS:-mobilenet_v2-synthetic}")
[[ -z ${RUN:-} ]] || model=(--workdir="$RUN")

step() { printf '\n== %s\n' "$1"; }

out=$work/$(basename "$video")
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [[ ! -f $out/vectors.json ]]; then
  step 'find the persons and embed them'
  # What an interrupted command has left.
  rm -rf "$out/persons"
  fedreid embed "${model[@]}" --images="$video" --every="${EVERY:-3}" \
    --detect="${DETECT:-hog}" --crops="$out/persons" --out="$out/vectors.npy"
fi

step 'where else is this person?'
best() {
  # Names of videos may have commas.
  python3 - "$1" <<'END'
import csv, sys
with open(sys.argv[1], encoding='utf-8', newline='') as file:
  print(max(csv.DictReader(file), key=lambda row: float(row['score']))['crop'])
END
}
query=${QUERY:-$out/persons/$(best "$out/persons/boxes.csv")}
fedreid search "${model[@]}" --gallery="$out/vectors.npy" --query="$query" \
  --out="$out/search.html" --apart="${APART:-5}" "$@"
