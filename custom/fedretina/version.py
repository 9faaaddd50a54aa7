"""The version of the package, which is also the version of its protocol and of the state it writes."""

__version__ = "0.1.0"
