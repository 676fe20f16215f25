"""L2RW and its method DPPT: visible-infrared, a client a camera or an entity.

  python -m launchers.main --config=configs/dppt.py[:smoke]
  python -m launchers.main --config=configs/dppt.py:synthetic,server=fedprox
  python -m launchers.main --config=configs/dppt.py:synthetic,local=agw
  python -m launchers.main --config=configs/dppt.py:synthetic,protocol=ei
  python -m launchers.main --config=configs/dppt.py:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

`server=fedavg|fedprox|fednova|moon` and `local=base|agw|dns|dppt` are rows of
table 1, `local=ca` (channel exchange alone) is one of tables 2 and 3,
`protocol=ci|ei` camera or entity independence (table 2). Clients of FedNova
forget their momentum when a round begins, as its weights demand; those of the
other servers keep it. The paper does not print how AGW* and DNS* were changed
for clients of one camera: one stream is assumed. The loss of the released code
is `dppt.loss=mixed,dppt.norm=False` with `dppt.absent=zeros,dppt.k=5` for
cameras and `dppt.target=zeros,dppt.k=3` for entities. Published numbers are in
fedreid_jax/config/tables/l2rw_numbers.py, measured ones in docs/results.md.
"""

from fedreid_jax import errors
from fedreid_jax.config import infrared, parsing

SERVERS = ('fedavg', 'fedprox', 'fednova', 'moon')
LOCALS = ('base', 'ca', 'agw', 'dns', 'dppt')
PROTOCOLS = {'ci': 'camera_independent', 'ei': 'entity_independent'}


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,server=...][,local=...][,...]`."""
  chosen = {}
  for name, choices in (
    ('server', SERVERS),
    ('local', LOCALS),
    ('protocol', PROTOCOLS),
  ):
    default = 'dppt' if name == 'local' else next(iter(choices))
    arg, chosen[name] = parsing.take_argument(arg, name, default)
    if chosen[name] not in choices:
      raise errors.ConfigError(
        f'unknown {name} {chosen[name]!r}',
        '--config',
        f'one of {", ".join(choices)}',
      )
  return parsing.recipe(arg, base(**chosen), infrared.PRESETS)


def base(server: str, local: str, protocol: str):
  """Returns the recipe before its presets."""
  components = ('fedavg',) if server == 'fedavg' else ('fedavg', server)
  if local in ('dppt', 'dns'):
    components += (local,)
  c = infrared.federated('dppt', components)
  c.data.client_split = PROTOCOLS[protocol]
  if local in ('ca', 'dppt'):
    c.augment.channel = 0.5 if protocol == 'ci' else 1.0
  elif local == 'agw':
    c.model.variant = 'agw'
    c.loss.circle, c.loss.weighted_triplet = 0.0, 1.0
    infrared.freeze_bias(c)
  elif local == 'dns':
    c.model.variant, c.dns.variant = 'dns', 'one_stream'
    c.optim.lr_multipliers = infrared.DNS_RATES
    infrared.erase(c)
    c.augment.channel, c.augment.channel_kinds = 2 / 3, 'copy'
  return c
