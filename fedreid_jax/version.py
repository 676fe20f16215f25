"""The version of the package.

Modules read it here, since `fedreid_jax` itself offers what they define.
"""

__version__ = '0.2.0'
