#!/usr/bin/env bash
# Trains published rows on the data sets that you have (docs/your_data.md).
#
#   WEIGHTS=resnet50-0676ba61.pth \
#     bash examples/real_data.sh ROOT WORKDIR [FIELD=VALUE...]
#
# ROOT has the unpacked folders of Market-1501 and MSMT17, and those of CUHK03
# and CUHK02 if you have them. WORKDIR receives the decoded images, the runs and
# the tables. WEIGHTS is torchvision's ResNet-50 for ImageNet, as .pth (PyTorch
# must be installed) or as .safetensors. SEEDS=0,1,2 trains every row three
# times. Fields, such as model.dtype=bfloat16, apply to every run.
#
# The same command resumes. If a step fails, the script ends with its error.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  echo 'usage: WEIGHTS=FILE real_data.sh ROOT WORKDIR [FIELD=VALUE...]' >&2
  exit 2
fi
root=$1 work=$2
shift 2
for pair in "$@"; do
  if [[ $pair != *=* ]]; then
    echo "error[2]: $pair is no FIELD=VALUE" >&2
    exit 2
  fi
done
weights=${WEIGHTS:-} seeds=${SEEDS:-0}
if [[ ! -f $weights ]]; then
  echo "error[2]: no file WEIGHTS='$weights': docs/your_data.md says where" \
    "torchvision's ResNet-50 is" >&2
  exit 2
fi

step() { printf '\n== %s\n' "$1"; }

step 'check the folders'
sets=(market1501 msmt17)
for name in "${sets[@]}"; do
  fedreid data doctor --dataset="$name" --root="$root"
done
# Of CUHK03 the papers of this script use the classic protocol, and the last
# image of each camera as the query.
for name in cuhk03:query=last cuhk02; do
  if found=$(fedreid data doctor --dataset="$name" --root="$root" 2>&1); then
    sets+=("$name")
    echo "$found"
  else
    echo "without ${name%%:*}: ${found##*$'\n'}"
  fi
done

step 'import the weights'
mkdir -p "$work"
work=$(cd "$work" && pwd)
imported=$(cd "$(dirname "$weights")" && pwd)/$(basename "$weights")
if [[ $weights != *.safetensors ]]; then
  imported=$work/$(basename "${weights%.*}").safetensors
  [[ -f $imported ]] || fedreid import-weights "$weights" --out="$imported"
fi
echo "weights: $imported"

step 'decode the images'
data=$work/data
for name in "${sets[@]}"; do
  fedreid data prepare --dataset="$name" --root="$root" --out="$data"
done

fields=("model.pretrained='$imported'" "$@")
table() {
  fedreid table --preset=paper --root="$data" --available --seeds="$seeds" \
    --workdir="$work/runs" "${fields[@]/#/--set=}" "$@"
}

step 'DFH, table 1: training in one place, then three clients'
table --table=dfh/table1 --only='MS -> M;FedPav;DFH'

if [[ ${#sets[@]} -gt 2 ]]; then
  step 'DFH, table 3: two clients'
  table --table=dfh/table3 --only='FedPav;DFH'
else
  # No paper has this row. A round has as many images as one of three clients.
  step 'FedPav and DFH: the cameras of MSMT17 are clients, test on Market-1501'
  recipe='dfh:paper,data.sources=("msmt17",),data.targets=("market1501",)'
  recipe+=',data.client_split=by_camera,local.steps=40'
  fedreid sweep "$recipe" --config.data.root="$data" --seeds="$seeds" \
    --grid='components=("fedpav",),("fedpav","dfh")' \
    --workdir="$work/runs/by_camera" "${fields[@]/#/--config.}"
fi

step 'FedReIDBench, table 2: the clients are parts of Market-1501'
table --table=fedreidbench_journal/table2 --only='by_identity;by_camera'

step "tables in $work/runs"
find "$work/runs" -name '*.md' -print -exec cat {} \;
