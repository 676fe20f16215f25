"""A SuperLink and SuperNodes of Flower on this computer, with TLS and keys."""

import contextlib
import datetime
import ipaddress
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent


def free_port() -> int:
  with socket.socket() as one:
    one.bind(('127.0.0.1', 0))
    return one.getsockname()[1]


def _pem(key) -> bytes:
  from cryptography.hazmat.primitives import serialization as form

  return key.private_bytes(
    form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
  )


def make_certificates(folder: Path) -> None:
  """Writes ca.pem, server.pem and server.key for 127.0.0.1."""
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes
  from cryptography.hazmat.primitives import serialization as form
  from cryptography.hazmat.primitives.asymmetric import ec

  now = datetime.datetime.now(datetime.UTC)

  def certificate(name, key, issuer, signer, authority):
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
      x509.CertificateBuilder()
      .subject_name(subject)
      .issuer_name(issuer or subject)
      .public_key(key.public_key())
      .serial_number(x509.random_serial_number())
      .not_valid_before(now - datetime.timedelta(hours=1))
      .not_valid_after(now + datetime.timedelta(days=1))
      .add_extension(x509.BasicConstraints(authority, None), critical=True)
      .add_extension(
        x509.SubjectAlternativeName(
          [
            x509.DNSName('localhost'),
            x509.IPAddress(ipaddress.ip_address('127.0.0.1')),
          ]
        ),
        critical=False,
      )
    )
    return made.sign(signer, hashes.SHA256())

  ca, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
  root = certificate('root', ca, None, ca, True)
  own = certificate('localhost', server, root.subject, ca, False)
  (folder / 'ca.pem').write_bytes(root.public_bytes(form.Encoding.PEM))
  (folder / 'server.pem').write_bytes(own.public_bytes(form.Encoding.PEM))
  (folder / 'server.key').write_bytes(_pem(server))


def make_key(path: Path) -> Path:
  """Writes a private key for a site and, with .pub, its public key."""
  from cryptography.hazmat.primitives import serialization as form
  from cryptography.hazmat.primitives.asymmetric import ec

  key = ec.generate_private_key(ec.SECP384R1())
  path.write_bytes(
    key.private_bytes(
      form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
    )
  )
  public = key.public_key().public_bytes(
    form.Encoding.OpenSSH, form.PublicFormat.OpenSSH
  )
  path.with_suffix('.pub').write_bytes(public + b'\n')
  return path


class Loopback(contextlib.ExitStack):
  """Processes of Flower and of sites, which end with it."""

  def __init__(self, folder: Path):
    super().__init__()
    self.folder, self.port = folder, free_port()
    self.address = f'127.0.0.1:{self.port}'
    home = folder / 'flwr'
    home.mkdir()
    # With the devices of a machine, a device a core, not those of the tests.
    own = {k: v for k, v in os.environ.items() if k != 'JAX_NUM_CPU_DEVICES'}
    self.environment = own | {
      'FLWR_HOME': str(home),
      'FLWR_TELEMETRY_ENABLED': '0',
      'FLWR_DISABLE_UPDATE_CHECK': '1',
      'JAX_PLATFORMS': 'cpu',
      'PATH': f'{BIN}:{os.environ["PATH"]}',
    }
    make_certificates(folder)
    (home / 'config.toml').write_text(
      f'[superlink]\ndefault = "here"\n[superlink.here]\n'
      f'address = "{self.address}"\n'
      f'root-certificates = "{folder / "ca.pem"}"\n'
    )

  def start(self, name: str, *command: object) -> subprocess.Popen:
    """Starts a process with its output in NAME.log."""
    with (self.folder / f'{name}.log').open('w') as log:
      made = subprocess.Popen(
        [BIN / str(command[0]), *map(str, command[1:])],
        env=self.environment,
        stdout=log,
        stderr=log,
        cwd=self.folder,
      )
    self.callback(_end, made)
    return made

  def run(self, *command: object) -> str:
    """Runs a command and returns its output."""
    done = subprocess.run(
      [BIN / str(command[0]), *map(str, command[1:])],
      env=self.environment,
      capture_output=True,
      text=True,
      cwd=self.folder,
      timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  def superlink(self) -> subprocess.Popen:
    """Starts the SuperLink and waits until it listens."""
    made = self.start(
      'superlink',
      'flower-superlink',
      f'--ssl-ca-certfile={self.folder / "ca.pem"}',
      f'--ssl-certfile={self.folder / "server.pem"}',
      f'--ssl-keyfile={self.folder / "server.key"}',
      '--enable-supernode-auth',
      '--disable-runtime-dependency-installation',
      f'--database={self.folder / "superlink.db"}',
      '--host=127.0.0.1',
      f'--port={self.port}',
    )
    self.wait(lambda: _listens(self.port), 'the SuperLink', made)
    return made

  def register(self, name: str) -> Path:
    """Makes the key of a site and registers it; returns its private key."""
    key = make_key(self.folder / f'{name}.key')
    self.run('flwr', 'supernode', 'register', key.with_suffix('.pub'), 'here')
    return key

  def supernode(
    self, name: str, key: Path, at: Path, authorities: Path | None = None
  ) -> subprocess.Popen:
    """Starts a SuperNode beside the socket of a site.

    Args:
      name: of the site.
      key: its private key.
      at: its socket.
      authorities: folder with `ca.pem`; that of the SuperLink if None.
    """
    return self.start(
      f'supernode-{name}',
      'flower-supernode',
      f'--superlink={self.address}',
      f'--root-certificates={(authorities or self.folder) / "ca.pem"}',
      f'--auth-supernode-private-key={key}',
      f'--node-config=socket="{at}"',
      f'--port={free_port()}',
    )

  def wait(self, ready, what: str, *processes: subprocess.Popen) -> None:
    """Waits for a condition, for at most five minutes."""
    end = time.monotonic() + 300
    while not ready():
      dead = [one.args for one in processes if one.poll() is not None]
      assert not dead and time.monotonic() < end, f'{what}: {dead}'
      time.sleep(0.2)


def _listens(port: int) -> bool:
  with socket.socket() as one:
    return one.connect_ex(('127.0.0.1', port)) == 0


def _end(process: subprocess.Popen) -> None:
  process.terminate()
  try:
    process.wait(20)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
