"""Federated learning for retinal images, with a model at each hospital that says how sure it is.

Nothing heavy is imported here: a site pays every import again in each simulator task.
"""

from fedretina.version import __version__

__all__ = ["__version__"]
