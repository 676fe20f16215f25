"""What a site tells the server of its errors.

The text of an error may have names of files, folders and persons, in many
forms. Errors about a message of the server have only what the server sent and
the fields that both compare, and are told in full. Of all others the server
learns the kind, and the operator of the site reads the rest in its output.
"""

from fedreid_jax import errors

SERVER = 'message of the server'
SITE = 'site'
_KINDS = {
  errors.ConfigError: 'its configuration',
  errors.DataError: 'its images',
  errors.IntegrityError: 'a file that is missing or damaged',
  errors.DivergedError: 'its training',
  errors.ResourceError: 'memory, a disk or a device',
  errors.LockedError: 'a folder in use',
}


def of(error: errors.FedReIDError) -> tuple[int, str, str, str]:
  """Returns the exit code and the three texts of an error that are sent."""
  if error.where in (SERVER, SITE):
    return error.exit_code, error.what, error.where, error.fix
  kind = _KINDS.get(type(error), 'the program')
  fix = 'its operator reads the rest in the output of fedreid site'
  return error.exit_code, f'an error about {kind}', SITE, fix
