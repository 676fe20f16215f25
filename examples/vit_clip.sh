#!/usr/bin/env bash
# Tunes CLIP's image tower over a federation, few parameters of it.
#
#   WEIGHTS=clip.pth bash examples/vit_clip.sh IMAGES WORKDIR [FIELD=VALUE...]
#
# IMAGES has a folder for each client, and the last one is the target
# (docs/photographs.md). WEIGHTS are those of OpenAI's ViT-B/16; docs/export.md says
# how a file of TorchScript is converted. Without WEIGHTS all parameters of a
# transformer are trained from random values, which shows that the images and the
# machine are ready, and no accuracy.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  echo 'usage: WEIGHTS=FILE vit_clip.sh IMAGES WORKDIR [FIELD=VALUE...]' >&2
  exit 2
fi
images=$1 work=$2
shift 2
mkdir -p "$work"

fields=(
  model.name=vit vit.size=b16 vit.pre_norm=True vit.quick_gelu=True
  vit.stride=12 model.neck=bnneck
  data.height=256 data.width=128
  'data.mean=(0.48145466,0.4578275,0.40821073)'
  'data.std=(0.26862954,0.26130258,0.27577711)'
  optim.name=adam optim.lr=3e-4
)
if [[ -n ${WEIGHTS:-} ]]; then
  imported=$work/clip.safetensors
  [[ -f $imported ]] || fedreid import-weights "$WEIGHTS" --out="$imported"
  # Of the backbone only these parameters leave a client.
  fields+=("model.pretrained=$imported" model.tune=lora 'model.tune_at=.*attn.*')
else
  fields+=('model.pretrained=')
  echo 'without WEIGHTS: random values, all parameters are trained'
fi
own=()
for field in "${fields[@]}"; do
  # A field of the command line replaces that of the script.
  [[ " $*" == *" ${field%%=*}="* ]] || own+=("$field")
done
fedreid train "fedpav:photos,data.root=$images" --workdir="$work/run" \
  "${own[@]/#/--config.}" "${@/#/--config.}"
