#!/usr/bin/env bash
# Trains published rows on the data sets that you have (docs/datasets.md).
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
# VIT_WEIGHTS, timm's ViT-B/16 for ImageNet, adds rows of the protocols of domain
# generalisation if all four data sets are there, CUHK03 with the lists of its
# new protocol. ROWS='FedPav;DACS' selects them, ROWS= all of them.
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
transformer=${VIT_WEIGHTS:-} rows=${ROWS-FedPav, ;SSCU, }
if [[ ! -f $weights ]]; then
  echo "error[2]: no file WEIGHTS='$weights': docs/datasets.md says where" \
    "torchvision's ResNet-50 is" >&2
  exit 2
fi

if [[ -n $transformer && ! -f $transformer ]]; then
  echo "error[2]: no file VIT_WEIGHTS='$transformer': docs/datasets.md says" \
    "where timm's ViT-B/16 is" >&2
  exit 2
fi

step() { printf '\n== %s\n' "$1"; }

step 'check the folders'
sets=(market1501 msmt17)
for name in "${sets[@]}"; do
  fedreid data doctor --dataset="$name" --root="$root"
done
add() {
  if found=$(fedreid data doctor --dataset="$1" --root="$root" 2>&1); then
    sets+=("$1")
    echo "$found"
  else
    echo "without ${1%%:*}: ${found##*$'\n'}"
  fi
}
# Of CUHK03 DFH uses the classic protocol, and the last image of each camera as
# the query.
add cuhk03:query=last
add cuhk02
three=$((${#sets[@]} > 2))
if [[ -n $transformer ]]; then
  add cuhk03-np:boxes=labeled
fi

step 'import the weights'
mkdir -p "$work"
work=$(cd "$work" && pwd)
import() { # sets `imported` to the .safetensors file of a file of weights
  imported=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  if [[ $1 != *.safetensors ]]; then
    imported=$work/$(basename "${1%.*}").safetensors
    [[ -f $imported ]] || fedreid import-weights "$1" --out="$imported"
  fi
  echo "weights: $imported"
}
if [[ -n $transformer ]]; then
  import "$transformer"
  transformer=$imported
fi
import "$weights"

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

if ((three)); then
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

if [[ -n $transformer ]]; then
  fields[0]="model.pretrained='$transformer'"
  for protocol in 1 2; do # of the same runs
    step "domain generalisation, protocol $protocol"
    table --table="feddg/protocol$protocol" --only="$rows"
  done
fi

step "tables in $work/runs"
find "$work/runs" -name '*.md' -print -exec cat {} \;
