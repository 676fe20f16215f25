"""FedPav + server-side knowledge distillation (FedReIDBench).

Table rows: ACM MM 2020, figures 7, 11, 12; journal version, figure 4. The
public set there is CUHK02; here it is a synthetic domain, or `data.public`.

  fedreid train fedpav_kd[:smoke|nine]
  fedreid train fedpav_kd:photos,data.root=DIR \
    --config.data.public=NAME
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav_kd', ('fedpav', 'kd'))
  given.apply_preset(c)
  c.data.public = presets.PUBLIC[given.preset]
  return given.override(c)
