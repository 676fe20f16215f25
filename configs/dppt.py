"""DPPT of L2RW: visible-infrared, one client per camera or per entity.

  fedreid train dppt[:smoke]
  fedreid train dppt:synthetic,server=fedprox
  fedreid train dppt:synthetic,local=agw
  fedreid train dppt:synthetic,protocol=ei
  fedreid train dppt:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors
  fedreid train dppt:vcm,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

`vcm` and `bupt` are the settings of L2RW+ (arXiv 2503.12232v2), with tracklets
of HITSZ-VCM and of BUPTCampus.

`server=fedavg|fedprox|fednova|moon` and `local=base|agw|dns|dppt` are rows of
table 1, `local=ca` (channel exchange alone) is one of tables 2 and 3,
`protocol=ci|ei` camera or entity independence (table 2). Clients of FedNova
reset their momentum at the start of a round, as its weights require; those of
the other servers keep it. The paper does not specify how AGW* and DNS* were
changed for clients of one camera: one stream is assumed. The released loss
is `dppt.loss=mixed,dppt.norm=False` with `dppt.absent=zeros,dppt.k=5` for
cameras and `dppt.target=zeros,dppt.k=3` for entities. Published numbers are in
fedreid_jax/apps/papers/tables/l2rw.py.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,server=...][,local=...][,...]`."""
  given = parsing.argument(
    arg,
    infrared.WITH_TRACKLETS,
    server=('fedavg', 'fedprox', 'fednova', 'moon'),
    local=('dppt', 'base', 'ca', 'agw', 'dns'),
    protocol=('ci', 'ei'),
  )
  server, local = given.options['server'], given.options['local']
  cameras = given.options['protocol'] == 'ci'
  components = ('fedavg',) if server == 'fedavg' else ('fedavg', server)
  if local in ('agw', 'dns', 'dppt'):
    components += (local,)
  c = infrared.federated(
    'dppt',
    components,
    'camera_independent' if cameras else 'entity_independent',
  )
  given.apply_preset(c)
  if local in ('ca', 'dppt'):
    c.augment.channel = 0.5 if cameras else 1.0
  elif local == 'agw':
    c.loss.circle, c.loss.weighted_triplet = 0.0, 1.0
    infrared.freeze_bias(c)
  elif local == 'dns':
    c.dns.variant = 'one_stream'
    infrared.dns_rates(c)
    infrared.erase(c)
    c.augment.channel, c.augment.channel_kinds = 2 / 3, 'copy'
  return given.override(c)
