"""FedPav (FedReIDBench, ACM MM 2020 and its journal version, Algorithm 1).

The loss is cross-entropy; all parameters except the classifier are averaged by
number of images. The recipes of the federated family start from this one.

  fedreid train fedpav[:smoke|nine]
  fedreid train fedpav:photos,data.root=DIR
  fedreid train fedpav:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

`paper` is the published setting of the nine data sets (journal version, section
3.5 and table 3, figures 2 and 4): ResNet-50 with a bottleneck of 512, batches
of 32, one local epoch, 300 rounds, rate 0.05 (backbone a tenth), constant.
Published rank-1 of the global / local model (journal version, table 3; the
conference's tables 3 to 8 are in
`fedreid_jax/apps/papers/tables/fedreidbench.py`): MSMT17 41.0 / 48.3, DukeMTMC
74.3 / 78.1, Market-1501 83.4 / 83.6, CUHK03-NP 31.7 / 39.5, PRID2011 37.7 /
50.7, CUHK01 73.4 / 80.7, VIPeR 48.1 / 52.0, 3DPeS 69.2 / 80.6, i-LIDS 79.9 /
84.7. Measured results are in docs/results/claims.md.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav', ('fedpav',))
  given.apply_preset(c)
  return given.override(c)
